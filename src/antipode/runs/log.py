"""The log of a run as columns of numbers.

A log of a million lines takes about 900 MB as a dictionary for each line, and a quarter of that as
arrays.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from antipode.json_text import HUGE, number

# Metrics of a log. Our own logs have about twenty; a log with a new name on every line is damaged.
MOST = 200

Numbers = NDArray[np.float64]


class Series(NamedTuple):
    """The finite values (N,) of a metric, and the numbers (N,) of the lines that they are on."""

    lines: NDArray[np.int64]
    values: Numbers


@dataclass(frozen=True)
class Log:
    """What the lines of metrics.jsonl hold.

    Args:
        series: the values of each metric that are finite numbers, including "step" and "epoch".
        odd: for each line, whether some value on it is not a finite number.
        odd_losses: the numbers of the lines with a loss that is not a finite number.
        texts: names of metrics with a value that is neither a number nor null.
        cut: whether the log has more than `MOST` metrics, so that some are left out.
    """

    series: dict[str, Series]
    odd: NDArray[np.bool_]
    odd_losses: list[int]
    texts: list[str]
    cut: bool

    @property
    def lines(self) -> int:
        """The number of lines."""
        return len(self.odd)

    def column(self, name: str) -> Numbers:
        """Return the values of a metric on each line, NaN where it is not a finite number."""
        values = np.full(self.lines, np.nan)
        if name in self.series:
            lines, found = self.series[name]
            values[lines] = found
        return values

    def final_loss(self) -> tuple[float, int] | None:
        """Return the mean loss of the last tenth of the lines that have one, and their number.

        AdCo minimises a difference that has no meaning by itself, so its contrastive term counts.
        """
        losses, terms = self.column("loss"), self.column("contrast")
        found = np.where(np.isnan(terms), losses, terms)
        found = found[~np.isnan(found)]
        count = max(1, len(found) // 10)
        return (float(found[-count:].mean()), count) if len(found) else None


def read_log(blocks: Iterable[list[dict[str, Any]]]) -> Log:
    """Return the log whose rows these blocks hold."""
    reader = _Reader()
    for block in blocks:
        reader.add(block)
    return reader.log()


class _Reader:
    """Collects the numbers of a log, block by block."""

    def __init__(self) -> None:
        self.count = 0
        self.parts: dict[str, list[Series]] = {}
        self.odd: list[NDArray[np.int64]] = []
        self.odd_losses: list[int] = []
        self.texts: dict[str, None] = {}
        self.cut = False

    def add(self, block: list[dict[str, Any]]) -> None:
        """Add some rows."""
        every_line = np.arange(self.count, self.count + len(block))
        for name in dict.fromkeys(chain.from_iterable(block)):
            if name not in self.parts and len(self.parts) >= MOST:
                self.cut = True
                continue
            try:
                self._add_metric(name, every_line, [row[name] for row in block])
            except KeyError:  # the metric is not on all lines
                places = [place for place, row in enumerate(block) if name in row]
                values = [block[place][name] for place in places]
                self._add_metric(name, every_line[places], values)
        self.count += len(block)

    def _add_metric(self, name: str, lines: NDArray[np.int64], values: list[Any]) -> None:
        kinds = set(map(type, values))
        if kinds != {float}:
            values = [value if number(value) else math.nan for value in values]
        if not kinds <= {float, int, type(None)}:
            self.texts[name] = None
        numbers = np.array(values, dtype=np.float64)
        finite = np.abs(numbers) <= HUGE  # false for NaN
        if not finite.all():
            self.odd.append(lines[~finite])
            self.odd_losses += lines[~finite].tolist() if name == "loss" else []
            lines = lines[finite]
            numbers = numbers[finite]
        self.parts.setdefault(name, []).append(Series(lines, numbers))

    def log(self) -> Log:
        """Return the log of all rows so far, and forget them."""
        every_line = np.arange(self.count)
        series: dict[str, Series] = {}
        for name in list(self.parts):
            lines, values = map(np.concatenate, zip(*self.parts.pop(name), strict=True))
            if len(lines):  # metrics on all lines share one array of their numbers
                series[name] = Series(every_line if len(lines) == self.count else lines, values)
        odd = np.zeros(self.count, dtype=np.bool_)
        for lines in self.odd:
            odd[lines] = True
        return Log(series, odd, self.odd_losses, list(self.texts), self.cut)
