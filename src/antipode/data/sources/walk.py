"""Find the image files under a folder and read their headers.

Only what can be checked without decoding an image is checked: broken links, empty files, missing
permissions, files that are not images, and sizes that cannot be cropped. Files that fail are
skipped, counted and listed.

A folder may have millions of files. So no object is made for a file but its name, and the headers
of ordinary PNG and JPEG files are read without Pillow.
"""

import os
import time
import warnings
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import numpy as np

from antipode.data.progress import bar
from antipode.data.sources import headers
from antipode.data.sources.image_names import Array, Names
from antipode.data.sources.source import Skip
from antipode.names import printable
from antipode.wording import counted

BLOCK = 256  # files that one thread reads in a row
THREADS = 16  # for a slow disk
SLOW = 2e-4  # seconds per file; if it takes longer, the disk is slow
LARGER = 1 << 16  # bytes; they contain the header of a JPEG with a large thumbnail


class Folder(NamedTuple):
    """A folder that was listed."""

    name: str  # relative path, empty for the root
    time: int  # of its last change, in ns
    entries: int  # the number of them, hidden ones included


class Walk(NamedTuple):
    """The files under a folder, sorted by name."""

    names: list[str]  # relative paths
    sizes: list[int]  # in bytes
    skipped: list[Skip]
    folders: list[Folder]


def walk(root: Path) -> Walk:
    """Return all files under `root` of any depth, and what cannot be opened.

    Hidden files and folders are ignored. A link to a folder is followed once.
    """
    files: list[tuple[str, int]] = []
    skipped: list[Skip] = []
    visited: dict[tuple[int, int], Folder] = {}
    waiting = [""]  # a stack in place of recursion: there may be thousands of levels
    while waiting:
        folders = _folder_entries(str(root), waiting.pop(), visited, files, skipped)
        waiting += sorted(folders, reverse=True)
    files.sort()
    names = [name for name, _ in files]
    sizes = [size for _, size in files]
    return Walk(names, sizes, sorted(skipped), list(visited.values()))


def _folder_entries(
    root: str,
    below: str,
    visited: dict[tuple[int, int], Folder],
    files: list[tuple[str, int]],
    skipped: list[Skip],
) -> list[str]:
    """Add the files directly in `root`/`below` to `files`; return the folders there."""
    folder = f"{root}/{below}"
    folders = []
    count = 0
    try:
        status = os.stat(folder)  # noqa: PTH116  (a Path for every folder takes longer)
        key = status.st_dev, status.st_ino
        if key in visited:
            return []
        visited[key] = Folder(below, status.st_mtime_ns, -1)
        with os.scandir(folder) as entries:
            for entry in entries:
                count += 1
                if entry.name.startswith("."):
                    continue
                name = f"{below}/{entry.name}" if below else entry.name
                if _is_folder(entry):
                    folders.append(name)
                elif isinstance(size := _size(entry), int):
                    files.append((name, size))
                else:
                    skipped.append(Skip(name, size))
        visited[key] = visited[key]._replace(entries=count)
    except OSError as error:
        skipped.append(Skip(below or root, f"cannot be opened ({error.strerror})"))
    return folders


def _is_folder(entry: "os.DirEntry[str]") -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link to itself
        return False


def is_usable(root: Path, name: str) -> bool:
    """Return True if what `walk` has skipped is now a file that is not empty, or an open folder."""
    path = root / name
    return os.access(path, os.R_OK | os.X_OK) if path.is_dir() else isinstance(_size(path), int)


def _size(entry: "os.DirEntry[str] | Path") -> int | str:
    """Return the number of bytes of a file, or the reason why it cannot be used."""
    try:
        if not entry.is_file():
            return "is a broken link" if entry.is_symlink() else "is not a regular file"
        size = entry.stat().st_size
        if size > headers.BYTES:
            return headers.too_long(size)
        return size or "is empty (0 bytes)"
    except OSError as error:
        return f"cannot be opened ({error.strerror})"


def folders_in(root: Path) -> list[str]:
    """Return the sorted names of the folders directly in `root` that are not hidden."""
    with os.scandir(root) as entries:
        return sorted(
            entry.name for entry in entries if not entry.name.startswith(".") and _is_folder(entry)
        )


class File(NamedTuple):
    """What the first bytes of an image file say."""

    header: headers.Header
    start: int  # CRC-32 of the first bytes


class Headers(NamedTuple):
    """The headers of N files."""

    starts: Array  # uint32 (N,): CRC-32 of the first bytes
    bands: Array  # int32 (N,): see `headers.Header`, or -1 for a file that cannot be used
    deep: Array  # bool (N,): more than 8 bits per channel
    sides: Array  # int32 (N,): the shorter side in pixels
    reasons: dict[int, str]  # why a file cannot be used, by its position


def read_headers(root: Path, names: list[str]) -> Headers:
    """Return the headers of files."""
    count = len(names)
    starts, bands = np.zeros(count, np.uint32), np.full(count, -1, np.int32)
    deep, sides = np.zeros(count, bool), np.zeros(count, np.int32)
    reasons: dict[int, str] = {}
    for at, result in enumerate(_read_all(str(root), names)):
        if isinstance(result, Skip):
            reasons[at] = result.reason
            continue
        info = result.header
        starts[at], bands[at] = result.start, info.bands
        deep[at], sides[at] = info.deep, min(info.width, info.height)
    return Headers(starts, bands, deep, sides, reasons)


class Scan(NamedTuple):
    """The images among some files."""

    kept: Array  # positions of the files that can be used
    skipped: list[Skip]
    channels: int
    size: int  # median of the shorter sides, at most 224


def scan(root: Path, names: Names, read: Headers, chosen: Array) -> Scan:
    """Return the images among the files at the positions `chosen` (n,).

    They are the images that fit the most common channel count.
    """
    used = chosen[read.bands[chosen] >= 0]
    skipped = [
        Skip(names[at], read.reasons.get(at, "cannot be read"))
        for at in chosen[read.bands[chosen] < 0].tolist()
    ]
    values, firsts, counts = np.unique(read.bands[used], return_index=True, return_counts=True)
    # of equally common numbers, the first
    common = int(values[np.lexsort((firsts, -counts))[0]]) if len(values) else 0
    channels = common or 3
    fitting = np.array([value for value in values if _convertible(int(value), channels)])
    fits = np.isin(read.bands[used], fitting)
    for at in used[~fits].tolist():
        reason = f"has {read.bands[at] or 3} channels, but {channels} are expected"
        skipped.append(Skip(names[at], reason))
    kept = used[fits]
    deep = int(read.deep[kept].sum())
    if deep:
        have = f"{counted(deep, 'image')} in {root} {'has' if deep == 1 else 'have'}"
        text = f"{have} more than 8 bits per channel; the upper 8 bits are used"
        warnings.warn(printable(text), stacklevel=3)
    size = min(224, int(np.median(read.sides[kept]))) if len(kept) else 224
    return Scan(kept, sorted(skipped), channels, size)


def _read_all(root: str, names: list[str]) -> Iterator[File | Skip]:
    """Yield the result of `read_header` of every file, in order.

    Threads are used only if the disk is slow, since otherwise they only wait for each other.
    """
    blocks = [names[first : first + BLOCK] for first in range(0, len(names), BLOCK)]

    def read_block(block: list[str]) -> list[File | Skip]:
        return [read_header(root, name) for name in block]

    with bar(len(names), f"reading headers in {root}") as advance:
        begin = time.perf_counter()
        for block in blocks[:1]:
            yield from read_block(block)
            advance(len(block))
        if blocks and time.perf_counter() - begin > SLOW * len(blocks[0]):
            with ThreadPoolExecutor(THREADS) as pool:
                for results in pool.map(read_block, blocks[1:]):
                    yield from results
                    advance(len(results))
        else:
            for block in blocks[1:]:
                yield from read_block(block)
                advance(len(block))


def read_header(root: str, name: str) -> File | Skip:
    """Return what the header of a file says, or why the file cannot be used."""
    path = f"{root}/{name}"
    try:
        start = _first_bytes(path, headers.HEAD)
        info = headers.quick_header(start)
        if info is None and start.startswith(headers.JPEG) and len(start) == headers.HEAD:
            info = headers.quick_header(_first_bytes(path, LARGER))
        if info is None:
            with open(path, "rb") as file:  # noqa: PTH123  (see the top of this file)
                info = headers.header(file)
        return File(info, zlib.crc32(start))
    except ValueError as error:
        return Skip(name, str(error))
    except OSError as error:
        return Skip(name, f"cannot be opened ({error.strerror})")


def _first_bytes(path: str, count: int) -> bytes:
    """Return the first bytes of a file."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        return os.read(descriptor, count)
    finally:
        os.close(descriptor)


def _convertible(bands: int, channels: int) -> bool:
    """Return whether an image with these bands can be read with that number of channels."""
    return (
        bands == channels
        or (channels in (1, 3) and bands == 0)
        or (channels == 3 and bands in (1, 2, 4))
    )
