"""Exact duplicates: images of a data set with the same content. N images.

Two files are duplicates if their bytes are equal, and two images in memory if their pixels are.
Files can only be equal if their sizes and first bytes are, which are known from opening the data
set. So only the files that agree in these are read.
"""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from antipode import dist
from antipode.data.progress import bar
from antipode.data.sources.source import Decoded, Memory, Source, fingerprint, marks
from antipode.data.sources.splits import Splits
from antipode.evaluation.task import is_unlabelled
from antipode.files import atomic_write

BUDGET = 1 << 30  # bytes that an evaluation reads at most; the analysis has no limit
CACHE = "exact-duplicates.json"
FORM = 1  # version of the cache
THREADS = 8
PIECE = 4096  # images in memory whose digests are computed at a time


class Image(NamedTuple):
    """An image of a data set: the name of its split and its index there."""

    split: str
    at: int


class Exact(NamedTuple):
    """The images with equal content.

    Args:
        groups: groups of two or more images with the same content.
        unread: number of images that might have a duplicate and were not read.
    """

    groups: list[list[Image]]
    unread: int = 0

    @property
    def copies(self) -> int:
        """The number of images that could be removed: all but one of each group."""
        return sum(len(group) - 1 for group in self.groups)

    @property
    def overlap(self) -> list[Image]:
        """The test images that are also in the train split."""
        return [
            image
            for group in self.groups
            if any(image.split == "train" for image in group)
            for image in group
            if image.split == "test"
        ]


def sources_of(splits: Splits) -> dict[str, Source]:
    """Return the sources of a data set by the name of their split.

    Images of pretraining are only a split of their own if they have no labels, as in STL-10. Else
    they are the train images, or these and the test images.
    """
    sources = {"train": splits.train}
    if splits.pretrain is not splits.train and is_unlabelled(splits.pretrain):
        sources["pretrain"] = splits.pretrain
    return sources | ({} if splits.test is None else {"test": splits.test})


def exact_duplicates(splits: Splits, cache: Path | None = None, budget: float = BUDGET) -> Exact:
    """Return the images of a data set with the same content.

    Args:
        splits: the data set.
        cache: a folder for the result. It is read from there while the images are the same. The
            cache is only used for images in files.
        budget: maximum number of bytes to read. If more would be needed, no file is read, and
            `unread` counts the images in question.
    """
    sources = sources_of(splits)
    stamp = _stamp(sources)
    file = cache / CACHE if cache is not None and stamp is not None else None
    found = None if file is None else _read_cache(file, stamp)
    if found is not None and not (found.unread and budget > BUDGET):
        return found
    found = _compare(sources, budget)
    if file is not None and dist.rank() == 0:
        _write_cache(file, stamp, found)
    return found


def _compare(sources: Mapping[str, Source], budget: float) -> Exact:
    """Return the groups of equal images, and the number of images that were not read."""
    groups: dict[bytes, list[Image]] = {}
    in_files = {name: part for name, part in sources.items() if isinstance(part, Decoded)}
    for name, source in sources.items():
        if isinstance(source, Memory) and not source.varies:
            for index, digest in enumerate(_pixel_digests(source)):
                groups.setdefault(digest, []).append(Image(name, index))
    candidates = _candidates(in_files)
    cost = sum(_bytes_of(in_files[name], indices) for name, indices in candidates.items())
    images = [Image(name, int(at)) for name, indices in candidates.items() for at in indices]
    if cost > budget:
        return Exact(_repeated(groups), len(images))
    for image, content in zip(images, _file_digests(in_files, images), strict=True):
        if content is not None:
            groups.setdefault(content, []).append(image)
    return Exact(_repeated(groups))


def _repeated(groups: Mapping[bytes, list[Image]]) -> list[list[Image]]:
    return [group for group in groups.values() if len(group) > 1]


def _pixel_digests(source: Memory) -> list[bytes]:
    """Return a digest of the pixels of each image."""
    digests = []
    for images in torch.split(source.images, PIECE):
        flat = images.cpu().contiguous().flatten(1).numpy()
        digests += [_digest(memoryview(row)) for row in flat]
    return digests


def _candidates(sources: Mapping[str, Decoded]) -> dict[str, np.ndarray[Any, Any]]:
    """Return the indices of the images that may equal another one, by split.

    They agree with another image in all that is known without reading it. If nothing is known, all
    images are candidates.
    """
    known = {name: marks(part.read, np.arange(len(part))) for name, part in sources.items()}
    shared = set.intersection(*map(set, known.values())) if known else set()
    if not shared:
        return {name: np.arange(len(part)) for name, part in sources.items()}
    keys = {
        name: _mixed([values[mark] for mark in sorted(shared)], len(sources[name]))
        for name, values in known.items()
    }
    _, inverse, counts = np.unique(
        np.concatenate(list(keys.values())), return_inverse=True, return_counts=True
    )
    repeated = np.split(counts[inverse] > 1, np.cumsum([len(part) for part in keys.values()])[:-1])
    return {name: np.flatnonzero(mask) for name, mask in zip(keys, repeated, strict=True)}


def _mixed(columns: Sequence[bytes], n: int) -> np.ndarray[Any, Any]:
    """Return one number (N,) for the marks of each image; equal marks have equal numbers."""
    mixed = np.zeros(n, np.uint64)
    for column in columns:
        rows = np.frombuffer(column, np.uint8).reshape(n, -1)
        padded = np.zeros((n, -(-rows.shape[1] // 8) * 8), np.uint8)
        padded[:, : rows.shape[1]] = rows
        for words in padded.view(np.uint64).T:
            mixed = (mixed ^ words) * np.uint64(0x9E3779B97F4A7C15)
            mixed ^= mixed >> np.uint64(29)
    return mixed


def _bytes_of(source: Decoded, indices: np.ndarray[Any, Any]) -> int:
    """Return the number of bytes of images, estimated from the side if files are unknown."""
    sizes = marks(source.read, indices).get("sizes")
    if sizes is not None:
        return int(np.frombuffer(sizes, np.int64).sum())
    return len(indices) * source.channels * source.size**2


def _file_digests(sources: Mapping[str, Decoded], images: Sequence[Image]) -> list[bytes | None]:
    """Return the digests of images; None for an image that cannot be read."""

    def read(image: Image) -> bytes | None:
        source = sources[image.split]
        encoded: Callable[[int], bytes | None] | None = getattr(source.read, "encoded", None)
        try:
            data = None if encoded is None else encoded(image.at)
            if data is not None:
                return _digest(data)
            pixels = source.read(image.at).contiguous()
            shape = repr(tuple(pixels.shape)).encode()
            return _digest(shape + pixels.numpy().tobytes())
        except (ValueError, OSError):
            return None

    digests: list[bytes | None] = []
    with bar(len(images), "duplicates") as advance, ThreadPoolExecutor(THREADS) as pool:
        for digest in pool.map(read, images):
            digests.append(digest)
            advance(1)
    return digests


def _digest(data: bytes | memoryview) -> bytes:
    return hashlib.blake2b(data, digest_size=16).digest()


def _stamp(sources: Mapping[str, Source]) -> str | None:
    """Return a text that changes with the images, or None if only reading them would tell."""
    texts = []
    for name, source in sources.items():
        text = fingerprint(source.read) if isinstance(source, Decoded) else None
        if text is None:
            return None
        texts.append(f"{name} {text}")
    return f"{FORM} {_digest(' '.join(texts).encode()).hex()}"


def _read_cache(file: Path, stamp: str | None) -> Exact | None:
    """Return the stored result, or None if there is none for these images."""
    try:
        content = json.loads(file.read_text())
        if content["stamp"] != stamp:
            return None
        groups = [[Image(str(s), int(at)) for s, at in group] for group in content["groups"]]
        return Exact(groups, int(content["unread"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _write_cache(file: Path, stamp: str | None, found: Exact) -> None:
    """Write the result; a folder that is not writable only costs time at the next evaluation."""
    content = {"stamp": stamp, "groups": found.groups, "unread": found.unread}
    try:
        with atomic_write(file) as handle:
            handle.write(json.dumps(content).encode())
    except OSError:
        return
