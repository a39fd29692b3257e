"""The lock that gives a run folder to one process at a time.

It is a record lock on the file `.lock` in the folder. The system releases it however the process
ends, and forked workers do not inherit it.
"""

import errno
import os
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from antipode.runs.own_file import open_own


@dataclass(frozen=True)
class Lock:
    """A locked file, and the id of the process that locked it."""

    file: IO[str]
    pid: int

    def is_current(self, path: Path) -> bool:
        """Return True if this process holds the lock and `path` is still the locked file.

        A forked child has a copy of this object but does not hold the lock.
        """
        if self.pid != os.getpid():
            return False
        try:
            return os.fstat(self.file.fileno()).st_ino == path.lstat().st_ino
        except FileNotFoundError:
            return False


# A record lock belongs to the whole process. A second claim in the same process would get the lock,
# too, and would later release it for the first one. The locks of this process are therefore kept
# here.
LOCKS: dict[Path, Lock] = {}
LOCKING = threading.Lock()
# Locks of the parent process, or of files that are deleted. They stay open, because closing a file
# may release another lock of this process on the same file.
KEPT: list[Lock] = []


def acquire(folder: Path) -> Lock | None:
    """Lock a folder for this process, and create it if needed; return None if it is not free.

    Raises ValueError if the lock file is a link to another file.
    """
    path = folder / ".lock"
    place = folder.resolve()
    with LOCKING:
        if place in LOCKS and LOCKS[place].is_current(path):
            return None
        try:
            folder.mkdir(parents=True, exist_ok=True)
            file = open_own(path)
        except FileNotFoundError:  # the previous owner has just removed its empty folder
            return None
        lock = Lock(file, os.getpid())
        # the file may have been deleted between opening and locking it
        if not lock_file(file) or not lock.is_current(path):
            file.close()
            return None
        if place in LOCKS:
            KEPT.append(LOCKS[place])
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        LOCKS[place] = lock
        return lock


def release(lock: Lock) -> None:
    """Release a lock; the copy that a forked child has of its parent's lock is only put aside."""
    with LOCKING:
        if lock.pid != os.getpid():
            KEPT.append(lock)
            return
        lock.file.close()
        for place in [place for place, other in LOCKS.items() if other is lock]:
            del LOCKS[place]


def owner(folder: Path) -> str:
    """Return what holds the lock of a folder, such as "process 123", for messages."""
    lock = LOCKS.get(folder.resolve())
    if lock is not None and lock.pid == os.getpid():
        # do not open our own lock file: closing it again would release the lock
        return f"process {lock.pid}"
    with (folder / ".lock").open(encoding="utf-8", errors="replace") as file:
        text = file.read(20)
    return f"process {text}" if text.isdecimal() else "another process"


def lock_file(file: IO[str]) -> bool:
    """Lock a file for this process without waiting.

    Returns True on success, and also if the file system does not support locks.
    """
    import fcntl  # noqa: PLC0415  (not on Windows)

    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno not in (errno.EACCES, errno.EAGAIN)
    return True
