"""PASCAL VOC and COCO: data sets with several classes per image, boxes and masks.

N images, K classes, M objects per image, H W pixels.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple
from xml.etree import ElementTree

import numpy as np
import torch
from PIL import Image, ImageDraw
from torch import Tensor

from antipode.data.sources.folder import Files, from_list
from antipode.data.sources.image_names import Names
from antipode.data.sources.lists import (
    coordinate,
    id_of,
    inside,
    read_lines,
    read_object,
    read_xml,
    rows,
    text_of,
    unique_ids,
    wrong,
)
from antipode.data.sources.source import Decoded
from antipode.data.sources.splits import Splits, data_root, locate
from antipode.names import brief, printable

VOC = (
    "aeroplane bicycle bird boat bottle bus car cat chair cow diningtable dog horse motorbike "
    "person pottedplant sheep sofa train tvmonitor"
).split()
Target = dict[str, Tensor]
LABELS = 1 << 27  # the most labels of a data set with several classes per image: 1 GiB
MASKS = 1 << 31  # the most bytes for the masks of one image


class Thing(NamedTuple):
    """One annotated object in an image."""

    label: int  # class index from 0
    box: tuple[float, float, float, float]  # corners x0 y0 x1 y1
    outline: Any = None  # in COCO's segmentation format: polygons or run lengths
    spared: bool = False  # ignored by the evaluation: VOC's difficult objects, COCO's crowds


@dataclass(frozen=True)
class Detection:
    """Images with annotated objects, for detection and segmentation.

    `detection[i]` is an image uint8 (3,H,W) and its target, a dictionary with these tensors:

    - boxes (M,4): corners x0 y0 x1 y1;
    - labels (M,): class index from 1, because 0 is the background in torchvision's models;
    - masks uint8 (M,H,W): only if all objects of the image have outlines;
    - iscrowd (M,), area (M,) and image_id (1,).
    """

    read: Files
    things: list[list[Thing]]
    ids: list[int]
    classes: list[str]
    categories: list[int]  # the data set's own category id of each class; its evaluation needs it

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, index: int) -> tuple[Tensor, Target]:
        image = self.read(index)
        things = self.things[index]
        boxes = torch.tensor([thing.box for thing in things], dtype=torch.float32).reshape(-1, 4)
        target = {
            "boxes": boxes,
            "labels": torch.tensor([thing.label + 1 for thing in things], dtype=torch.int64),
            "iscrowd": torch.tensor([thing.spared for thing in things], dtype=torch.int64),
            "area": (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1]),
            "image_id": torch.tensor([self.ids[index]]),
        }
        if all(thing.outline is not None for thing in things):
            target["masks"] = self._masks(index, *image.shape[1:])
        return image, target

    def _masks(self, index: int, height: int, width: int) -> Tensor:
        """Return the masks uint8 (M,H,W) of the objects of an image."""
        things = self.things[index]
        try:
            if len(things) * height * width > MASKS:
                raise ValueError(f"{len(things)} masks of {height} x {width} pixels are too many")
            masks = [mask(thing.outline, height, width) for thing in things]
        except ValueError as error:
            text = f"an object in {self.read.names[index]} cannot be used: {error}"
            raise ValueError(printable(text)) from error
        return torch.stack(masks) if masks else torch.zeros(0, height, width, dtype=torch.uint8)


def mask(outline: Any, height: int, width: int) -> Tensor:
    """Return the mask uint8 (H,W) of an outline in COCO's segmentation format.

    The outline is either a list of polygons [[x, y, ...], ...] or uncompressed run lengths
    {"counts": [...]}, which run down the columns.
    """
    if isinstance(outline, dict):
        return _from_runs(outline.get("counts"), height, width)
    if not isinstance(outline, list):
        raise ValueError(f"its outline is {brief(outline)}, neither polygons nor run lengths")
    drawing = Image.new("L", (width, height))
    for polygon in outline:
        if not isinstance(polygon, list) or len(polygon) % 2:
            raise ValueError(f"the polygon {brief(polygon)} is not a list of x, y, x, y, ...")
        if len(polygon) >= 6:
            ImageDraw.Draw(drawing).polygon([coordinate(value) for value in polygon], fill=1)
    return torch.from_numpy(np.array(drawing))


def _from_runs(counts: Any, height: int, width: int) -> Tensor:
    """Return the mask uint8 (H,W) of run lengths."""
    if isinstance(counts, str):
        raise ValueError(
            "the mask is in COCO's compressed format; decode it with pycocotools first"
        )
    if (
        not isinstance(counts, list)
        or any(type(count) is not int or count < 0 for count in counts)
        or sum(counts) != height * width
    ):
        raise ValueError(f"its run lengths are not those of {height} x {width} pixels")
    pixels = (torch.arange(len(counts)) % 2).repeat_interleave(torch.tensor(counts))
    return pixels.reshape(width, height).T.to(torch.uint8)


def presence(things: list[list[Thing]], classes: int) -> Tensor:
    """Return the labels int64 (N,K) of images with several classes.

    A label is 1 if the class is present, 0 if it is absent, and -1 if all objects of the class are
    ignored by the evaluation (`Thing.spared`).
    """
    labels = torch.zeros(len(things), classes, dtype=torch.int64)
    for row, objects in zip(labels, things, strict=True):
        # ignored objects come first, so that an evaluated object overwrites their -1
        for thing in sorted(objects, key=lambda thing: not thing.spared):
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
        folder = data_root(name, root, "VOCdevkit", "it will be downloaded there")
        _download_voc(folder, years)
    train, test = (
        _multi_label(voc_detection(name, part, root, years)) for part in ("trainval", "test")
    )
    return Splits(name, train, train, test, 224)


def _download_voc(root: Path, years: tuple[str, ...]) -> None:
    from torchvision.datasets import VOCDetection  # noqa: PLC0415

    for year, part in [(year, "trainval") for year in years] + [("2007", "test")]:
        VOCDetection(str(root), year=year, image_set=part, download=True)


def voc_detection(name: str, part: str, root: Path | None, years: tuple[str, ...]) -> Detection:
    """Return VOC's images and objects; part is `trainval` or `test`.

    VOC counts pixels from 1 and includes the last pixel of a box. The boxes here start at 0 and
    exclude the last pixel, so 1 is subtracted from x0 and y0 only.
    """
    how = "unpack VOCdevkit there, as torchvision.datasets.VOCDetection does with download=True"
    years = years if part == "trainval" else ("2007",)
    lists = [f"VOC{year}/ImageSets/Main/{part}.txt" for year in years]
    home = locate(name, root, ("VOCdevkit", "voc/VOCdevkit", "VOC/VOCdevkit", "."), lists, how)
    keys = [
        (f"VOC{year}", key)
        for year, file in zip(years, lists, strict=True)
        for key in (inside(home / file, line.split()[0]) for line in read_lines(home / file))
    ]
    things = [_voc_things(home / year / "Annotations" / f"{key}.xml") for year, key in keys]
    names = Names(f"{year}/JPEGImages/{key}.jpg" for year, key in keys)
    ids = list(range(len(keys)))
    return Detection(Files(home, names), things, ids, VOC, list(range(1, len(VOC) + 1)))


def _voc_things(file: Path) -> list[Thing]:
    return [_voc_thing(file, element) for element in read_xml(file, "annotation").iter("object")]


def _voc_thing(file: Path, element: ElementTree.Element) -> Thing:
    name = element.findtext("name", "").strip()
    if name not in VOC:
        wrong(file, f"{brief(name)} is not one of VOC's {len(VOC)} classes")
    try:
        x0, y0, x1, y1 = (
            coordinate(element.findtext(f"bndbox/{corner}"))
            for corner in ("xmin", "ymin", "xmax", "ymax")
        )
    except ValueError as error:
        wrong(file, f"in the box of a {name}, {error}")
    difficult = element.findtext("difficult", "").strip() == "1"
    return Thing(VOC.index(name), (x0 - 1, y0 - 1, x1, y1), None, difficult)


def coco(root: Path | None, download: bool, seed: int) -> Splits:
    """COCO 2017: train (118,287), val (5,000); 80 classes, several per image."""
    train, test = (_multi_label(coco_detection(part, root)) for part in ("train", "val"))
    return Splits("coco", train, train, test, 224)


def coco_detection(part: str, root: Path | None) -> Detection:
    """Return COCO's images and objects; part is `train` or `val`.

    The files are either in the layout of COCO's archives, or in images/ next to
    instances_{train,val}.json.
    """
    how = f"unpack {part}2017.zip and annotations_trainval2017.zip there"
    top = data_root("coco", root, f"{part}2017 and annotations in coco", how)
    folders = ("coco", "COCO", "coco2017", ".")
    if any((top / folder / f"instances_{part}.json").exists() for folder in folders):
        file = f"instances_{part}.json"
        images = "images"
    else:
        file = f"annotations/instances_{part}2017.json"
        images = f"{part}2017"
    home = locate("coco", top, folders, (file, images), how)
    return _coco_objects(home / file, home / images)


def _coco_objects(file: Path, folder: Path) -> Detection:
    """Return the images and objects of a file in COCO's format."""
    content = read_object(file)
    categories = sorted(
        zip(
            unique_ids(file, content, "categories"),
            [text_of(file, row, "name", "a category") for row in content["categories"]],
            strict=True,
        )
    )
    number = {category: index for index, (category, _) in enumerate(categories)}
    ids = unique_ids(file, content, "images")
    names = Names(
        inside(file, text_of(file, image, "file_name", "an image")) for image in content["images"]
    )
    things: dict[int, list[Thing]] = {image: [] for image in ids}
    for annotation in rows(file, content, "annotations"):
        image = id_of(file, annotation, "image_id", "an annotation")
        if image not in things:
            wrong(file, f"an annotation has the image_id {image}, but there is no such image")
        things[image].append(_coco_thing(file, annotation, number))
    classes = [name for _, name in categories]
    return Detection(Files(folder, names), list(things.values()), ids, classes, list(number))


def _coco_thing(file: Path, annotation: dict[str, Any], number: dict[int, int]) -> Thing:
    category = id_of(file, annotation, "category_id", "an annotation")
    if category not in number:
        wrong(file, f"an annotation has the category_id {category}, but there is no such category")
    box = annotation.get("bbox")
    try:
        if not isinstance(box, list):
            raise ValueError(f"{brief(box)} is not a box")
        x, y, width, height = (coordinate(value) for value in box)
        if width < 0 or height < 0:
            raise ValueError(f"the size {width:g} x {height:g} of a box is negative")
    except ValueError as error:
        wrong(file, f"in an annotation of the image {annotation['image_id']}, {error}")
    crowd = bool(annotation.get("iscrowd"))
    box = (x, y, x + width, y + height)
    return Thing(number[category], box, annotation.get("segmentation"), crowd)


def _multi_label(objects: Detection) -> Decoded:
    """Return the images with the labels (N,K) of the classes that are present."""
    if len(objects) * len(objects.classes) > LABELS:
        text = f"{len(objects):,} images of {len(objects.classes):,} classes in {objects.read.root}"
        raise ValueError(printable(f"{text} are more than the limit of {LABELS:,} labels"))
    labels = presence(objects.things, len(objects.classes))
    return from_list(objects.read.root, list(objects.read.names), labels, objects.classes)


DETECTION: dict[str, Callable[[str, Path | None], Detection]] = {
    "voc07": lambda part, root: voc_detection("voc07", part, root, ("2007",)),
    "voc07+12": lambda part, root: voc_detection("voc07+12", part, root, ("2007", "2012")),
    "coco": coco_detection,
}


def detection(name: str, split: str, root: str | Path | None = None) -> Detection:
    """Return the images of a data set with their objects; split is `train` or `test` (COCO's val).

    Raises ValueError for a data set without object annotations.
    """
    if name not in DETECTION or split not in ("train", "test"):
        raise ValueError(
            f"there are no object annotations for {name} {split}; "
            f"choose one of {', '.join(DETECTION)} and the split train or test"
        )
    parts = (
        {"train": "train", "test": "val"}
        if name == "coco"
        else {"train": "trainval", "test": "test"}
    )
    return DETECTION[name](parts[split], Path(root) if root else None)
