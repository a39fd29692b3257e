"""Paths that a user gives."""

import os
from itertools import islice
from pathlib import Path

from antipode.names import brief, closest

MANY = 10_000  # entries of a folder in which a similar name is looked for


def expanded(path: str | Path) -> Path:
    """Return a path with the home folder in place of a leading ~.

    Raises ValueError if there is no such user, and for what is no path.
    """
    if not isinstance(path, str | os.PathLike):
        raise ValueError(f"a path must be a string or a pathlib.Path, not {brief(path)}")
    try:
        return Path(path).expanduser()
    except RuntimeError:
        raise ValueError(f"{path} names the home folder of a user that does not exist") from None


def absolute(path: str | Path) -> Path:
    """Return a path that stays the same when the process moves to another folder.

    A data set of the user may call `os.chdir` while a run is written.
    """
    return expanded(path).absolute()


def no_folder(path: Path) -> str:
    """Return the sentence about a path that is no folder: it is a file, or there is nothing.

    A folder beside it with a similar name is named.
    """
    if path.exists():
        return f"{path} is a file, and folder: takes the path of a folder"
    try:
        beside = [place.name for place in islice(path.parent.iterdir(), MANY) if place.is_dir()]
    except OSError:
        beside = []
    match = closest(path.name, beside, 0.6)
    return f"there is no folder {path}{f', did you mean {path.parent / match}?' if match else ''}"


def absolute_or_none(path: str | Path | None) -> Path | None:
    """Return an absolute path, or None for None and an empty text, which stand for the default."""
    return None if path is None or path == "" else absolute(path)
