"""Plan the runs of an item: which runs it needs, which are finished, and what the others cost."""

import hashlib
import json
import shlex
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from antipode.launch.commands import ranked
from antipode.launch.place import Asked
from antipode.launch.task import H200
from antipode.names import unknown
from antipode.nets.backbone import Stem, backbone
from antipode.papers import sketch
from antipode.paths import absolute
from antipode.recipe.datasets import dataset_defaults
from antipode.recipe.recipe import Recipe
from antipode.recipe.resolve import resolve
from antipode.reproduction import catalog
from antipode.reproduction.item import SCALES, Item, Scale, Trial
from antipode.types import check_kind

# Keys that change neither the weights nor the records of a run. Recipes that differ only in these
# share one run.
NOT_IN_DIGEST = (
    *("data.root", "data.download", "data.workers", "train.device", "train.on_collapse"),
    *("monitor.wandb", "monitor.tensorboard"),
)
# Recipe keys added after commit dc86232, by dotted key, with the default that has the effect of the
# earlier versions. The digest leaves out such a key while it has this default, so that runs trained
# before the key existed are still found.
NEW_KEYS: dict[str, Any] = {
    "train.checkpoint_steps": None,
    "backbone.freeze_patches": False,
    "train.negatives": "part",
    "data.labels": "folders",
    "data.decoder": "auto",
    "data.reduced_decode": False,
}

# Floating-point operations of a forward pass of ResNet-50 at 224 pixels, as `forward` counts them:
# a multiplication with its addition is two operations.
RESNET50 = 8.17e9
# Operations per second of a V100. MoCo's README states 53 hours on 8 V100 for 200 epochs of
# MoCo v2. A step is a forward and backward pass of the query (3 passes) and a forward pass of the
# key (1 pass).
V100 = 1_281_167 * 200 * 4 * RESNET50 / (53 * 8 * 3600)
# Operations of the backbone of a detector in MoCo's 1x schedule (90,000 steps of 16 images).
DETECTION = 90_000 * 16 * 3 * RESNET50 * (800 * 1216) / 224**2
PASSES = 100  # over the labelled images, in a linear protocol
MOST_SEEDS = 1000  # each of them is a run of every setting


@dataclass(frozen=True)
class PlannedRun:
    """One run of a plan.

    Args:
        trial: the first trial that needs the run.
        seed: the seed of the run.
        folder: the run folder.
        recipe: the recipe, or None for a network that is not trained.
        overrides: the overrides of the trial, and the device.
        root: the folder with data sets, or None for the one in ANTIPODE_DATA.
        work: floating-point operations of the training.
    """

    trial: Trial
    seed: int
    folder: Path
    recipe: Recipe | None
    overrides: dict[str, Any]
    root: str | None = None
    work: float = 0.0

    @property
    def data(self) -> str:
        """The data set of the run. An untrained network takes its size and stem from it."""
        if self.recipe is None:
            return str(self.trial.overrides["data.name"])
        return self.recipe.data.name

    @property
    def label(self) -> str:
        """The name of the recipe, the overrides and the seed."""
        changes = [
            f"{key.removeprefix('method.')}={value}" for key, value in self.trial.overrides.items()
        ]
        return " ".join([self.trial.recipe, *changes, f"seed={self.seed}"])

    @property
    def done(self) -> bool:
        """True if there is nothing left to train."""
        return self.recipe is None or (self.folder / "backbone.safetensors").exists()

    @property
    def state(self) -> str:
        """The state for display: "not trained" (by design), "finished", "started" or "to train"."""
        if self.recipe is None:
            return "not trained"
        if self.done:
            return "finished"
        started = any((self.folder / "checkpoints").glob("*.pt"))
        return "started" if started else "to train"

    @property
    def command(self) -> str:
        """The command that trains this run alone, for instance under torchrun."""
        root = {"data.root": str(absolute(self.root))} if self.root else {}
        values = {**self.trial.overrides, **root}
        words = ["antipode", "pretrain", self.trial.recipe]
        for key, value in values.items():
            words += ["--set", f"{key}={json.dumps(value)}"]
        return shlex.join([*words, "--seed", str(self.seed), "--out", str(self.folder)])


@dataclass(frozen=True)
class Plan:
    """All runs of an item at a scale.

    `trials` holds each trial with its runs, one per seed. Two trials with the same recipe share a
    run, which is listed once in `runs`.
    """

    name: str
    item: Item
    scale: Scale
    out: Path
    device: str
    runs: tuple[PlannedRun, ...]
    trials: tuple[tuple[Trial, tuple[PlannedRun, ...]], ...]

    @property
    def missing(self) -> tuple[PlannedRun, ...]:
        """The runs that are still to be trained."""
        return tuple(planned for planned in self.runs if not planned.done)


def make_plan(
    name: str,
    scale: str,
    out: Path,
    *,
    seeds: int | None = None,
    root: str | Path | None = None,
    device: str = "auto",
) -> Plan:
    """Return the plan of an item. `seeds` replaces the scale's own number of seeds.

    Raises ValueError for an unknown item or scale, and for no seed or more than `MOST_SEEDS`.
    """
    item = catalog.item(name)
    if scale not in SCALES:
        raise unknown("scale", scale, SCALES)
    check_kind(int | None, seeds=seeds)
    if seeds is not None and seeds < 1:
        raise ValueError(f"an item needs at least one seed, got {seeds}")
    if seeds is not None and seeds > MOST_SEEDS:
        raise ValueError(f"an item takes at most {MOST_SEEDS:,} seeds, got {seeds:,}")
    grid = item.grids[scale]
    data_root = str(root) if root else None
    runs: dict[Path, PlannedRun] = {}
    trials = []
    for trial in grid.trials:
        of_trial = [
            _planned(trial, seed, out, device, data_root) for seed in range(seeds or grid.seeds)
        ]
        for planned in of_trial:
            runs.setdefault(planned.folder, planned)
        trials.append((trial, tuple(runs[planned.folder] for planned in of_trial)))
    return Plan(name, item, scale, out, device, tuple(runs.values()), tuple(trials))


def _planned(trial: Trial, seed: int, out: Path, device: str, root: str | None) -> PlannedRun:
    """Return the run of a trial with one seed."""
    if ":" in trial.recipe:
        name = f"{trial.recipe.replace(':', '-')}-{trial.overrides['data.name']}-{seed}"
        return PlannedRun(trial, seed, out / "runs" / name, None, {}, root)
    overrides = {**trial.overrides, "train.device": device}
    recipe = resolve(trial.recipe, overrides=overrides, flags={"train.seed": seed})
    name = f"{recipe.data.name.partition(':')[0]}.{recipe.method.name}-{digest(recipe)}"
    return PlannedRun(trial, seed, out / "runs" / name, recipe, overrides, root, work(recipe))


def digest(recipe: Recipe) -> str:
    """Return a short hash of all values that decide the result of a run.

    A key of `NEW_KEYS` is left out while it has its default.
    """
    values = {
        key: value
        for key, value in recipe.leaves().items()
        if key not in NOT_IN_DIGEST and not (key in NEW_KEYS and value == NEW_KEYS[key])
    }
    return hashlib.blake2b(json.dumps(values, sort_keys=True).encode(), digest_size=5).hexdigest()


def work(recipe: Recipe) -> float:
    """Return the floating-point operations of a training.

    All views count with their full size. Heads and losses are not counted.
    """
    learner = sketch(recipe.method.name, recipe.method.arguments)
    passes = 3 * len(learner.seen) + (0 if learner.twin.own else len(learner.key_views))
    images = (dataset_defaults(recipe.data.name).images or 0) * recipe.train.epochs
    return images * passes * forward(recipe.backbone.name, recipe.backbone.stem, recipe.views.size)


@cache
def forward(name: str, stem: Stem | None, size: int) -> float:
    """Return the operations of a backbone's forward pass of one image of `size` x `size` pixels.

    They are counted on torch's meta device.
    """
    with torch.device("meta"):
        net = backbone(name, stem=stem, size=size).eval()
        image = torch.empty(1, 3, size, size)
    with FlopCounterMode(display=False) as counter:
        net(image)
    return float(counter.get_total_flops())


def judging(plan: Plan) -> float:
    """Return the operations of the linear protocols and detectors of a plan.

    All other evaluations are negligible next to the training.
    """
    total = 0.0
    for trial, runs in plan.trials:
        names = {measure.name for measure in trial.measures if measure.kind == "score"}
        linear = any(name.startswith("linear") and name != "linear-fast" for name in names)
        detectors = sum(name.startswith(("detect", "segment")) for name in names)
        for recipe in (planned.recipe for planned in runs):
            if recipe is not None and linear:
                size = forward(recipe.backbone.name, recipe.backbone.stem, recipe.views.size)
                total += PASSES * (dataset_defaults(recipe.data.name).images or 0) * size
            total += DETECTION * detectors
    return total


def cost(plan: Plan) -> str:
    """Return a text on what is left to train, how long that takes, and what the estimate uses."""
    if not plan.missing:
        return f"0 of {len(plan.runs)} runs to train: all are finished"
    operations = sum(planned.work for planned in plan.missing)
    to_train = (
        f"{len(plan.missing)} of {len(plan.runs)} runs to train, "
        f"{operations:.2g} floating-point operations"
    )
    speed = (
        f"{H200 / 1e12:.0f} TFLOP/s, the measured speed of SimCLR on CIFAR-10 "
        "(benchmarks/RESULTS.md)"
    )
    if plan.scale == "smoke":
        return f"{to_train}: about a minute on two idle CPU cores"
    if plan.scale == "small":
        return (
            f"{to_train}: about {operations / H200 / 60:,.0f} minutes on one H200 at {speed}; "
            "small batches take longer"
        )
    evaluating = judging(plan)
    hours = {gpu: (operations + evaluating) / gpu / 3600 for gpu in (V100, H200)}
    return (
        f"{to_train}, and {evaluating:.2g} for linear protocols ({PASSES} passes) and for the "
        f"backbones of detectors: about {hours[V100]:,.0f} GPU-hours of a V100 at "
        f"{V100 / 1e12:.1f} TFLOP/s, the speed of MoCo's release (53 h on 8 V100 for 200 epochs of "
        f"MoCo v2), or {hours[H200]:,.0f} GPU-hours of an H200 at {speed}, if images of 224 pixels "
        "reach it"
    )


def listing(plan: Plan, resources: Asked = None) -> list[str]:
    """Return the lines that describe a plan.

    The first line names the item, and the second states the cost. Every run follows, with its state
    and the command that trains it alone, with as many processes as the resources ask for.
    """
    return [
        f"{plan.name} at scale {plan.scale}: {plan.item.grids[plan.scale].note}",
        cost(plan),
        *(
            f"{planned.state:11}  {_command(planned, resources) or planned.trial.recipe}"
            for planned in plan.runs
        ),
    ]


def as_json(plan: Plan, resources: Asked = None) -> dict[str, Any]:
    """Return a plan as JSON: the settings, and every run once with its state and command.

    The settings name their runs. `h200_seconds` is the time that `cost` states for one H200, None
    at scale smoke, which is for a CPU.
    """
    left = plan.missing
    operations = sum(planned.work for planned in left)
    evaluating = judging(plan) if left and plan.scale == "paper" else 0.0
    return {
        "item": plan.name,
        "scale": plan.scale,
        "note": plan.item.grids[plan.scale].note,
        "out": str(plan.out),
        "seeds": len(plan.trials[0][1]),
        "settings": [
            {
                "recipe": trial.recipe,
                "values": trial.overrides,
                "runs": [planned.folder.name for planned in runs],
            }
            for trial, runs in plan.trials
        ],
        "runs": [_row(planned, resources) for planned in plan.runs],
        "to_train": len(left),
        "cost": cost(plan),
        "h200_seconds": None if plan.scale == "smoke" else (operations + evaluating) / H200,
    }


def _row(planned: PlannedRun, resources: Asked) -> dict[str, Any]:
    """Return a run as JSON. The command of a network that is not trained is None."""
    return {
        "name": planned.folder.name,
        "folder": str(planned.folder),
        "label": planned.label,
        "seed": planned.seed,
        "state": planned.state,
        "finished": planned.done,
        "command": _command(planned, resources),
        "operations": planned.work,
    }


def _command(planned: PlannedRun, resources: Asked) -> str | None:
    """Return the command that trains a run, or None for a network that is not trained."""
    return None if planned.recipe is None else ranked(planned.command, resources)
