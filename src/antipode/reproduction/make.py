"""Make an item: train missing runs, evaluate, analyse, collect the numbers and check the laws."""

import json
import math
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from antipode import dist
from antipode.devices import pick_device
from antipode.files import atomic_write, finite
from antipode.launch import dispatch
from antipode.launch.place import Asked, Resources
from antipode.launch.place import Place as Where
from antipode.launch.place import place as placed
from antipode.launch.place import resources as wanted
from antipode.launch.task import Task
from antipode.paths import absolute, absolute_or_none
from antipode.reproduction import picture, present
from antipode.reproduction.collect import collect
from antipode.reproduction.intervals import over_seeds
from antipode.reproduction.item import Cells, Item, Law, Measure, Place, Scale, Verdict
from antipode.reproduction.measure import measure_run
from antipode.reproduction.plan import Plan, PlannedRun, as_json, listing, make_plan
from antipode.reproduction.ready import (
    check_ready,
    check_single_process,
    data_root,
    opened_network,
)
from antipode.runs.environment import environment
from antipode.runs.folder import check_results
from antipode.runs.run import Run
from antipode.training.pretrain import pretrain_recipe
from antipode.types import check_kind

HERE = Where()
NOTHING = Resources()


@dataclass(frozen=True)
class Outcome:
    """The results of an item.

    Args:
        plan: the runs.
        cells: the numbers by place, one per seed.
        laws: each law with its verdict.
        missing: a sentence for each number or run that could not be obtained.
        seconds: the duration.
        files: the written files by kind (json, png, html).
    """

    plan: Plan
    cells: Cells
    laws: tuple[tuple[Law, Verdict], ...]
    missing: tuple[str, ...]
    seconds: float
    files: dict[str, Path]

    @property
    def ok(self) -> bool:
        """True if no law is violated and nothing is missing. An undecided law is not violated."""
        violated = any(verdict.word == "does not hold" for _, verdict in self.laws)
        return not self.missing and not violated


def reproduce(
    item: str,
    scale: str = "smoke",
    out: str | Path | None = None,
    *,
    seeds: int | None = None,
    root: str | Path | None = None,
    device: str = "auto",
    at_once: int | str = 1,
    quiet: bool = False,
    on: str = "local",
    resources: Asked = None,
) -> Outcome:
    """Reproduce a table or figure of a paper, and write it as JSON, PNG and HTML.

    The runs that are missing in `out`/runs are trained first. The same call again resumes what was
    stopped.

    Args:
        item: the name of a table or figure; `antipode list items` shows all names.
        scale: smoke, small or paper.
        out: the output folder, by default repro/SCALE.
        seeds: the number of runs of each kind, in place of the scale's own number.
        root: the folder with data sets, by default ANTIPODE_DATA.
        device: auto, cpu, cuda or mps.
        at_once: how many runs train at the same time on the device, or "auto". Times that an item
            measures are comparable only with 1.
        quiet: whether to print nothing.
        on: where the runs train: "local", "slurm", "ray" or "ray://HOST:PORT".
        resources: what each run gets on a cluster, as a text such as "gpus=1,hours=4" or a mapping.
    """
    check_single_process()
    check_kind(bool, quiet=quiet)
    check_kind(str | Path | None, root=root)
    place = placed(on)
    asked = wanted(resources)
    dispatch.check(place, asked, at_once)
    plan = make_plan(item, scale, output_folder(out, scale), seeds=seeds, root=root, device=device)
    start = time.monotonic()
    with data_root(root):
        check_ready(plan, here=place.kind == "local")
        if not quiet:
            print("\n".join(listing(plan)[:2]), file=sys.stderr)
        failed = perform(plan, device, quiet, at_once, place, asked)
    cells, absent = collect(plan, failed)
    laws = tuple(check_laws(plan.item, plan.scale, cells))
    missing = (*failed.values(), *absent)
    outcome = Outcome(plan, cells, laws, missing, time.monotonic() - start, files(plan))
    write(outcome)
    return outcome


def plan_item(
    item: str,
    scale: str,
    out: str | Path | None,
    *,
    at_once: int | str = 1,
    on: str = "local",
    resources: Asked = None,
    **options: Any,
) -> tuple[dict[str, Any], list[str]]:
    """Return the runs of an item with their states and commands, and the cost, as JSON and lines.

    With `resources`, the commands start as many processes as they ask for.
    """
    dispatch.check_at_once(placed(on), at_once)
    plan = make_plan(item, scale, output_folder(out, scale), **options)
    return as_json(plan, resources), listing(plan, resources)


def output_folder(out: str | Path | None, scale: str) -> Path:
    """Return the folder of an item's files, by default repro/SCALE.

    Raises ValueError if it holds a run or a classifier.
    """
    folder = absolute_or_none(out) or absolute(Path("repro", scale))
    check_results(folder, "sweep.json")
    return folder


def perform(
    plan: Plan,
    device: str,
    quiet: bool,
    at_once: int | str = 1,
    place: Where = HERE,
    asked: Resources = NOTHING,
) -> dict[Path, str]:
    """Train and measure every run. Return the folders of runs that failed, with a sentence each."""
    measures: dict[Path, list[Measure]] = {}
    for trial, runs in plan.trials:
        for planned in runs:
            measures.setdefault(planned.folder, []).extend(trial.measures)
    silent = quiet or plan.scale == "smoke"
    tasks = [
        Task(
            planned.label,
            planned.folder,
            partial(finish, plan, planned, measures[planned.folder], device, silent),
            0.0 if planned.done else planned.work,
            0 if planned.recipe is None else planned.recipe.train.batch,
            " ".join(sorted({measure.name for measure in measures[planned.folder]})),
            planned.recipe is not None and planned.recipe.train.deterministic,
        )
        for planned in plan.runs
    ]
    guess = "about a minute left" if plan.scale == "smoke" else ""
    return dispatch.perform(
        tasks,
        place=place,
        resources=asked,
        at_once=at_once,
        device=device,
        quiet=quiet,
        guess=guess,
    )


def finish(
    plan: Plan,
    planned: PlannedRun,
    measures: list[Measure],
    device: str,
    silent: bool,
    quiet: bool,
) -> None:
    """Train and measure a run. Of several ranks, one measures.

    Nothing is printed if `silent` or `quiet`.
    """
    run = train(planned, quiet=silent or quiet)
    if not dist.alone():
        return
    measure_run(plan, planned, run, measures, device)


def train(planned: PlannedRun, quiet: bool) -> Run:
    """Train a run to its end, resuming it if it was started, and return it.

    Nothing is trained if the run is finished, or if it is a network that is not trained.
    """
    if planned.recipe is None:
        return opened_network(planned)
    if planned.done:
        return Run(planned.folder)
    return pretrain_recipe(planned.recipe, planned.folder, quiet=quiet)


def check_laws(item: Item, scale: Scale, cells: Cells) -> Iterator[tuple[Law, Verdict]]:
    """Yield every law of a scale with its verdict.

    The margin of a law that cannot be checked is NaN, so that it does not hold. If a law does not
    state the interval of its margin, the margins of the seeds give it.
    """
    for law in item.laws_at(scale):
        try:
            verdict = law.check(cells)
            if not verdict.interval:
                verdict = verdict._replace(interval=over_seeds(partial(_margin, law), cells))
            yield law, verdict
        except (KeyError, IndexError, ValueError) as error:
            yield law, Verdict(math.nan, f"cannot be checked, numbers are missing ({error})")


def _margin(law: Law, cells: Cells) -> float:
    return law.check(cells).margin


def files(plan: Plan) -> dict[str, Path]:
    """Return the paths of the files of an item by kind."""
    return {kind: plan.out / f"{plan.name}.{kind}" for kind in ("json", "png", "html")}


def write(outcome: Outcome) -> None:
    """Write the JSON file, the picture, and the page that contains the picture.

    Without matplotlib there is no picture, and its path is removed from the files of the outcome.
    """
    plan = outcome.plan
    paths = outcome.files
    content = record(outcome)
    with atomic_write(paths["json"]) as file:
        file.write((json.dumps(content, indent=1, allow_nan=False) + "\n").encode())
    png = picture.draw(plan.item, outcome.cells, plan.name, plan.scale)
    if png is None:
        del paths["png"]
    else:
        with atomic_write(paths["png"]) as file:
            file.write(png)
    with atomic_write(paths["html"]) as file:
        file.write(present.page(content, png).encode())


def record(outcome: Outcome) -> dict[str, Any]:
    """Return all results of an item as the content of its JSON file."""
    plan = outcome.plan
    item = plan.item
    places: Iterable[Place] = dict.fromkeys([*item.paper, *outcome.cells])
    cell = partial(present.cell, item, outcome.cells)
    return {
        "item": plan.name,
        "scale": plan.scale,
        "title": item.title,
        "question": item.question,
        "source": item.source,
        "trend": item.trend,
        "note": item.grids[plan.scale].note,
        "panels": [panel._asdict() for panel in item.panels],
        "cells": [finite(cell(place)) for place in places],
        "laws": [_law(law, verdict) for law, verdict in outcome.laws],
        "not judged": [law.text for law in item.laws if plan.scale not in law.scales],
        "missing": list(outcome.missing),
        "runs": [
            {"folder": str(planned.folder.relative_to(plan.out)), "label": planned.label}
            for planned in plan.runs
        ],
        "seconds": outcome.seconds,
        "environment": environment(_device_type(plan.device)),
    }


def _device_type(name: str) -> str:
    """Return the type of a device, also of one that only the nodes of a cluster have."""
    try:
        return pick_device(name).type
    except ValueError:
        return f"{name} of a cluster"


def _law(law: Law, verdict: Verdict) -> dict[str, Any]:
    """Return the record of a law and its verdict."""
    return {
        "law": law.text,
        "source": law.source,
        "paper": law.paper,
        "holds": verdict.holds,
        "verdict": verdict.word,
        "found": verdict.text,
        "margin": finite(verdict.margin),
        "interval": finite(verdict.interval),
    }
