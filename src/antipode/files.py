"""Atomic file writing, and values that JSON can represent."""

import errno
import itertools
import math
import os
import re
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

# the names of temporary files: that of the file, the id of the process and a number
TEMPORARY = re.compile(r"\.(?P<name>.+)\.(?P<process>\d+)(-\d+)?\.tmp", re.DOTALL)
NUMBERS = itertools.count()  # threads of one process may write the same file


@contextmanager
def atomic_write(path: Path) -> Iterator[BinaryIO]:
    """Open a binary file that replaces `path` atomically when the block ends.

    The new content appears under the name only after all of it is on the disk. If the block raises
    an exception, `path` is unchanged and no temporary file is left behind. An error of the system,
    such as a full disk, names `path`. A temporary file that a killed process has left is removed by
    the next writer of the same name, and by `remove_leftovers`.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    remove_leftovers(path.parent, [path.name])
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{next(NUMBERS)}.tmp")
    try:
        with _open_temporary(temporary) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
            if os.name != "posix":  # Windows does not rename open files; elsewhere it stays locked
                file.close()
            temporary.replace(path)
        sync(path.parent)
    except (OSError, RuntimeError) as error:
        # torch's writer raises RuntimeError and hides the error of the system
        cause = error.__context__ if isinstance(error, RuntimeError) else error
        if not isinstance(cause, OSError):
            raise
        if cause.filename in (None, str(temporary)):
            cause.filename = str(path)
        raise cause from None
    finally:
        temporary.unlink(missing_ok=True)


def check_folder(path: Path) -> None:
    """Raise NotADirectoryError if a file stands where a folder of `path` would have to be."""
    place = next(place for place in path.parents if place.exists())
    if not place.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(place))


def _open_temporary(path: Path) -> BinaryIO:
    """Create a file and lock it while it is open, so that it does not count as left behind."""
    while True:
        # O_EXCL also refuses a link that someone else has put there
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)
        _lock(descriptor, wait=True)
        try:  # another process may have removed the file before it was locked
            if os.path.samestat(os.fstat(descriptor), path.lstat()):
                return os.fdopen(descriptor, "wb")
        except FileNotFoundError:
            pass
        os.close(descriptor)


def remove_leftovers(folder: Path, names: Collection[str] | None = None) -> None:
    """Remove the temporary files that killed processes have left in a folder.

    With `names`, only those of files of these names are removed. A process that is still writing
    holds a lock on its temporary file, which is then kept.
    """
    if not folder.is_dir():
        return
    with os.scandir(folder) as entries:
        found = [(entry.path, TEMPORARY.fullmatch(entry.name)) for entry in entries]
    for path, match in found:
        ours = match is not None and (names is None or match["name"] in names)
        if match and ours:
            _remove_if_abandoned(path, int(match["process"]))


def _remove_if_abandoned(path: str, process: int) -> None:
    """Remove a temporary file that no process is writing.

    It is removed while it is locked. A writer that has just created it waits for the lock, notices
    that the file is gone, and creates another one.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0))
    except OSError:  # it has been renamed, or is not ours
        return
    try:
        locked = _lock(descriptor)
        if not _runs(process) if locked is None else locked:
            Path(path).unlink(missing_ok=True)
    finally:
        os.close(descriptor)


def _lock(descriptor: int, wait: bool = False) -> bool | None:
    """Lock a file until it is closed; return True on success. `wait` waits for other locks.

    Returns None if the system has no such locks. They belong to the open file and not to the
    process, so they work between threads, too.
    """
    try:
        import fcntl  # noqa: PLC0415  (not on Windows)

        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        return False
    except (ImportError, OSError):
        return None
    return True


def _runs(process: int) -> bool:
    """Return True if there is a process of this id on this machine."""
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:
        return True
    return True


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
