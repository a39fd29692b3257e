"""Perform tasks on a Ray cluster."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from antipode.data.sources.catalog import Given
from antipode.launch.place import Resources
from antipode.launch.task import Task
from antipode.runs.run import Run
from antipode.types import Features

NOT_YET = "a Ray cluster is not supported yet"


def perform_on_ray(
    tasks: Sequence[Task], *, address: str, resources: Resources, quiet: bool = False
) -> dict[Path, str]:
    """Perform tasks on a Ray cluster; return the folders of those that failed, with a sentence."""
    raise ValueError(NOT_YET)


def embed_on_ray(
    run: Run, data: Given, out: Path | None, *, address: str, resources: Resources
) -> Features:
    """Return the features of a data set, computed by the nodes of a Ray cluster.

    They are written to `out` if it is given. The result equals that of one process.
    """
    raise ValueError(NOT_YET)


def pack_on_ray(
    data: Any, home: Path, options: Mapping[str, Any], *, address: str, resources: Resources
) -> Path:
    """Pack a data set into the folder `home` by the nodes of a Ray cluster, and return it.

    `options` are keyword arguments of `data.sources.pack.pack`. The result equals that of one
    process.
    """
    raise ValueError(NOT_YET)
