"""WebDataset's tar shards, read by random access.

Reading the headers once gives the position of every image in its shard. Shards can therefore be
shuffled, divided among ranks and resumed exactly like files.

Nothing is unpacked. A shard with a member whose path leaves the archive still raises a ValueError,
because whatever wrote that shard is faulty.
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
from antipode.data.sources.splits import Splits, data_root

IMAGES = ("jpg", "jpeg", "png", "webp", "bmp", "gif", "tif", "tiff", "ppm", "pgm", "jp2", "npy")


class Place(NamedTuple):
    """The position of an image (shard, first byte, number of bytes) and its label."""

    name: str
    shard: int
    offset: int
    length: int
    label: int | None


@dataclass(frozen=True)
class Members:
    """A reader that returns the image at an index from its shard."""

    shards: list[Path]
    table: np.ndarray[Any, Any]  # int64 (N,3): shard, offset, length
    channels: int = 3

    def __call__(self, index: int) -> Tensor:
        """Return the image uint8 (C,H,W)."""
        return decode.decode(self.encoded(index), channels=self.channels)

    def fingerprint(self) -> str:
        """Return a hash of the shards' paths, sizes and times and of the images' positions."""
        digest = hashlib.blake2b(self.table.tobytes(), digest_size=16)
        for shard in self.shards:
            status = shard.stat()
            line = f"\n{shard.resolve()} {status.st_size} {status.st_mtime_ns}"
            digest.update(line.encode("utf-8", "surrogateescape"))
        return digest.hexdigest()

    def encoded(self, index: int) -> bytes:
        """Return the bytes of the image file."""
        shard, offset, length = self.table[index].tolist()
        with self.shards[shard].open("rb") as file:
            file.seek(offset)
            data: bytes = file.read(length)
            return data


def webdataset(pattern: str, root: Path | None, download: bool) -> Splits:
    """Return the splits of tar shards; a tenth of each class is held out for testing.

    The pattern is a path or a URL. It may contain ranges such as {000..123}, and a path may contain
    wildcards. A label is the content of a .cls file or the value of `label` in a .json file.
    """
    shards = [_local_file(name, root, download) for name in expand_ranges(pattern)]
    paths = [path for shard in shards for path in _expand_wildcards(shard)]
    if not paths:
        raise FileNotFoundError(f"no shard matches {pattern}")
    places = []
    skipped = []
    for number, path in enumerate(track(paths, len(paths), "reading shards", least=100)):
        shard_places, shard_skipped = index_shard(path, number)
        places += shard_places
        skipped += shard_skipped
    warn_skipped(pattern, skipped, len(places) + len(skipped))
    if not places:
        raise ValueError(f"the {len(paths)} shards of {pattern} contain no image")
    train, test = held_out(_source(paths, places, skipped))
    return Splits(f"webdataset:{pattern}", train, train, test, train.size)


def _source(paths: list[Path], places: list[Place], skipped: list[Skip]) -> Decoded:
    labels = [place.label for place in places if place.label is not None]
    known = torch.tensor(labels) if len(labels) == len(places) else None
    if labels and known is None:
        warnings.warn(
            f"only {len(labels)} of {len(places)} images in {paths[0].name} and the shards loaded "
            "with it have a label, so the labels are not used",
            stacklevel=2,
        )
    classes = None if known is None else [str(number) for number in range(int(known.max()) + 1)]
    table = np.array(
        [(place.shard, place.offset, place.length) for place in places], dtype=np.int64
    )
    names = Names(place.name for place in places)
    return Decoded(Members(paths, table), names, known, classes, skipped=tuple(skipped))


def expand_ranges(pattern: str) -> Iterator[str]:
    """Yield all names of a pattern: a-{00..02}.tar gives a-00.tar, a-01.tar and a-02.tar."""
    match = re.search(r"\{(\d+)\.\.(\d+)\}", pattern)
    if not match:
        yield pattern
        return
    first, last = match.groups()
    before, after = pattern[: match.start()], pattern[match.end() :]
    for number in range(int(first), int(last) + 1):
        yield from expand_ranges(f"{before}{number:0{len(first)}d}{after}")


def index_shard(path: Path, number: int = 0) -> tuple[list[Place], list[Skip]]:
    """Return the images of a shard in order, and what cannot be used.

    Raises ValueError if the shard itself cannot be used.
    """
    samples: dict[str, dict[str, tarfile.TarInfo]] = {}
    skipped: list[Skip] = []
    try:
        with path.open("rb") as file, tarfile.open(fileobj=file, mode="r:") as tar:
            for member in _regular_members(tar, path, skipped):
                key, _, kind = PurePosixPath(member.name).name.partition(".")
                parts = samples.setdefault(str(PurePosixPath(member.name).with_name(key)), {})
                if kind.lower() in parts:
                    reason = "is in the shard twice; only the first copy is used"
                    skipped.append(Skip(f"{path.name}:{member.name}", reason))
                parts.setdefault(kind.lower(), member)
            file.seek(-min(1024, path.stat().st_size), os.SEEK_END)
            if any(file.read()):
                reason = "has no end-of-archive marker, so the shard may be truncated"
                skipped.append(Skip(path.name, reason))
            places = [
                _place(f"{path.name}:{key}", number, parts, file, skipped)
                for key, parts in samples.items()
            ]
    except tarfile.ReadError as error:
        raise ValueError(
            f"{path} is not an uncompressed tar file, or is truncated ({error})"
        ) from error
    return [place for place in places if place is not None], skipped


def _regular_members(
    tar: tarfile.TarFile, path: Path, skipped: list[Skip]
) -> Iterator[tarfile.TarInfo]:
    """Yield the regular files of a shard that are not hidden."""
    for member in tar:
        parts = PurePosixPath(member.name).parts
        if ".." in parts or member.name.startswith("/"):
            raise ValueError(f"{path} is unsafe: its member {member.name} is outside the archive")
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
    """Return the position and label of a sample's image, or None if the sample has no image."""
    image = next((parts[kind] for kind in IMAGES if kind in parts), None)
    if image is None:
        kinds = ", ".join(parts) or "a file without extension"
        skipped.append(Skip(name, f"has no image, only {kinds}"))
        return None
    if image.size == 0:
        skipped.append(Skip(name, "is empty (0 bytes)"))
        return None
    label = None
    if "cls" in parts or "json" in parts:
        kind = "cls" if "cls" in parts else "json"
        file.seek(parts[kind].offset_data)
        label = _label(file.read(parts[kind].size), kind, name)
    return Place(name, number, image.offset_data, image.size, label)


def _label(text: bytes, kind: str, name: str) -> int | None:
    try:
        label = int(text) if kind == "cls" else json.loads(text).get("label")
    except (ValueError, AttributeError) as error:
        raise ValueError(f"{name}.{kind} does not contain a label: {text[:40]!r}") from error
    if label is not None and (not isinstance(label, int) or label < 0):
        raise ValueError(
            f"{name}.{kind} contains the label {label!r}, but a label must be an integer from 0"
        )
    return label


def _expand_wildcards(path: Path) -> list[Path]:
    if any(mark in path.name for mark in "*?["):
        return sorted(path.parent.glob(path.name))
    if not path.is_file():
        where = path.parent if path.parent.is_dir() else f"{path.parent}, which is not a folder"
        raise FileNotFoundError(
            f"there is no shard {path.name} in {where}; "
            "give shards by path or URL, such as a-{00..07}.tar"
        )
    return [path]


def _local_file(name: str, root: Path | None, download: bool) -> Path:
    """Return the path of a shard; a URL is downloaded once, to webdataset/ in the data folder.

    Raises FileNotFoundError if `download` is False and the file is not there yet.
    """
    url = urlsplit(name)
    if url.scheme not in ("http", "https"):
        if "://" in name or name.startswith("pipe:"):
            raise ValueError(f"shards must be files or http or https URLs, not {name}")
        return Path(name).expanduser()
    home = data_root("webdataset", root, "shards", "set data.download=true to download them")
    # the file name contains no slash, so that a URL cannot point outside the folder
    flat = re.sub(r"[^\w.-]+", "_", f"{url.netloc}{url.path}")
    query = hashlib.blake2b(url.query.encode(), digest_size=8).hexdigest() if url.query else ""
    target = home / "webdataset" / f"{query}{query and '-'}{flat}"
    if not target.exists():
        if not download:
            raise FileNotFoundError(
                f"{name} is not in {target.parent} yet; set data.download=true to download it"
            )
        target.parent.mkdir(parents=True, exist_ok=True)
        unfinished = target.with_name(target.name + ".partial")
        urllib.request.urlretrieve(name, unfinished)
        unfinished.rename(target)
    return target
