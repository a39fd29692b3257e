"""Small scenes to detect in, in the layouts of VOC and COCO: three kinds of coloured things on noise."""

import json

import numpy as np
import torch
from PIL import Image, ImageDraw

from antipode.data.sources.splits import Splits
from antipode.data.views.views import views
from antipode.evaluation.task import Task
from antipode.nets.backbone import backbone

KINDS = {
    "aeroplane": (230, 40, 40),
    "bicycle": (40, 220, 40),
    "bird": (40, 60, 240),
}  # names that VOC has too
SIDE = 96


def corners(kind, x0, y0, x1, y1):
    """The outline of a thing: a rectangle, an ellipse or a triangle."""
    if kind == 0:
        return [(x0, y0), (x1, y0), (x1, y1), (x0, y1)]
    if kind == 1:
        turn = np.linspace(0, 2 * np.pi, 24, endpoint=False)
        middle, half = ((x0 + x1) / 2, (y0 + y1) / 2), ((x1 - x0) / 2, (y1 - y0) / 2)
        return [(middle[0] + half[0] * np.cos(t), middle[1] + half[1] * np.sin(t)) for t in turn]
    return [(x0, y1), ((x0 + x1) / 2, y0), (x1, y1)]


def scene(random, width=SIDE, height=SIDE):
    """An image and its things (kind, corners of the box, outline); one in each half, so that none hides another."""
    image = Image.fromarray(random.integers(60, 190, (height, width, 3), dtype=np.uint8))
    things = []
    for half in range(2):
        kind, wide, tall = int(random.integers(3)), *map(int, random.integers(24, 44, 2))
        x0 = int(random.integers(half * width // 2, (half + 1) * width // 2 - wide + 1))
        y0 = int(random.integers(0, height - tall))
        outline = corners(kind, x0, y0, x0 + wide, y0 + tall)
        ImageDraw.Draw(image).polygon(outline, fill=list(KINDS.values())[kind])
        things.append((kind, (x0, y0, x0 + wide, y0 + tall), outline))
    return image, things


def coco(root, train=24, test=8, seed=0):
    """COCO's layout of a few scenes; the first training image has a crowd besides."""
    random = np.random.default_rng(seed)
    (root / "images").mkdir(parents=True)
    for part, count in (("train", train), ("val", test)):
        images, notes = [], []
        for number in range(count):
            image, things = scene(random)
            name = f"{part}{number}.png"
            image.save(root / "images" / name)
            images.append({"id": 100 + number, "file_name": name, "width": SIDE, "height": SIDE})
            for kind, (x0, y0, x1, y1), outline in things:
                notes.append(note(notes, 100 + number, kind, [x0, y0, x1 - x0, y1 - y0]))
                notes[-1] |= {
                    "segmentation": [[float(value) for point in outline for value in point]]
                }
        runs = {"size": [SIDE, SIDE], "counts": [0, 20, SIDE * SIDE - 20]}
        notes.append(note(notes, 100, 0, [0, 0, 1, 20]) | {"segmentation": runs, "iscrowd": 1})
        categories = [{"id": 7 * number + 3, "name": name} for number, name in enumerate(KINDS)]
        content = {"images": images, "annotations": notes, "categories": categories}
        (root / f"instances_{part}.json").write_text(json.dumps(content))
    return root


def note(notes, image, kind, box):
    return {
        "id": len(notes),
        "image_id": image,
        "category_id": 7 * kind + 3,
        "bbox": box,
        "iscrowd": 0,
    }


def voc(root, train=24, test=8, seed=0):
    """VOC's layout of a few scenes, half of the training ones in 2012's folder; one thing in ten is difficult."""
    random = np.random.default_rng(seed)
    lists = {
        ("2007", "trainval"): train - train // 2,
        ("2012", "trainval"): train // 2,
        ("2007", "test"): test,
    }
    for (year, part), count in lists.items():
        home = root / "VOCdevkit" / f"VOC{year}"
        for folder in ("ImageSets/Main", "Annotations", "JPEGImages"):
            (home / folder).mkdir(parents=True, exist_ok=True)
        names = [f"{part}{number}" for number in range(count)]
        (home / "ImageSets" / "Main" / f"{part}.txt").write_text("\n".join(names))
        for number, name in enumerate(names):
            image, things = scene(random)
            image.save(home / "JPEGImages" / f"{name}.jpg", quality=95)
            objects = [
                described(thing, number % 5 == 4 and not index)
                for index, thing in enumerate(things)
            ]
            (home / "Annotations" / f"{name}.xml").write_text(
                f"<annotation>{''.join(objects)}</annotation>"
            )
    return root


def described(thing, difficult):
    kind, (x0, y0, x1, y1), _ = thing
    box = f"<xmin>{x0 + 1}</xmin><ymin>{y0 + 1}</ymin><xmax>{x1}</xmax><ymax>{y1}</ymax>"
    about = f"<name>{list(KINDS)[kind]}</name><difficult>{int(difficult)}</difficult>"
    return f"<object>{about}<bndbox>{box}</bndbox></object>"


def task(root, name, *, seed=0, stem="half", net=None):
    """A slim frozen backbone on a data set of scenes. The image-level sources are of no use to a detector."""
    torch.manual_seed(3)
    net = (net or backbone("resnet10-slim", stem=stem)).eval().requires_grad_(False)
    splits = Splits(name, None, None, None, SIDE)
    eval_view = views("eval", size=32)
    return Task(net, splits, 32, eval_view, torch.device("cpu"), seed=seed, root=str(root))
