"""Progress bars for long loops, shown only on a terminal."""

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from antipode.names import printable

Item = TypeVar("Item")
WORTH = 2000  # fewer items finish too quickly for a bar to be useful


@contextmanager
def bar(
    count: int, what: str, *, show: bool = True, least: int = WORTH
) -> Iterator[Callable[[int], None]]:
    """Show a progress bar on stderr and yield a function that advances it by a number of items.

    No bar is shown if stderr is not a terminal, if `show` is False, or for fewer than `least`
    items.
    """
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
        TextColumn("{task.description}", markup=False),  # names may contain brackets
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task(printable(what), total=count)
        yield lambda done: progress.advance(task, done)


def track(items: Iterable[Item], count: int, what: str, *, least: int = WORTH) -> Iterator[Item]:
    """Yield the items and show a progress bar."""
    with bar(count, what, least=least) as advance:
        for item in items:
            yield item
            advance(1)
