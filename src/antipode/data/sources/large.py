"""Published data sets that are read from image files.

ImageNet, ImageNet-100, Tiny-ImageNet, Places205 and iNaturalist 2018.
"""

import json
from dataclasses import replace
from importlib.resources import files
from pathlib import Path

from antipode.data.sources.folder import from_list, tree
from antipode.data.sources.source import Decoded
from antipode.data.sources.splits import Splits, data_root, locate

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
    classes = sorted((home / "wnids.txt").read_text().split())
    train = tree(home / "train", classes=classes, trusted=True)
    annotations = home / "val" / "val_annotations.txt"
    if annotations.exists() and (home / "val" / "images").is_dir():
        rows = [line.split("\t") for line in annotations.read_text().splitlines() if line]
        labels = [classes.index(row[1]) for row in rows]
        test = from_list(home / "val" / "images", [row[0] for row in rows], labels, classes)
    else:
        test = tree(home / "val", classes=classes, trusted=True)
    train, test = replace(train, size=64), replace(test, size=64)
    return Splits("tinyimagenet", train, train, test, 64)


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
    rows = [line.rsplit(maxsplit=1) for line in (home / file).read_text().splitlines() if line]
    names = [name for name, _ in rows]
    labels = [int(label) for _, label in rows]
    classes = [""] * (max(labels) + 1)
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
    content = json.loads((home / file).read_text())
    species = sorted(content["categories"], key=lambda category: category["id"])
    number = {category["id"]: index for index, category in enumerate(species)}
    label = {
        annotation["image_id"]: number[annotation["category_id"]]
        for annotation in content["annotations"]
    }
    names = [image["file_name"].removeprefix("train_val2018/") for image in content["images"]]
    labels = [label[image["id"]] for image in content["images"]]
    return from_list(home / images, names, labels, [str(category["name"]) for category in species])
