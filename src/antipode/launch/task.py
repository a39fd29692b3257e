"""A task: a run to train and measure, and how the tasks of a sweep or an item are going."""

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from antipode.training.record import InTrouble

# Errors of one task after which the other tasks continue.
TASK_ERRORS = (ValueError, FileNotFoundError, MemoryError, InTrouble)
# Operations per second of an H200. benchmarks/RESULTS.md has 37,025 images per second for SimCLR on
# CIFAR-10, with a forward and backward pass of two views of 1.11e9 operations.
H200 = 37_025 * 2 * 3 * 1.11e9
SHORT = 60.0  # seconds on an H200; runs that are shorter are often meant for a CPU


class JobFailed(Exception):
    """A job of a cluster failed; the message says why, and where its log is."""


@dataclass(frozen=True)
class Task:
    """A run that is trained and measured. It can be sent to another process.

    Args:
        label: a description for the user.
        folder: the run folder, which holds all results.
        do: trains and measures the run; resumes it if it was started. Its argument is True if
            nothing is to be printed.
        work: floating-point operations that are left to train, 0 if finished, None if unknown.
        batch: the number of images per step, 0 if nothing is trained.
        key: names what `do` does besides training, such as its protocols. A cluster performs a
            finished task again only if its key has changed.
        deterministic: whether it must compute beside other tasks what it computes alone, bit for
            bit.
    """

    label: str
    folder: Path
    do: Callable[[bool], None]
    work: float | None = 0.0
    batch: int = 0
    key: str = ""
    deterministic: bool = False


@dataclass
class Board:
    """The state of all tasks, printed on stderr as they start and end.

    Args:
        tasks: all tasks.
        quiet: whether to print nothing.
        guess: what to print as the time left before the first task has ended.
    """

    tasks: Sequence[Task]
    quiet: bool = False
    guess: str = ""
    failed: dict[Path, str] = field(default_factory=dict)
    ended: int = 0
    done: float = 0.0  # operations of the tasks that have succeeded
    lost: float = 0.0  # operations of the tasks that have failed
    began: float = field(default_factory=time.monotonic)

    def start(self, task: Task, beside: int = 0) -> None:
        """Report that a task starts, beside others that are running."""
        running = f", {beside} other{'s' * (beside > 1)} running" if beside else ""
        number = self.ended + beside + 1
        self._say(f"{number} of {len(self.tasks)}{running}, {self.left()}: {task.label}")

    def end(self, task: Task, error: str = "") -> None:
        """Record that a task has ended, with the reason if it failed."""
        self.ended += 1
        if not error:
            self.done += task.work or 0.0
        else:
            self.lost += task.work or 0.0
            self.failed[task.folder] = f"{task.label}: {error}"
            self._say(f"failed: {self.failed[task.folder]}")

    def left(self) -> str:
        """Return the time that is left, as a text."""
        known = [task.work for task in self.tasks if task.work is not None]
        if len(known) < len(self.tasks):
            return self._left_by_number()
        total = sum(known) - self.lost
        if total <= self.done:
            return "nothing left to train"
        if self.done:
            seconds = (time.monotonic() - self.began) * (total - self.done) / self.done
            return f"about {duration(seconds)} left"
        seconds = (total - self.done) / H200
        if seconds < SHORT:
            return self.guess or "time left unknown until the first has ended"
        return self.guess or f"{duration(seconds)} left on an H200"

    def _left_by_number(self) -> str:
        """Return the time that is left if every task takes as long as those that have ended."""
        if not self.ended:
            return self.guess or "time left unknown until the first has ended"
        seconds = time.monotonic() - self.began
        return f"about {duration(seconds * (len(self.tasks) - self.ended) / self.ended)} left"

    def _say(self, text: str) -> None:
        if not self.quiet:
            print(text, file=sys.stderr, flush=True)


def duration(seconds: float) -> str:
    """Return a duration in seconds, minutes or hours, as a text."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
