"""Perform tasks on this machine: one after the other, or several at once in processes of their own.

On one GPU, processes take turns unless NVIDIA's Multi-Process Service (MPS) is running. It is
started for the time of the tasks if it is installed, and each process then uses a part of the GPU.
A task that is deterministic may use the whole GPU, so that it computes exactly what it computes
alone.
"""

import os
import signal
import threading
import traceback
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import connection, get_context
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from pathlib import Path

import torch

from antipode.devices import pick_device
from antipode.launch.memory import Room, most_at_once
from antipode.launch.mps import part_of_gpu, shared_gpu
from antipode.launch.task import TASK_ERRORS, Board, Task

MOST = 64  # tasks at once


def perform(
    tasks: Sequence[Task],
    *,
    at_once: int | str = 1,
    device: str = "auto",
    quiet: bool = False,
    guess: str = "",
) -> dict[Path, str]:
    """Perform tasks and return the folders of those that failed, with a sentence each.

    Args:
        tasks: the tasks, in the order in which they start.
        at_once: how many tasks run at a time, or "auto": see `memory.most_at_once`.
        device: the device that they use: auto, cpu, cuda or mps.
        quiet: whether to print nothing.
        guess: what to print as the time left before the first task has ended.
    """
    kind = pick_device(device)
    if kind.type != "cuda":
        guess = guess or "the time left is known after the first run"
    board = Board(tasks, quiet, guess)
    if check_at_once(at_once) == 1 or len(tasks) < 2:
        for task in tasks:
            board.start(task)
            try:
                task.do(quiet)
            except TASK_ERRORS as error:
                board.end(task, str(error))
            else:
                board.end(task)
        return board.failed
    with shared_gpu(kind):
        _side_by_side(tasks, at_once, kind, board)
    return board.failed


def check_at_once(at_once: int | str) -> int:
    """Return the number of tasks at once, 0 for "auto". Raises ValueError for another value."""
    if at_once == "auto":
        return 0
    try:
        number = int(at_once)
    except ValueError:
        number = 0
    if not 1 <= number <= MOST:
        raise ValueError(f"at most {MOST} runs can train at once, and at least 1, got {at_once!r}")
    return number


@dataclass
class Worker:
    """A process that performs one task.

    Args:
        task: the task.
        process: the process.
        answer: receives the error sentence of the task, empty if it succeeded.
        lifeline: closed when this process ends, however it ends; the worker then stops.
    """

    task: Task
    process: SpawnProcess
    answer: Connection
    lifeline: Connection

    def error(self) -> str:
        """Return the sentence of a worker that has ended, empty if its task succeeded."""
        self.process.join()
        with suppress(EOFError, OSError):
            return str(self.answer.recv())
        code = self.process.exitcode or 0
        how = f"was killed by signal {-code}" if code < 0 else f"ended with status {code}"
        return f"its process {how}; the same command resumes it"


def _side_by_side(
    tasks: Sequence[Task], at_once: int | str, device: torch.device, board: Board
) -> None:
    """Perform tasks in processes, as many at a time as asked for or as fit."""
    waiting = list(tasks)
    running: list[Worker] = []
    most = check_at_once(at_once)
    room = Room(device) if most == 0 else None
    try:
        while waiting or running:
            while waiting and len(running) < (most or 1):
                board.start(waiting[0], len(running))
                running.append(_started(waiting.pop(0), max(most, 1), device))
            connection.wait([worker.process.sentinel for worker in running], timeout=0.5)
            for worker in [worker for worker in running if not worker.process.is_alive()]:
                running.remove(worker)
                board.end(worker.task, worker.error())
            if room is not None and most == 0:
                most = most_at_once(tasks, room, running[0].task.folder if running else None)
    finally:
        _stop(running)


def _started(task: Task, share: int, device: torch.device) -> Worker:
    """Start the process of a task. It gets its share of the CPU cores and of the GPU."""
    context = get_context("spawn")
    answer, theirs = context.Pipe(duplex=False)
    end, lifeline = context.Pipe(duplex=False)
    # on a CPU, sums depend on the number of threads; a GPU needs few
    threads = max(1, (os.cpu_count() or 1) // share) if device.type == "cpu" else 0
    process = context.Process(target=_work, args=(task, theirs, end, threads))
    with part_of_gpu(1 if task.deterministic else share, device):
        process.start()
    theirs.close()
    end.close()
    return Worker(task, process, answer, lifeline)


def _stop(running: Sequence[Worker]) -> None:
    """Ask processes to stop, which keeps their last step, and wait for them."""
    for worker in running:
        worker.process.terminate()
    for worker in running:
        worker.process.join()


def _work(task: Task, answer: Connection, lifeline: Connection, threads: int) -> None:
    """Perform a task in this process and send the sentence of its error, empty for none."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches this process as SIGTERM
    threading.Thread(target=_stop_with, args=(lifeline,), daemon=True).start()
    if threads:
        torch.set_num_threads(threads)
    try:
        task.do(True)
    except TASK_ERRORS as error:
        answer.send(str(error) or type(error).__name__)
    except KeyboardInterrupt:
        answer.send("interrupted; the same command resumes it")
    except BaseException as error:
        traceback.print_exc()
        answer.send(f"{type(error).__name__}: {error}")
    else:
        answer.send("")


def _stop_with(lifeline: Connection) -> None:
    """Stop this process when the other end of a pipe is closed."""
    with suppress(EOFError, OSError):
        lifeline.recv()
    os.kill(os.getpid(), signal.SIGTERM)
