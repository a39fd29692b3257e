"""What an item is: a table or figure of a paper, as data.

Every result is a number in a place: a panel, a row and a column. A table has its own rows and columns; of a curve the
row is the line and the column is x; of a histogram the column is the middle of a bin. One number for each seed.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

Scale = Literal["smoke", "small", "paper"]
SCALES: tuple[Scale, ...] = ("smoke", "small", "paper")
Place = tuple[str, str, str | float]  # panel, row, column
Cells = dict[Place, list[float]]  # in the order of the grid


class Measure(NamedTuple):
    """What is taken from a finished run, and where it goes if not where the trial says.

    kind: a "score" of a protocol, an "analysis", a "metric" that was recorded while it trained, as a curve over epochs,
    or a slim detector on drawn "scenes". pick: the dotted way to it inside a score ("value", "more.AP50") or an
    analysis ("values.uniformity", "curves.mean"); a curve or a histogram there fills one place for each x. data:
    another data set than the run's own.
    """

    kind: Literal["score", "analysis", "metric", "scenes"]
    name: str
    pick: str = "value"
    panel: str | None = None
    row: str | None = None
    column: str | float | None = None
    data: str | None = None


class Trial(NamedTuple):
    """A run and what is measured of it: a recipe with overrides, or an untrained `random:NAME`, `torchvision:NAME`."""

    recipe: str
    overrides: Mapping[str, Any]
    measures: tuple[Measure, ...]
    row: str = ""
    column: str | float = ""
    panel: str = ""

    def place(self, measure: Measure) -> Place:
        """Where a measure goes: its own place, or the trial's."""
        panel = self.panel if measure.panel is None else measure.panel
        row = self.row if measure.row is None else measure.row
        return panel, row, self.column if measure.column is None else measure.column


class Grid(NamedTuple):
    """The trials of one scale, how often each, and what stands in for what the paper had."""

    trials: tuple[Trial, ...]
    note: str
    seeds: int = 1


class Panel(NamedTuple):
    """How one part is laid out; `x` names what the columns are, `y` what the numbers are."""

    name: str = ""
    kind: Literal["table", "curve", "histogram"] = "table"
    x: str = ""
    y: str = ""
    log: bool = False  # x on a logarithmic axis


class Law(NamedTuple):
    """What must hold: a sentence, and a function from the results to whether it does and what was found.

    Theory is asked of every scale; what only experience says is asked of the scales where networks learn enough.
    """

    text: str
    check: Callable[[Cells], tuple[bool, str]]
    scales: tuple[Scale, ...] = SCALES


EMPIRICAL: tuple[Scale, ...] = ("small", "paper")


@dataclass(frozen=True)
class Item:
    """A table or figure: the question it answers, the runs that answer it at each scale, and what the paper found.

    paper: the paper's numbers by place; `source` says where they stand, `sources` where a single one stands elsewhere.
    trend: the paper's finding in words, which is all there is where it has only a figure.
    """

    title: str
    question: str
    source: str
    trend: str
    panels: tuple[Panel, ...]
    grids: Mapping[Scale, Grid]
    paper: Mapping[Place, float] = field(default_factory=dict)
    sources: Mapping[Place, str] = field(default_factory=dict)
    laws: tuple[Law, ...] = ()

    def asked(self, scale: Scale) -> tuple[Law, ...]:
        """The laws of a scale."""
        return tuple(law for law in self.laws if scale in law.scales)


def score(protocol: str, pick: str = "value", **place: Any) -> Measure:
    """A number of an evaluation."""
    return Measure("score", protocol, pick, **place)


def analysis(what: str, pick: str, **place: Any) -> Measure:
    """A number or a curve of an analysis."""
    return Measure("analysis", what, pick, **place)


def metric(name: str, **place: Any) -> Measure:
    """A curve over epochs of what was recorded while a run trained."""
    return Measure("metric", name, "", **place)


def table(
    rows: Mapping[str, Mapping[str | float, float | None]], panel: str = ""
) -> dict[Place, float]:
    """The numbers of a printed table by place; what it leaves out is left out here."""
    return {
        (panel, row, column): x
        for row, line in rows.items()
        for column, x in line.items()
        if x is not None
    }


def varied(name: str, values: Iterable[Any]) -> dict[Any, dict[str, Any]]:
    """Columns that differ in one value."""
    return {value: {name: value} for value in values}


def cross(
    rows: Mapping[str, tuple[str, Mapping[str, Any]]],
    columns: Mapping[Any, Mapping[str, Any]],
    measures: tuple[Measure, ...],
    *,
    panel: str = "",
    common: Mapping[str, Any] | None = None,
) -> tuple[Trial, ...]:
    """Every row (a recipe and its overrides) at every column (further ones); a row's own value is the last word."""
    return tuple(
        Trial(recipe, {**(common or {}), **further, **own}, measures, row, column, panel)
        for row, (recipe, own) in rows.items()
        for column, further in columns.items()
    )


def turned(trials: tuple[Trial, ...]) -> tuple[Trial, ...]:
    """The same with rows and columns exchanged, for tables whose methods stand side by side."""
    return tuple(trial._replace(row=str(trial.column), column=trial.row) for trial in trials)
