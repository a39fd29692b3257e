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
from numbers import Integral
from pathlib import Path

import torch

from antipode import threads
from antipode.devices import pick_device
from antipode.exits import failure, terminable
from antipode.launch.memory import Room, most_at_once
from antipode.launch.mps import part_of_gpu, shared_gpu
from antipode.launch.task import Board, Task
from antipode.names import brief

MOST = 64  # tasks at once
LONGEST = 4000  # characters of the sentence of an error


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
            board.end(task, _performed(task, quiet))
        return board.failed
    with shared_gpu(kind):
        _side_by_side(tasks, at_once, kind, board)
    return board.failed


def _performed(task: Task, quiet: bool) -> str:
    """Perform a task in this process, and return the sentence of its error, empty for none.

    A bug in antipode is raised again, and so is an interruption.
    """
    try:
        task.do(quiet)
    except Exception as error:
        sentence, _ = failure(error)
        if not sentence:
            raise
        return sentence
    return ""


def check_at_once(at_once: int | str) -> int:
    """Return the number of tasks at once, 0 for "auto". Raises ValueError for another value."""
    if at_once == "auto":
        return 0
    try:
        number = int(at_once) if isinstance(at_once, str | Integral) else 0
    except ValueError:
        number = 0
    if not 1 <= number <= MOST:
        raise ValueError(
            f"the number of runs at once must be 1 to {MOST} or auto, got {brief(at_once)}"
        )
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
                share = min(max(most, 1), len(waiting) + len(running))
                running.append(_started(waiting.pop(0), share, device))
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
    count = cpu_threads(share) if device.type == "cpu" else 0
    process = context.Process(target=_work, args=(task, theirs, end, count))
    with part_of_gpu(1 if task.deterministic else share, device):
        process.start()
    theirs.close()
    end.close()
    return Worker(task, process, answer, lifeline)


def cpu_threads(share: int) -> int:
    """Return the number of threads of each of some processes, 0 to leave it as it is.

    Sums depend on it in their last digits, so a number that the user has set is kept.
    """
    by_user = any(name in os.environ for name in threads.COUNTS) and not threads.chosen()
    return 0 if by_user else max(1, threads.cores() // share)


def _stop(running: Sequence[Worker]) -> None:
    """Ask processes to stop, which keeps their last step, and wait for them."""
    for worker in running:
        worker.process.terminate()
    for worker in running:
        worker.process.join()


def _work(task: Task, answer: Connection, lifeline: Connection, count: int) -> None:
    """Perform a task in this process and send the sentence of its error, empty for none.

    SIGTERM is an interruption at any time. A process that it ended at once could disturb the other
    processes of MPS while they write their checkpoints.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches this process as SIGTERM
    threading.Thread(target=_stop_with, args=(lifeline,), daemon=True).start()
    if count:
        torch.set_num_threads(count)
    try:
        with terminable():
            task.do(True)
    except KeyboardInterrupt:
        sentence = "interrupted; the same command resumes it"
    except BaseException as error:
        sentence, _ = failure(error)
        if not sentence:
            traceback.print_exc()
            sentence = f"{type(error).__name__}: {error}"
    else:
        sentence = ""
    # the parent reads it when this process has ended, so it must fit into the pipe
    answer.send(sentence[:LONGEST])


def _stop_with(lifeline: Connection) -> None:
    """Stop this process when the other end of a pipe is closed."""
    with suppress(EOFError, OSError):
        lifeline.recv()
    os.kill(os.getpid(), signal.SIGTERM)
