"""Scores over seeds. Runs that differ only by their seed are one setting with a mean and spread."""

import json
import statistics
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from antipode.evaluation.headline import preference
from antipode.evaluation.score import OVERLAP
from antipode.json_text import number
from antipode.recipe.recipe import HARMLESS
from antipode.runs.run import Run

SEED = "train.seed"
NAMED = ("method.name", "data.name", "backbone.name")
# Keys that should agree in a fair comparison. They are shown wherever they differ, also between
# methods.
BUDGET = ("train.epochs", "train.batch", "views.size", "backbone.stem", "backbone.weights")


class Group(NamedTuple):
    """Runs that differ only by their seed."""

    label: str
    runs: list[int]  # indices


class Column(NamedTuple):
    """A column of comparable scores: one protocol on the same images.

    The name of a protocol determines its hyper-parameters.
    """

    name: str
    unit: str
    data: str
    split: str
    n: int
    epoch: str


def groups(runs: Sequence[Run]) -> list[Group]:
    """Return the settings, in the order of their first runs, labelled by what is different."""
    members: dict[str, list[int]] = {}
    for at, run in enumerate(runs):
        members.setdefault(_identity(run), []).append(at)
    firsts = [runs[indices[0]] for indices in members.values()]
    return [
        Group(_label(run, firsts), indices)
        for run, indices in zip(firsts, members.values(), strict=True)
    ]


def _identity(run: Run) -> str:
    """Return a text that two runs share if they differ at most by their seed."""
    if not run.values:
        return f"no recipe {run.path}"
    deciding = {key: value for key, value in run.values.items() if key not in (*HARMLESS, SEED)}
    return json.dumps(deciding, sort_keys=True)


def _label(run: Run, firsts: Sequence[Run]) -> str:
    """Return the method, and the values that differ from other settings of the same method."""
    if not run.values:
        return run.label
    same_method = [other for other in firsts if other.values and other.method == run.method]
    budget = [key for key in BUDGET if key in varying_keys(firsts)]
    within = [key for key in varying_keys(same_method) if key not in ("method.name", SEED)]
    differing = list(dict.fromkeys([*budget, *within]))
    shown = [f"{key.rpartition('.')[2]} {plain(run.value(key))}" for key in differing[:3]]
    data_sets = {str(other.value("data.name")) for other in firsts if other.values}
    name_data = len(data_sets) > 1 and "data.name" not in differing
    data = [f"on {run.value('data.name')}"] if name_data else []
    more = [f"and {len(differing) - 3} more"] if len(differing) > 3 else []
    return ", ".join([" ".join([run.method, *data]), *shown, *more])


def varying_keys(runs: Sequence[Run]) -> list[str]:
    """Return the keys of the recipe that influence the weights and differ between runs."""
    keys = dict.fromkeys(key for run in runs for key in run.values if key not in HARMLESS)
    return [
        key for key in keys if len({json.dumps(run.value(key)) for run in runs if run.values}) > 1
    ]


def distinguishing_keys(runs: Sequence[Run]) -> list[str]:
    """Return the keys that a table of runs should show.

    They are method, data, network and budget if these differ, and all keys that differ between runs
    of one method.
    """
    trained = [run for run in runs if run.values]
    within = [
        key
        for method in dict.fromkeys(run.method for run in trained)
        for key in varying_keys([run for run in trained if run.method == method])
    ]
    varying = varying_keys(trained)
    overall = [key for key in (*NAMED, *BUDGET) if key in varying]
    return list(dict.fromkeys([*overall, *within]))


def plain(value: Any) -> str:
    """Return a value of a recipe as short text."""
    if isinstance(value, float):
        return f"{value:.4g}"
    if value is None:
        return "none"
    return value if isinstance(value, str) else json.dumps(value)


def columns(runs: Sequence[Run]) -> list[Column]:
    """Return the columns of all scores, sorted by the number of runs that have them."""
    counts: dict[Column, int] = {}
    for run in runs:
        for name, score in run.shown_scores.items():
            column = column_of(name, score)
            counts[column] = counts.get(column, 0) + 1
    return sorted(counts, key=lambda column: -counts[column])


def column_of(name: str, score: dict[str, Any]) -> Column:
    """Return the column that a score belongs to."""
    unit, data, split = (str(score.get(key, "")) for key in ("unit", "data", "split"))
    return Column(name, unit, data, split, int(score.get("n", 0)), str(score.get("epoch", "last")))


def settings(column: Column, runs: Sequence[Run]) -> dict[str, Any]:
    """Return the settings of the scores in a column.

    A setting that is not the same for all scores, such as a penalty that was tuned for each run, is
    "varies".
    """
    per_score = [
        score.get("settings")
        for run in runs
        for name, score in run.shown_scores.items()
        if column_of(name, score) == column
    ]
    dicts = [content for content in per_score if isinstance(content, dict)]
    common: dict[str, Any] = {}
    for key in dict.fromkeys(key for content in dicts for key in content):
        values = [content.get(key) if isinstance(content, dict) else None for content in per_score]
        common[key] = values[0] if all(value == values[0] for value in values) else "varies"
    return common


def headline(columns: Sequence[Column], runs: Sequence[Run]) -> int | None:
    """Return the index of the column for the top of the page, or None if no run has a score.

    The rule is that of `antipode.evaluation.headline`. Among scores with labels on the runs' own
    data, and so on, the one that most runs have comes first. Networks that no run trained do not
    count, unless the page shows nothing else.
    """
    trained = [run for run in runs if run.values] or list(runs)
    scored = [
        sum(column_of(name, score) == column for run in trained for name, score in _shown(run))
        for column in columns
    ]

    def rank(at: int) -> tuple[Any, ...]:
        label_free, other_data, *rest = preference(columns[at].name)
        return label_free, other_data, -scored[at], *rest

    return min((at for at in range(len(columns)) if scored[at]), key=rank, default=None)


def _shown(run: Run) -> Iterable[tuple[str, dict[str, Any]]]:
    return run.shown_scores.items()


class Main(NamedTuple):
    """The score at the top of the page.

    Args:
        column: index of its column.
        group: index of the setting that has it: the one with the highest mean.
        settings: number of settings that have such a score.
        mean: mean over seeds.
        std: sample standard deviation over seeds, None for one seed.
        n: number of seeds.
        score: the score as in scores.json. Its value is the mean. Its interval covers those of all
            seeds, and the baselines are means.
    """

    column: int
    group: int
    settings: int
    mean: float
    std: float | None
    n: int
    score: dict[str, Any]


def main_score(
    runs: Sequence[Run], groups: Sequence[Group], columns: Sequence[Column]
) -> Main | None:
    """Return the score at the top of the page, or None if there are no scores."""
    at = headline(columns, runs)
    if at is None:
        return None
    trained = {place for place, run in enumerate(runs) if run.values}
    found = {
        place: cells(group, runs, columns)[at]
        for place, group in enumerate(groups)
        if at in cells(group, runs, columns) and (not trained or trained & set(group.runs))
    }
    best = max(found, key=lambda place: float(found[place]["mean"]))
    scores = [
        score
        for run in groups[best].runs
        for name, score in _shown(runs[run])
        if column_of(name, score) == columns[at]
    ]
    cell = found[best]
    combined = _combined(scores, cell["mean"], _untrained(runs, columns[at]))
    return Main(at, best, len(found), cell["mean"], cell["std"], cell["n"], combined)


def _combined(
    scores: Sequence[dict[str, Any]], mean: float, untrained: float | None
) -> dict[str, Any]:
    """Return one score for those of several seeds."""

    def numbers(key: str) -> list[float]:
        return [float(score[key]) for score in scores if number(score.get(key))]

    more = [score["more"] for score in scores if isinstance(score.get("more"), dict)]
    own = [float(each["untrained"]) for each in more if number(each.get("untrained"))]
    overlap = [int(each[OVERLAP]) for each in more if number(each.get(OVERLAP))]
    baseline = statistics.fmean(own) if own else untrained
    return {
        **scores[0],
        "value": mean,
        "low": min(numbers("low"), default=None),
        "high": max(numbers("high"), default=None),
        "chance": statistics.fmean(numbers("chance")) if numbers("chance") else None,
        "more": ({} if baseline is None else {"untrained": baseline})
        | ({OVERLAP: max(overlap)} if overlap else {}),
    }


def _untrained(runs: Sequence[Run], column: Column) -> float | None:
    """Return the score of an untrained network on the page, or None if there is none."""
    values = [
        float(score["value"])
        for run in runs
        if run.is_untrained
        for name, score in _shown(run)
        if column_of(name, score) == column
    ]
    return statistics.fmean(values) if values else None


def summary(values: Iterable[float]) -> dict[str, Any]:
    """Return mean, sample standard deviation (None for a single value) and n."""
    numbers = list(values)
    deviation = statistics.stdev(numbers) if len(numbers) > 1 else None
    return {"mean": statistics.fmean(numbers), "std": deviation, "n": len(numbers)}


def cells(
    group: Group, runs: Sequence[Run], columns: Sequence[Column]
) -> dict[int, dict[str, Any]]:
    """Return the summary over seeds of a setting, for each column in which it has scores.

    Several runs with the same seed count as one value, which is their mean.
    """
    values: dict[int, dict[Any, list[float]]] = {}
    for at in group.runs:
        for name, score in runs[at].shown_scores.items():
            seeds = values.setdefault(columns.index(column_of(name, score)), {})
            seeds.setdefault(runs[at].value(SEED), []).append(float(score["value"]))
    means = {
        column: [statistics.fmean(same_seed) for same_seed in seeds.values()]
        for column, seeds in values.items()
    }
    return {column: summary(numbers) for column, numbers in sorted(means.items())}
