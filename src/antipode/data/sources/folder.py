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

from antipode.data.sources import decode, headers
from antipode.data.sources.image_names import Names, Numbered
from antipode.data.sources.index import index
from antipode.data.sources.label_folders import Labels, decide_by_counts
from antipode.data.sources.source import (
    AnySource,
    Decoded,
    Skip,
    Source,
    listed,
    subset,
    warn_skipped,
)
from antipode.data.sources.splits import Splits, mean_and_std
from antipode.data.sources.walk import Scan, folders_in, scan
from antipode.names import printable
from antipode.paths import absolute, no_folder
from antipode.wording import counted

PICTURES = tuple(".jpg .jpeg .png .webp .bmp .gif .tif .tiff .ppm .jp2".split())
# names of folders that are splits, in order of preference
TRAIN = ("train", "training")
TEST = ("val", "valid", "validation", "test", "testing")
UNLABELLED = ("unlabeled", "unlabelled")
HELD_OUT = 10  # without a test folder, one in this many images of a class is the test split
# with fewer images without labels, none is held out: all are needed for training
ENOUGH = 1000


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


def tree(
    root: Path,
    *,
    classes: list[str] | None = None,
    labelled: bool = True,
    trusted: bool = False,
) -> Decoded:
    """Return the images under a folder.

    The images are labelled if all of them are in two or more folders directly under `root`.

    Args:
        root: the folder.
        classes: the class folders to read, in the order of their labels; by default all folders.
        labelled: False if the folders directly under `root` are not classes.
        trusted: True for a published data set. Its files are not opened at the start, which would
            take minutes for a million images. A broken image is replaced when it is read.
    """
    if not root.is_dir():
        raise FileNotFoundError(printable(f"there is no folder {root}"))
    found = index(root, opened=not trusted)
    chosen = np.arange(len(found.names))
    left_out = chosen[:0]
    if classes is not None:
        inside = _in_class_folders(root, found.names, classes)
        # `classes` may select a part of a published data set on purpose
        chosen, left_out = chosen[inside], chosen[:0] if trusted else chosen[~inside]
    if trusted:
        pictures = [found.names[at].lower().endswith(PICTURES) for at in chosen.tolist()]
        chosen = chosen[np.array(pictures, bool)]
    result = Scan(chosen, [], 3, 224)
    if found.headers is not None:
        result = scan(root, found.names, found.headers, chosen)
    stray = [Skip(found.names[at], "is not in a class folder") for at in left_out.tolist()]
    skipped = sorted(found.skipped + stray + result.skipped)
    count = len(chosen) + len(found.skipped) + len(stray)
    warn_skipped(root, skipped, count)
    if not len(result.kept):
        raise ValueError(
            printable(f"{root} has no image that can be read, of {counted(count, 'file')}")
        )
    paths = found.names.at(result.kept)
    labels, folders = _folder_labels(root, paths, classes) if labelled else (None, None)
    starts = None if found.headers is None else found.headers.starts[result.kept]
    reader = Files(root, paths, result.channels, found.sizes[result.kept], starts)
    return Decoded(reader, paths, labels, folders, result.channels, result.size, tuple(skipped))


def _in_class_folders(root: Path, names: Names, classes: list[str]) -> Any:
    """Return whether each file lies in a class folder, bool (N,)."""
    folders, places = names.folders()
    chosen = set(classes)
    # the last entry is for files without a folder, whose place is -1
    known = np.array([*(folder in chosen for folder in folders), False])
    inside = known[places]
    if not inside.any():
        raise ValueError(
            printable(
                f"{root} has no images in any of the {len(classes)} class folders, "
                f"such as {classes[0]}"
            )
        )
    return inside


def _folder_labels(
    root: Path, names: Names, classes: list[str] | None
) -> tuple[Tensor | None, list[str] | None]:
    """Return the labels (N,) and the class names, from the first folder of each path.

    Both are None if there is only one folder, or if images are outside the class folders.
    """
    found, places = names.folders()
    loose = int((places < 0).sum())
    folders = classes or sorted(found)
    if classes is None and len(folders) + bool(loose) == 1:
        if not loose:
            text = f"{root} has only one class, {folders[0]}, so its images are used as unlabelled"
            warnings.warn(printable(text), stacklevel=4)
        return None, None
    if classes is None and loose:
        text = f"{loose} images are directly in {root}, next to {counted(len(folders), 'folder')}, "
        warnings.warn(printable(text + "so all images are used as unlabelled"), stacklevel=4)
        return None, None
    number = {folder: place for place, folder in enumerate(folders)}
    labels = np.array([number[folder] for folder in found], np.int64)[places]
    return torch.from_numpy(labels), list(folders)


def folder(path: str | Path, labels: Labels = "folders") -> Splits:
    """Return the splits of a folder of your own images.

    The subfolders `train` and `val` (or `test`) are the splits. Without them, a tenth of each class
    is held out for testing. Without classes, a tenth of the images is held out if there are 1,000
    or more, for protocols that need no labels.

    Args:
        path: the folder.
        labels: whether subfolders are classes: "folders" (always), "none" (never) or "auto" (see
            `label_folders.decide`).
    """
    root = absolute(path)
    if not root.is_dir():
        raise FileNotFoundError(printable(no_folder(root)))
    folders = folders_in(root)
    first, second = (_find_name(folders, names) for names in (TRAIN, TEST))
    reason = ""
    if first and second:
        train, reason = _train_tree(root / first, labels)
        test: Decoded | None = _test_tree(root / second, train, labels)
        if others := [name for name in folders if name not in (first, second)]:
            text = f"{root} contains {listed(others)} besides {first} and {second}; these folders "
            warnings.warn(printable(text + "are not read"), stacklevel=3)
    else:
        # `train` alone is a split; next to other folders it is a class, as it is in VOC
        single = bool(first) and folders == [first]
        whole, reason = _train_tree(root / first if first and single else root, labels)
        divide = held_out if whole.classes or labels == "folders" else _held_out_unlabelled
        train, test = divide(whole)
        if whole.classes and all(
            name.lower() in (*TRAIN, *TEST, *UNLABELLED) for name in whole.classes
        ):
            text = f"the folders {listed(folders)} of {root} are used as classes; to use folders "
            text += "as splits, name them train and val (or test)"
            warnings.warn(printable(text), stacklevel=3)
    statistics = mean_and_std(train)
    return Splits(f"folder:{path}", train, train, test, train.size, *statistics, labelling=reason)


def _train_tree(root: Path, labels: Labels) -> tuple[Decoded, str]:
    """Return the images under a folder, and why they have classes or none if that was decided."""
    if labels == "folders":
        return tree(root), ""
    images = tree(root, labelled=False)
    if labels == "none":
        return images, ""
    folders, places = _paths(images).folders()
    counts = np.bincount(places + 1, minlength=len(folders) + 1).tolist()
    decision = decide_by_counts(dict(zip(["", *folders], counts, strict=True)))
    if decision.labels == "folders":
        numbers, classes = _folder_labels(root, _paths(images), None)
        images = replace(images, labels=numbers, classes=classes)
    return images, decision.reason


def _paths(images: Decoded) -> Names:
    """Return the names of images of a folder."""
    return images.names if isinstance(images.names, Names) else Names(images.names)


def _find_name(folders: list[str], names: tuple[str, ...]) -> str | None:
    """Return the folder with the first of these names that exists, in upper or lower case."""
    return next((folder for name in names for folder in folders if folder.lower() == name), None)


def _test_tree(root: Path, train: Decoded, how: Labels) -> Decoded:
    """Return the test images with the classes, channels and size of the training images."""
    folders = set(folders_in(root))
    extra = sorted(folders - set(train.classes or folders))
    if extra:
        text = f"{root} has {len(extra)} classes that are not in train, the first: {extra[0]}"
        raise ValueError(printable(text))
    labelled = how == "folders" or train.classes is not None
    test = tree(root, classes=train.classes, labelled=labelled)
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
    labels = source.labels.cpu().numpy()
    numbers = _numbers(source)
    order = np.lexsort((numbers, labels))
    starts = np.flatnonzero(np.diff(labels[order], prepend=-2))
    counts = np.diff(np.append(starts, len(order)))
    chosen = [
        order[start : start + max(1, count // HELD_OUT)]
        for start, count in zip(starts.tolist(), counts.tolist(), strict=True)
        if count > 1 and labels[order[start]] >= 0  # -1: not labelled
    ]
    return _divided(source, np.concatenate(chosen)) if chosen else (source, None)


def _numbers(source: Source) -> Any:
    """Return a random number (N,) for each image, which depends on its name only."""
    names = source.names if isinstance(source, Decoded) else Numbered(len(source))
    return (names if isinstance(names, Names) else Names(names)).numbers()


def _held_out_unlabelled(source: Decoded) -> tuple[Decoded, Decoded | None]:
    """Split a source without labels into train and test: a tenth of 1,000 images or more.

    The hash of an image's name decides whether the image is chosen.
    """
    if len(source) < ENOUGH:
        return source, None
    order = np.argsort(_numbers(source), kind="stable")
    return _divided(source, order[: len(source) // HELD_OUT])


def _divided(source: AnySource, chosen: Any) -> tuple[AnySource, AnySource]:
    """Return the images that are not chosen, and the chosen ones, in the order of the source."""
    mask = torch.zeros(len(source), dtype=torch.bool)
    mask[torch.from_numpy(chosen)] = True
    train, test = (subset(source, part.nonzero().flatten()) for part in (~mask, mask))
    # skipped files are listed once, with the training images
    return train, replace(test, skipped=())  # type: ignore[type-var]
