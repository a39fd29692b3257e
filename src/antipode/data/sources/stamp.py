"""A stamp of the images of a data set, by which a run recognises them later.

A run that is resumed needs the same images. An evaluation warns if some have changed.

A stamp is small, made of texts and numbers only, and cheap: at most SAMPLE images are read. It does
not contain where the files are, when they were changed, or labels. So a data set may be moved,
copied or touched between two parts of a run.

| images | what is stamped |
|---|---|
| all | their number |
| in memory | shape and pixels: all up to PIXEL_BYTES, else those of evenly spaced images |
| in files | names, and the contents of SAMPLE files |
| in a folder | also the size and the first 4 KiB of every file (published data sets: the size) |
| in shards | also the size of every file |
| in a pack | also the checksum of every image |
"""

import hashlib
import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from antipode import dist
from antipode.data.sources.source import Decoded, Memory, Source, marks
from antipode.names import printable
from antipode.wording import option

Stamp = dict[str, Any]

SAMPLE = 64  # files whose contents are compared
OWN_SAMPLE = 16  # the same for images without a file, which are read twice
PIXEL_BYTES = 1 << 28
# the words for what may differ between two stamps
WORDS = {
    "images": "number",
    "shape": "shape",
    "names": "names",
    "sizes": "sizes",
    "checksums": "contents",
    "beginnings": "contents",
    "pixels": "contents",
}


def stamp(source: Source, contents: bool = True) -> Stamp:
    """Return the stamp of a source.

    It does not contain contents if an image differs each time that it is read, as it does in a
    Dataset that draws random numbers. No file is opened if `contents` is False.
    """
    result: Stamp = {"images": len(source)}
    if isinstance(source, Memory):
        result["shape"] = list(source.images.shape[1:])
        if not source.varies:
            result["pixels"] = _digest(_pixels(source))
    elif isinstance(source, Decoded):
        result["names"] = _digest("\n".join(source.names).encode("utf-8", "surrogateescape"))
        known = marks(source.read, np.arange(len(source)))
        result |= {name: _digest(value) for name, value in known.items()}
        if contents and "checksums" not in known:
            result["sample"] = _sample(source)
    return result


def sampled(known: Stamp, source: Source) -> Stamp:
    """Return the stamp of a source with the contents of a sample, which a pack's does not have."""
    if "sample" in known or not isinstance(source, Decoded):
        return known
    return known | {"sample": _sample(source)}


def remaining(old: object, sources: Sequence[Source]) -> float:
    """Return the share of the sampled images of an old stamp that some sources still contain.

    An image may have moved to another folder of the data set, unless two files have its name. The
    share is 0 if it is unknown, as it is for images in memory.
    """
    wanted = {
        str(entry[0]): str(entry[1])
        for entry in (old if isinstance(old, list) else [])
        if isinstance(entry, list) and len(entry) == 2 and entry[1]
    }
    kept = {name for source in sources for name in _kept(wanted, source)}
    return len(kept) / max(1, len(wanted))


def _kept(wanted: dict[str, str], source: Source) -> Iterator[str]:
    """Yield the names of the wanted images, name -> digest, whose contents a source has."""
    if not isinstance(source, Decoded):
        return
    exact: dict[str, int] = {}
    moved: dict[str, list[int]] = {_file_name(name): [] for name in wanted}
    for at, name in enumerate(map(printable, source.names)):
        if name in wanted:
            exact[name] = at
        if _file_name(name) in moved:
            moved[_file_name(name)].append(at)
    digest = _reader(source)
    for name, content in wanted.items():
        places = [exact[name]] if name in exact else moved[_file_name(name)]
        if len(places) == 1 and digest(places[0]) == content:
            yield name


def _file_name(name: str) -> str:
    return name.rpartition("/")[2]


def _reader(source: Decoded) -> Callable[[int], str]:
    """Return a function that returns the digest of an image, of its file if it has one."""
    encoded = getattr(source.read, "encoded", None)
    if encoded is not None and _has_file(encoded):
        return partial(_file_digest, encoded)
    return partial(_pixel_digest, source)


def check(old: object, new: Stamp, run: Path, name: str) -> None:
    """Raise ValueError if the run was trained on other images than the data set `name` has now.

    `old` is the stamp in the checkpoint, `new` that of the data set. Warns if `old` is None, as it
    is in a checkpoint of an earlier version.
    """
    if old is None and dist.first():
        text = f"the checkpoint in {run} is from a version that did not stamp the images: "
        text += f"it is not known whether the images of {name} are the same"
        warnings.warn(printable(text), stacklevel=3)
    text = difference(old, new)
    if text:
        raise ValueError(
            printable(
                f"{run} was trained on other images than {name} has now ({text}): a run can only "
                "resume with the same images, use another "
                f"{option('out')}"
            )
        )


def difference(old: object, new: Stamp) -> str:
    """Return what differs between two stamps, an empty text if nothing does.

    Only what both stamps contain is compared. `old` may come from a file of someone else.
    """
    if not isinstance(old, dict):
        return ""
    words = [
        word for key, word in WORDS.items() if key in old and key in new and old[key] != new[key]
    ]
    example = _example(old.get("sample"), new.get("sample"))
    if example and not words:
        words = ["contents"]
    such_as = f", such as {example}" if example else ""
    return f"their {' and '.join(dict.fromkeys(words))} differ{such_as}" if words else ""


def _example(old: object, new: object) -> str:
    """Return the name of the first sampled image that differs, an empty text if there is none."""
    if not isinstance(old, list) or not isinstance(new, list) or len(old) != len(new):
        return ""
    for before, (name, digest) in zip(old, new, strict=True):
        # an empty digest means that the image could not be read, or that it varies
        if isinstance(before, list) and len(before) == 2 and "" not in (before[1], digest):
            if before != [name, digest]:
                return str(name)
    return ""


def _sample(source: Decoded) -> list[list[str]]:
    """Return names of evenly spaced images and digests of their contents.

    A digest is empty if the image cannot be read. All are empty if an image differs when it is read
    again.
    """
    encoded = getattr(source.read, "encoded", None)
    has_files = encoded is not None and _has_file(encoded)
    positions = torch.linspace(0, len(source) - 1, SAMPLE if has_files else OWN_SAMPLE)
    indices = torch.unique(positions.round().long()).tolist()
    names = [printable(source.names[at]) for at in indices]
    if has_files:
        return [[name, _file_digest(encoded, at)] for name, at in zip(names, indices, strict=True)]
    # reading an item of the user's Dataset may draw random numbers
    with torch.random.fork_rng(devices=[]):
        first, second = ([_pixel_digest(source, at) for at in indices] for _ in range(2))
    digests = first if first == second else [""] * len(names)
    return [[name, digest] for name, digest in zip(names, digests, strict=True)]


def _has_file(encoded: Any) -> bool:
    """Return whether the first image is a file, and not an item of a Dataset."""
    try:
        return encoded(0) is not None
    except (ValueError, OSError):
        return True


def _file_digest(encoded: Any, at: int) -> str:
    try:
        return _digest(encoded(at) or b"")
    except (ValueError, OSError):
        return ""


def _pixel_digest(source: Decoded, at: int) -> str:
    try:
        return _digest(_bytes(source.read(at)))
    except (ValueError, OSError):
        return ""


def _pixels(source: Memory) -> memoryview:
    """Return the pixels of all images, or of evenly spaced ones if they are large."""
    step = -(-source.images.numel() // PIXEL_BYTES)
    return _bytes(source.images[:: max(1, step)])


def _bytes(images: torch.Tensor) -> memoryview:
    array: Any = images.cpu().contiguous().flatten().numpy()
    return memoryview(array)


def _digest(data: bytes | memoryview) -> str:
    return hashlib.blake2b(data, digest_size=16).hexdigest()
