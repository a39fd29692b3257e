"""Replace COCO at the smaller scales by drawn scenes in its layout, with slim detectors."""

import json
import os
import time
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from antipode import rng
from antipode.data.sources.catalog import load
from antipode.data.sources.shapes import KINDS
from antipode.devices import pick_device
from antipode.evaluation import detect
from antipode.evaluation.score import Score
from antipode.evaluation.task import Task
from antipode.files import atomic_write
from antipode.runs.lock import lock_file
from antipode.runs.own_file import open_own
from antipode.runs.run import Run

SIDE = 96  # height and width of a scene in pixels
SMOKE = detect.Settings(
    detector="fpn",
    iterations=20,
    falls=(16,),
    warmup=5,
    batch=4,
    rule="fixed",
    sides=(64,),
    longest=64,
    precise=4,
    anchors=(8, 12, 16, 24, 32),
    width=32,
    rois=32,
)
SMALL = replace(
    SMOKE,
    iterations=2000,
    falls=(1400, 1800),
    warmup=100,
    batch=16,
    sides=(96,),
    longest=96,
    precise=50,
    anchors=(8, 16, 24, 32, 48),
    width=128,
    rois=128,
)
# By name: the settings of a detector, the number of training images and the number of test images.
SLIM: dict[str, tuple[detect.Settings, int, int]] = {
    "detect-smoke": (SMOKE, 80, 16),
    "segment-smoke": (replace(SMOKE, detector="mask-fpn"), 80, 16),
    "detect-small": (SMALL, 4000, 500),
    "segment-small": (replace(SMALL, detector="mask-fpn"), 4000, 500),
}


def draw(folder: Path, train: int, test: int) -> Path:
    """Draw scenes in COCO's layout, and return their folder. Existing scenes are kept.

    The images are in coco/images. The annotations are in coco/instances_train.json and
    coco/instances_val.json, which are written after the images. Other processes wait until all of
    them are there.
    """
    home = folder / f"scenes-{train}-{test}"
    home.mkdir(parents=True, exist_ok=True)
    with open_own(home / ".drawing") as lock:
        while os.name == "posix" and not lock_file(lock):
            time.sleep(0.1)
        return _drawn(home, train, test)


def _drawn(home: Path, train: int, test: int) -> Path:
    """Draw the scenes that are missing in a folder, and return the folder."""
    for part, count in (("train", train), ("val", test)):
        file = home / "coco" / f"instances_{part}.json"
        if not file.exists():
            content = json.dumps(_draw_split(home / "coco" / "images", part, count))
            with atomic_write(file) as handle:
                handle.write(content.encode())
    return home


def _draw_split(folder: Path, part: str, count: int) -> dict[str, Any]:
    """Draw the images of a split, and return its annotations."""
    folder.mkdir(parents=True, exist_ok=True)
    images = []
    annotations: list[dict[str, Any]] = []
    for number in range(count):
        picture, objects = scene(rng.key(0, "scene", part, number))
        name = f"{part}-{number:05}.png"
        Image.fromarray(picture.permute(1, 2, 0).numpy()).save(folder / name)
        images.append({"id": number, "file_name": name, "height": SIDE, "width": SIDE})
        first = len(annotations) + 1
        annotations += [
            {"id": first + index, "image_id": number, **annotation}
            for index, annotation in enumerate(objects)
        ]
    categories = [{"id": index + 1, "name": name} for index, name in enumerate(KINDS)]
    return {"images": images, "annotations": annotations, "categories": categories}


def scene(key: Tensor) -> tuple[Tensor, list[dict[str, Any]]]:
    """Return an image (3,SIDE,SIDE) uint8 of one to three shapes, and their annotations.

    Each shape is in a different quarter of the image.
    """
    draws = rng.uniform(key, 64).tolist()
    ground = torch.tensor(draws[:3])[:, None, None]
    slope = torch.linspace(-0.2, 0.2, SIDE)[None, None] * (2 * draws[3] - 1)
    noise = 0.05 * (rng.uniform(rng.fold(key, 1), 3 * SIDE * SIDE).reshape(3, SIDE, SIDE) - 0.5)
    picture = ground + slope + noise
    objects = []
    names = list(KINDS)
    quarters = rng.permutation(rng.fold(key, 2), 4)[: 1 + int(3 * draws[4])].tolist()
    for quarter in quarters:
        shape_draws = draws[8 + 12 * quarter : 20 + 12 * quarter]
        kind = int(shape_draws[0] * len(names))
        inside = _shape(names[kind], quarter, shape_draws)
        # Each channel differs from the background by .3 to .7 (modulo 1), so that a shape is always
        # visible and its colour does not tell its kind.
        shift = 0.4 * torch.tensor(shape_draws[5:8])[:, None, None]
        picture = torch.where(inside, torch.remainder(ground + 0.3 + shift, 1), picture)
        objects.append(_annotation(inside, kind + 1))
    return (picture * 255).round().clamp(0, 255).to(torch.uint8), objects


def _shape(name: str, quarter: int, draws: list[float]) -> Tensor:
    """Return the mask (SIDE,SIDE) of a shape in a quarter of the image."""
    half = SIDE / 2
    radius = half * (0.25 + 0.12 * draws[1])
    room = half - 2.2 * radius  # the widest shape extends to 1.1 radii
    grid = torch.arange(SIDE) + 0.5
    x = (grid[None] - half * (quarter % 2) - 1.1 * radius - draws[2] * room) / radius
    y = (grid[:, None] - half * (quarter // 2) - 1.1 * radius - draws[3] * room) / radius
    turn = torch.tensor(2 * torch.pi * draws[4])
    x, y = turn.cos() * x + turn.sin() * y, turn.cos() * y - turn.sin() * x
    return KINDS[name](x, y) < 0


def _annotation(inside: Tensor, category: int) -> dict[str, Any]:
    """Return the annotation of a mask (H,W) in COCO's format.

    The mask is stored as run lengths down its columns.
    """
    rows = inside.any(1).nonzero().flatten()
    columns = inside.any(0).nonzero().flatten()
    left, top = int(columns[0]), int(rows[0])
    box = [left, top, int(columns[-1]) - left + 1, int(rows[-1]) - top + 1]
    runs = [(value, len(list(run))) for value, run in groupby(inside.T.flatten().tolist())]
    # the first run counts pixels outside of the mask, and may be empty
    counts = [0] * int(runs[0][0]) + [length for _, length in runs]
    outline = {"counts": counts, "size": list(inside.shape)}
    return {
        "category_id": category,
        "bbox": box,
        "area": int(inside.sum()),
        "segmentation": outline,
        "iscrowd": 0,
    }


def score_detector(run: Run, name: str, *, scenes: Path, device: str) -> Score:
    """Train a slim detector of `SLIM` on the backbone of a run, and return its score.

    The score is added to the scores.json of the run under the name of the detector. The scenes are
    drawn in the folder `scenes` if they do not exist. Pixels are normalised with the mean and
    standard deviation of the data set that the network was trained on.
    """
    settings, train, test = SLIM[name]
    home = draw(scenes, train, test)
    where = pick_device(device)
    trained_on = load(run.data_name)
    splits = replace(load("coco", home), mean=trained_on.mean, std=trained_on.std)
    task = Task(
        run.frozen_backbone.to(where),
        splits,
        SIDE,
        run.eval_view(splits).to(where),
        where,
        run.seed,
        root=str(home),
    )
    result = detect.run(task, settings)
    score = Score(
        result.value,
        result.unit,
        name,
        result.settings,
        "scenes",
        split=result.split,
        n=result.n,
        seed=run.seed,
        epoch=result.epoch,
        more=result.more,
    )
    run.folder.path.mkdir(parents=True, exist_ok=True)
    run.folder.add_json("scores.json", {name: score.json()})
    return score
