"""Define an item: a table or figure of a paper, as data.

Every result is a number with a place: a panel, a row and a column. A table has its own rows and
columns. The row of a curve is the name of its line, and the column is x. The column of a histogram
is the centre of a bin. Each place holds one number per seed.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

Scale = Literal["smoke", "small", "paper"]
SCALES: tuple[Scale, ...] = ("smoke", "small", "paper")
EMPIRICAL: tuple[Scale, ...] = ("small", "paper")  # networks are trained long enough for claims
REFERENCE = "untrained network"  # name of the panel with the scores of a network without training
Place = tuple[str, str, str | float]  # panel, row, column
Cells = dict[Place, list[float]]  # one value per seed, in the order of the grid


class Measure(NamedTuple):
    """A number or curve that is taken from a finished run.

    Args:
        kind: "score" for an evaluation protocol, "analysis", "metric" for a value recorded during
            training (a curve over epochs), "scenes" for a slim detector on drawn scenes, or
            "parameters" for the size of the network.
        name: the name of the protocol, analysis, metric or detector, or "backbone".
        pick: the dotted path inside a score ("value", "more.AP50") or an analysis
            ("values.uniformity", "curves.mean"). A curve or histogram fills one place for each x.
        panel, row, column: the place of the result. None means the place of the trial.
        data: the data set of a score, if it is not the one that the run was trained on.
    """

    kind: Literal["score", "analysis", "metric", "scenes", "parameters"]
    name: str
    pick: str = "value"
    panel: str | None = None
    row: str | None = None
    column: str | float | None = None
    data: str | None = None


class Trial(NamedTuple):
    """A run and what is measured on it.

    `recipe` is the name of a recipe, to which `overrides` are applied, or a network that is not
    trained: `random:NAME` or `torchvision:NAME`.
    """

    recipe: str
    overrides: Mapping[str, Any]
    measures: tuple[Measure, ...]
    row: str = ""
    column: str | float = ""
    panel: str = ""

    def place(self, measure: Measure) -> Place:
        """Return the place of a measure: its own parts, and those of the trial for the others."""
        panel = self.panel if measure.panel is None else measure.panel
        row = self.row if measure.row is None else measure.row
        return panel, row, self.column if measure.column is None else measure.column


class Grid(NamedTuple):
    """The trials of one scale.

    `note` names the data, network and length, and what replaces the paper's own settings. `seeds`
    is the number of runs of each trial.
    """

    trials: tuple[Trial, ...]
    note: str
    seeds: int = 1


class Panel(NamedTuple):
    """The layout of one part of an item. `x` describes the columns, and `y` the numbers."""

    name: str = ""
    kind: Literal["table", "curve", "histogram"] = "table"
    x: str = ""
    y: str = ""
    log: bool = False  # logarithmic x axis


REFERENCE_PANEL = Panel(REFERENCE, y="top-1 (%)")


class Verdict(NamedTuple):
    """The result of a check.

    Args:
        margin: by how much the statement holds, in the unit of the numbers. Negative if it does
            not hold.
        text: the numbers.
        interval: half of the width of a 95 % interval around `margin`, from the spread over seeds;
            0 if it is unknown.
    """

    margin: float
    text: str
    interval: float = 0.0

    @property
    def holds(self) -> bool:
        """True if the numbers satisfy the statement."""
        return self.margin > 0

    @property
    def word(self) -> str:
        """One of "holds", "does not hold" and "undecided" (the interval of the margin has 0)."""
        if abs(self.margin) <= self.interval:
            return "undecided"
        return "holds" if self.holds else "does not hold"


class Law(NamedTuple):
    """A claim of a paper in one sentence, with the function that checks it.

    Args:
        text: the claim.
        check: takes the results and returns a `Verdict`.
        scales: where the claim is checked: by default where networks are trained long enough.
        source: where the paper makes the claim: a section, table or figure.
        paper: the numbers of the paper behind the claim, as text; empty if it prints none.
        headline: whether the claim is one of the main claims of its paper.
    """

    text: str
    check: Callable[[Cells], Verdict]
    scales: tuple[Scale, ...] = EMPIRICAL
    source: str = ""
    paper: str = ""
    headline: bool = False


@dataclass(frozen=True)
class Item:
    """A table or figure of a paper.

    Args:
        title: what the table or figure shows.
        question: the question that it answers.
        source: where the paper's numbers are printed.
        trend: the finding of the paper in words. A figure without printed numbers has only this.
        panels: the layout of the parts.
        grids: the runs of each scale.
        paper: the numbers of the paper by place.
        sources: the sources of single numbers that are printed elsewhere than `source`.
        laws: what must hold.
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

    def laws_at(self, scale: Scale) -> tuple[Law, ...]:
        """Return the laws that are checked at a scale."""
        return tuple(law for law in self.laws if scale in law.scales)


def score(protocol: str, pick: str = "value", **place: Any) -> Measure:
    """Return the measure for a number of an evaluation."""
    return Measure("score", protocol, pick, **place)


def analysis(name: str, pick: str, **place: Any) -> Measure:
    """Return the measure for a number or a curve of an analysis."""
    return Measure("analysis", name, pick, **place)


def metric(name: str, **place: Any) -> Measure:
    """Return the measure for a metric that was recorded during training, as a curve over epochs."""
    return Measure("metric", name, "", **place)


def parameters(**place: Any) -> Measure:
    """Return the measure for the number of parameters of the backbone, in millions."""
    return Measure("parameters", "backbone", "", **place)


def untrained(network: str, data: str, *protocols: str) -> Trial:
    """Return the scores of an untrained network in the panel `REFERENCE`, one row a protocol.

    Laws about accuracies need them (reproduction/laws.py).
    """
    measures = tuple(
        score(name, panel=REFERENCE, row=name, column="top-1 (%)") for name in protocols
    )
    return Trial(f"random:{network}", {"data.name": data}, measures)


def table(
    rows: Mapping[str, Mapping[str | float, float | None]], panel: str = ""
) -> dict[Place, float]:
    """Return the numbers of a printed table by place. None stands for an empty cell."""
    return {
        (panel, row, column): number
        for row, line in rows.items()
        for column, number in line.items()
        if number is not None
    }


def vary(key: str, values: Iterable[Any]) -> dict[Any, dict[str, Any]]:
    """Return one column for each value of a recipe key."""
    return {value: {key: value} for value in values}


def cross(
    rows: Mapping[str, tuple[str, Mapping[str, Any]]],
    columns: Mapping[Any, Mapping[str, Any]],
    measures: tuple[Measure, ...],
    *,
    panel: str = "",
    common: Mapping[str, Any] | None = None,
) -> tuple[Trial, ...]:
    """Return a trial for every row in every column.

    A row is a recipe with overrides, a column is further overrides, and `common` applies to all. If
    several give the same key, the row has priority over the column, and the column over `common`.
    """
    return tuple(
        Trial(
            recipe,
            {**(common or {}), **column_overrides, **row_overrides},
            measures,
            row,
            column,
            panel,
        )
        for row, (recipe, row_overrides) in rows.items()
        for column, column_overrides in columns.items()
    )


def transpose(trials: tuple[Trial, ...]) -> tuple[Trial, ...]:
    """Return the trials with rows and columns exchanged, for tables with one column per method."""
    return tuple(trial._replace(row=str(trial.column), column=trial.row) for trial in trials)
