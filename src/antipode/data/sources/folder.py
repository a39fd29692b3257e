"""Folders of images: class folders, or a folder tree of any depth. N images, C channels.

Opening a folder checks everything that can be checked without decoding an image (see walk.py).
Files that fail are skipped, counted and listed.
"""

import hashlib
import os
import warnings
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from antipode import rng
from antipode.data.sources import decode, headers
from antipode.data.sources.image_names import Names, Numbered
from antipode.data.sources.source import AnySource, Decoded, Skip, listed, subset, warn_skipped
from antipode.data.sources.splits import Splits, mean_and_std
from antipode.data.sources.walk import Scan, folders_in, scan, walk
from antipode.names import printable
from antipode.paths import absolute

PICTURES = tuple(".jpg .jpeg .png .webp .bmp .gif .tif .tiff .ppm .jp2".split())
# names of folders that are splits, in order of preference
TRAIN = ("train", "training")
TEST = ("val", "valid", "validation", "test", "testing")
UNLABELLED = ("unlabeled", "unlabelled")
HELD_OUT = 10  # without a test folder, one in this many images of a class is the test split


@dataclass(frozen=True)
class Files:
    """A reader that returns the image at an index of a list of files."""

    root: Path
    names: Names
    channels: int = 3
    sizes: np.ndarray[Any, Any] | None = None  # int64 (N,): bytes of each file when it was listed
    starts: np.ndarray[Any, Any] | None = None  # uint32 (N,): CRC-32 of the first bytes

    def __call__(self, index: int) -> Tensor:
        """Return the image uint8 (C,H,W)."""
        return decode.decode(self.encoded(index), channels=self.channels)

    def encoded(self, index: int) -> bytes:
        """Return the bytes of the file."""
        with Path(self.root, self.names[index]).open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size > headers.BYTES:
                raise ValueError(headers.too_long(size))
            return file.read()

    def marks(self, indices: np.ndarray[Any, Any]) -> dict[str, bytes]:
        """Return the sizes and the checksums of the beginnings of files, as far as known."""
        known = {"sizes": self.sizes, "beginnings": self.starts}
        return {
            name: array[indices].tobytes() for name, array in known.items() if array is not None
        }

    def fingerprint(self) -> str:
        """Return a hash of the folder's path and of the files' names, sizes and times."""
        root = str(self.root.resolve())
        digest = hashlib.blake2b(os.fsencode(root), digest_size=16)
        for name in self.names:
            try:
                status = os.stat(f"{root}/{name}")  # noqa: PTH116  (there may be a million)
                line = f"\n{name} {(status.st_size, status.st_mtime_ns)}"
            except OSError:  # a missing file is reported when it is read
                line = f"\n{name} None"
            digest.update(line.encode("utf-8", "surrogateescape"))
        return digest.hexdigest()


def tree(root: Path, *, classes: list[str] | None = None, trusted: bool = False) -> Decoded:
    """Return the images under a folder.

    The images are labelled if all of them are in two or more folders directly under `root`.

    Args:
        root: the folder.
        classes: the class folders to read, in the order of their labels; by default all folders.
        trusted: True for a published data set. Its files are not opened at the start, which would
            take minutes for a million images. A broken image is replaced when it is read.
    """
    if not root.is_dir():
        raise FileNotFoundError(printable(f"there is no folder {root}"))
    found = walk(root)
    chosen = list(range(len(found.names)))
    left_out: list[int] = []
    if classes is not None:
        chosen, left_out = _in_class_folders(root, found.names, classes)
        if trusted:  # `classes` may select a part of a published data set on purpose
            left_out = []
    if trusted:
        chosen = [at for at in chosen if found.names[at].lower().endswith(PICTURES)]
    names = [found.names[at] for at in chosen]
    result = Scan(list(range(len(names))), [], [], 3, 224) if trusted else scan(root, names)
    stray = [Skip(found.names[at], "is not in a class folder") for at in left_out]
    skipped = sorted(found.skipped + stray + result.skipped)
    count = len(names) + len(found.skipped) + len(stray)
    warn_skipped(root, skipped, count)
    if not result.kept:
        raise ValueError(
            printable(f"{root} has no image that can be read ({count} files were checked)")
        )
    names = [names[at] for at in result.kept]
    labels, folders = _folder_labels(root, names, classes)
    sizes = np.array([found.sizes[chosen[at]] for at in result.kept], np.int64)
    starts = None if trusted else np.array(result.starts, np.uint32)
    paths = Names(names)
    reader = Files(root, paths, result.channels, sizes, starts)
    return Decoded(reader, paths, labels, folders, result.channels, result.size, tuple(skipped))


def _in_class_folders(
    root: Path, names: list[str], classes: list[str]
) -> tuple[list[int], list[int]]:
    """Return the positions of the files in class folders, and of the others."""
    chosen = set(classes)
    inside: list[int] = []
    outside: list[int] = []
    for at, name in enumerate(names):
        (inside if name.split("/", 1)[0] in chosen else outside).append(at)
    if not inside:
        raise ValueError(
            printable(
                f"{root} has no images in any of the {len(classes)} class folders, "
                f"such as {classes[0]}"
            )
        )
    return inside, outside


def _folder_labels(
    root: Path, names: list[str], classes: list[str] | None
) -> tuple[Tensor | None, list[str] | None]:
    """Return the labels (N,) and the class names, from the first folder of each path.

    Both are None if there is only one folder, or if images are outside the class folders.
    """
    first = [name.split("/", 1)[0] if "/" in name else "" for name in names]
    folders = classes or sorted(set(first))
    if classes is None and len(folders) == 1:
        if folders[0]:
            text = f"{root} has only one class, {folders[0]}, so its images are used as unlabelled"
            warnings.warn(printable(text), stacklevel=4)
        return None, None
    if "" in folders:
        count = first.count("")
        text = f"{count} images are directly in {root}, next to {len(folders) - 1} folders, so all "
        warnings.warn(printable(text + "images are used as unlabelled"), stacklevel=4)
        return None, None
    number = {folder: index for index, folder in enumerate(folders)}
    return torch.tensor([number[folder] for folder in first], dtype=torch.int64), list(folders)


def folder(path: str | Path) -> Splits:
    """Return the splits of a folder of your own images.

    The subfolders `train` and `val` (or `test`) are the splits. Without them, a tenth of each class
    is held out for testing.
    """
    root = absolute(path)
    if not root.is_dir():
        raise FileNotFoundError(printable(f"there is no folder {root}"))
    folders = folders_in(root)
    first, second = (_find_name(folders, names) for names in (TRAIN, TEST))
    if first and second:
        train = tree(root / first)
        test: Decoded | None = _test_tree(root / second, train)
        if others := [name for name in folders if name not in (first, second)]:
            text = f"{root} contains {listed(others)} besides {first} and {second}; these folders "
            warnings.warn(printable(text + "are not read"), stacklevel=3)
    else:
        # `train` alone is a split; next to other folders it is a class, as it is in VOC
        train, test = held_out(tree(root / first if first and folders == [first] else root))
        if len(folders) > 1 and all(
            name.lower() in (*TRAIN, *TEST, *UNLABELLED) for name in folders
        ):
            text = f"the folders {listed(folders)} of {root} are used as classes; to use folders "
            text += "as splits, name them train and val (or test)"
            warnings.warn(printable(text), stacklevel=3)
    return Splits(f"folder:{path}", train, train, test, train.size, *mean_and_std(train))


def _find_name(folders: list[str], names: tuple[str, ...]) -> str | None:
    """Return the folder with the first of these names that exists, in upper or lower case."""
    return next((folder for name in names for folder in folders if folder.lower() == name), None)


def _test_tree(root: Path, train: Decoded) -> Decoded:
    """Return the test images with the classes, channels and size of the training images."""
    folders = set(folders_in(root))
    extra = sorted(folders - set(train.classes or folders))
    if extra:
        text = f"{root} has {len(extra)} classes that are not in train, the first: {extra[0]}"
        raise ValueError(printable(text))
    test = tree(root, classes=train.classes)
    if test.channels != train.channels:
        text = f"the images of {root} have {test.channels} channels, but the train images have "
        raise ValueError(printable(f"{text}{train.channels}"))
    labels = test.labels if train.classes else None
    return replace(test, labels=labels, classes=train.classes, size=train.size)


def from_list(
    root: Path, names: list[str], labels: Tensor | list[int], classes: list[str]
) -> Decoded:
    """Return the images that a published list names, with the list's labels.

    Only the first file is checked, which is enough to detect a wrong folder layout at once.
    """
    if not names:
        raise ValueError(printable(f"the list of images in {root} is empty"))
    if not (root / names[0]).exists():
        text = f"a list names {len(names)} images in {root}, but {names[0]} does not exist"
        raise FileNotFoundError(printable(text))
    paths = Names(names)
    return Decoded(Files(root, paths), paths, torch.as_tensor(labels, dtype=torch.int64), classes)


def held_out(source: AnySource) -> tuple[AnySource, AnySource | None]:
    """Split a labelled source into train and test.

    The test split is a tenth of each class, and at least one image of a class with two or more. The
    hash of an image's name decides whether the image is chosen. A source without labels, or with
    several labels per image, is returned whole, with None for the test split.
    """
    if source.labels is None or source.labels.ndim > 1:
        return source, None
    names = list(source.names if isinstance(source, Decoded) else Numbered(len(source)))
    chosen: list[int] = []
    order = torch.argsort(source.labels, stable=True)
    labels, counts = torch.unique_consecutive(source.labels[order], return_counts=True)
    for label, part in zip(labels.tolist(), torch.split(order, counts.tolist()), strict=True):
        if label < 0:  # not labelled
            continue
        members = part.tolist()
        members.sort(key=lambda index: rng.number("held out", names[index]))
        chosen += members[: max(1, len(members) // HELD_OUT)] if len(members) > 1 else []
    if not chosen:
        return source, None
    mask = torch.zeros(len(source), dtype=torch.bool)
    mask[chosen] = True
    train, test = (subset(source, part.nonzero().flatten()) for part in (~mask, mask))
    # skipped files are listed once, with the training images
    return train, replace(test, skipped=())  # type: ignore[type-var]
