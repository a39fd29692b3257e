"""Folders of images: class folders or a flat tree, any depth, whatever lies in them. N images, C channels.

Everything that can be found out without decoding is found when the folder is opened: links that lead nowhere, files
without bytes or permission, what is no image, sizes that make no crop. It is left out, counted and listed.
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
from antipode.data.sources.source import Decoded, Numbered, Skip, Some, subset, warn_skipped
from antipode.data.sources.splits import Splits, normal

PHOTOGRAPHS = (".jpg", ".jpeg", ".png")
TRAIN, TEST = (
    ("train", "training"),
    ("val", "valid", "validation", "test", "testing"),
)  # folders that are splits
UNLABELLED = ("unlabeled", "unlabelled")
HELD_OUT = 10  # one in so many images of a class is the test split where the folder has none


class Names(Sequence[str]):
    """Many relative paths in one array: a list of a million strings would be copied into every worker."""

    def __init__(self, names: Iterable[str]) -> None:
        self.bytes = np.array([os.fsencode(name) for name in names], dtype=np.bytes_)

    def __len__(self) -> int:
        return len(self.bytes)

    def __getitem__(self, index: Any) -> Any:
        return os.fsdecode(self.bytes[index])


@dataclass(frozen=True)
class Files:
    """Reads the image at an index of a list of files."""

    root: Path
    names: Names
    channels: int = 3

    def __call__(self, index: int) -> Tensor:
        """The image uint8 (C,H,W)."""
        return decode.decode(self.encoded(index), channels=self.channels)

    def encoded(self, index: int) -> bytes:
        """The bytes of the file."""
        return Path(self.root, self.names[index]).read_bytes()

    def stamp(self) -> str:
        """Place, sizes and times of the files."""
        digest = hashlib.blake2b(str(self.root.resolve()).encode(), digest_size=16)
        for name in self.names:
            file = Path(self.root, name)
            found = (
                file.stat() if file.exists() else None
            )  # one that has gone is told when it is read
            digest.update(
                f"\n{name} {found and (found.st_size, found.st_mtime_ns)}".encode(
                    "utf-8", "surrogateescape"
                )
            )
        return digest.hexdigest()


def walk(root: Path) -> tuple[list[str], list[Skip]]:
    """Relative paths of all files under `root` in order, hidden ones aside, and what is there but cannot be opened."""
    names: list[str] = []
    skipped: list[Skip] = []
    seen: set[tuple[int, int]] = set()
    for entry in _entries(root, "", seen, skipped):
        name, item = entry
        try:
            if not item.is_file():
                skipped.append(
                    Skip(name, "leads nowhere" if item.is_symlink() else "is not a regular file")
                )
            elif item.stat().st_size == 0:
                skipped.append(Skip(name, "has no bytes"))
            else:
                names.append(name)
        except OSError as error:
            skipped.append(Skip(name, f"cannot be opened ({error.strerror})"))
    return sorted(names), sorted(skipped)


def _entries(
    root: Path, below: str, seen: set[tuple[int, int]], skipped: list[Skip]
) -> Iterator[tuple[str, "os.DirEntry[str]"]]:
    """All entries under `root`/`below` that are no folders; a folder that links back to itself is walked once."""
    folder = root / below
    try:
        status = folder.stat()
        if (status.st_dev, status.st_ino) in seen:
            return
        seen.add((status.st_dev, status.st_ino))
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except OSError as error:
        skipped.append(Skip(below or str(root), f"cannot be opened ({error.strerror})"))
        return
    for entry in entries:
        name = f"{below}/{entry.name}" if below else entry.name
        if entry.name.startswith("."):
            continue
        if _is_folder(entry):
            yield from _entries(root, name, seen, skipped)
        else:
            yield name, entry


def _is_folder(entry: "os.DirEntry[str]") -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link to itself
        return False


class Scan(NamedTuple):
    """What the headers of many files tell."""

    names: list[str]
    skipped: list[Skip]
    channels: int
    size: int  # median of the shorter sides, at most 224


def scan(root: Path, names: list[str]) -> Scan:
    """Read the header of every file; keep the images that can share one number of channels."""

    def look(name: str) -> decode.Header | Skip:
        try:
            with (root / name).open("rb") as file:
                return decode.header(file)
        except ValueError as error:
            return Skip(name, str(error))
        except OSError as error:
            return Skip(name, f"cannot be opened ({error.strerror})")

    with ThreadPoolExecutor(8) as pool:
        looks = list(
            track(pool.map(look, names, chunksize=64), len(names), f"reading headers in {root}")
        )
    headers = {
        name: look
        for name, look in zip(names, looks, strict=True)
        if isinstance(look, decode.Header)
    }
    skipped = [look for look in looks if isinstance(look, Skip)]
    bands = Counter(header.bands for header in headers.values())
    common = bands.most_common(1)[0][0] if bands else 0
    channels = common or 3
    for name, header in list(headers.items()):
        if not _fits(header.bands, channels):
            skipped.append(
                Skip(name, f"has {header.bands or 3} channels where {channels} are expected")
            )
            del headers[name]
    deep = sum(header.deep for header in headers.values())
    if deep:
        warnings.warn(
            f"{deep} images of {root} have more than 8 bits a channel; the upper 8 are used",
            stacklevel=3,
        )
    sides = [min(header.width, header.height) for header in headers.values()] or [224]
    return Scan(list(headers), sorted(skipped), channels, min(224, int(statistics.median(sides))))


def _fits(bands: int, channels: int) -> bool:
    return (
        bands == channels
        or (channels in (1, 3) and bands == 0)
        or (channels == 3 and bands in (1, 2, 4))
    )


def tree(root: Path, *, classes: list[str] | None = None, trusted: bool = False) -> Decoded:
    """The images under a folder, by class where all of them lie in two or more folders directly under it.

    `classes` gives the folders that count, and their order. A trusted tree (a published data set) is not opened file by
    file at the start: that would take minutes for a million images, and a broken one is replaced when it is met.
    """
    if not root.is_dir():
        raise FileNotFoundError(f"there is no folder {root}")
    files, skipped = walk(root)
    if classes is not None:
        wanted, everything = set(classes), files
        files = [name for name in files if name.split("/", 1)[0] in wanted]
        if not trusted:  # of a published set a part may be asked for
            skipped += [
                Skip(name, "lies in no class folder")
                for name in sorted(set(everything) - set(files))
            ]
        if not files:
            raise ValueError(
                f"{root} has none of the {len(classes)} class folders with images in them, such as {classes[0]}"
            )
    if trusted:
        files = [name for name in files if name.lower().endswith(PHOTOGRAPHS)]
    found = Scan(files, [], 3, 224) if trusted else scan(root, files)
    skipped = sorted(skipped + found.skipped)
    warn_skipped(root, skipped, len(files) + len(skipped) - len(found.skipped))
    if not found.names:
        raise ValueError(f"{root} has no image that can be read ({len(skipped)} files looked at)")
    labels, folders = _classes(root, found.names, classes)
    names = Names(found.names)
    reader = Files(root, names, found.channels)
    return Decoded(reader, names, labels, folders, found.channels, found.size, tuple(skipped))


def _classes(
    root: Path, names: list[str], classes: list[str] | None
) -> tuple[Tensor | None, list[str] | None]:
    """Labels (N,) and class names from the first folder of each path; none where there is nothing to tell apart."""
    first = [name.split("/", 1)[0] if "/" in name else "" for name in names]
    folders = classes or sorted(set(first))
    if classes is None and len(folders) == 1:
        if folders[0]:
            warnings.warn(
                f"{root} has the one class {folders[0]}, so its images are taken as unlabelled",
                stacklevel=4,
            )
        return None, None
    if "" in folders:
        loose = first.count("")
        warnings.warn(
            f"{loose} images lie directly in {root} beside {len(folders) - 1} folders, so all are taken as unlabelled",
            stacklevel=4,
        )
        return None, None
    number = {folder: index for index, folder in enumerate(folders)}
    return torch.tensor([number[folder] for folder in first], dtype=torch.int64), list(folders)


def folder(path: str | Path) -> Splits:
    """A folder of one's own: `train` and `val` (or `test`) in it are the splits, else every tenth image is held out."""
    root = Path(path).expanduser()
    if not root.is_dir():
        raise FileNotFoundError(f"there is no folder {root}")
    folders = sorted(
        item.name for item in root.iterdir() if item.is_dir() and not item.name.startswith(".")
    )
    first, second = (_named(folders, names) for names in (TRAIN, TEST))
    if first and second:
        train = tree(root / first)
        test: Decoded | None = _test(root / second, train)
        if others := [name for name in folders if name not in (first, second)]:
            warnings.warn(
                f"{root} has {', '.join(others)} beside {first} and {second}: not read",
                stacklevel=3,
            )
    else:
        # `train` alone is a split; among other folders it is a class, as it is in VOC
        train, test = held_out(tree(root / first if first and folders == [first] else root))
        if len(folders) > 1 and all(
            name.lower() in (*TRAIN, *TEST, *UNLABELLED) for name in folders
        ):
            one = f"{', '.join(folders)} of {root} are taken as classes"
            warnings.warn(f"{one}: splits are train with val or test", stacklevel=3)
    return Splits(f"folder:{path}", train, train, test, train.size, *normal(train))


def _named(folders: list[str], names: tuple[str, ...]) -> str | None:
    """The folder with the first of these names that there is, in capitals or not."""
    return next((folder for name in names for folder in folders if folder.lower() == name), None)


def _test(root: Path, train: Decoded) -> Decoded:
    """The test images with the classes, channels and size of the training images."""
    folders = {
        item.name for item in root.iterdir() if item.is_dir() and not item.name.startswith(".")
    }
    extra = sorted(folders - set(train.classes or folders))
    if extra:
        raise ValueError(
            f"{root} has {len(extra)} classes that train has not, the first: {extra[0]}"
        )
    test = tree(root, classes=train.classes)
    if test.channels != train.channels:
        raise ValueError(
            f"{root} has images of {test.channels} channels but train of {train.channels}"
        )
    return replace(
        test, labels=test.labels if train.classes else None, classes=train.classes, size=train.size
    )


def listed(root: Path, names: list[str], labels: Tensor | list[int], classes: list[str]) -> Decoded:
    """The files a published list names, with its labels; the first is looked for, to tell a wrong layout at once."""
    if not names:
        raise ValueError(f"the list of images in {root} is empty")
    if not (root / names[0]).exists():
        raise FileNotFoundError(
            f"a list names {len(names)} images in {root}, but {names[0]} is not there"
        )
    held = Names(names)
    return Decoded(Files(root, held), held, torch.as_tensor(labels, dtype=torch.int64), classes)


def held_out(source: Some) -> tuple[Some, Some | None]:
    """Train and test, which is a tenth of each class chosen by the hash of the name; unlabelled: all, and None."""
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
    return train, replace(test, skipped=())  # type: ignore[type-var]  # what was left out is listed once
