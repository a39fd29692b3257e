"""WebDataset's tar shards, read by random access: one look at the headers gives every image's place in its shard.

So shards are shuffled, shared among ranks and resumed exactly like files. Nothing is unpacked, and yet a shard with a
member that climbs out of it is refused: something is wrong with its maker.
"""

import hashlib
import json
import os
import re
import tarfile
import urllib.request
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, NamedTuple
from urllib.parse import urlsplit

import numpy as np
import torch
from torch import Tensor

from antipode.data.progress import track
from antipode.data.sources import decode
from antipode.data.sources.folder import Names, held_out
from antipode.data.sources.source import Decoded, Skip, warn_skipped
from antipode.data.sources.splits import Splits, base

IMAGES = ("jpg", "jpeg", "png", "webp", "bmp", "gif", "tif", "tiff", "ppm", "pgm", "jp2", "npy")


class Place(NamedTuple):
    """Where an image lies: shard, first byte, number of bytes; and the label found beside it."""

    name: str
    shard: int
    offset: int
    length: int
    label: int | None


@dataclass(frozen=True)
class Members:
    """Reads the image at an index out of its shard."""

    shards: list[Path]
    table: np.ndarray[Any, Any]  # int64 (N,3): shard, offset, length
    channels: int = 3

    def __call__(self, index: int) -> Tensor:
        """The image uint8 (C,H,W)."""
        return decode.decode(self.encoded(index), channels=self.channels)

    def stamp(self) -> str:
        """Place, size and time of the shards, and where the images lie in them."""
        digest = hashlib.blake2b(self.table.tobytes(), digest_size=16)
        for shard in self.shards:
            found = shard.stat()
            digest.update(
                f"\n{shard.resolve()} {found.st_size} {found.st_mtime_ns}".encode(
                    "utf-8", "surrogateescape"
                )
            )
        return digest.hexdigest()

    def encoded(self, index: int) -> bytes:
        """The bytes of the member."""
        shard, offset, length = self.table[index].tolist()
        with self.shards[shard].open("rb") as file:
            file.seek(offset)
            data: bytes = file.read(length)
            return data


def webdataset(pattern: str, root: Path | None, download: bool) -> Splits:
    """Shards by path or address with {000..123} or, for paths, wildcards; a label is in .cls, or `label` in .json."""
    shards = [_local(name, root, download) for name in braces(pattern)]
    paths = [path for shard in shards for path in _wild(shard)]
    if not paths:
        raise FileNotFoundError(f"no shard matches {pattern}")
    places, skipped = [], []
    for number, path in enumerate(track(paths, len(paths), "reading shards", least=100)):
        found, lost = index(path, number)
        places += found
        skipped += lost
    warn_skipped(pattern, skipped, len(places) + len(skipped))
    if not places:
        raise ValueError(f"the {len(paths)} shards of {pattern} hold no image")
    train, test = held_out(_source(paths, places, skipped))
    return Splits(f"webdataset:{pattern}", train, train, test, train.size)


def _source(paths: list[Path], places: list[Place], skipped: list[Skip]) -> Decoded:
    labels = [place.label for place in places if place.label is not None]
    known = torch.tensor(labels) if len(labels) == len(places) else None
    if labels and known is None:
        some = f"{len(labels)} of {len(places)} images of {paths[0].name} and the shards with it have a label"
        warnings.warn(f"{some}: as not all do, none is used", stacklevel=2)
    classes = None if known is None else [str(number) for number in range(int(known.max()) + 1)]
    table = np.array(
        [(place.shard, place.offset, place.length) for place in places], dtype=np.int64
    )
    names = Names(place.name for place in places)
    return Decoded(Members(paths, table), names, known, classes, skipped=tuple(skipped))


def braces(pattern: str) -> Iterator[str]:
    """All names of a pattern with ranges: a-{00..02}.tar is a-00.tar, a-01.tar, a-02.tar."""
    found = re.search(r"\{(\d+)\.\.(\d+)\}", pattern)
    if not found:
        yield pattern
        return
    first, last = found.groups()
    for number in range(int(first), int(last) + 1):
        yield from braces(
            f"{pattern[: found.start()]}{number:0{len(first)}d}{pattern[found.end() :]}"
        )


def index(path: Path, number: int = 0) -> tuple[list[Place], list[Skip]]:
    """The images of a shard in order, and what cannot be used; a ValueError where the shard itself is no good."""
    samples: dict[str, dict[str, tarfile.TarInfo]] = {}
    skipped: list[Skip] = []
    try:
        with path.open("rb") as file, tarfile.open(fileobj=file, mode="r:") as tar:
            for member in _members(tar, path, skipped):
                key, _, kind = PurePosixPath(member.name).name.partition(".")
                parts = samples.setdefault(str(PurePosixPath(member.name).with_name(key)), {})
                if kind.lower() in parts:
                    skipped.append(
                        Skip(f"{path.name}:{member.name}", "is there twice; the first counts")
                    )
                parts.setdefault(kind.lower(), member)
            file.seek(-min(1024, path.stat().st_size), os.SEEK_END)
            if any(file.read()):
                skipped.append(Skip(path.name, "has no end mark, so the shard may be cut short"))
            places = [
                _place(f"{path.name}:{key}", number, parts, file, skipped)
                for key, parts in samples.items()
            ]
    except tarfile.ReadError as error:
        raise ValueError(
            f"{path} is not an uncompressed tar file, or is cut short ({error})"
        ) from error
    return [place for place in places if place is not None], skipped


def _members(tar: tarfile.TarFile, path: Path, skipped: list[Skip]) -> Iterator[tarfile.TarInfo]:
    for member in tar:
        parts = PurePosixPath(member.name).parts
        if ".." in parts or member.name.startswith("/"):
            raise ValueError(
                f"{path} is refused: its member {member.name} climbs out of the archive"
            )
        if member.isdir():
            continue
        name = f"{path.name}:{member.name}"
        if not member.isreg():
            skipped.append(Skip(name, "is not a regular file"))
        elif not parts[-1].startswith("."):
            yield member


def _place(
    name: str, number: int, parts: dict[str, tarfile.TarInfo], file: BinaryIO, skipped: list[Skip]
) -> Place | None:
    image = next((parts[kind] for kind in IMAGES if kind in parts), None)
    if image is None or image.size == 0:
        skipped.append(
            Skip(
                name,
                "has no bytes" if image else f"has no image among {', '.join(parts) or 'nothing'}",
            )
        )
        return None
    label = None
    if "cls" in parts or "json" in parts:
        kind = "cls" if "cls" in parts else "json"
        file.seek(parts[kind].offset_data)
        label = _label(file.read(parts[kind].size), kind, name)
    return Place(name, number, image.offset_data, image.size, label)


def _label(text: bytes, kind: str, name: str) -> int | None:
    try:
        found = int(text) if kind == "cls" else json.loads(text).get("label")
    except (ValueError, AttributeError) as error:
        raise ValueError(f"{name}.{kind} holds no label: {text[:40]!r}") from error
    if found is not None and (not isinstance(found, int) or found < 0):
        raise ValueError(f"{name}.{kind} holds the label {found!r}, not a number from 0")
    return found


def _wild(path: Path) -> list[Path]:
    if any(mark in path.name for mark in "*?["):
        return sorted(path.parent.glob(path.name))
    if not path.is_file():
        where = path.parent if path.parent.is_dir() else f"{path.parent}, which is no folder"
        how = "give shards by path or address, such as a-{00..07}.tar"
        raise FileNotFoundError(f"there is no shard {path.name} in {where}: {how}")
    return [path]


def _local(name: str, root: Path | None, download: bool) -> Path:
    """The file of a shard; an address is fetched once into webdataset/ under the root, where that is allowed."""
    parts = urlsplit(name)
    if parts.scheme not in ("http", "https"):
        if "://" in name or name.startswith("pipe:"):
            raise ValueError(f"shards are read from files, http or https, not from {name}")
        return Path(name).expanduser()
    # the address is made one flat name, so that it cannot point out of the folder
    home = base("webdataset", root, "shards", "set data.download=true to fetch them")
    flat = re.sub(r"[^\w.-]+", "_", f"{parts.netloc}{parts.path}")
    asked = hashlib.blake2b(parts.query.encode(), digest_size=8).hexdigest() if parts.query else ""
    target = home / "webdataset" / f"{asked}{asked and '-'}{flat}"
    if not target.exists():
        if not download:
            raise FileNotFoundError(
                f"{name} is not in {target.parent} yet; set data.download=true to fetch it"
            )
        target.parent.mkdir(parents=True, exist_ok=True)
        aside = target.with_name(target.name + ".partial")
        urllib.request.urlretrieve(name, aside)
        aside.rename(target)
    return target
