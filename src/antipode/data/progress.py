"""A progress bar for long work, on a terminal only."""

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

Item = TypeVar("Item")
WORTH = 2000  # fewer items are done before a bar would be read


@contextmanager
def bar(
    count: int, what: str, *, show: bool = True, least: int = WORTH
) -> Iterator[Callable[[int], None]]:
    """A function to call with the number of items done; its bar is on stderr, where that is a terminal."""
    if not (show and count >= least and sys.stderr.isatty()):
        yield lambda done: None
        return
    from rich.console import Console  # noqa: PLC0415
    from rich.progress import (  # noqa: PLC0415
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task(what, total=count)
        yield lambda done: progress.advance(task, done)


def track(items: Iterable[Item], count: int, what: str, *, least: int = WORTH) -> Iterator[Item]:
    """The items, with a bar."""
    with bar(count, what, least=least) as done:
        for item in items:
            yield item
            done(1)
