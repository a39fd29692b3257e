"""Paths that a user gives."""

from pathlib import Path


def expanded(path: str | Path) -> Path:
    """Return a path with the home folder in place of a leading ~.

    Raises ValueError if there is no such user.
    """
    try:
        return Path(path).expanduser()
    except RuntimeError:
        raise ValueError(f"{path} names the home folder of a user that does not exist") from None


def absolute(path: str | Path) -> Path:
    """Return a path that stays the same when the process moves to another folder.

    A data set of the user may call `os.chdir` while a run is written.
    """
    return expanded(path).absolute()
