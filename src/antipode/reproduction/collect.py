"""Read the numbers of an item from the files of its finished runs."""

from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import torch

from antipode.analysis.contrast import per_epoch
from antipode.analysis.cost import parameters
from antipode.evaluation import protocol
from antipode.nets.backbone import backbone
from antipode.reproduction.item import Cells, Measure
from antipode.reproduction.plan import Plan, PlannedRun
from antipode.runs.folder import RunFolder


def score_key(planned: PlannedRun, measure: Measure) -> str:
    """Return the key of a score in scores.json."""
    return protocol.stored_name(measure.name, planned.data, measure.data)


def collect(plan: Plan, failed: Collection[Path] = ()) -> tuple[Cells, list[str]]:
    """Return all numbers by place, one per seed, and a sentence for each number that is missing.

    The runs whose folders are in `failed` are left out.
    """
    cells: Cells = {}
    absent = []
    for trial, runs in plan.trials:
        for planned in runs:
            if planned.folder in failed:
                continue
            for measure in trial.measures:
                panel, row, column = trial.place(measure)
                try:
                    for x, value in points(measured(planned, measure)):
                        cells.setdefault((panel, row, column if x is None else x), []).append(value)
                except (KeyError, TypeError):
                    absent.append(
                        f"{planned.label}: the results do not contain {measure.name} {measure.pick}"
                    )
    return cells, absent


def measured(planned: PlannedRun, measure: Measure) -> Any:
    """Return the number, curve or histogram that a measure takes from a finished run."""
    if measure.kind == "parameters":
        return millions(planned)
    folder = RunFolder(planned.folder)
    if measure.kind == "metric":
        return over_epochs(folder.metrics(), measure.name)
    if measure.kind == "analysis":
        content = folder.read_object("analysis.json")[measure.name]
    else:
        key = measure.name if measure.kind == "scenes" else score_key(planned, measure)
        content = folder.read_object("scores.json")[key]
    for part in measure.pick.split(".", 1):
        content = content[part]
    return content


def millions(planned: PlannedRun) -> float:
    """Return the number of parameters of the backbone of a run in millions."""
    if planned.recipe is None:
        raise KeyError("the size of a network that is not trained is not counted")
    with torch.device("meta"):
        net = backbone(planned.recipe.backbone.name, stem=planned.recipe.backbone.stem)
    return parameters(net) / 1e6


def over_epochs(rows: list[dict[str, Any]], name: str) -> dict[str, list[float]]:
    """Return the mean of a recorded metric in each epoch. Epochs are counted from 1."""
    means = per_epoch(rows, name)
    if not means:
        raise KeyError(name)
    return {"x": [float(epoch) for epoch in means], "y": [*means.values()]}


def points(content: Any) -> Iterator[tuple[float | None, float]]:
    """Yield x and value of every point of a curve or bin of a histogram.

    The value of a bin is its share of the total count. The x of a single number is None.
    """
    if not isinstance(content, dict):
        yield None, float(content)
    elif "edges" in content:
        edges = content["edges"]
        total = sum(content["counts"])
        for index, count in enumerate(content["counts"]):
            yield (edges[index] + edges[index + 1]) / 2, count / total
    else:
        for x, y in zip(content["x"], content["y"], strict=True):
            if y is not None:
                yield x, y
