"""Show the progress of training: a bar on a terminal, else a plain line every half minute."""

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Protocol

from antipode.devices import pick_device
from antipode.recipe.recipe import Recipe
from antipode.training.pace import Pace, amount, duration, memory_used, warm_steps


class Display(Protocol):
    """What the training loop reports to."""

    def advance(self, step: int) -> None:
        """Report a finished step."""

    def update(self, row: dict[str, Any], scores: dict[str, float]) -> None:
        """Report a finished step with its metrics and the latest scores of the monitor."""


class Silent:
    """Show nothing, on ranks other than 0 and in quiet runs."""

    def advance(self, step: int) -> None:
        """Do nothing."""

    def update(self, row: dict[str, Any], scores: dict[str, float]) -> None:
        """Do nothing."""


class Plain:
    """Print a line every half minute, for log files."""

    def __init__(self, total: int, estimate: "Estimate") -> None:
        self.total = total
        self.estimate = estimate
        self.last = 0.0  # when the last line was printed

    def advance(self, step: int) -> None:
        """Measure the step."""
        self.estimate.note(step)

    def update(self, row: dict[str, Any], scores: dict[str, float]) -> None:
        """Print a line if the last one is old enough, or if training ends."""
        self.estimate.note(row["step"])
        now = time.monotonic()
        done = row["step"] + 1
        if now - self.last >= 30 or done == self.total:
            self.last = now
            left = self.estimate.remaining(", ")
            say(f"step {done}/{self.total} {numbers(row, scores)}{left}")


class Bar:
    """A progress bar of rich, with loss, speed, time left and the latest kNN accuracy."""

    def __init__(self, progress: Any, task: Any, estimate: "Estimate") -> None:
        self.progress = progress
        self.task = task
        self.estimate = estimate

    def advance(self, step: int) -> None:
        """Move the bar."""
        self._move(step)

    def update(self, row: dict[str, Any], scores: dict[str, float]) -> None:
        """Move the bar and show the numbers."""
        self._move(row["step"], numbers=numbers(row, scores))

    def _move(self, step: int, **fields: str) -> None:
        self.estimate.note(step)
        left = self.estimate.remaining()
        self.progress.update(self.task, completed=step + 1, left=left, **fields)


class Estimate:
    """Print what will be done, and once how long it takes and how much memory it needs.

    Args:
        pace: the measurement of the steps.
        device: type of the device.
        opening: the first lines to print. They are printed after the first step, so that input
            that does not fit is answered by the error alone. A GPU compiles that step for up to a
            minute, so they are printed before it there.
    """

    def __init__(self, pace: Pace, device: str, opening: Sequence[str] = ()) -> None:
        self.pace = pace
        self.device = device
        self.opening = opening
        self.printed = False
        if device == "cuda":
            self._open()

    def _open(self) -> None:
        for line in self.opening:
            say(line)
        self.opening = ()

    def remaining(self, before: str = "") -> str:
        """Return the time that is left, an empty text as long as it is unknown."""
        left = self.pace.left
        return "" if left is None else f"{before}{duration(left)} left"

    def note(self, step: int) -> None:
        """Note the end of a step; print the estimate as soon as there is one."""
        self._open()
        self.pace.tick(step + 1)
        left = self.pace.left
        if self.printed or left is None:
            return
        self.printed = True
        memory = memory_used(self.device)
        used = f" and {amount(memory)} of memory" if memory else ""
        say(f"Estimated: {duration(left)} for the remaining steps{used}.")


def say(line: str) -> None:
    """Print a line to stderr; ignore errors, because training continues if stderr is closed."""
    with suppress(OSError, ValueError):
        if sys.stderr is not None:  # print(file=None) would write to stdout
            print(line, file=sys.stderr, flush=True)


def numbers(row: dict[str, Any], scores: dict[str, float]) -> str:
    """Return loss, speed and scores as a short text."""
    parts = [
        f"loss {row.get('contrast', row['loss']):.3f}",
        f"{row['images_per_second']:,.0f} images/s",
    ]
    return ", ".join(parts + [f"{name} {value:.1f}" for name, value in scores.items()])


@contextmanager
def display(
    recipe: Recipe, total: int, start: int, quiet: bool, opening: Sequence[str] = ()
) -> Iterator[Display]:
    """Choose a progress bar, plain lines or silence. `opening` are the first lines to print."""
    if quiet:
        yield Silent()
        return
    device = pick_device(recipe.train.device).type
    estimate = Estimate(Pace(total, start, warm_steps(device)), device, opening)
    if sys.stderr is None or not sys.stderr.isatty():  # None: closed before Python started
        yield Plain(total, estimate)
        return
    from rich.console import Console  # noqa: PLC0415
    from rich.progress import BarColumn, Progress, TextColumn  # noqa: PLC0415

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:3.0f} %"),
        TextColumn("{task.fields[left]}"),
        TextColumn("{task.fields[numbers]}"),
    )
    with Progress(*columns, console=Console(stderr=True)) as progress:
        name = f"{recipe.method.name} on {recipe.data.name}"
        task = progress.add_task(name, total=total, completed=start, numbers="", left="")
        yield Bar(progress, task, estimate)
