"""WebDataset's tar shards, read by random access.

Reading the headers once gives the position of every image in its shard. Shards can therefore be
shuffled, divided among ranks and resumed exactly like files.

Nothing is unpacked. A shard with a member whose path leaves the archive still raises a ValueError,
because whatever wrote that shard is faulty. So does a damaged shard (see tars.py).
"""

import hashlib
import math
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

from antipode import json_text
from antipode.data.progress import track
from antipode.data.sources import decode, headers
from antipode.data.sources.folder import held_out
from antipode.data.sources.image_names import Names
from antipode.data.sources.source import Decoded, Skip, warn_skipped
from antipode.data.sources.splits import Splits, data_root
from antipode.data.sources.tars import members
from antipode.names import brief, printable
from antipode.paths import absolute

IMAGES = ("jpg", "jpeg", "png", "webp", "bmp", "gif", "tif", "tiff", "ppm", "pgm", "jp2", "npy")
SHARDS = 1_000_000  # the most shards of a pattern
LABEL_BYTES = 1 << 20  # the largest .cls or .json file
CLASSES = 10_000  # class numbers up to this one are kept as they are
LARGEST_LABEL = (1 << 63) - 1  # of int64


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

    def marks(self, indices: np.ndarray[Any, Any]) -> dict[str, bytes]:
        """Return the sizes of the image files."""
        return {"sizes": self.table[indices, 2].tobytes()}

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
        raise FileNotFoundError(printable(f"no shard matches {pattern}"))
    places = []
    skipped = []
    for number, path in enumerate(track(paths, len(paths), "reading shards", least=100)):
        shard_places, shard_skipped = index_shard(path, number)
        places += shard_places
        skipped += shard_skipped
    warn_skipped(pattern, skipped, len(places) + len(skipped))
    if not places:
        raise ValueError(printable(f"the {len(paths)} shards of {pattern} contain no image"))
    train, test = held_out(_source(paths, places, skipped))
    return Splits(f"webdataset:{pattern}", train, train, test, train.size)


def _source(paths: list[Path], places: list[Place], skipped: list[Skip]) -> Decoded:
    labels = [place.label for place in places if place.label is not None]
    known = torch.tensor(labels) if len(labels) == len(places) else None
    if labels and known is None:
        text = f"only {len(labels)} of {len(places)} images in {paths[0].name} and the shards "
        text += "loaded with it have a label, so the labels are not used"
        warnings.warn(printable(text), stacklevel=2)
    known, classes = _class_names(known)
    table = np.array(
        [(place.shard, place.offset, place.length) for place in places], dtype=np.int64
    )
    names = Names(place.name for place in places)
    return Decoded(Members(paths, table), names, known, classes, skipped=tuple(skipped))


def _class_names(labels: Tensor | None) -> tuple[Tensor | None, list[str] | None]:
    """Return the labels (N,) and the class names "0", "1", ... up to the largest label.

    Large numbers that are not consecutive, such as numbers of products, become class indices. There
    are then no more classes than images.
    """
    if labels is None:
        return None, None
    largest = int(labels.max())
    if largest < max(len(labels), CLASSES):
        return labels, [str(number) for number in range(largest + 1)]
    used, indices = torch.unique(labels, return_inverse=True)
    return indices, [str(number) for number in used.tolist()]


RANGE = re.compile(r"\{(\d{1,18})\.\.(\d{1,18})\}")


def expand_ranges(pattern: str) -> Iterator[str]:
    """Yield all names of a pattern: a-{00..02}.tar gives a-00.tar, a-01.tar and a-02.tar."""
    ranges = [(int(first), int(last)) for first, last in RANGE.findall(pattern)]
    count = math.prod(max(0, last - first + 1) for first, last in ranges)
    if count > SHARDS:
        raise ValueError(
            f"the pattern {brief(pattern)} stands for {count:,} shards, more than the limit of "
            f"{SHARDS:,}"
        )
    yield from _expand(pattern)


def _expand(pattern: str) -> Iterator[str]:
    match = RANGE.search(pattern)
    if not match:
        yield pattern
        return
    first, last = match.groups()
    before, after = pattern[: match.start()], pattern[match.end() :]
    for number in range(int(first), int(last) + 1):
        yield from _expand(f"{before}{number:0{len(first)}d}{after}")


def index_shard(path: Path, number: int = 0) -> tuple[list[Place], list[Skip]]:
    """Return the images of a shard in order, and what cannot be used.

    Raises ValueError if the shard itself cannot be used.
    """
    samples: dict[str, dict[str, tarfile.TarInfo]] = {}
    skipped: list[Skip] = []
    notes: list[str] = []
    with path.open("rb") as file:
        for member in members(path, file, notes):
            if not _is_usable(member, path, skipped):
                continue
            key, _, kind = PurePosixPath(member.name).name.partition(".")
            parts = samples.setdefault(str(PurePosixPath(member.name).with_name(key)), {})
            if kind.lower() in parts:
                reason = "is in the shard twice; only the first copy is used"
                skipped.append(Skip(f"{path.name}:{member.name}", reason))
            parts.setdefault(kind.lower(), member)
        skipped += [Skip(path.name, note) for note in notes]
        places = [
            _place(f"{path.name}:{key}", number, parts, file, skipped)
            for key, parts in samples.items()
        ]
    return [place for place in places if place is not None], skipped


def _is_usable(member: tarfile.TarInfo, path: Path, skipped: list[Skip]) -> bool:
    """Return whether a member is a regular file that is not hidden; list it if it is neither.

    Raises ValueError for a member outside the archive.
    """
    parts = PurePosixPath(member.name).parts
    if ".." in parts or member.name.startswith("/"):
        text = f"{path} is unsafe: its member {member.name} is outside the archive"
        raise ValueError(printable(text))
    if member.isdir():
        return False
    reason = ""
    if not member.isreg():
        reason = "is not a regular file"
    elif not parts:
        reason = "has no file name"
    elif member.sparse is not None:
        reason = "is stored as a sparse file"
    if reason:
        skipped.append(Skip(f"{path.name}:{member.name}", reason))
    return not reason and not parts[-1].startswith(".")


def _place(
    name: str, number: int, parts: dict[str, tarfile.TarInfo], file: BinaryIO, skipped: list[Skip]
) -> Place | None:
    """Return the position and label of a sample's image, or None if the sample has no image."""
    kind, *others = [kind for kind in IMAGES if kind in parts] or [""]
    if not kind:
        kinds = ", ".join(parts) or "a file without extension"
        skipped.append(Skip(name, f"has no image, only {kinds}"))
        return None
    for other in others:
        reason = f"is another image of a sample of which {kind} is used"
        skipped.append(Skip(f"{name}.{other}", reason))
    image = parts[kind]
    if not 0 < image.size <= headers.BYTES:
        reason = "is empty (0 bytes)" if not image.size else headers.too_long(image.size)
        skipped.append(Skip(name, reason))
        return None
    label = None
    for kind in ("cls", "json"):
        if kind in parts:
            label = _label(parts[kind], file, kind, f"{name}.{kind}")
            break
    return Place(name, number, image.offset_data, image.size, label)


def _label(member: tarfile.TarInfo, file: BinaryIO, kind: str, name: str) -> int | None:
    """Return the label in a .cls or .json file, or None if a .json file has no label."""
    if member.size > LABEL_BYTES:
        reason = f"has {member.size:,} bytes, too many for a label (at most {LABEL_BYTES:,})"
        raise ValueError(printable(f"{name} {reason}"))
    file.seek(member.offset_data)
    content = file.read(member.size)
    try:
        label = int(content) if kind == "cls" else json_text.parse(content, name).get("label")
    except (ValueError, AttributeError) as error:
        text = f"{name} does not contain a label: {content[:40]!r}"
        raise ValueError(printable(text)) from error
    if label is not None and (type(label) is not int or not 0 <= label <= LARGEST_LABEL):
        raise ValueError(
            printable(
                f"{name} contains the label {brief(label)}, but a label must be an integer from 0 "
                f"to {LARGEST_LABEL}"
            )
        )
    return label


def _expand_wildcards(path: Path) -> list[Path]:
    if any(mark in path.name for mark in "*?["):
        return sorted(path.parent.glob(path.name))
    if not path.is_file():
        where = path.parent if path.parent.is_dir() else f"{path.parent}, which is not a folder"
        text = f"there is no shard {path.name} in {where}; give shards by path or URL, such as "
        raise FileNotFoundError(printable(text + "a-{00..07}.tar"))
    return [path]


def _local_file(name: str, root: Path | None, download: bool) -> Path:
    """Return the path of a shard; a URL is downloaded once, to webdataset/ in the data folder.

    Raises FileNotFoundError if `download` is False and the file is not there yet.
    """
    url = urlsplit(name)
    if url.scheme not in ("http", "https"):
        if "://" in name or name.startswith("pipe:"):
            text = f"shards must be files or http or https URLs, not {name}"
            raise ValueError(printable(text))
        return absolute(name)
    home = data_root("webdataset", root, "shards", "set data.download=true to download them")
    # the file name contains no slash, so that a URL cannot point outside the folder
    flat = re.sub(r"[^\w.-]+", "_", f"{url.netloc}{url.path}")
    query = hashlib.blake2b(url.query.encode(), digest_size=8).hexdigest() if url.query else ""
    target = home / "webdataset" / f"{query}{query and '-'}{flat}"
    if not target.exists():
        if not download:
            text = f"{name} is not in {target.parent} yet; set data.download=true to download it"
            raise FileNotFoundError(printable(text))
        target.parent.mkdir(parents=True, exist_ok=True)
        unfinished = target.with_name(target.name + ".partial")
        urllib.request.urlretrieve(name, unfinished)
        unfinished.rename(target)
    return target
