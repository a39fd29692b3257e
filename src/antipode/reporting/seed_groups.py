"""Scores over seeds: runs that differ in nothing else are one setting, and a setting has a mean, a spread and an n."""

import json
import statistics
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from antipode.recipe.resolve import HARMLESS
from antipode.reporting.gather import Record

SEED = "train.seed"
NAMED = ("method.name", "data.name", "backbone.name")
# what a fair comparison has in common: named wherever it differs, also between methods
BUDGET = ("train.epochs", "train.batch", "views.size", "backbone.stem", "backbone.weights")
FIRST = ("linear", "knn")  # what people ask for, in this order


class Group(NamedTuple):
    """Runs that differ only by seed."""

    label: str
    runs: list[int]


class Column(NamedTuple):
    """Scores that may stand under one head: one protocol on the same images. A protocol's name fixes its numbers."""

    name: str
    unit: str
    data: str
    split: str
    n: int
    epoch: str


def groups(records: Sequence[Record]) -> list[Group]:
    """Settings in the order of their first runs, each under a label that says what sets it apart."""
    found: dict[str, list[int]] = {}
    for at, one in enumerate(records):
        found.setdefault(_identity(one), []).append(at)
    firsts = [records[runs[0]] for runs in found.values()]
    return [
        Group(_label(one, firsts), runs) for one, runs in zip(firsts, found.values(), strict=True)
    ]


def _identity(one: Record) -> str:
    deciding = {key: value for key, value in one.recipe.items() if key not in (*HARMLESS, SEED)}
    return json.dumps(deciding, sort_keys=True) if one.recipe else f"no recipe {one.path}"


def _label(one: Record, firsts: Sequence[Record]) -> str:
    """The method, and what of its own values differs from other settings of the same method."""
    if not one.recipe:
        return one.name
    alike = [other for other in firsts if other.recipe and other.method == one.method]
    budget = [key for key in BUDGET if key in varying(firsts)]
    own = [key for key in varying(alike) if key not in ("method.name", SEED)]
    differing = list(dict.fromkeys([*budget, *own]))
    shown = [f"{key.rpartition('.')[2]} {plain(one.value(key))}" for key in differing[:3]]
    places = {other.value("data.name") for other in firsts if other.recipe}
    where = (
        [f"on {one.value('data.name')}"] if len(places) > 1 and "data.name" not in differing else []
    )
    more = [f"and {len(differing) - 3} more"] if len(differing) > 3 else []
    return ", ".join([" ".join([one.method, *where]), *shown, *more])


def varying(records: Sequence[Record]) -> list[str]:
    """Keys of the recipe that decide a weight and are not the same in all runs."""
    keys = dict.fromkeys(key for one in records for key in one.recipe if key not in HARMLESS)
    return [
        key
        for key in keys
        if len({json.dumps(one.value(key)) for one in records if one.recipe}) > 1
    ]


def telling(records: Sequence[Record]) -> list[str]:
    """What a table of runs should name: method, data and network where they differ, and what differs in a method."""
    trained = [one for one in records if one.recipe]
    own = [
        key
        for method in dict.fromkeys(one.method for one in trained)
        for key in varying([one for one in trained if one.method == method])
    ]
    overall = [key for key in (*NAMED, *BUDGET) if key in varying(trained)]
    return list(dict.fromkeys([*overall, *own]))


def plain(value: Any) -> str:
    """A value of a recipe as a person would write it."""
    if isinstance(value, float):
        return f"{value:.4g}"
    return value if isinstance(value, str) else "none" if value is None else json.dumps(value)


def columns(records: Sequence[Record]) -> list[Column]:
    """Every kind of score that some run has, those that most runs have first."""
    counts: dict[Column, int] = {}
    for one in records:
        for name, score in one.scores.items():
            column = column_of(name, score)
            counts[column] = counts.get(column, 0) + 1
    return sorted(counts, key=lambda column: -counts[column])


def column_of(name: str, score: dict[str, Any]) -> Column:
    """Where a score belongs."""
    unit, data, split = (str(score.get(key, "")) for key in ("unit", "data", "split"))
    return Column(name, unit, data, split, int(score.get("n", 0)), str(score.get("epoch", "last")))


def settings(column: Column, records: Sequence[Record]) -> dict[str, Any]:
    """What all scores of a column agree on; what was found for each, such as a penalty, is said to vary."""
    own = [
        score.get("settings")
        for one in records
        for k, score in one.scores.items()
        if column_of(k, score) == column
    ]
    found: dict[str, Any] = {}
    for key in dict.fromkeys(key for one in own if isinstance(one, dict) for key in one):
        values = [one.get(key) if isinstance(one, dict) else None for one in own]
        found[key] = values[0] if all(value == values[0] for value in values) else "varies"
    return found


def headline(found: Sequence[Column], records: Sequence[Record]) -> int | None:
    """The column to put on top: an accuracy, of linear classification or kNN where there is one."""
    scored = [
        sum(column_of(k, s) == column for one in records for k, s in one.scores.items())
        for column in found
    ]

    def rank(at: int) -> tuple[bool, int, bool, int]:
        column = found[at]
        place = next(
            (i for i, name in enumerate(FIRST) if column.name.startswith(name)), len(FIRST)
        )
        foreign = "@" in column.name  # of two that as many runs have, the one on their own data
        return not ("%" in column.unit or "AP" in column.unit), -scored[at], foreign, place

    return min(range(len(found)), key=rank, default=None)


def summary(values: Iterable[float]) -> dict[str, Any]:
    """Mean, sample standard deviation (none for a single value) and n."""
    numbers = list(values)
    spread = statistics.stdev(numbers) if len(numbers) > 1 else None
    return {"mean": statistics.fmean(numbers), "std": spread, "n": len(numbers)}


def cells(
    group: Group, records: Sequence[Record], found: Sequence[Column]
) -> dict[int, dict[str, Any]]:
    """For each column in which the setting has scores: the summary over its seeds, runs of one seed being one value."""
    values: dict[int, dict[Any, list[float]]] = {}
    for at in group.runs:
        for name, score in records[at].scores.items():
            seeds = values.setdefault(found.index(column_of(name, score)), {})
            seeds.setdefault(records[at].value(SEED), []).append(float(score["value"]))
    means = {
        column: [statistics.fmean(own) for own in seeds.values()]
        for column, seeds in values.items()
    }
    return {column: summary(own) for column, own in sorted(means.items())}
