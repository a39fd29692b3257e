"""Numbers out of the files of finished runs, by place."""

from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

from antipode.analysis.contrast import per_epoch
from antipode.evaluation import protocol
from antipode.reproduction.item import Cells, Measure
from antipode.reproduction.plan import Plan, PlannedRun
from antipode.runs.folder import RunFolder


def key(job: PlannedRun, one: Measure) -> str:
    """Where scores.json holds a score: under the protocol, and the data set where it is not the run's own."""
    place = one.data or protocol.known(one.name).data or job.data
    return one.name if place == job.data else f"{one.name}@{place}"


def collect(plan: Plan, failed: Collection[Path] = ()) -> tuple[Cells, list[str]]:
    """All numbers by place, one for each seed, and what is not there of the runs that did not fail."""
    cells: Cells = {}
    absent = []
    for trial, jobs in plan.trials:
        for job in (job for job in jobs if job.folder not in failed):
            for one in trial.measures:
                panel, row, column = trial.place(one)
                try:
                    for x, value in points(found(job, one)):
                        cells.setdefault((panel, row, column if x is None else x), []).append(value)
                except (KeyError, TypeError):
                    absent.append(f"{job.label}: there is no {one.name} {one.pick}")
    return cells, absent


def found(job: PlannedRun, one: Measure) -> Any:
    """What a measure took from a finished run."""
    run = RunFolder(job.folder)
    if one.kind == "metric":
        return over_epochs(run.metrics(), one.name)
    if one.kind == "analysis":
        content = run.read_json("analysis.json")[one.name]
    else:
        content = run.read_json("scores.json")[one.name if one.kind == "scenes" else key(job, one)]
    for step in one.pick.split(".", 1):
        content = content[step]
    return content


def over_epochs(rows: list[dict[str, Any]], name: str) -> dict[str, list[float]]:
    """The mean of a recorded number in each epoch, counted from 1."""
    means = per_epoch(rows, name)
    if not means:
        raise KeyError(name)
    return {"x": [float(epoch) for epoch in means], "y": [*means.values()]}


def points(content: Any) -> Iterator[tuple[float | None, float]]:
    """x and value of every point of a curve or bin of a histogram (its share of all); a plain number has no x."""
    if not isinstance(content, dict):
        yield None, float(content)
    elif "edges" in content:
        total, edges = sum(content["counts"]), content["edges"]
        for place, count in enumerate(content["counts"]):
            yield (edges[place] + edges[place + 1]) / 2, count / total
    else:
        for x, y in zip(content["x"], content["y"], strict=True):
            if y is not None:
                yield x, y
