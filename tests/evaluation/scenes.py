"""Small detection data sets in the layouts of VOC and COCO.

The images are scenes of noise with coloured objects of three kinds.
"""

import json

import numpy as np
import torch
from PIL import Image, ImageDraw

from antipode.data.sources.splits import Splits
from antipode.data.views.views import views
from antipode.evaluation.task import Task
from antipode.nets.backbone import backbone

# the colour of each kind; the names are classes of VOC
KINDS = {
    "aeroplane": (230, 40, 40),
    "bicycle": (40, 220, 40),
    "bird": (40, 60, 240),
}
SIDE = 96


def corners(kind, x0, y0, x1, y1):
    """Return the outline of an object: a rectangle, an ellipse or a triangle."""
    if kind == 0:
        return [(x0, y0), (x1, y0), (x1, y1), (x0, y1)]
    if kind == 1:
        angles = np.linspace(0, 2 * np.pi, 24, endpoint=False)
        x, y = (x0 + x1) / 2, (y0 + y1) / 2
        wide, tall = (x1 - x0) / 2, (y1 - y0) / 2
        return [(x + wide * np.cos(angle), y + tall * np.sin(angle)) for angle in angles]
    return [(x0, y1), ((x0 + x1) / 2, y0), (x1, y1)]


def scene(random, width=SIDE, height=SIDE):
    """Return an image and its objects as (kind, corners of the box, outline).

    There is one object in each half of the image, so that none covers the other.
    """
    image = Image.fromarray(random.integers(60, 190, (height, width, 3), dtype=np.uint8))
    things = []
    for half in range(2):
        kind = int(random.integers(3))
        wide, tall = map(int, random.integers(24, 44, 2))
        x0 = int(random.integers(half * width // 2, (half + 1) * width // 2 - wide + 1))
        y0 = int(random.integers(0, height - tall))
        outline = corners(kind, x0, y0, x0 + wide, y0 + tall)
        ImageDraw.Draw(image).polygon(outline, fill=list(KINDS.values())[kind])
        things.append((kind, (x0, y0, x0 + wide, y0 + tall), outline))
    return image, things


def coco(root, train=24, test=8, seed=0):
    """Write scenes in COCO's layout. The first image of each split also has a crowd."""
    random = np.random.default_rng(seed)
    (root / "images").mkdir(parents=True)
    for part, count in (("train", train), ("val", test)):
        images = []
        notes = []
        for number in range(count):
            image, things = scene(random)
            name = f"{part}{number}.png"
            image.save(root / "images" / name)
            images.append({"id": 100 + number, "file_name": name, "width": SIDE, "height": SIDE})
            for kind, (x0, y0, x1, y1), outline in things:
                polygon = [float(value) for point in outline for value in point]
                box = [x0, y0, x1 - x0, y1 - y0]
                notes.append(note(notes, 100 + number, kind, box) | {"segmentation": [polygon]})
        runs = {"size": [SIDE, SIDE], "counts": [0, 20, SIDE * SIDE - 20]}
        notes.append(note(notes, 100, 0, [0, 0, 1, 20]) | {"segmentation": runs, "iscrowd": 1})
        categories = [{"id": 7 * number + 3, "name": name} for number, name in enumerate(KINDS)]
        content = {"images": images, "annotations": notes, "categories": categories}
        (root / f"instances_{part}.json").write_text(json.dumps(content))
    return root


def note(notes, image, kind, box):
    """Return an annotation in COCO's format."""
    return {
        "id": len(notes),
        "image_id": image,
        "category_id": 7 * kind + 3,
        "bbox": box,
        "iscrowd": 0,
    }


def voc(root, train=24, test=8, seed=0):
    """Write scenes in VOC's layout, half of the training images in the folder of VOC 2012.

    One object in ten is difficult.
    """
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
    """Return the XML annotation of an object."""
    kind, (x0, y0, x1, y1), _ = thing
    box = f"<xmin>{x0 + 1}</xmin><ymin>{y0 + 1}</ymin><xmax>{x1}</xmax><ymax>{y1}</ymax>"
    about = f"<name>{list(KINDS)[kind]}</name><difficult>{int(difficult)}</difficult>"
    return f"<object>{about}<bndbox>{box}</bndbox></object>"


def task(root, name, *, seed=0, stem="half", net=None):
    """Return a task with a slim frozen backbone on a data set of scenes.

    The splits have no image-level sources, since a detector does not use them.
    """
    torch.manual_seed(3)
    net = (net or backbone("resnet10-slim", stem=stem)).eval().requires_grad_(False)
    splits = Splits(name, None, None, None, SIDE)
    eval_view = views("eval", size=32)
    return Task(net, splits, 32, eval_view, torch.device("cpu"), seed=seed, root=str(root))
