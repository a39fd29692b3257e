"""Published data sets that are read from image files.

ImageNet, ImageNet-100, Tiny-ImageNet, Places205 and iNaturalist 2018.
"""

from dataclasses import replace
from importlib.resources import files
from pathlib import Path

from antipode.data.sources.folder import from_list, tree
from antipode.data.sources.lists import (
    id_of,
    inside,
    read_lines,
    read_object,
    rows,
    text_of,
    unique_ids,
    wrong,
)
from antipode.data.sources.source import Decoded
from antipode.data.sources.splits import Splits, data_root, locate
from antipode.names import brief

CLASSES = 10_000  # the most classes of a list, if it has fewer images
IMAGENET = ("imagenet", "ImageNet", "ILSVRC2012", "imagenet-1k", "ILSVRC/Data/CLS-LOC", ".")


def imagenet(root: Path | None, download: bool, seed: int) -> Splits:
    """ImageNet 2012: train (1,281,167) and val (50,000) in class folders."""
    how = "unpack ILSVRC2012 into class folders there, as torchvision.datasets.ImageNet does"
    home = locate("imagenet", root, IMAGENET, ("train", "val"), how)
    train = tree(home / "train", trusted=True)
    test = tree(home / "val", classes=train.classes, trusted=True)
    return Splits("imagenet", train, train, test, 224)


def imagenet100(root: Path | None, download: bool, seed: int) -> Splits:
    """ImageNet-100: 100 ImageNet classes, listed in JCL (NeurIPS 2020), supplement, section 4."""
    names = sorted(files("antipode.data.sources").joinpath("imagenet100.txt").read_text().split())
    how = "unpack ILSVRC2012, or these 100 class folders of it, there"
    home = locate("imagenet100", root, ("imagenet100", *IMAGENET), ("train", "val"), how)
    for part in ("train", "val"):
        absent = [name for name in names if not (home / part / name).is_dir()]
        if absent:
            raise FileNotFoundError(
                f"{home / part} lacks {len(absent)} of the 100 class folders, "
                f"the first: {absent[0]}"
            )
    train, test = (tree(home / part, classes=names, trusted=True) for part in ("train", "val"))
    return Splits("imagenet100", train, train, test, 224)


def tinyimagenet(root: Path | None, download: bool, seed: int) -> Splits:
    """Tiny-ImageNet, 64 px: 100,000 + 10,000 images, 200 classes."""
    folders = ("tiny-imagenet-200", "tinyimagenet", ".")
    how = "unpack tiny-imagenet-200.zip there"
    home = locate("tinyimagenet", root, folders, ("train", "val", "wnids.txt"), how)
    classes = sorted({line.strip() for line in read_lines(home / "wnids.txt")})
    train = tree(home / "train", classes=classes, trusted=True)
    annotations = home / "val" / "val_annotations.txt"
    if annotations.exists() and (home / "val" / "images").is_dir():
        names, labels = _tiny_list(annotations, classes)
        test = from_list(home / "val" / "images", names, labels, classes)
    else:
        test = tree(home / "val", classes=classes, trusted=True)
    train, test = replace(train, size=64), replace(test, size=64)
    return Splits("tinyimagenet", train, train, test, 64)


def _tiny_list(file: Path, classes: list[str]) -> tuple[list[str], list[int]]:
    """Return the names and labels in a list with one image per line: name, class, box."""
    number = {name: index for index, name in enumerate(classes)}
    names = []
    labels = []
    for line in read_lines(file):
        name, *others = line.split("\t")
        if not others or others[0] not in number:
            wrong(file, f"the line {brief(line)} does not name one of the {len(classes)} classes")
        names.append(inside(file, name))
        labels.append(number[others[0]])
    return names, labels


def places205(root: Path | None, download: bool, seed: int) -> Splits:
    """Places205: 2,448,873 + 20,500 images, 205 classes; class folders or the official lists."""
    folders = ("places205", "Places205", ".")
    how = "unpack imagesPlaces205_resize.tar.gz and its lists there"
    top = data_root("places205", root, "train and val", how)
    try:
        home = locate("places205", top, folders, ("train", "val"), how)
    except FileNotFoundError:
        contents = ("train_places205.csv", "val_places205.csv", "images256")
        home = locate("places205", top, folders, contents, how)
        train, test = (_places_list(home, f"{part}_places205.csv") for part in ("train", "val"))
    else:
        train = tree(home / "train", trusted=True)
        test = tree(home / "val", classes=train.classes, trusted=True)
    return Splits("places205", train, train, test, 224)


def _places_list(home: Path, file: str) -> Decoded:
    path = home / file
    names = []
    labels = []
    for line in read_lines(path):
        name, *number = line.rsplit(maxsplit=1)
        if len(number) != 1 or not number[0].isdecimal() or len(number[0]) > 6:
            wrong(path, f"the line {brief(line)} is not a name and a class number")
        names.append(inside(path, name))
        labels.append(int(number[0]))
    largest = max(labels, default=0)
    if largest >= max(len(labels), CLASSES):
        wrong(path, f"the class number {largest} is too large for {len(labels)} images")
    classes = [""] * (largest + 1)
    for name, label in zip(names, labels, strict=True):
        classes[label] = name.rsplit("/", 1)[0]
    return from_list(home / "images256", names, labels, classes)


def inat18(root: Path | None, download: bool, seed: int) -> Splits:
    """iNaturalist 2018: 437,513 + 24,426 images, 8,142 species; the official JSON lists."""
    folders = ("inat18", "inat2018", "iNaturalist", ".")
    how = "unpack train_val2018.tar.gz and its JSON lists there"
    home = locate("inat18", root, folders, ("train2018.json", "val2018.json"), how)
    # torchvision.datasets.INaturalist(version="2018") renames the archive's folder to its year
    images = "2018" if (home / "2018").is_dir() else "train_val2018"
    train, test = (_inat_list(home, f"{part}2018.json", images) for part in ("train", "val"))
    return Splits("inat18", train, train, test, 224)


def _inat_list(home: Path, file: str, images: str) -> Decoded:
    path = home / file
    content = read_object(path)
    species = sorted(
        zip(
            unique_ids(path, content, "categories"),
            [str(row.get("name")) for row in content["categories"]],
            strict=True,
        )
    )
    number = {category: index for index, (category, _) in enumerate(species)}
    label = {}
    for row in rows(path, content, "annotations"):
        category = id_of(path, row, "category_id", "an annotation")
        if category not in number:
            wrong(path, f"an annotation has the category_id {category}, but there is none such")
        label[id_of(path, row, "image_id", "an annotation")] = number[category]
    ids = unique_ids(path, content, "images")
    names = [text_of(path, row, "file_name", "an image") for row in content["images"]]
    names = [inside(path, name.removeprefix("train_val2018/")) for name in names]
    if unlabelled := [image for image in ids if image not in label]:
        wrong(path, f"the image with the id {unlabelled[0]} has no annotation")
    labels = [label[image] for image in ids]
    return from_list(home / images, names, labels, [name for _, name in species])
