"""PASCAL VOC and COCO: several classes per image, boxes and masks. N images, K classes, M objects, H W pixels."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple
from xml.etree import ElementTree

import numpy as np
import torch
from PIL import Image, ImageDraw
from torch import Tensor

from antipode.data.sources.folder import Files, Names, listed
from antipode.data.sources.source import Decoded
from antipode.data.sources.splits import Splits, base, locate

VOC = (
    "aeroplane bicycle bird boat bottle bus car cat chair cow diningtable dog horse motorbike person pottedplant "
    "sheep sofa train tvmonitor"
).split()
Target = dict[str, Tensor]


class Thing(NamedTuple):
    """One object in an image: class, corners x0 y0 x1 y1, its outline as COCO writes it, and whether to judge it."""

    label: int
    box: tuple[float, float, float, float]
    outline: Any = None
    spared: bool = False  # VOC's difficult, COCO's crowd


@dataclass(frozen=True)
class Detection:
    """Images with their objects, for detection and segmentation: `[i]` is an image uint8 (3,H,W) and its target.

    The target has boxes (M,4) as x0 y0 x1 y1, labels (M,) from 1 (0 is the background of torchvision's models), masks
    uint8 (M,H,W) where the data set has outlines, iscrowd (M,), area (M,) and image_id (1,).
    """

    read: Files
    things: list[list[Thing]]
    ids: list[int]
    classes: list[str]
    categories: list[int]  # the data set's own number of each class, which its evaluation asks for

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, index: int) -> tuple[Tensor, Target]:
        image, things = self.read(index), self.things[index]
        boxes = torch.tensor([thing.box for thing in things], dtype=torch.float32).reshape(-1, 4)
        target = {
            "boxes": boxes,
            "labels": torch.tensor([thing.label + 1 for thing in things], dtype=torch.int64),
            "iscrowd": torch.tensor([thing.spared for thing in things], dtype=torch.int64),
            "area": (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1]),
            "image_id": torch.tensor([self.ids[index]]),
        }
        if all(thing.outline is not None for thing in things):
            height, width = image.shape[1:]
            masks = [mask(thing.outline, height, width) for thing in things]
            target["masks"] = (
                torch.stack(masks) if masks else torch.zeros(0, height, width, dtype=torch.uint8)
            )
        return image, target


def mask(outline: Any, height: int, width: int) -> Tensor:
    """The mask uint8 (H,W) of polygons [[x, y, ...], ...] or of COCO's run lengths {"counts": [...]} down columns."""
    if isinstance(outline, dict):
        counts = outline["counts"]
        if not isinstance(counts, list):
            raise ValueError(
                "a mask is in COCO's compressed form; decode it with pycocotools first"
            )
        values = torch.arange(len(counts)) % 2
        return (
            values.repeat_interleave(torch.tensor(counts)).reshape(width, height).T.to(torch.uint8)
        )
    drawing = Image.new("L", (width, height))
    for polygon in outline:
        if len(polygon) >= 6:
            ImageDraw.Draw(drawing).polygon(polygon, fill=1)
    return torch.from_numpy(np.array(drawing))


def presence(things: list[list[Thing]], classes: int) -> Tensor:
    """Labels int64 (N,K): 1 where a class is there, 0 where not, -1 where all its objects are spared."""
    labels = torch.zeros(len(things), classes, dtype=torch.int64)
    for row, found in zip(labels, things, strict=True):
        for thing in sorted(found, key=lambda thing: not thing.spared):
            row[thing.label] = -1 if thing.spared else 1
    return labels


def voc07(root: Path | None, download: bool, seed: int) -> Splits:
    """PASCAL VOC 2007: trainval (5,011), test (4,952); 20 classes, several per image."""
    return _voc("voc07", ("2007",), root, download)


def voc0712(root: Path | None, download: bool, seed: int) -> Splits:
    """PASCAL VOC 2007 and 2012: trainval of both (16,551), test of 2007 (4,952)."""
    return _voc("voc07+12", ("2007", "2012"), root, download)


def _voc(name: str, years: tuple[str, ...], root: Path | None, download: bool) -> Splits:
    if download:
        _fetch_voc(base(name, root, "VOCdevkit", "it will be fetched"), years)
    train, test = (
        _several(voc_detection(name, part, root, years)) for part in ("trainval", "test")
    )
    return Splits(name, train, train, test, 224)


def _fetch_voc(root: Path, years: tuple[str, ...]) -> None:
    from torchvision.datasets import VOCDetection  # noqa: PLC0415

    for year, part in [(year, "trainval") for year in years] + [("2007", "test")]:
        VOCDetection(str(root), year=year, image_set=part, download=True)


def voc_detection(name: str, part: str, root: Path | None, years: tuple[str, ...]) -> Detection:
    """VOC's objects. Its corners count pixels from 1 and include the last, so one is taken from the first two."""
    how = "unpack VOCdevkit there, as torchvision.datasets.VOCDetection does with download=True"
    years = years if part == "trainval" else ("2007",)
    inside = [f"VOC{year}/ImageSets/Main/{part}.txt" for year in years]
    home = locate(name, root, ("VOCdevkit", "voc/VOCdevkit", "VOC/VOCdevkit", "."), inside, how)
    keys = [
        (f"VOC{year}", key)
        for year, file in zip(years, inside, strict=True)
        for key in _lines(home / file)
    ]
    things = [_voc_things(home / year / "Annotations" / f"{key}.xml") for year, key in keys]
    names = Names(f"{year}/JPEGImages/{key}.jpg" for year, key in keys)
    return Detection(
        Files(home, names), things, list(range(len(keys))), VOC, list(range(1, len(VOC) + 1))
    )


def _lines(file: Path) -> list[str]:
    return [line.split()[0] for line in file.read_text().splitlines() if line.strip()]


def _voc_things(file: Path) -> list[Thing]:
    things = []
    for found in ElementTree.parse(file).getroot().iter("object"):
        x0, y0, x1, y1 = (
            float(found.findtext(f"bndbox/{corner}", "0"))
            for corner in ("xmin", "ymin", "xmax", "ymax")
        )
        label = VOC.index(found.findtext("name", ""))
        things.append(
            Thing(label, (x0 - 1, y0 - 1, x1, y1), None, found.findtext("difficult") == "1")
        )
    return things


def coco(root: Path | None, download: bool, seed: int) -> Splits:
    """COCO 2017: train (118,287), val (5,000); 80 classes, several per image."""
    train, test = (_several(coco_detection(part, root)) for part in ("train", "val"))
    return Splits("coco", train, train, test, 224)


def coco_detection(part: str, root: Path | None) -> Detection:
    """COCO's objects, from the layout of its archives or from images/ beside instances_{train,val}.json."""
    how = f"unpack {part}2017.zip and annotations_trainval2017.zip there"
    top = base("coco", root, f"{part}2017 and annotations in coco", how)
    folders = ("coco", "COCO", "coco2017", ".")
    if any((top / folder / f"instances_{part}.json").exists() for folder in folders):
        file, images = f"instances_{part}.json", "images"
    else:
        file, images = f"annotations/instances_{part}2017.json", f"{part}2017"
    home = locate("coco", top, folders, (file, images), how)
    notes = json.loads((home / file).read_text())
    categories = sorted(notes["categories"], key=lambda category: category["id"])
    number = {category["id"]: index for index, category in enumerate(categories)}
    things: dict[int, list[Thing]] = {image["id"]: [] for image in notes["images"]}
    for note in notes["annotations"]:
        x, y, width, height = note["bbox"]
        crowd = bool(note.get("iscrowd"))
        box = (x, y, x + width, y + height)
        things[note["image_id"]].append(
            Thing(number[note["category_id"]], box, note["segmentation"], crowd)
        )
    read = Files(home / images, Names(image["file_name"] for image in notes["images"]))
    classes = [category["name"] for category in categories]
    return Detection(
        read,
        list(things.values()),
        list(things),
        classes,
        [category["id"] for category in categories],
    )


def _several(objects: Detection) -> Decoded:
    labels = presence(objects.things, len(objects.classes))
    return listed(objects.read.root, list(objects.read.names), labels, objects.classes)


DETECTION: dict[str, Callable[[str, Path | None], Detection]] = {
    "voc07": lambda part, root: voc_detection("voc07", part, root, ("2007",)),
    "voc07+12": lambda part, root: voc_detection("voc07+12", part, root, ("2007", "2012")),
    "coco": coco_detection,
}


def detection(name: str, split: str, root: str | Path | None = None) -> Detection:
    """The images of a data set with their objects; split is `train` or `test` (COCO's val)."""
    if name not in DETECTION or split not in ("train", "test"):
        raise ValueError(
            f"no objects for {name} {split}; there are {', '.join(DETECTION)} with train and test"
        )
    parts = (
        {"train": "train", "test": "val"}
        if name == "coco"
        else {"train": "trainval", "test": "test"}
    )
    return DETECTION[name](parts[split], Path(root) if root else None)
