"""What a person sees while it trains: a bar on a terminal, a plain line now and then elsewhere."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, Protocol

from antipode.recipe.resolve import Recipe


class Shown(Protocol):
    """What the loop tells."""

    def advance(self, step: int) -> None:
        """A step is done."""

    def update(self, row: dict[str, Any], scores: dict[str, float]) -> None:
        """A step is done and its numbers are known."""


class Silent:
    """For other ranks and quiet runs."""

    def advance(self, step: int) -> None:
        """Nothing."""

    def update(self, row: dict[str, Any], scores: dict[str, float]) -> None:
        """Nothing."""


class Plain:
    """A line every half minute, for logs."""

    def __init__(self, total: int, start: int) -> None:
        self.total, self.start, self.begun, self.last = total, start, time.monotonic(), 0.0

    def advance(self, step: int) -> None:
        """Nothing."""

    def update(self, row: dict[str, Any], scores: dict[str, float]) -> None:
        """One line, where the last is old enough or this is the end."""
        now, done = time.monotonic(), row["step"] + 1
        if now - self.last >= 30 or done == self.total:
            self.last = now
            left = (now - self.begun) / max(done - self.start, 1) * (self.total - done)
            say(f"step {done}/{self.total} {numbers(row, scores)}, {left / 60:.1f} min left")


class Bar:
    """A rich bar with loss, speed, time left and the kNN accuracy so far."""

    def __init__(self, progress: Any, task: Any) -> None:
        self.progress, self.task = progress, task

    def advance(self, step: int) -> None:
        """Move the bar."""
        self.progress.update(self.task, completed=step + 1)

    def update(self, row: dict[str, Any], scores: dict[str, float]) -> None:
        """Move the bar and show the numbers."""
        self.progress.update(self.task, completed=row["step"] + 1, numbers=numbers(row, scores))


def say(line: str) -> None:
    """A line for people; where nobody can read it any more, that is no reason to stop."""
    with suppress(OSError, ValueError):
        if sys.stderr is not None:  # print would take None for stdout
            print(line, file=sys.stderr, flush=True)


def numbers(row: dict[str, Any], scores: dict[str, float]) -> str:
    """Loss, speed and scores in a few words."""
    parts = [
        f"loss {row.get('contrast', row['loss']):.3f}",
        f"{row['images_per_second']:,.0f} images/s",
    ]
    return ", ".join(parts + [f"{name} {value:.1f}" for name, value in scores.items()])


@contextmanager
def display(recipe: Recipe, total: int, start: int, quiet: bool) -> Iterator[Shown]:
    """Whatever suits where the output goes."""
    if quiet:
        yield Silent()
        return
    if sys.stderr is None or not sys.stderr.isatty():  # None: it was closed before we began
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
