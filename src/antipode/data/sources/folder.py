"""Folders of images: class folders, or a folder tree of any depth. N images, C channels.

Opening a folder checks everything that can be checked without decoding an image: broken links,
empty files, missing permissions, files that are not images, and sizes that cannot be cropped. Files
that fail are skipped, counted and listed.
"""

import hashlib
import os
import statistics
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from antipode import rng
from antipode.data.progress import track
from antipode.data.sources import decode
from antipode.data.sources.source import AnySource, Decoded, Numbered, Skip, subset, warn_skipped
from antipode.data.sources.splits import Splits, mean_and_std

PHOTOGRAPHS = (".jpg", ".jpeg", ".png")
# names of folders that are splits, in order of preference
TRAIN = ("train", "training")
TEST = ("val", "valid", "validation", "test", "testing")
UNLABELLED = ("unlabeled", "unlabelled")
HELD_OUT = 10  # without a test folder, one in this many images of a class is the test split


class Names(Sequence[str]):
    """Relative paths in one array.

    A list of a million strings would be copied to every worker.
    """

    def __init__(self, names: Iterable[str]) -> None:
        self.bytes = np.array([os.fsencode(name) for name in names], dtype=np.bytes_)

    def __len__(self) -> int:
        return len(self.bytes)

    def __getitem__(self, index: Any) -> Any:
        return os.fsdecode(self.bytes[index])


@dataclass(frozen=True)
class Files:
    """A reader that returns the image at an index of a list of files."""

    root: Path
    names: Names
    channels: int = 3

    def __call__(self, index: int) -> Tensor:
        """Return the image uint8 (C,H,W)."""
        return decode.decode(self.encoded(index), channels=self.channels)

    def encoded(self, index: int) -> bytes:
        """Return the bytes of the file."""
        return Path(self.root, self.names[index]).read_bytes()

    def fingerprint(self) -> str:
        """Return a hash of the folder's path and of the files' names, sizes and times."""
        digest = hashlib.blake2b(str(self.root.resolve()).encode(), digest_size=16)
        for name in self.names:
            file = Path(self.root, name)
            status = file.stat() if file.exists() else None  # a missing file is reported when read
            line = f"\n{name} {status and (status.st_size, status.st_mtime_ns)}"
            digest.update(line.encode("utf-8", "surrogateescape"))
        return digest.hexdigest()


def walk(root: Path) -> tuple[list[str], list[Skip]]:
    """Return the sorted relative paths of all files under `root`, and what cannot be opened.

    Hidden files and folders are ignored.
    """
    names: list[str] = []
    skipped: list[Skip] = []
    for name, item in _entries(root, "", set(), skipped):
        try:
            if not item.is_file():
                reason = "is a broken link" if item.is_symlink() else "is not a regular file"
                skipped.append(Skip(name, reason))
            elif item.stat().st_size == 0:
                skipped.append(Skip(name, "is empty (0 bytes)"))
            else:
                names.append(name)
        except OSError as error:
            skipped.append(Skip(name, f"cannot be opened ({error.strerror})"))
    return sorted(names), sorted(skipped)


def _entries(
    root: Path, below: str, visited: set[tuple[int, int]], skipped: list[Skip]
) -> Iterator[tuple[str, "os.DirEntry[str]"]]:
    """Yield every entry under `root`/`below` that is not a folder, with its relative path.

    `visited` holds the folders that were walked already, so that a link to a parent folder is
    followed only once.
    """
    folder = root / below
    try:
        status = folder.stat()
        if (status.st_dev, status.st_ino) in visited:
            return
        visited.add((status.st_dev, status.st_ino))
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except OSError as error:
        skipped.append(Skip(below or str(root), f"cannot be opened ({error.strerror})"))
        return
    for entry in entries:
        name = f"{below}/{entry.name}" if below else entry.name
        if entry.name.startswith("."):
            continue
        if _is_folder(entry):
            yield from _entries(root, name, visited, skipped)
        else:
            yield name, entry


def _is_folder(entry: "os.DirEntry[str]") -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link to itself
        return False


class Scan(NamedTuple):
    """The result of reading the headers of many files."""

    names: list[str]
    skipped: list[Skip]
    channels: int
    size: int  # median of the shorter sides, at most 224


def scan(root: Path, names: list[str]) -> Scan:
    """Read the header of every file and keep the images that fit the most common channel count."""

    def read_header(name: str) -> decode.Header | Skip:
        try:
            with (root / name).open("rb") as file:
                return decode.header(file)
        except ValueError as error:
            return Skip(name, str(error))
        except OSError as error:
            return Skip(name, f"cannot be opened ({error.strerror})")

    with ThreadPoolExecutor(8) as pool:
        jobs = pool.map(read_header, names, chunksize=64)
        results = list(track(jobs, len(names), f"reading headers in {root}"))
    headers = {
        name: result
        for name, result in zip(names, results, strict=True)
        if isinstance(result, decode.Header)
    }
    skipped = [result for result in results if isinstance(result, Skip)]
    bands = Counter(header.bands for header in headers.values())
    common = bands.most_common(1)[0][0] if bands else 0
    channels = common or 3
    for name, header in list(headers.items()):
        if not _convertible(header.bands, channels):
            reason = f"has {header.bands or 3} channels, but {channels} are expected"
            skipped.append(Skip(name, reason))
            del headers[name]
    deep = sum(header.deep for header in headers.values())
    if deep:
        warnings.warn(
            f"{deep} images in {root} have more than 8 bits per channel; the upper 8 bits are used",
            stacklevel=3,
        )
    sides = [min(header.width, header.height) for header in headers.values()] or [224]
    return Scan(list(headers), sorted(skipped), channels, min(224, int(statistics.median(sides))))


def _convertible(bands: int, channels: int) -> bool:
    """Return whether an image with these bands can be read with that number of channels."""
    return (
        bands == channels
        or (channels in (1, 3) and bands == 0)
        or (channels == 3 and bands in (1, 2, 4))
    )


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
        raise FileNotFoundError(f"there is no folder {root}")
    files, skipped = walk(root)
    if classes is not None:
        chosen = set(classes)
        everything = files
        files = [name for name in files if name.split("/", 1)[0] in chosen]
        if not trusted:  # for a published data set, `classes` may select a part on purpose
            skipped += [
                Skip(name, "is not in a class folder")
                for name in sorted(set(everything) - set(files))
            ]
        if not files:
            raise ValueError(
                f"{root} has no images in any of the {len(classes)} class folders, "
                f"such as {classes[0]}"
            )
    if trusted:
        files = [name for name in files if name.lower().endswith(PHOTOGRAPHS)]
    result = Scan(files, [], 3, 224) if trusted else scan(root, files)
    skipped = sorted(skipped + result.skipped)
    warn_skipped(root, skipped, len(files) + len(skipped) - len(result.skipped))
    if not result.names:
        raise ValueError(
            f"{root} has no image that can be read ({len(skipped)} files were checked)"
        )
    labels, folders = _folder_labels(root, result.names, classes)
    names = Names(result.names)
    reader = Files(root, names, result.channels)
    return Decoded(reader, names, labels, folders, result.channels, result.size, tuple(skipped))


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
            warnings.warn(
                f"{root} has only one class, {folders[0]}, so its images are used as unlabelled",
                stacklevel=4,
            )
        return None, None
    if "" in folders:
        warnings.warn(
            f"{first.count('')} images are directly in {root}, next to {len(folders) - 1} folders, "
            "so all images are used as unlabelled",
            stacklevel=4,
        )
        return None, None
    number = {folder: index for index, folder in enumerate(folders)}
    return torch.tensor([number[folder] for folder in first], dtype=torch.int64), list(folders)


def folder(path: str | Path) -> Splits:
    """Return the splits of a folder of your own images.

    The subfolders `train` and `val` (or `test`) are the splits. Without them, a tenth of each class
    is held out for testing.
    """
    root = Path(path).expanduser()
    if not root.is_dir():
        raise FileNotFoundError(f"there is no folder {root}")
    folders = sorted(
        item.name for item in root.iterdir() if item.is_dir() and not item.name.startswith(".")
    )
    first, second = (_find_name(folders, names) for names in (TRAIN, TEST))
    if first and second:
        train = tree(root / first)
        test: Decoded | None = _test_tree(root / second, train)
        if others := [name for name in folders if name not in (first, second)]:
            warnings.warn(
                f"{root} contains {', '.join(others)} besides {first} and {second}; "
                "these folders are not read",
                stacklevel=3,
            )
    else:
        # `train` alone is a split; next to other folders it is a class, as it is in VOC
        train, test = held_out(tree(root / first if first and folders == [first] else root))
        if len(folders) > 1 and all(
            name.lower() in (*TRAIN, *TEST, *UNLABELLED) for name in folders
        ):
            warnings.warn(
                f"the folders {', '.join(folders)} of {root} are used as classes; "
                "to use folders as splits, name them train and val (or test)",
                stacklevel=3,
            )
    return Splits(f"folder:{path}", train, train, test, train.size, *mean_and_std(train))


def _find_name(folders: list[str], names: tuple[str, ...]) -> str | None:
    """Return the folder with the first of these names that exists, in upper or lower case."""
    return next((folder for name in names for folder in folders if folder.lower() == name), None)


def _test_tree(root: Path, train: Decoded) -> Decoded:
    """Return the test images with the classes, channels and size of the training images."""
    folders = {
        item.name for item in root.iterdir() if item.is_dir() and not item.name.startswith(".")
    }
    extra = sorted(folders - set(train.classes or folders))
    if extra:
        raise ValueError(
            f"{root} has {len(extra)} classes that are not in train, the first: {extra[0]}"
        )
    test = tree(root, classes=train.classes)
    if test.channels != train.channels:
        raise ValueError(
            f"the images of {root} have {test.channels} channels, "
            f"but the train images have {train.channels}"
        )
    labels = test.labels if train.classes else None
    return replace(test, labels=labels, classes=train.classes, size=train.size)


def from_list(
    root: Path, names: list[str], labels: Tensor | list[int], classes: list[str]
) -> Decoded:
    """Return the images that a published list names, with the list's labels.

    Only the first file is checked, which is enough to detect a wrong folder layout at once.
    """
    if not names:
        raise ValueError(f"the list of images in {root} is empty")
    if not (root / names[0]).exists():
        raise FileNotFoundError(
            f"a list names {len(names)} images in {root}, but {names[0]} does not exist"
        )
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
    names: Sequence[str] = source.names if isinstance(source, Decoded) else Numbered(len(source))
    chosen: list[int] = []
    for label in torch.unique(source.labels[source.labels >= 0]).tolist():
        members = (source.labels == label).nonzero().flatten().tolist()
        members.sort(key=lambda index: rng.number("held out", names[index]))
        chosen += members[: max(1, len(members) // HELD_OUT)] if len(members) > 1 else []
    if not chosen:
        return source, None
    mask = torch.zeros(len(source), dtype=torch.bool)
    mask[chosen] = True
    train, test = (subset(source, part.nonzero().flatten()) for part in (~mask, mask))
    # skipped files are listed once, with the training images
    return train, replace(test, skipped=())  # type: ignore[type-var]
