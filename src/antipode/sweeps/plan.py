"""Plan a sweep: the recipe and the folder of every run."""

import json
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from antipode.data.sources.splits import Splits
from antipode.launch.commands import absolute_recipe, ranked, relative_paths
from antipode.launch.place import Asked
from antipode.launch.task import H200, SHORT, duration
from antipode.recipe.opening import open_data, open_recipe
from antipode.recipe.parsing import flatten, settings
from antipode.recipe.recipe import Recipe
from antipode.recipe.request import requested
from antipode.reproduction.plan import MOST_SEEDS, digest, work
from antipode.runs.folder import check_results
from antipode.sweeps.settings import combinations, varied
from antipode.types import check_kind
from antipode.wording import counted

# the keys of a data set: splits with the same values are opened once
DATA_KEYS = ("data.name", "data.root", "data.download", "data.labels")


@dataclass(frozen=True)
class SweepRun:
    """One run of a sweep.

    Args:
        recipe: the resolved recipe.
        folder: the run folder.
        label: the varied values and the seed.
        command: the command that trains the run alone.
        work: floating-point operations of the training.
    """

    recipe: Recipe
    folder: Path
    label: str
    command: str
    work: float

    @property
    def done(self) -> bool:
        """True if the run is trained."""
        return (self.folder / "backbone.safetensors").exists()

    @property
    def state(self) -> str:
        """The state for display: "finished", "started" or "to train"."""
        if self.done:
            return "finished"
        return "started" if any((self.folder / "checkpoints").glob("*.pt")) else "to train"


@dataclass(frozen=True)
class Setting:
    """A combination of varied values, with one run per seed."""

    values: dict[str, Any]
    runs: tuple[SweepRun, ...]


@dataclass(frozen=True)
class SweepPlan:
    """All settings of a sweep.

    Args:
        out: the folder of the sweep.
        vary: the values of each varied key.
        settings: the settings with their runs.
        device: the device.
    """

    out: Path
    vary: dict[str, list[Any]]
    settings: tuple[Setting, ...]
    device: str

    @property
    def runs(self) -> tuple[SweepRun, ...]:
        """Every run once: settings that resolve to the same recipe share their runs."""
        runs = {run.folder: run for setting in self.settings for run in setting.runs}
        return tuple(runs.values())

    @property
    def missing(self) -> tuple[SweepRun, ...]:
        """The runs that are still to be trained."""
        return tuple(run for run in self.runs if not run.done)


def make_plan(
    recipe: str | Path | Mapping[str, Any] | None,
    vary: Mapping[str, Iterable[Any]] | Sequence[str],
    out: Path,
    *,
    seeds: int = 1,
    overrides: Mapping[str, Any] | Sequence[str] = (),
    device: str = "auto",
) -> SweepPlan:
    """Return the plan of a sweep. All recipes are resolved, so wrong values are found here."""
    check_kind(int, seeds=seeds)
    if not 1 <= seeds <= MOST_SEEDS:
        raise ValueError(f"a sweep takes 1 to {MOST_SEEDS:,} seeds per setting, got {seeds:,}")
    check_results(out, "sweep.json")
    keys = varied(vary)
    fixed = settings(overrides)
    if twice := sorted(keys.keys() & fixed.keys()):
        raise ValueError(f"{twice[0]} is varied and set at the same time")
    device = str(fixed.pop("train.device", device))
    opened: dict[tuple[Any, ...], tuple[Splits, Any]] = {}
    found = []
    for values in combinations(keys):
        asked = {**fixed, **values, "train.device": device}
        runs = [_planned(recipe, asked, values, seed, out, opened) for seed in range(seeds)]
        shown = {key: runs[0].recipe.leaves()[key] for key in keys}
        found.append(Setting(shown, tuple(runs)))
    converted = {
        key: list({json.dumps(one.values[key]): one.values[key] for one in found}.values())
        for key in keys
    }
    return SweepPlan(out, converted, tuple(found), device)


def _planned(
    recipe: Any,
    asked: dict[str, Any],
    values: dict[str, Any],
    seed: int,
    out: Path,
    opened: dict[tuple[Any, ...], tuple[Splits, Any]],
) -> SweepRun:
    """Return the run of a setting with one seed. `opened` holds the data sets that are open."""
    request = requested(recipe, overrides=asked, flags={"train.seed": seed})
    place = tuple(str(request.get(key)) for key in DATA_KEYS)
    if place not in opened:
        opened[place] = open_data(request)
    splits, settled = opened[place]
    if "data.labels" in settled.asked:
        request = request._replace(
            asked=request.asked | {"data.labels": settled.asked["data.labels"]}
        )
    final = open_recipe(request, splits)
    name = f"{final.data.name.partition(':')[0]}.{final.method.name}-{digest(final)}"
    label = " ".join([*(f"{key}={value}" for key, value in values.items()), f"seed={seed}"])
    folder = out / "runs" / name
    command = _command(recipe, asked | relative_paths(recipe, request), seed, folder)
    return SweepRun(final, folder, label, command, _work(final))


def _command(recipe: Any, asked: Mapping[str, Any], seed: int, folder: Path) -> str:
    """Return the command that trains a run alone, for any scheduler."""
    named = isinstance(recipe, str | Path)
    words = ["antipode", "pretrain", *([absolute_recipe(recipe)] if named else [])]
    content = {} if named or recipe is None else flatten(recipe)
    for key, value in {**content, **asked}.items():
        if key != "train.device":
            text = value if isinstance(value, str) else json.dumps(value)
            words += ["--set", f"{key}={text}"]
    return shlex.join([*words, "--seed", str(seed), "--out", str(folder)])


def _work(recipe: Recipe) -> float:
    """Return the operations of a training, 0 for a network whose operations cannot be counted."""
    try:
        return work(recipe)
    except (RuntimeError, NotImplementedError):
        return 0.0


def listing(plan: SweepPlan, resources: Asked = None) -> list[str]:
    """Return the lines that describe a plan: the cost, then every run with its command.

    The commands start as many processes as the resources ask for.
    """
    left = plan.missing
    seconds = _seconds(left)
    time = f", about {duration(seconds)} on one H200" if seconds else ""
    many = f"{counted(len(plan.settings), 'setting')}, {counted(len(plan.runs), 'run')}"
    head = f"{many}, {len(left):,} to train{time}"
    return [head, *(f"{run.state:8}  {ranked(run.command, resources)}" for run in plan.runs)]


def as_json(plan: SweepPlan, resources: Asked = None) -> dict[str, Any]:
    """Return a plan as JSON: the settings, and every run once with its state and command.

    The settings name their runs. `h200_seconds` is the estimate of `listing`, or None.
    """
    left = plan.missing
    return {
        "sweep": str(plan.out),
        "vary": plan.vary,
        "seeds": len(plan.settings[0].runs),
        "settings": [
            {"values": setting.values, "runs": [run.folder.name for run in setting.runs]}
            for setting in plan.settings
        ],
        "runs": [_row(run, resources) for run in plan.runs],
        "to_train": len(left),
        "h200_seconds": _seconds(left),
    }


def _seconds(left: Sequence[SweepRun]) -> float | None:
    """Return the time of runs on one H200, None if it is unknown or short.

    The time of runs that take seconds on a GPU says nothing about the CPU that they are for.
    """
    seconds = sum(run.work for run in left) / H200
    return seconds if seconds > SHORT and all(run.work for run in left) else None


def _row(run: SweepRun, resources: Asked) -> dict[str, Any]:
    """Return a run as JSON."""
    return {
        "name": run.folder.name,
        "folder": str(run.folder),
        "label": run.label,
        "seed": run.recipe.train.seed,
        "state": run.state,
        "finished": run.done,
        "command": ranked(run.command, resources),
        "operations": run.work or None,
    }
