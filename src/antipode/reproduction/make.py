"""Make an item: train what is missing, evaluate, analyse, collect, and set our numbers beside the paper's."""

import json
import os
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from antipode import api
from antipode.analysis import catalog as analyses
from antipode.data.sources.catalog import load
from antipode.evaluation import protocol
from antipode.evaluation.precision import library
from antipode.files import atomic_write, finite
from antipode.reproduction import present
from antipode.reproduction.collect import collect, key
from antipode.reproduction.item import Cells, Law, Measure, Place
from antipode.reproduction.plan import H200, Plan, PlannedRun, listing, make_plan
from antipode.runs.folder import RunFolder, environment
from antipode.runs.run import subject
from antipode.training.loop import pick_device

TROUBLE = (ValueError, FileNotFoundError, MemoryError)  # what one run may have without the others


@dataclass(frozen=True)
class Outcome:
    """Numbers by place, each law with whether it holds and what was found, what could not be had, and the files."""

    plan: Plan
    cells: Cells
    laws: tuple[tuple[Law, bool, str], ...]
    missing: tuple[str, ...]
    seconds: float
    files: dict[str, Path]

    @property
    def ok(self) -> bool:
        """Whether all laws hold and nothing is missing."""
        return not self.missing and all(holds for _, holds, _ in self.laws)


def reproduce(
    item: str,
    scale: str = "smoke",
    out: str | Path | None = None,
    *,
    seeds: int | None = None,
    root: str | Path | None = None,
    device: str = "auto",
    quiet: bool = False,
) -> Outcome:
    """A table or figure of a paper: trains what is missing in `out`/runs, evaluates, and writes JSON, PNG and HTML.

    Without `out` it is repro/SCALE. The same call again goes on where it was stopped. `seeds` takes the place of the
    scale's own number of runs of each kind; `root` is the folder with data sets, ANTIPODE_DATA by default.
    """
    alone()
    plan = make_plan(item, scale, folder(out, scale), seeds=seeds, root=root, device=device)
    start = time.monotonic()
    with data_in(root):
        ready(plan)
        if not quiet:
            print("\n".join(listing(plan)[:2]), file=sys.stderr)
        failed = perform(plan, device, quiet)
    cells, absent = collect(plan, failed)
    laws, missing = tuple(judged(plan, cells)), (*failed.values(), *absent)
    outcome = Outcome(plan, cells, laws, missing, time.monotonic() - start, files(plan))
    write(outcome)
    return outcome


def planned(item: str, scale: str, out: str | Path | None, **asked: Any) -> list[str]:
    """What an item would take: its runs, their states and commands, and the cost."""
    return listing(make_plan(item, scale, folder(out, scale), **asked))


def folder(out: str | Path | None, scale: str) -> Path:
    """Where an item goes."""
    return Path(out).expanduser() if out else Path("repro") / scale


def alone() -> None:
    """Refuse several processes: they would write the same files."""
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise ValueError(
            "reproduce is one process: train its runs under torchrun with the commands of --plan, then call it alone"
        )


@contextmanager
def data_in(root: str | Path | None) -> Iterator[None]:
    """Look for data sets in a folder; recipes then name none, and runs can be moved with their data."""
    before = os.environ.get("ANTIPODE_DATA")
    if root:
        os.environ["ANTIPODE_DATA"] = str(root)
    try:
        yield
    finally:
        if root:
            os.environ.pop("ANTIPODE_DATA")
            os.environ |= {} if before is None else {"ANTIPODE_DATA": before}


def ready(plan: Plan) -> None:
    """Refuse an item that could not be finished, before anything trains: data, protocols, libraries."""
    measures = [measure for trial, _ in plan.trials for measure in trial.measures]
    names = {job.recipe.data.name for job in plan.jobs if job.recipe is not None}
    for measure in measures:
        if measure.kind == "score":
            names |= {place for place in (protocol.known(measure.name).data, measure.data) if place}
        elif measure.kind == "analysis":
            analyses.known([measure.name])
    if any(measure.name.startswith(("detect", "segment")) for measure in measures):
        library()
    pick_device(plan.device)
    for job in plan.jobs:
        if job.trial.recipe.startswith("torchvision:"):
            subject(job.trial.recipe, data=job.data)  # fetches its weights
    for name in sorted(names):
        try:
            load(name)
        except (ValueError, FileNotFoundError) as error:
            raise FileNotFoundError(
                f"{plan.name} at scale {plan.scale} needs {name}: {error}"
            ) from None


def perform(plan: Plan, device: str, quiet: bool) -> dict[Path, str]:
    """Train and measure every job; returns the folders of those that failed, with a sentence each."""
    wanted: dict[Path, list[Measure]] = {}
    for trial, jobs in plan.trials:
        for job in jobs:
            wanted.setdefault(job.folder, []).extend(trial.measures)
    failed, clock = dict[Path, str](), Clock(plan)
    for number, job in enumerate(plan.jobs, 1):
        if not quiet:
            print(f"{number} of {len(plan.jobs)}, {clock.left(job)}: {job.label}", file=sys.stderr)
        try:
            with clock.timing(job):
                train(job, quiet=quiet or plan.scale == "smoke")
            measure(plan, job, wanted[job.folder], device)
        except TROUBLE as error:
            failed[job.folder] = f"{job.label}: {error}"
    return failed


class Clock:
    """How long the rest will take: by the speed so far, or at first by what is known of an H200."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.waiting = {job.folder: job.work for job in plan.missing}
        self.seconds, self.operations = 0.0, 0.0

    @contextmanager
    def timing(self, job: PlannedRun) -> Iterator[None]:
        """Time one job's training."""
        todo, start = self.waiting.get(job.folder, 0.0), time.monotonic()
        yield
        if todo:
            self.seconds, self.operations = (
                self.seconds + time.monotonic() - start,
                self.operations + todo,
            )

    def left(self, job: PlannedRun) -> str:
        """The time that training will still take, as it starts with a job."""
        place = self.plan.jobs.index(job)
        todo = sum(self.waiting.get(later.folder, 0.0) for later in self.plan.jobs[place:])
        if not todo:
            return "nothing left to train"
        speed = self.operations / self.seconds if self.seconds else H200
        if not self.seconds and self.plan.scale == "smoke":
            return "about a minute left"
        return f"{'' if self.seconds else 'on an H200 '}{present.duration(todo / speed)} left"


def train(job: PlannedRun, quiet: bool) -> None:
    """Train a job to its end, or go on with it; nothing where it is finished or has nothing to train."""
    if job.done or job.recipe is None:
        return
    api.pretrain(
        job.trial.recipe, overrides=job.overrides, seed=job.seed, out=job.folder, quiet=quiet
    )


def measure(plan: Plan, job: PlannedRun, measures: Iterable[Measure], device: str) -> None:
    """Evaluate and analyse a finished job, as far as its files do not hold the results."""
    filed = RunFolder(job.folder).read_json("scores.json")
    if job.recipe is not None:  # a score by another seed's classifier is not the item's
        filed = {
            name: one
            for name, one in filed.items()
            if not isinstance(one, dict) or one.get("seed") == job.seed
        }
    scores = [one for one in measures if one.kind == "score" and key(job, one) not in filed]
    for data in dict.fromkeys(one.data for one in scores):
        names = list(dict.fromkeys(one.name for one in scores if one.data == data))
        if job.recipe is None:
            place = data or job.data
            api.evaluate(
                job.trial.recipe, names, data=place, out=job.folder, seed=job.seed, device=device
            )
        else:
            api.evaluate(job.folder, names, data=data, device=device)
    on = "cuda" if pick_device(device).type == "cuda" else "cpu"
    known = {
        name
        for name, one in RunFolder(job.folder).read_json("analysis.json").items()
        if as_the_item(one, on)
    }
    names = list(
        dict.fromkeys(
            one.name for one in measures if one.kind == "analysis" and one.name not in known
        )
    )
    if names:
        api.analyse([job.folder], names, device=device)
    slim = {one.name for one in measures if one.kind == "scenes" and one.name not in filed}
    for name in slim:
        from antipode.reproduction import scenes  # noqa: PLC0415  (torchvision's detectors)

        network = job.trial.recipe if job.recipe is None else str(job.folder)
        where = {"out": job.folder, "scenes": plan.out / "data"}
        scenes.judge(network, name, data=job.data, seed=job.seed, device=device, **where)


def as_the_item(one: Any, device: str) -> bool:
    """Whether an analysis was made as an item makes it: by seed 0, on all images that it takes on such a device."""
    settings = one.get("settings") if isinstance(one, dict) else None
    if not isinstance(settings, dict):
        return False
    whole_set = settings.get("device", device) == device and "at most" not in settings
    return whole_set and settings.get("seed", 0) == 0


def judged(plan: Plan, cells: Cells) -> Iterator[tuple[Law, bool, str]]:
    """Every law of the scale, whether it holds and what was found."""
    for law in plan.item.asked(plan.scale):
        try:
            yield law, *law.check(cells)
        except (KeyError, IndexError, ValueError) as error:
            yield law, False, f"it cannot be judged, since numbers are missing ({error})"


def files(plan: Plan) -> dict[str, Path]:
    """What is written."""
    return {kind: plan.out / f"{plan.name}.{kind}" for kind in ("json", "png", "html")}


def write(outcome: Outcome) -> None:
    """The JSON, the picture where matplotlib is there, and the page with the picture in it."""
    paths, content = outcome.files, record(outcome)
    with atomic_write(paths["json"]) as file:
        file.write((json.dumps(content, indent=1, allow_nan=False) + "\n").encode())
    picture = present.picture(
        outcome.plan.item, outcome.cells, outcome.plan.name, outcome.plan.scale
    )
    if picture is None:
        del paths["png"]
    else:
        with atomic_write(paths["png"]) as file:
            file.write(picture)
    with atomic_write(paths["html"]) as file:
        file.write(present.page(content, picture).encode())


def record(outcome: Outcome) -> dict[str, Any]:
    """Everything that came out, as JSON has it."""
    plan, item = outcome.plan, outcome.plan.item
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
        "laws": [
            {"law": law.text, "holds": holds, "found": text} for law, holds, text in outcome.laws
        ],
        "missing": list(outcome.missing),
        "runs": [{"folder": str(job.folder), "label": job.label} for job in plan.jobs],
        "seconds": outcome.seconds,
        "environment": environment(pick_device(plan.device).type),
    }
