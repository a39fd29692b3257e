"""What a SLURM job does: it performs one task, and requeues itself before its time limit.

SLURM sends SIGUSR2 some time before the limit, and some clusters do so before a preemption. The run
then ends its step, writes a checkpoint, and the job goes back into the queue. A job that SLURM
requeues or cancels itself gets SIGTERM: the run writes a checkpoint and ends.
"""

import os
import signal
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from antipode.launch import slurm_queue
from antipode.launch.record import Outcome, jobs_folder, write_outcome
from antipode.launch.task import TASK_ERRORS, Task
from antipode.wording import command_line

SOON = signal.SIGUSR2  # the time limit is near; submitit asks SLURM for this signal
RESULTS = ("backbone.safetensors", "scores.json", "analysis.json")
IDLE = 3  # attempts in a row without progress, after which a job is not requeued


@dataclass(frozen=True)
class Work:
    """A task as the function of a job.

    Args:
        task: the task.
        flags: whether messages name flags of the command line.
    """

    task: Task
    flags: bool = True

    def __call__(self) -> None:
        """Perform the task in this process, which is one rank of the job."""
        began = time.monotonic()
        job = os.environ["SLURM_JOB_ID"]
        attempts = int(os.environ.get("SLURM_RESTART_COUNT", "0")) + 1
        join_ranks(os.environ, attempts)
        before = newest(self.task.folder)
        with ExitStack() as stack:
            if self.flags:
                stack.enter_context(command_line())
            received = stack.enter_context(stoppable())
            try:
                error = self._error()
            except KeyboardInterrupt as stop:
                if SOON in received and (idle := self._again(job, before)):
                    error = idle
                else:
                    print(str(stop) or "stopped", file=sys.stderr, flush=True)
                    _leave(130)
            seconds = time.monotonic() - began
            if error or os.environ.get("RANK", "0") == "0":
                write_outcome(self.task.folder, Outcome(job, error, seconds, attempts))
            if error:
                print(f"failed: {error}", file=sys.stderr, flush=True)
                _leave(1)

    def _error(self) -> str:
        """Perform the task; return the sentence of its error, empty if it succeeded."""
        try:
            self.task.do(False)
        except TASK_ERRORS as error:
            return str(error) or type(error).__name__
        except ConnectionError as error:  # another rank has ended, and reports why
            print(error, file=sys.stderr, flush=True)
            _leave(1)
        except Exception as error:
            traceback.print_exc()
            return f"{type(error).__name__}: {error}"
        return ""

    def _again(self, job: str, before: int) -> str:
        """Put the job back into the queue; return a sentence if that would not help or failed."""
        if os.environ.get("RANK", "0") != "0":
            _leave(0)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # SLURM sends it while the job is requeued
        idle = 0 if newest(self.task.folder) > before else _idle(self.task.folder, job) + 1
        _note_idle(self.task.folder, job, idle)
        if idle >= IDLE:
            return (
                f"{idle} times in a row its time limit ended before it wrote a checkpoint or a "
                "score: give it more hours"
            )
        print("the time limit is near: the job goes back into the queue", file=sys.stderr)
        return "" if slurm_queue.requeue(job) else f"scontrol could not requeue job {job}"

    def checkpoint(self) -> Any:
        """Return what submitit submits again if a signal arrives before the task starts."""
        from submitit.helpers import DelayedSubmission  # noqa: PLC0415  (an extra)

        return DelayedSubmission(self)


def join_ranks(environment: Any, attempts: int) -> None:
    """Set the variables by which the ranks of a job find each other, as torchrun does.

    They are also set for a single rank: a requeued attempt is then recognised by `dist.restarted`.
    """
    job = environment["SLURM_JOB_ID"]
    environment["ANTIPODE_LAUNCH"] = f"slurm {job}"
    environment["ANTIPODE_RESTARTS"] = str(attempts - 1)
    world = int(environment.get("SLURM_NTASKS", "1"))
    if world == 1:
        return
    local = int(environment.get("SLURM_LOCALID", "0"))
    nodes = int(environment.get("SLURM_JOB_NUM_NODES", "1"))
    environment["RANK"] = environment["SLURM_PROCID"]
    environment["WORLD_SIZE"] = str(world)
    environment["LOCAL_WORLD_SIZE"] = str(world // nodes)
    # some clusters show each process only its own GPU
    environment["LOCAL_RANK"] = "0" if torch.cuda.device_count() == 1 else str(local)
    environment["MASTER_ADDR"] = slurm_queue.host_address(environment["SLURM_JOB_NODELIST"])
    # jobs on the same node, and attempts of the same job, get ports of their own
    environment["MASTER_PORT"] = str(10_000 + (int(job) * 8 + attempts % 8) % 20_000)


@contextmanager
def stoppable() -> Iterator[list[int]]:
    """Turn SIGTERM into KeyboardInterrupt, and SIGUSR2 into SIGTERM; yield the signals received.

    While a run trains, it handles SIGTERM itself, and ends after its step.
    """
    received: list[int] = []

    def stop(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    def soon(number: int, frame: FrameType | None) -> None:
        received.append(number)
        os.kill(os.getpid(), signal.SIGTERM)

    before = {
        signal.SIGTERM: signal.signal(signal.SIGTERM, stop),
        SOON: signal.signal(SOON, soon),
        signal.SIGCONT: signal.signal(signal.SIGCONT, signal.SIG_DFL),
    }
    try:
        yield received
    finally:
        signal.signal(SOON, signal.SIG_IGN)
        for number, handler in before.items():
            if number != SOON:
                signal.signal(number, handler)


def newest(folder: Path) -> int:
    """Return when a run last wrote a checkpoint or a result, in nanoseconds, 0 for never."""
    places = [folder / name for name in RESULTS]
    places += folder.glob("checkpoints/*.pt")
    return max((file.stat().st_mtime_ns for file in places if file.is_file()), default=0)


def requeue_if_advanced(folder: Path, job: str, before: int) -> bool:
    """Requeue a job that SLURM has killed at its time limit, if it wrote something since `before`.

    A step that takes longer than the warning time can no longer be ended in time.
    """
    return newest(folder) > before and slurm_queue.requeue(job)


def _idle(folder: Path, job: str) -> int:
    """Return the number of attempts without progress so far."""
    try:
        name, count = (jobs_folder(folder) / "idle").read_text().split()
    except (OSError, ValueError):
        return 0
    return int(count) if name == job else 0


def _note_idle(folder: Path, job: str, count: int) -> None:
    (jobs_folder(folder) / "idle").write_text(f"{job} {count}")


def _leave(status: int) -> Any:
    """End this process now. Other threads may wait for ranks that have ended."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
