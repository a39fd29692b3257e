"""Show the progress of training: a bar on a terminal, else a plain line every half minute."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, Protocol

from antipode.recipe.recipe import Recipe


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

    def __init__(self, total: int, start: int) -> None:
        self.total = total
        self.start = start
        self.begun = time.monotonic()
        self.last = 0.0  # when the last line was printed

    def advance(self, step: int) -> None:
        """Do nothing."""

    def update(self, row: dict[str, Any], scores: dict[str, float]) -> None:
        """Print a line if the last one is old enough, or if training ends."""
        now = time.monotonic()
        done = row["step"] + 1
        if now - self.last >= 30 or done == self.total:
            self.last = now
            left = (now - self.begun) / max(done - self.start, 1) * (self.total - done)
            say(f"step {done}/{self.total} {numbers(row, scores)}, {left / 60:.1f} min left")


class Bar:
    """A progress bar of rich, with loss, speed, time left and the latest kNN accuracy."""

    def __init__(self, progress: Any, task: Any) -> None:
        self.progress = progress
        self.task = task

    def advance(self, step: int) -> None:
        """Move the bar."""
        self.progress.update(self.task, completed=step + 1)

    def update(self, row: dict[str, Any], scores: dict[str, float]) -> None:
        """Move the bar and show the numbers."""
        self.progress.update(self.task, completed=row["step"] + 1, numbers=numbers(row, scores))


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
def display(recipe: Recipe, total: int, start: int, quiet: bool) -> Iterator[Display]:
    """Choose a progress bar, plain lines or silence."""
    if quiet:
        yield Silent()
        return
    if sys.stderr is None or not sys.stderr.isatty():  # None: closed before Python started
        yield Plain(total, start)
        return
    from rich.console import Console  # noqa: PLC0415
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn  # noqa: PLC0415

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:3.0f} %"),
        TimeRemainingColumn(),
        TextColumn("{task.fields[numbers]}"),
    )
    with Progress(*columns, console=Console(stderr=True)) as progress:
        name = f"{recipe.method.name} on {recipe.data.name}"
        yield Bar(progress, progress.add_task(name, total=total, completed=start, numbers=""))
