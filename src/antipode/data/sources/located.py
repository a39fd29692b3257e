"""Where a data set is whose name contains a path: `folder:`, `packed:` and `webdataset:`.

A recipe holds the name as the user wrote it. A relative path starts at the folder in which the
command was called, so the name alone does not say where the images are.
"""

from itertools import takewhile
from pathlib import Path

from antipode.paths import absolute

KINDS = ("folder", "packed", "webdataset")
PATTERN = set("{*?[")  # characters that make a part of a path of shards a pattern


def path_of(name: str) -> str:
    """Return the path in the name of a data set, empty if there is none."""
    kind, _, path = name.partition(":")
    is_path = kind in KINDS and "://" not in path and not path.startswith("pipe:")
    return path if is_path else ""


def is_relative(path: str) -> bool:
    """Return True for a path that starts at the current folder."""
    return bool(path) and not path.startswith("~") and not Path(path).is_absolute()


def below(name: str, directory: Path) -> str:
    """Return the name of a data set with an absolute path; a relative one starts at `directory`."""
    path = path_of(name)
    return f"{name.partition(':')[0]}:{directory / path}" if is_relative(path) else name


def located(name: str, directory: Path | None) -> str:
    """Return the name of a data set of a run that was started in `directory`.

    Its path is absolute if the images are there, or if they are not in the current folder either.
    Otherwise they are looked up in the current folder, as the name says.
    """
    if directory is None or not is_relative(path_of(name)):
        return name
    there, here = below(name, directory), below(name, Path.cwd())
    return name if there == here or (_exists(here) and not _exists(there)) else there


def same_place(one: str, other: str) -> bool:
    """Return True if two names of data sets mean the same files."""
    if one == other:
        return True
    kinds = {name.partition(":")[0] for name in (one, other)}
    paths = [path_of(one), path_of(other)]
    return len(kinds) == 1 and all(paths) and absolute(paths[0]) == absolute(paths[1])


def _exists(name: str) -> bool:
    """Return True if the path in a name exists; of shards, the folder of the pattern."""
    path = Path(path_of(name))
    if name.startswith("webdataset:"):
        path = Path(*takewhile(lambda part: not PATTERN & set(part), path.parts))
    return path.exists()
