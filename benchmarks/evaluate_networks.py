"""The parts of evaluate_large.py that train networks: detectors, `linear` and `semi-10`.

Scenes and photographs are drawn by this module. A scene has seven coloured shapes of different
sizes on a noisy ground, with their outlines.
"""

import copy
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image, ImageDraw

from antipode.data.sources import packed
from antipode.data.sources.annotated import Detection, Thing
from antipode.data.sources.catalog import load
from antipode.data.sources.folder import Files, tree
from antipode.data.sources.image_names import Names
from antipode.data.sources.pack import pack
from antipode.data.sources.source import Decoded
from antipode.data.sources.splits import Splits
from antipode.data.views.views import views
from antipode.evaluation import classifier, detect, linear, semi
from antipode.evaluation.task import Task
from antipode.nets.backbone import backbone
from antipode.training.graph import CapturedStep

Report = dict[str, Any]
SHAPES = 7  # in a scene; COCO has as many objects per image
KINDS = 20


class Size(NamedTuple):
    """How large the measurements are."""

    net: str
    stem: str
    side: int  # of a view in pixels
    scenes: int  # different ones
    scene: tuple[int, int]  # width and height
    iterations: int
    photographs: int
    classes: int
    batch: dict[str, int]
    detector: dict[str, Any]  # what differs from the protocol's settings


FULL = Size(
    net="resnet50",
    stem="imagenet",
    side=224,
    scenes=400,
    scene=(640, 480),
    iterations=300,
    photographs=12_800,
    classes=1000,
    batch={"linear": 256, "semi-10": 1024},
    detector={},
)
SMOKE = Size(
    net="resnet10-slim",
    stem="half",
    side=32,
    scenes=4,
    scene=(96, 72),
    iterations=3,
    photographs=24,
    classes=3,
    batch={"linear": 8, "semi-10": 8},
    detector={
        "sides": (64,),
        "longest": 96,
        "anchors": (8, 12, 16, 24, 32),
        "width": 16,
        "rois": 16,
        "batch": 2,
        "rule": "fixed",
    },
)
DETECTORS = {"detect-voc": detect.VOC, "detect-coco": detect.COCO, "segment-coco": detect.MASKS}
SKIPPED = 20  # iterations before the measurement


# Pictures


def ground(random: np.random.Generator, width: int, height: int) -> Image.Image:
    """Return a picture of coarse and fine noise, whose JPEG file is as large as a photograph's."""
    coarse = random.integers(0, 256, (height // 24 + 1, width // 24 + 1, 3), dtype=np.uint8)
    smooth = np.asarray(Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC))
    fine = random.normal(0, 9, (height, width, 3))
    return Image.fromarray((smooth + fine).clip(0, 255).astype(np.uint8))


def shape(random: np.random.Generator, width: int, height: int) -> Thing:
    """Return a random polygon as an annotated object."""
    reach = min(width, height) * random.uniform(0.06, 0.4)
    x, y = random.uniform(reach, width - reach), random.uniform(reach, height - reach)
    angles = np.sort(random.uniform(0, 2 * np.pi, 8))
    lengths = reach * random.uniform(0.6, 1, 8)
    xs, ys = x + lengths * np.cos(angles), y + lengths * np.sin(angles)
    polygon = np.stack([xs, ys], 1).flatten().tolist()
    box = (float(xs.min()), float(ys.min()), float(xs.max()), float(ys.max()))
    return Thing(int(random.integers(KINDS)), box, [polygon])


def scenes(folder: Path, size: Size) -> Detection:
    """Draw scenes as JPEG files, and return each of them twice, with its objects.

    Worker processes read them, as those of VOC and COCO: there are more than `objects.FEW`.
    """
    folder.mkdir(exist_ok=True)
    names: list[str] = []
    things: list[list[Thing]] = []
    for number in range(size.scenes):
        random = np.random.default_rng(number)
        image = ground(random, *size.scene)
        things.append([shape(random, *size.scene) for _ in range(SHAPES)])
        for thing in things[-1]:
            colour = tuple(random.integers(0, 256, 3).tolist())
            points = list(zip(thing.outline[0][::2], thing.outline[0][1::2], strict=True))
            ImageDraw.Draw(image).polygon(points, fill=colour)
        names.append(f"{number:05}.jpg")
        image.save(folder / names[-1], quality=90)
    kinds = [f"kind {kind}" for kind in range(KINDS)]
    names, things = 2 * names, 2 * things
    reader = Files(folder, Names(names))
    ids = list(range(len(names)))
    return Detection(reader, things, ids, kinds, list(range(KINDS)))


def photographs(folder: Path, size: Size) -> Decoded:
    """Return photographs of 500 x 375 px as JPEG files in class folders; most are links."""
    distinct = min(256, size.photographs)
    for number in range(size.photographs):
        place = folder / f"{number % size.classes:04}" / f"{number:06}.jpg"
        if place.exists():
            continue
        place.parent.mkdir(parents=True, exist_ok=True)
        if number < distinct:
            ground(np.random.default_rng(number), 500, 375).save(place, quality=90)
        else:
            first = number % distinct
            place.symlink_to(folder / f"{first % size.classes:04}" / f"{first:06}.jpg")
    return tree(folder)


def pixel_pack(folder: Path, size: Size) -> Any:
    """Return the photographs from a pack of pixels, whose shorter side is 8/7 of a view."""
    packed.RESIDENT = 0  # as for a data set that does not fit the memory
    side = round(size.side * 8 / 7)
    name = f"folder:{folder / 'photographs'}"
    path = pack(name, folder / "pixels", size=side, progress=False)
    return load(f"packed:{path}").train


def make_task(size: Size, device: torch.device, source: Decoded | None = None) -> Task:
    """Return a task with an untrained network, whose images are `source`."""
    torch.manual_seed(0)
    net = backbone(size.net, stem=size.stem).to(device).eval().requires_grad_(False)
    if device.type == "cuda":
        net = net.to(memory_format=torch.channels_last)
    splits = Splits("drawn", source, source, source, size.side)
    eval_view = views("eval", size=size.side).to(device)
    return Task(net, splits, size.side, eval_view, device)


# Detectors


def measure_detector(name: str, size: Size, device: torch.device, folder: Path) -> Report:
    """Measure the fine-tuning of a detector, and the detection in some scenes."""
    objects = scenes(folder / "scenes", size)
    settings = replace(DETECTORS[name], **size.detector).fitted()
    net = detect.build(make_task(size, device), KINDS, settings)
    short = replace(settings, iterations=size.iterations, precise=0)
    times: list[float] = []
    plain = detect.batches

    def stamped(*arguments: Any, **keys: Any) -> Iterator[Any]:
        for batch in plain(*arguments, **keys):
            times.append(time.perf_counter())
            yield batch
        times.append(time.perf_counter())

    detect.batches = stamped
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    try:
        losses = detect.fine_tune(net, masked(objects, settings.detector), short, seed=0)
    finally:
        detect.batches = plain
    first = min(SKIPPED, len(times) - 2)
    seconds = (times[-1] - times[first]) / (len(times) - 1 - first)
    begin = time.perf_counter()
    some = range(min(32, len(objects)))
    detect.find(net, replace(objects, ids=list(some)))
    return {
        "seconds_per_iteration": seconds,
        "images_per_second": settings.batch / seconds,
        "peak_gib": torch.cuda.max_memory_allocated() / 2**30 if device.type == "cuda" else None,
        "iterations": settings.iterations,
        "hours_of_the_schedule": settings.iterations * seconds / 3600,
        "detected_images_per_second": len(some) / (time.perf_counter() - begin),
        "first_and_last_loss": [losses[0], losses[-1]],
    }


def masked(objects: Detection, detector: str) -> Detection:
    """Return the objects with outlines if the detector predicts masks, and else without."""
    if detector == "mask-fpn":
        return objects
    things = [[thing._replace(outline=None) for thing in row] for row in objects.things]
    return replace(objects, things=things)


# Classifiers


def seconds_per_image(
    fit: Callable[[int], object], images: int, device: torch.device, most: int = 3
) -> float:
    """Return the seconds per image of training, without its start.

    It is the difference between one epoch and `most`. On a CPU it is the best of some rounds: the
    times of a trial are so short that other work on the machine is larger than their difference.
    """
    on_gpu = device.type == "cuda"
    best = {1: float("inf"), most: float("inf")}
    # a GPU's first kernels are compiled first
    for epochs in (1, 1, 1, most) if on_gpu else (1, most) * 5:
        begin = time.perf_counter()
        fit(epochs)
        if on_gpu:
            torch.cuda.synchronize()
        best[epochs] = min(best[epochs], time.perf_counter() - begin)
    return (best[most] - best[1]) / ((most - 1) * images)


def seconds_per_step(step: Callable[[], object], device: torch.device, count: int) -> float:
    """Return the seconds of a step on views that are ready on the device."""
    for warm in (True, False):
        begin = time.perf_counter()
        for _ in range(8 if warm else count):
            step()
        if device.type == "cuda":
            torch.cuda.synchronize()
    return (time.perf_counter() - begin) / count


def bare_step(
    task: Task, heads: classifier.Heads, features: Any, moves: Any, batch: int, frozen: bool
) -> float:
    """Return the seconds per image of a step on one batch of random views."""
    view = torch.randn(batch, 3, task.size, task.size, device=task.device)
    ids = torch.arange(batch, device=task.device)
    labels = ids % task.classes
    learn = classifier.learning(heads, labels, features, [one for one, _ in moves])
    take: Any = CapturedStep(learn, what="the step") if frozen and view.is_cuda else learn
    count = 60 if frozen and view.is_cuda else 10
    return seconds_per_step(partial(take, view, ids), task.device, count) / batch


def measure_linear(
    size: Size, device: torch.device, folder: Path, from_pack: bool = False, decoder: str = "cpu"
) -> Report:
    """Measure MoCo's linear evaluation on JPEG files, or on a pack of their pixels.

    `decoder` says who decodes the files: cpu, gpu or both.
    """
    os.environ["ANTIPODE_DECODER"] = decoder
    source = photographs(folder / "photographs", size)
    if from_pack:
        source = pixel_pack(folder, size)
    task = make_task(size, device, source)
    settings = replace(linear.MOCO, batch=size.batch["linear"])

    def fit(epochs: int) -> object:
        shorter = replace(settings, epochs=epochs, at=(epochs,))
        return linear.trained(task, shorter, source, settings.rates)

    heads = classifier.Heads(1, size.classes, classifier.width(task), std=0.01, seed=0).to(device)
    moves = [(linear._optimiser(settings, [*heads.weights, *heads.biases]), 30.0)]
    features = partial(classifier.embed, task.backbone)
    bare = bare_step(task, heads, features, moves, settings.batch, frozen=True)
    # the start of processes takes seconds, which differ by some tenths
    most = 13 if device.type == "cuda" else 3
    fitted = seconds_per_image(fit, _whole(source, settings.batch), device, most)
    return shares(fitted, bare, device)


def measure_semi(size: Size, device: torch.device, folder: Path) -> Report:
    """Measure fine-tuning with few labels on JPEG files; the files are the labelled images."""
    os.environ["ANTIPODE_DECODER"] = "cpu"
    source = photographs(folder / "photographs", size)
    task = make_task(size, device, source)
    settings = replace(semi.SEMI[0.1], batch=size.batch["semi-10"])
    assert settings.encoder is not None
    rate = settings.encoder

    def fit(epochs: int) -> object:
        return semi.tuned(task, replace(settings, epochs=epochs), rate, source)

    net = copy.deepcopy(task.backbone).requires_grad_(True).train()
    heads = classifier.Heads(1, size.classes, classifier.width(task), std=0.01, seed=0).to(device)
    moves = [
        (semi._optimiser(settings, list(heads.parameters())), settings.classifier),
        (semi._optimiser(settings, list(net.parameters())), rate),
    ]
    bare = bare_step(task, heads, net, moves, settings.batch, frozen=False)
    del net, moves
    if device.type == "cuda":
        torch.cuda.empty_cache()
    return shares(seconds_per_image(fit, _whole(source, settings.batch), device), bare, device)


def _whole(source: Decoded, batch: int) -> int:
    """Return the number of images in the whole batches of an epoch."""
    return len(source) // batch * batch


def shares(fitted: float, bare: float, device: torch.device) -> Report:
    """Return the speeds in images per second, and the share of the bare step."""
    return {
        "images_per_second": 1 / fitted,
        "bare_images_per_second": 1 / bare,
        "share_of_the_bare_step": bare / fitted,
        "peak_gib": torch.cuda.max_memory_allocated() / 2**30 if device.type == "cuda" else None,
    }
