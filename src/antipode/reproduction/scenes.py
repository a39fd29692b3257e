"""A stand-in for COCO at the smaller scales: drawn scenes in its layout, and slim detectors on them."""

import json
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from antipode import api, rng
from antipode.data.sources.catalog import load
from antipode.data.sources.shapes import KINDS
from antipode.evaluation import detect
from antipode.evaluation.score import Score
from antipode.evaluation.task import Task
from antipode.files import atomic_write
from antipode.runs.run import subject
from antipode.training.loop import pick_device

SIDE = 96
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
# by the names that items have for them: the settings, and how many images to train on and to judge
SLIM: dict[str, tuple[detect.Settings, int, int]] = {
    "detect-smoke": (SMOKE, 80, 16),
    "segment-smoke": (replace(SMOKE, detector="mask-fpn"), 80, 16),
    "detect-small": (SMALL, 4000, 500),
    "segment-small": (replace(SMALL, detector="mask-fpn"), 4000, 500),
}


def draw(folder: Path, train: int, test: int) -> Path:
    """Scenes in images/ beside instances_train.json and instances_val.json, which are written last; made once."""
    home = folder / f"scenes-{train}-{test}"
    for part, count in (("train", train), ("val", test)):
        file = home / "coco" / f"instances_{part}.json"
        if not file.exists():
            content = json.dumps(_notes(home / "coco" / "images", part, count))
            with atomic_write(file) as handle:
                handle.write(content.encode())
    return home


def _notes(folder: Path, part: str, count: int) -> dict[str, Any]:
    """Draw the images of a part and return its annotations."""
    folder.mkdir(parents=True, exist_ok=True)
    images, objects = [], list[dict[str, Any]]()
    for number in range(count):
        picture, things = scene(rng.key(0, "scene", part, number))
        name = f"{part}-{number:05}.png"
        Image.fromarray(picture.permute(1, 2, 0).numpy()).save(folder / name)
        images.append({"id": number, "file_name": name, "height": SIDE, "width": SIDE})
        objects += [
            {"id": len(objects) + place + 1, "image_id": number, **thing}
            for place, thing in enumerate(things)
        ]
    categories = [{"id": place + 1, "name": name} for place, name in enumerate(KINDS)]
    return {"images": images, "annotations": objects, "categories": categories}


def scene(key: Tensor) -> tuple[Tensor, list[dict[str, Any]]]:
    """An image (3,SIDE,SIDE) uint8 with one to three shapes in quarters of their own, and their annotations."""
    chance = rng.uniform(key, 64).tolist()
    ground = torch.tensor(chance[:3])[:, None, None]
    slope = torch.linspace(-0.2, 0.2, SIDE)[None, None] * (2 * chance[3] - 1)
    noise = 0.05 * (rng.uniform(rng.fold(key, 1), 3 * SIDE * SIDE).reshape(3, SIDE, SIDE) - 0.5)
    picture, things = ground + slope + noise, []
    places = rng.permutation(rng.fold(key, 2), 4)[: 1 + int(3 * chance[4])].tolist()
    for place in places:
        own = chance[8 + 12 * place : 20 + 12 * place]
        names = list(KINDS)
        kind = int(own[0] * len(names))
        inside = _shape(names[kind], place, own)
        # each channel .3 to .7 away from the ground's: never invisible, never a colour of its own
        colour = torch.remainder(ground + 0.3 + 0.4 * torch.tensor(own[5:8])[:, None, None], 1)
        picture = torch.where(inside, colour, picture)
        things.append(_annotation(inside, kind + 1))
    return (picture * 255).round().clamp(0, 255).to(torch.uint8), things


def _shape(name: str, place: int, own: list[float]) -> Tensor:
    """Where a shape is (SIDE,SIDE), in quarter `place` of the image."""
    half = SIDE / 2
    radius = half * (0.25 + 0.12 * own[1])
    room = half - 2.2 * radius  # the widest shape reaches 1.1 radii
    grid = torch.arange(SIDE) + 0.5
    x = (grid[None] - half * (place % 2) - 1.1 * radius - own[2] * room) / radius
    y = (grid[:, None] - half * (place // 2) - 1.1 * radius - own[3] * room) / radius
    turn = torch.tensor(2 * torch.pi * own[4])
    x, y = turn.cos() * x + turn.sin() * y, turn.cos() * y - turn.sin() * x
    return KINDS[name](x, y) < 0


def _annotation(inside: Tensor, category: int) -> dict[str, Any]:
    """Box, area and run lengths down columns of a mask (H,W), as COCO writes them."""
    rows, columns = inside.any(1).nonzero().flatten(), inside.any(0).nonzero().flatten()
    left, top = int(columns[0]), int(rows[0])
    box = [left, top, int(columns[-1]) - left + 1, int(rows[-1]) - top + 1]
    runs = [(value, len(list(run))) for value, run in groupby(inside.T.flatten().tolist())]
    counts = [0] * int(runs[0][0]) + [
        length for _, length in runs
    ]  # the first run is of what is outside
    outline = {"counts": counts, "size": list(inside.shape)}
    return {
        "category_id": category,
        "bbox": box,
        "area": int(inside.sum()),
        "segmentation": outline,
        "iscrowd": 0,
    }


def judge(
    network: str, name: str, *, data: str, out: Path, scenes: Path, seed: int, device: str
) -> Score:
    """A slim detector of `SLIM` around the backbone of a run, or around an untrained one whose folder is `out`.

    The score goes into its scores.json under the detector's name. `data` is what the network was trained on: the mean
    and deviation of the pixels are those that it has seen.
    """
    settings, train, test = SLIM[name]
    home = draw(scenes, train, test)
    found = subject(network, data=data, out=out, seed=seed)  # a run has its own of all three
    where, own = pick_device(device), load(data)
    splits = replace(load("coco", home), mean=own.mean, std=own.std)
    eval_view = api.eye(found.recipe, splits).to(where)
    task = Task(found.backbone.to(where), splits, SIDE, eval_view, where, seed, root=str(home))
    value, unit, used, n, more, split, epoch = detect.run(task, settings)
    score = Score(
        value, unit, name, used, "scenes", split=split, n=n, seed=seed, epoch=epoch, more=more
    )
    found.folder.path.mkdir(parents=True, exist_ok=True)
    found.folder.add_json("scores.json", {name: score.json()})
    return score
