"""What `pretrain` found and what it will do, in a few lines."""

import copy
import math
import statistics
import time
import warnings
from collections.abc import Iterator
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import nn

from antipode import dist
from antipode.data.chunks import Maker
from antipode.data.sources.label_folders import labels_note
from antipode.data.sources.sizes import Size, sampled_sizes
from antipode.data.sources.splits import Splits
from antipode.devices import pick_device
from antipode.names import printable
from antipode.nets.supervised import weights_at_hand
from antipode.recipe.layer import Given
from antipode.recipe.own_data import SUPERVISED
from antipode.recipe.recipe import Recipe
from antipode.training.build import Setup, build
from antipode.training.loop import unchanged
from antipode.training.pace import amount, duration, memory_used, warm_steps
from antipode.wording import command, counted, option, overrides

TIMED = 10  # steps that are timed
LONGEST = 15.0  # seconds after which no further step is taken
# A step that takes longer than this on a CPU is estimated from a part of its images.
SLOW = 2 * LONGEST
SIDE = 256  # pixels: the time of larger views follows from views of this size
ENOUGH = 1.0  # seconds that a part of the images takes, by which the speed is known
# Photographs of at least this many pixels should be packed: a CPU core decodes 10 to 60 per second.
LARGE = 1_500_000
PACKED = 256  # pixels of the shorter side of a pack, if views are not larger


@dataclass(frozen=True)
class Plan:
    """What was found, and what will be done.

    Args:
        data: name of the data set.
        images: number of usable images, with those that are held out.
        train_images: number of images for training.
        left_out: number of files that cannot be used.
        classes: number of classes, None without labels.
        held_out: number of test images.
        sizes: widths and heights of the smallest and the largest image of a sample, None if
            unknown.
        notes: sentences on classes, on what is held out, and on weights to start from.
        method: name of the method.
        backbone: name of the network.
        stem: its stem, None if it has its own.
        size: side of a view in pixels.
        batch: number of images per step.
        per_epoch: number of steps per epoch.
        epochs: number of epochs.
        steps: number of steps in all.
        device: type of the device.
        seconds: estimated duration of the training, None if it was not measured.
        memory_bytes: peak of the memory in use, None if it was not measured.
        done: number of steps that the run folder already holds.
        threads: number of CPU threads that compute, None on other devices.
        images_per_second: speed of the training steps on all ranks, None if it was not measured.
        step_seconds: estimated duration of a step, if it would take too long to time one.
    """

    data: str
    images: int
    train_images: int
    left_out: int
    classes: int | None
    held_out: int
    sizes: tuple[Size, Size] | None
    notes: tuple[str, ...]
    method: str
    backbone: str
    stem: str | None
    size: int
    batch: int
    per_epoch: int
    epochs: int
    steps: int
    device: str
    seconds: float | None = None
    memory_bytes: int | None = None
    done: int = 0
    threads: int | None = None
    images_per_second: float | None = None
    step_seconds: float | None = None

    def json(self) -> dict[str, object]:
        """Return the values by name."""
        return asdict(self)

    def lines(self) -> list[str]:
        """Return the plan as lines to print."""
        left_out = f", {counted(self.left_out, 'file')} left out" if self.left_out else ""
        sizes = f", {_range(*self.sizes)}" if self.sizes else ""
        stem = f" (stem {self.stem})" if self.stem else ""
        threads = f" with {counted(self.threads, 'thread')}" if self.threads else ""
        return [
            printable(line)  # names come from files
            for line in (
                f"Found {counted(self.images, 'image')} in {self.data}{sizes}{left_out}.",
                *self.notes,
                f"Training {self.method} with {self.backbone}{stem} on views of {self.size} px: "
                f"batch {self.batch}, {counted(self.per_epoch, 'step')} per epoch, "
                f"{counted(self.epochs, 'epoch')}, {counted(self.steps, 'step')}, "
                f"on {self.device}{threads}.",
                *self._progress(),
                *self._cost(),
            )
        ]

    def _progress(self) -> list[str]:
        """Return a sentence on the steps that the run folder holds."""
        if not self.done:
            return []
        if self.done == self.steps:
            return ["The run folder holds this run, which has ended: nothing is left to train."]
        return [f"The run folder holds this run, about {self.done:,} steps of it: it resumes."]

    def _cost(self) -> list[str]:
        """Return the estimate of time and memory, if there is one."""
        if self.seconds is None or self.done == self.steps:
            return []
        memory = f" and {amount(self.memory_bytes)} of memory" if self.memory_bytes else ""
        speed = self.images_per_second or 0.0
        digits = 1 if speed < 10 else 0
        rate = f", at {speed:,.{digits}f} images/s" if speed else ""
        source = "a few timed steps"
        if self.step_seconds is not None:
            source = f"a few images, because one step takes about {duration(self.step_seconds)}"
        return [f"Estimated: {duration(self.seconds)}{memory}{rate}, from {source}."]


def describe(recipe: Recipe, splits: Splits) -> Plan:
    """Return the plan of a recipe, without an estimate of time and memory."""
    sizes = sampled_sizes(splits.pretrain)
    train = len(splits.pretrain)
    held_out = 0 if splits.test is None else len(splits.test)
    per_epoch = train // recipe.train.batch
    device = pick_device(recipe.train.device).type
    sources = {id(one): one for one in (splits.pretrain, splits.train, splits.test)}
    return Plan(
        data=splits.name,
        images=train + held_out,
        train_images=train,
        left_out=sum(len(getattr(one, "skipped", ())) for one in sources.values()),
        classes=_classes(splits),
        held_out=held_out,
        sizes=(min(sizes, key=_area), max(sizes, key=_area)) if sizes else None,
        notes=(
            _labels_note(recipe, splits),
            _held_out_note(splits),
            *_pack_note(recipe, sizes),
            *_weights_note(recipe),
        ),
        method=recipe.method.name,
        backbone=recipe.backbone.name,
        stem=recipe.backbone.stem,
        size=recipe.views.size,
        batch=recipe.train.batch,
        per_epoch=per_epoch,
        epochs=recipe.train.epochs,
        steps=per_epoch * recipe.train.epochs,
        device=device,
        threads=torch.get_num_threads() if device == "cpu" else None,
    )


def _area(size: Size) -> int:
    return size[0] * size[1]


def _range(smallest: Size, largest: Size) -> str:
    """Return the sizes of the smallest and the largest image in words."""
    texts = dict.fromkeys(f"{width} x {height}" for width, height in (smallest, largest))
    return f"{' to '.join(texts)} px{'' if len(texts) == 1 else ' in a sample'}"


def _classes(splits: Splits) -> int | None:
    """Return the number of classes, None if the train images have no labels."""
    labels = splits.train.labels
    if labels is None or not len(labels):
        return None
    if splits.classes:
        return len(splits.classes)
    return int(labels.shape[1] if labels.ndim == 2 else labels.max() + 1)


def _labels_note(recipe: Recipe, splits: Splits) -> str:
    """Return a sentence on the classes, how that was decided, and how to decide otherwise."""
    count = _classes(splits)
    if not recipe.data.name.startswith("folder:"):
        return "No labels." if count is None else f"{count:,} classes."
    forced = isinstance(recipe.sources.get("data.labels"), Given)
    return labels_note(range(count or 0), splits.labelling, forced)


def _held_out_note(splits: Splits) -> str:
    """Return a sentence on the test images."""
    if splits.test is None:
        return "No image is held out: label-free scores will use training images."
    share = len(splits.test) / (len(splits.pretrain) + len(splits.test))
    images = counted(len(splits.test), "image")
    are = "is" if len(splits.test) == 1 else "are"
    return f"{images} ({share:.0%}) {are} held out of training for evaluation."


def _pack_note(recipe: Recipe, sizes: list[Size]) -> list[str]:
    """Return a sentence on packs if the images of a folder take long to decode in every epoch."""
    data = recipe.data
    large = bool(sizes) and statistics.median(map(_area, sizes)) >= LARGE
    if not large or not data.name.startswith("folder:") or recipe.train.epochs < 3:
        return []
    pack = f"{Path(data.name.removeprefix('folder:')).name or 'images'}-packed"
    size = max(PACKED, recipe.views.size * 8 // 7)
    labels = {"labels": "none"} if data.labels == "none" else {}
    packing = command("pack", data.name, out=pack, size=size, **labels)
    return [
        "The images are large, so decoding them in every epoch may take longer than training. "
        f"{packing} shrinks them once; then give {option('data', f'packed:{pack}')}."
    ]


def _weights_note(recipe: Recipe) -> list[str]:
    """Return a sentence on supervised weights, if they are there and could be used."""
    own = recipe.data.name.startswith(("folder:", "webdataset:", "hf:", "packed:", "python:"))
    usable = own or recipe.backbone.stem == "imagenet"
    if recipe.backbone.weights is not None or not usable:
        return []
    network = recipe.backbone.name
    chosen = isinstance(recipe.sources.get("backbone.name"), Given)
    if own and network.endswith("-slim") and not chosen:
        network = SUPERVISED  # with weights to start from, it is the default in place of a slim one
    if weights_at_hand(network) is None:
        return []
    setting = overrides({"backbone.weights": "torchvision"})
    slower = "" if network == recipe.backbone.name else ", although its steps take longer"
    return [
        f"Weights of a {network} trained with ImageNet's labels are on this machine: {setting} "
        f"starts from them, which usually helps with few images{slower}."
    ]


def measured(plan: Plan, recipe: Recipe, splits: Splits, module: nn.Module | None) -> Plan:
    """Return the plan with time, speed and memory, from a few steps of a network thrown away.

    If a step would take very long on a CPU, none is taken, and the memory stays unknown.
    """
    start, memory = 0.0, None
    with dist.together(), unchanged(), torch.random.fork_rng(devices=[]):
        with torch.inference_mode(False), torch.enable_grad():
            slow = _slow_large_step(recipe, splits, module)
            if slow is None:
                setup = build(recipe, splits, copy.deepcopy(module))  # the caller's stays as it is
                slow = _slow_step(setup, splits.channels)
            if slow is None:
                start, per_step = _seconds(setup)
        if slow is None:
            memory = memory_used(setup.device.type)
        else:
            per_step = slow
    left = 1 - plan.done / max(plan.steps, 1)
    return replace(
        plan,
        seconds=left * (start + per_step * plan.steps),
        memory_bytes=memory,
        images_per_second=plan.batch / per_step,
        step_seconds=slow,
    )


def _slow_large_step(recipe: Recipe, splits: Splits, module: nn.Module | None) -> float | None:
    """Return what `_slow_step` does for views larger than `SIDE`, from views of that size.

    Views of 3000 px take minutes even for the two images that `build` tries.
    """
    size = recipe.views.size
    if size <= SIDE or pick_device(recipe.train.device).type != "cpu":
        return None
    views = recipe.views.model_copy(update={"size": SIDE})
    small = recipe.model_copy(update={"views": views})
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # they would be about the small views
            setup = build(small, splits, copy.deepcopy(module))
    except ValueError:  # the network or the policy needs views of their own size
        return None
    return _slow_step(setup, splits.channels, (size / SIDE) ** 2)


def _slow_step(setup: Setup, channels: int, scale: float = 1.0) -> float | None:
    """Return the estimated seconds of a step on a CPU that takes longer than `SLOW`, else None.

    The estimate follows from the views and a forward pass of one image, then of two, four and so
    on, until it is clear that a step is fast, or until they take long enough to be timed. A
    backward pass counts twice. Heads, losses and the decoding of files are not counted. The result
    is multiplied by `scale`.
    """
    if setup.device.type != "cpu":
        return None
    learner = setup.learner
    passes = 3 * len(learner.seen) + (0 if learner.twin.own else len(learner.key_views))
    net = copy.deepcopy(learner.backbone).eval()
    share = setup.loader.batch // dist.world()
    count = 1
    while True:
        making, passing = _trial(setup.loader.views, net, count, channels)
        step = scale * (making + passes * passing) / count * share
        if step <= SLOW or making + passing >= ENOUGH or 2 * count > share:
            break
        count *= 2
    return step if dist.any_rank(step > SLOW, setup.device) else None


def _trial(views: Maker, net: nn.Module, count: int, channels: int) -> tuple[float, float]:
    """Return the seconds in which the views of `count` images are made, and one view is passed."""
    blank = torch.zeros(count, channels, 8, 8, dtype=torch.uint8)
    dtype = next((part.dtype for part in net.parameters()), torch.float32)
    begin = time.perf_counter()
    view = views.apply(blank, torch.rand(count, views.count, views.slots))[0].to(dtype)
    made = time.perf_counter()
    with torch.no_grad():
        net(view)
    return made - begin, time.perf_counter() - made


def _seconds(setup: Setup) -> tuple[float, float]:
    """Return the seconds that training takes at its start, and per step.

    They follow from a few of its first steps. On a CPU these end after `LONGEST` seconds, even if
    only one step was taken. On a GPU the first steps hold compilation and are all taken.
    """
    total = setup.loader.total
    warm = min(warm_steps(setup.device.type), max(0, total - 1))
    begin = time.perf_counter()
    steps: Any = setup.run(0)
    with closing(steps):
        limit = math.inf if setup.device.type == "cuda" else LONGEST
        warmed = _take(steps, warm, limit, setup.device)
        _wait(setup.device)
        first = time.perf_counter()
        timed = _take(steps, TIMED, LONGEST, setup.device) if warmed == warm else 0
        _wait(setup.device)
    if not timed:
        return 0.0, (first - begin) / warmed
    per_step = (time.perf_counter() - first) / timed
    return max(0.0, first - begin - per_step * warmed), per_step


def _take(steps: Iterator[Any], most: int, longest: float, device: torch.device) -> int:
    """Take up to `most` steps, and no further one after `longest` seconds; return their number.

    All ranks take the same number of steps.
    """
    begin = time.perf_counter()
    taken = 0
    for _ in islice(steps, most):
        taken += 1
        if dist.any_rank(time.perf_counter() - begin > longest, device):
            break
    return taken


def _wait(device: torch.device) -> None:
    """Wait until the device has done everything."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
