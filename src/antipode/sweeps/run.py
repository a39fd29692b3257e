"""Run a sweep: train and evaluate every setting with several seeds, and write the results."""

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from antipode import dist
from antipode.evaluation.evaluate import evaluate
from antipode.evaluation.protocol import NEIGHBOURS, has_usual, known, stored_name
from antipode.files import atomic_write, finite
from antipode.launch.dispatch import check, check_at_once, perform
from antipode.launch.place import Asked
from antipode.launch.place import place as placed
from antipode.launch.place import resources as wanted
from antipode.launch.task import Task
from antipode.names import several
from antipode.paths import absolute
from antipode.runs.run import Run
from antipode.sweeps.page import page
from antipode.sweeps.plan import SweepRun, as_json, listing, make_plan
from antipode.sweeps.table import CHOOSING, results
from antipode.training.pretrain import pretrain_recipe
from antipode.types import check_kind


@dataclass(frozen=True)
class Sweep:
    """A finished sweep.

    Args:
        path: the folder.
        rows: one row per setting, as in sweep.json.
        content: all of sweep.json.
    """

    path: Path
    rows: list[dict[str, Any]]
    content: dict[str, Any]

    @property
    def ok(self) -> bool:
        """True if no run failed."""
        return not self.content["failed"]

    @property
    def report(self) -> Path:
        """The page of the sweep."""
        return self.path / "report.html"


def sweep(
    recipe: str | Path | Mapping[str, Any] | None,
    vary: Mapping[str, Iterable[Any]] | Sequence[str],
    out: str | Path,
    *,
    seeds: int = 1,
    protocols: Sequence[str] | str | None = None,
    overrides: Mapping[str, Any] | Sequence[str] = (),
    at_once: int | str = 1,
    device: str = "auto",
    quiet: bool = False,
    on: str = "local",
    resources: Asked = None,
) -> Sweep:
    """Train and evaluate every combination of values with several seeds.

    Writes `out`/sweep.json and `out`/report.html. The runs are in `out`/runs. The same call resumes
    what was stopped and trains only what is missing. A run that fails does not stop the others.

    Args:
        recipe: `dataset.method`, a recipe file or a mapping.
        vary: the values of each varied key, such as {"method.tau": [0.1, 0.2]}.
        out: the folder of the sweep.
        seeds: the number of runs of each setting.
        protocols: protocols of the test scores; by default those of `evaluate`. A protocol that
            uses no test label is added, to choose the best setting by.
        overrides: values of the recipe that all runs share.
        at_once: how many runs train at the same time on the device, or "auto".
        device: auto, cpu, cuda or mps.
        quiet: whether to print nothing.
        on: where the runs train: "local", "slurm", "ray" or "ray://HOST:PORT".
        resources: what each run gets on a cluster, as a text such as "gpus=1,hours=4" or a mapping.
    """
    if dist.world() > 1:
        raise ValueError("a sweep needs a single process: start it without torchrun")
    check_kind(bool, quiet=quiet)
    names = several("protocols", protocols) or []
    for name in names:
        known(name)
    place = placed(on)
    asked = wanted(resources)
    check(place, asked, at_once)
    plan = make_plan(recipe, vary, absolute(out), seeds=seeds, overrides=overrides, device=device)
    tasks = [_task(run, names, plan.device) for run in plan.runs]
    failed = perform(
        tasks, place=place, resources=asked, at_once=at_once, device=plan.device, quiet=quiet
    )
    content = results(plan, names, failed)
    _write(plan.out, content)
    return Sweep(plan.out, content["rows"], content)


def plan_sweep(
    recipe: str | Path | Mapping[str, Any] | None,
    vary: Mapping[str, Iterable[Any]] | Sequence[str],
    out: str | Path,
    *,
    at_once: int | str = 1,
    on: str = "local",
    resources: Asked = None,
    **options: Any,
) -> tuple[dict[str, Any], list[str]]:
    """Return the cost of a sweep, and every run with its state and command, as JSON and as lines.

    With `resources`, the commands start as many processes as they ask for.
    """
    check_at_once(placed(on), at_once)
    plan = make_plan(recipe, vary, absolute(out), **options)
    return as_json(plan, resources), listing(plan, resources)


def _task(run: SweepRun, protocols: Sequence[str], device: str) -> Task:
    return Task(
        run.label,
        run.folder,
        partial(finish, run, tuple(protocols), device),
        0.0 if run.done else run.work or None,
        run.recipe.train.batch,
        " ".join(protocols),
        run.recipe.train.deterministic,
    )


def finish(run: SweepRun, protocols: Sequence[str], device: str, quiet: bool) -> None:
    """Train a run to its end and add the scores that it lacks. Of several ranks, one evaluates."""
    trained = Run(run.folder) if run.done else pretrain_recipe(run.recipe, run.folder, quiet=quiet)
    if not dist.alone():
        return
    stored = trained.scores
    own = trained.data_name
    missing = [name for name in protocols if stored_name(name, own) not in stored]
    if missing or not (protocols or has_usual(stored)):
        evaluate(trained, missing or None, device=device)
    if _lacks_choice(protocols, trained.scores):
        _score_for_choice(trained, device)


def _lacks_choice(protocols: Collection[str], stored: Collection[str]) -> bool:
    """Return True if a run lacks the score by which the best setting is chosen.

    An earlier sweep may have computed only the second choice. A kNN score shows that there are
    labels, so that the first choice is possible.
    """
    if CHOOSING[0] in stored or any(name in protocols for name in CHOOSING):
        return False
    labelled = any(name in stored for name in NEIGHBOURS)
    return labelled or not any(name in stored for name in CHOOSING)


def _score_for_choice(run: Run, device: str) -> None:
    """Add the first score without test labels that fits the data set."""
    for name in CHOOSING:
        try:
            evaluate(run, [name], device=device)
        except ValueError:
            continue
        return


def _write(out: Path, content: dict[str, Any]) -> None:
    """Write sweep.json and the page."""
    text = json.dumps(finite(content), indent=1, allow_nan=False) + "\n"
    with atomic_write(out / "sweep.json") as file:
        file.write(text.encode())
    with atomic_write(out / "report.html") as file:
        file.write(page(content, out).encode())
