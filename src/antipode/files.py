"""Atomic file writing, and values that JSON can represent."""

import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO


@contextmanager
def atomic_write(path: Path) -> Iterator[BinaryIO]:
    """Open a binary file that replaces `path` atomically when the block ends.

    The new content appears under the name only after all of it is on the disk. If the block raises
    an exception, `path` is unchanged and no temporary file is left behind.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        sync(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def sync(folder: Path) -> None:
    """Flush the entries of a folder to the disk, so that new and renamed files survive a crash."""
    if os.name == "posix":
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def finite(value: Any) -> Any:
    """Return a copy of nested dicts and lists with None in place of NaN and infinite numbers.

    JSON cannot represent those. Keys become strings and tuples become lists.
    """
    if isinstance(value, dict):
        return {str(key): finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
