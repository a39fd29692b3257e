"""Open files of a run folder that are appended to.

Other files of a run are written under a temporary name and renamed, which replaces a link and never
writes through it. These files are opened in place.
"""

import os
import stat
from pathlib import Path
from typing import IO


def open_own(path: Path) -> IO[str]:
    """Open a file of a run folder for reading and appending, and create it if needed.

    A name that is a symbolic link is not followed, because the link may lead to a file outside of
    the folder. A pipe or a device is not opened either. Both raise ValueError.
    """
    # O_NONBLOCK: opening a pipe must not wait for its other end. Windows has none of these flags.
    flags = sum(getattr(os, name, 0) for name in ("O_NOFOLLOW", "O_NONBLOCK", "O_CLOEXEC"))
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | flags, 0o666)
    except OSError:
        check_own(path)
        raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise ValueError(f"{path} is not a regular file: remove it")
    return os.fdopen(descriptor, "a+", encoding="utf-8")


def check_own(path: Path) -> None:
    """Raise ValueError if a name in a run folder is a symbolic link."""
    if path.is_symlink():
        raise ValueError(f"{path} is a symbolic link, which is not followed: remove it")
