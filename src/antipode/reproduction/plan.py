"""Which runs an item needs, which of them are there, and what the others will cost."""

import hashlib
import json
import shlex
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from antipode.nets.backbone import Stem, backbone
from antipode.recipe.datasets import known
from antipode.recipe.derived import sketch
from antipode.recipe.parsing import nearest
from antipode.recipe.resolve import Recipe, resolve
from antipode.reproduction.catalog import ITEMS
from antipode.reproduction.item import SCALES, Item, Scale, Trial

# what decides no weight and no record: two recipes that differ in nothing else are one run
APART = (
    *("data.root", "data.download", "data.workers", "train.device", "train.on_collapse"),
    *("monitor.wandb", "monitor.tensorboard"),
)
RESNET50 = (
    8.17e9  # operations of a forward pass at 224 px, two for each multiplication, counted as below
)
# MoCo's README: 53 h on 8 V100 for 200 epochs of MoCo v2; a step is a forward and backward pass (3) and the key's (1)
V100 = 1_281_167 * 200 * 4 * RESNET50 / (53 * 8 * 3600)
# benchmarks/RESULTS.md: 37,025 images/s of cifar10.simclr, two views of 1.11e9 operations, forward and backward
H200 = 37_025 * 2 * 3 * 1.11e9
DETECTION = (
    90_000 * 16 * 3 * RESNET50 * (800 * 1216) / 224**2
)  # MoCo's 1x schedule, the backbone alone
PASSES = 100  # over the labelled images, for a linear protocol


@dataclass(frozen=True)
class PlannedRun:
    """One run; `recipe` is None for a network that is not trained. work: floating-point operations of its training."""

    trial: Trial
    seed: int
    folder: Path
    recipe: Recipe | None
    overrides: dict[str, Any]  # the trial's, and the device
    root: str | None = None  # the folder with data sets, where it is not that of ANTIPODE_DATA
    work: float = 0.0

    @property
    def data(self) -> str:
        """The data set it is trained on, or would be."""
        return (
            str(self.trial.overrides["data.name"]) if self.recipe is None else self.recipe.data.name
        )

    @property
    def label(self) -> str:
        """Recipe, what differs from it, and seed."""
        changes = [
            f"{key.removeprefix('method.')}={value}" for key, value in self.trial.overrides.items()
        ]
        return " ".join([self.trial.recipe, *changes, f"seed={self.seed}"])

    @property
    def done(self) -> bool:
        """Whether there is nothing left to train."""
        return self.recipe is None or (self.folder / "backbone.safetensors").exists()

    @property
    def state(self) -> str:
        """In a word or two, for people."""
        if self.recipe is None:
            return "not trained"
        begun = any((self.folder / "checkpoints").glob("*.pt"))
        return "finished" if self.done else "begun" if begun else "to train"

    @property
    def command(self) -> str:
        """What trains it by itself, for instance under torchrun."""
        values = {**self.trial.overrides, **({"data.root": self.root} if self.root else {})}
        changes = [f"{key}={json.dumps(value)}" for key, value in values.items()]
        words = [
            "antipode",
            "pretrain",
            self.trial.recipe,
            *(word for one in changes for word in ("--set", one)),
        ]
        return shlex.join([*words, "--seed", str(self.seed), "--out", str(self.folder)])


@dataclass(frozen=True)
class Plan:
    """All jobs of an item at a scale, and for each trial the jobs of its seeds; two trials may share a job."""

    name: str
    item: Item
    scale: Scale
    out: Path
    device: str
    jobs: tuple[PlannedRun, ...]
    trials: tuple[tuple[Trial, tuple[PlannedRun, ...]], ...]

    @property
    def missing(self) -> tuple[PlannedRun, ...]:
        """What is still to be trained."""
        return tuple(job for job in self.jobs if not job.done)


def find(name: str) -> Item:
    """The item of a name; a name that is none is refused with the nearest."""
    if name not in ITEMS:
        raise ValueError(f"there is no item {name!r}{nearest(name, ITEMS)}")
    return ITEMS[name]


def make_plan(
    name: str,
    scale: str,
    out: Path,
    *,
    seeds: int | None = None,
    root: str | Path | None = None,
    device: str = "auto",
) -> Plan:
    """The runs of an item; `seeds` takes the place of the scale's own number of them."""
    item = find(name)
    if scale not in SCALES:
        raise ValueError(f"there is no scale {scale!r}{nearest(scale, SCALES)}")
    if seeds is not None and seeds < 1:
        raise ValueError(f"a run needs at least one seed, got {seeds}")
    grid = item.grids[scale]
    place = str(root) if root else None
    jobs: dict[Path, PlannedRun] = {}
    trials = []
    for trial in grid.trials:
        own = [_job(trial, seed, out, device, place) for seed in range(seeds or grid.seeds)]
        for job in own:
            jobs.setdefault(job.folder, job)
        trials.append((trial, tuple(jobs[job.folder] for job in own)))
    return Plan(name, item, scale, out, device, tuple(jobs.values()), tuple(trials))


def _job(trial: Trial, seed: int, out: Path, device: str, root: str | None) -> PlannedRun:
    if ":" in trial.recipe:
        folder = (
            out / "runs" / f"{trial.recipe.replace(':', '-')}-{trial.overrides['data.name']}-{seed}"
        )
        return PlannedRun(trial, seed, folder, None, {}, root)
    overrides = {**trial.overrides, "train.device": device}
    recipe = resolve(trial.recipe, overrides=overrides, flags={"train.seed": seed})
    name = f"{recipe.data.name.partition(':')[0]}.{recipe.method.name}-{digest(recipe)}"
    return PlannedRun(trial, seed, out / "runs" / name, recipe, overrides, root, work(recipe))


def digest(recipe: Recipe) -> str:
    """A short name for all values that decide what a run is."""
    values = {key: value for key, value in recipe.leaves().items() if key not in APART}
    return hashlib.blake2b(json.dumps(values, sort_keys=True).encode(), digest_size=5).hexdigest()


def work(recipe: Recipe) -> float:
    """Floating-point operations of a training; all views are counted at full size, heads and losses not at all."""
    learner = sketch(recipe.method.name, recipe.method.arguments)
    passes = 3 * len(learner.seen) + (0 if learner.twin.own else len(learner.key_views))
    images = (known(recipe.data.name).images or 0) * recipe.train.epochs
    return images * passes * forward(recipe.backbone.name, recipe.backbone.stem, recipe.views.size)


@cache
def forward(name: str, stem: Stem | None, size: int) -> float:
    """Operations of one image's way through a backbone, counted on torch's meta device."""
    with torch.device("meta"):
        net, image = backbone(name, stem=stem).eval(), torch.empty(1, 3, size, size)
    with FlopCounterMode(display=False) as counter:
        net(image)
    return float(counter.get_total_flops())


def judging(plan: Plan) -> float:
    """Operations of the evaluations, as far as they count beside a training."""
    total = 0.0
    for trial, jobs in plan.trials:
        for recipe in (job.recipe for job in jobs):
            names = {measure.name for measure in trial.measures if measure.kind == "score"}
            if recipe is not None and any(
                name.startswith("linear") and name != "linear-fast" for name in names
            ):
                size = forward(recipe.backbone.name, recipe.backbone.stem, recipe.views.size)
                total += PASSES * (known(recipe.data.name).images or 0) * size
            total += DETECTION * sum(name.startswith(("detect", "segment")) for name in names)
    return total


def cost(plan: Plan) -> str:
    """What is left to train, in time of a GPU, and what that rests on."""
    if not plan.missing:
        return f"0 of {len(plan.jobs)} runs to train: all are there"
    operations = sum(job.work for job in plan.missing)
    counted = f"{len(plan.missing)} of {len(plan.jobs)} runs to train, {operations:.2g} floating-point operations"
    measured = f"the {H200 / 1e12:.0f} TFLOP/s of cifar10.simclr (benchmarks/RESULTS.md)"
    if plan.scale == "smoke":
        return f"{counted}: about a minute on two CPU cores"
    if plan.scale == "small":
        return f"{counted}: {operations / H200 / 60:,.0f} minutes of one H200 at {measured}; small batches take longer"
    judged = judging(plan)
    hours = {speed: (operations + judged) / speed / 3600 for speed in (V100, H200)}
    return (
        f"{counted}, {judged:.2g} for linear protocols ({PASSES} passes) and detectors (their backbones): "
        f"{hours[V100]:,.0f} GPU-hours of a V100 at the {V100 / 1e12:.1f} TFLOP/s it had in MoCo's release (53 h on 8 "
        f"of them for 200 epochs of MoCo v2); {hours[H200]:,.0f} of an H200 if 224 px kept {measured}"
    )


def listing(plan: Plan) -> list[str]:
    """The plan for people: what it is, the cost, then every run with its state and the command that trains it alone."""
    return [
        f"{plan.name} at scale {plan.scale}: {plan.item.grids[plan.scale].note}",
        cost(plan),
        *(
            f"{job.state:11}  {job.trial.recipe if job.recipe is None else job.command}"
            for job in plan.jobs
        ),
    ]
