"""A cached index of the files under a large folder.

Listing a million files and reading their headers takes a minute or more. The result is therefore
kept in the user's cache folder, never among the images, and used again while the folder is
unchanged. These things are compared before:

- the time of the last change and the number of entries of every folder,
- the size and the first bytes of a random sample of files,
- whether files that could not be used still cannot be used, since they may have been repaired (all
  of them, or a random sample if there are many).

A file that was overwritten in place, and is not in the sample, is not noticed. The environment
variable ANTIPODE_INDEX=new makes the index again, and ANTIPODE_INDEX=off uses none.
"""

import contextlib
import hashlib
import os
import random
import time
import warnings
import zlib
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from antipode.data.sources import headers
from antipode.data.sources.arrays import DAMAGED, member
from antipode.data.sources.image_names import Array, Names
from antipode.data.sources.source import Skip
from antipode.data.sources.walk import (
    File,
    Folder,
    Headers,
    is_usable,
    read_header,
    read_headers,
    walk,
)
from antipode.files import atomic_write
from antipode.names import printable

FORM = 1  # the version of the files
LEAST = 10_000  # a folder with fewer files is listed faster than its index is checked
SAMPLE = 128  # files that are compared
UNUSABLE = 1000  # files that could not be used, and are looked at again
# A folder that changed this many ns before it was listed may have changed again within the
# resolution of its clock, which would not be noticed. It gets no index.
SETTLED = 2_000_000_000
LONGEST = 1 << 34  # bytes of an index
VARIABLE = "ANTIPODE_INDEX"
ARRAYS = {"starts": np.uint32, "bands": np.int32, "deep": np.bool_, "sides": np.int32}


class Index(NamedTuple):
    """The files under a folder, sorted by name."""

    names: Names
    sizes: Array  # int64 (N,): bytes
    skipped: list[Skip]  # what cannot be opened
    folders: list[Folder]
    headers: Headers | None  # None if the files were not opened


def index(root: Path, *, opened: bool) -> Index:
    """Return the index of a folder, from the cache if it is still valid.

    `opened` says whether the headers of the files are needed.
    """
    mode = os.environ.get(VARIABLE, "")
    if mode not in ("", "new", "off"):
        raise ValueError(f"{VARIABLE} must be new or off if it is set, not {printable(mode)!r}")
    file = None if mode == "off" else _place(root, opened)
    if file is not None and not mode:
        cached = _cached(file, root, opened)
        if cached is not None:
            return cached
    begin = time.time_ns()
    found = walk(root)
    names = Names(found.names)
    read = read_headers(root, found.names) if opened else None
    result = Index(names, np.array(found.sizes, np.int64), found.skipped, found.folders, read)
    settled = all(folder.time < begin - SETTLED for folder in found.folders)
    if file is not None and settled and len(names) >= LEAST:
        _write(file, root, result)
    return result


def cache_folder() -> Path | None:
    """Return the folder of antipode in the user's cache folder, or None if there is no home."""
    place = os.environ.get("XDG_CACHE_HOME", "")
    try:
        base = Path(place) if Path(place).is_absolute() else Path.home() / ".cache"
    except RuntimeError:
        return None
    return base / "antipode"


def _place(root: Path, opened: bool) -> Path | None:
    """Return the file of a folder's index, or None if it would lie among the images."""
    folder = cache_folder()
    real = root.resolve()
    if folder is None or folder.resolve().is_relative_to(real):
        return None
    key = hashlib.blake2b(os.fsencode(f"{real} {opened}"), digest_size=16).hexdigest()
    return folder / "folders" / f"{key}.npz"


# Reading


def _cached(file: Path, root: Path, opened: bool) -> Index | None:
    """Return the index in a file, or None if there is none or it is not valid."""
    try:
        if not file.exists():
            return None
        content = _read(file, root, opened)
    except (*DAMAGED, MemoryError) as error:
        text = f"the index {file} of {root} is damaged ({error}) and is made again"
        warnings.warn(printable(text), stacklevel=5)
        return None
    return content if content is not None and _is_current(root, content) else None


def _read(file: Path, root: Path, opened: bool) -> Index | None:
    """Return the index in a file, or None if it is that of another version.

    Nothing in the file is trusted: a damaged one raises an error of `DAMAGED`.
    """
    status = file.lstat()
    if hasattr(os, "getuid") and status.st_uid != os.getuid():
        raise ValueError("it belongs to another user")
    if status.st_size > LONGEST:
        raise ValueError(f"it has {status.st_size:,} bytes")
    if _numbers(file, "form", np.int64).tolist() != [FORM]:
        return None
    if _texts(file, "root") != [str(root.resolve())]:
        raise ValueError("it is that of another folder")
    names = _names(file)
    folders = _texts(file, "folders")
    _check(all(_is_below(name) for name in folders if name), "a folder lies outside")
    times = _numbers(file, "times", np.int64, len(folders)).tolist()
    counts = _numbers(file, "counts", np.int64, len(folders)).tolist()
    return Index(
        names,
        _numbers(file, "sizes", np.int64, len(names)),
        [Skip(*pair) for pair in _pairs(_texts(file, "skipped"))],
        [Folder(*row) for row in zip(folders, times, counts, strict=True)],
        _headers(file, len(names)) if opened else None,
    )


def _names(file: Path) -> Names:
    """Return the names of the files, all of which lie below the folder and are not hidden."""
    joined = bytes(_numbers(file, "names", np.uint8))
    ends = _numbers(file, "ends", np.int64)
    in_order = len(ends) > 0 and ends[0] == 0 and ends[-1] == len(joined)
    _check(bool(in_order and (np.diff(ends) > 0).all()), "the names do not fit")
    text = np.frombuffer(joined, np.uint8)
    edges = np.concatenate([text[ends[:-1]], text[ends[1:] - 1]])
    outside = (text[ends[:-1]] == ord(".")).any() or (edges == ord("/")).any()
    hidden = any(part in joined for part in (b"/.", b"//", b"\0"))
    _check(not outside and not hidden, "a name lies outside")
    return Names.of(joined, ends, _numbers(file, "numbers", np.int64, len(ends) - 1))


def _headers(file: Path, count: int) -> Headers:
    """Return the headers of the files."""
    arrays = {name: _numbers(file, name, kind, count) for name, kind in ARRAYS.items()}
    places = _numbers(file, "failures", np.int64)
    reasons = _texts(file, "reasons")
    _check(len(places) == len(reasons), "the reasons do not fit")
    return Headers(**arrays, reasons=dict(zip(places.tolist(), reasons, strict=True)))


def _numbers(file: Path, name: str, kind: Any, count: int | None = None) -> Array:
    """Return a copy (N,) of an array of the file, after checking its type and length."""
    array = member(file, name)
    fits = array.ndim == 1 and array.dtype == kind and count in (None, len(array))
    _check(bool(fits), f"{name} does not fit")
    return np.array(array)


def _texts(file: Path, name: str) -> list[str]:
    """Return a list of texts, which are stored with a zero byte after each."""
    joined = bytes(_numbers(file, name, np.uint8))
    return [os.fsdecode(part) for part in joined.split(b"\0")[:-1]]


def _pairs(texts: list[str]) -> list[tuple[str, str]]:
    return list(zip(texts[::2], texts[1::2], strict=True))


def _is_below(name: str) -> bool:
    return not any(part.startswith(".") or not part for part in name.split("/"))


def _check(fits: bool, reason: str) -> None:
    if not fits:
        raise ValueError(reason)


def _is_current(root: Path, content: Index) -> bool:
    """Return True if the folders and a sample of files are those of the index."""
    place = str(root)
    try:
        for folder in content.folders:
            path = f"{place}/{folder.name}"
            if os.stat(path).st_mtime_ns != folder.time:  # noqa: PTH116  (see walk.py)
                return False
            if len(os.listdir(path)) != folder.entries:  # noqa: PTH208
                return False
        count = min(SAMPLE, len(content.names))
        sample = random.Random().sample(range(len(content.names)), count)
        return all(_is_same(place, content, at) for at in sample) and not _repaired(root, content)
    except OSError:
        return False


def _repaired(root: Path, content: Index) -> bool:
    """Return True if something that could not be used can be used now."""
    if any(is_usable(root, skip.name) for skip in _some(content.skipped)):
        return True
    failed = [] if content.headers is None else _some([*content.headers.reasons])
    return any(isinstance(read_header(str(root), content.names[at]), File) for at in failed)


def _some(items: list[Any]) -> list[Any]:
    """Return all items, or a random sample if there are many."""
    return items if len(items) <= UNUSABLE else random.Random().sample(items, UNUSABLE)


def _is_same(root: str, content: Index, at: int) -> bool:
    """Return True if a file has the size and the first bytes that the index says."""
    with open(f"{root}/{content.names[at]}", "rb") as file:  # noqa: PTH123
        size = os.fstat(file.fileno()).st_size
        start = zlib.crc32(file.read(headers.HEAD)) if content.headers is not None else 0
    if content.headers is None or content.headers.bands[at] < 0:
        return size == int(content.sizes[at])
    return (size, start) == (int(content.sizes[at]), int(content.headers.starts[at]))


# Writing


def _write(file: Path, root: Path, content: Index) -> None:
    """Write an index, or warn if the cache folder is not writable."""
    joined = np.frombuffer(content.names.joined, np.uint8)
    arrays: dict[str, Any] = {
        "form": np.array([FORM], np.int64),
        "root": _bytes([str(root.resolve())]),
        "names": joined,
        "ends": content.names.ends,
        "numbers": content.names.numbers(),
        "sizes": content.sizes,
        "skipped": _bytes([text for skip in content.skipped for text in skip]),
        "folders": _bytes([folder.name for folder in content.folders]),
        "times": np.array([folder.time for folder in content.folders], np.int64),
        "counts": np.array([folder.entries for folder in content.folders], np.int64),
    }
    if content.headers is not None:
        arrays |= {name: getattr(content.headers, name) for name in ARRAYS}
        arrays["failures"] = np.array(list(content.headers.reasons), np.int64)
        arrays["reasons"] = _bytes(list(content.headers.reasons.values()))
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(OSError):
            file.parent.chmod(0o700)  # the names of someone's files are private
        with atomic_write(file) as handle:
            np.savez(handle, **arrays)
    except OSError as error:
        text = f"cannot write the index of {root} to {file.parent} ({error.strerror or error}); "
        warnings.warn(printable(text + "the folder is listed again next time"), stacklevel=5)


def _bytes(texts: list[str]) -> Array:
    """Return texts as bytes with a zero byte after each. Zero bytes within a text are removed."""
    joined = b"".join(os.fsencode(text.replace("\0", "")) + b"\0" for text in texts)
    return np.frombuffer(joined, np.uint8)
