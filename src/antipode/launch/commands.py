"""Plain commands for schedulers that antipode does not know, as `--plan` prints them.

Their paths are absolute, so that they can be called in any folder.
"""

import os
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from antipode import dist
from antipode.data.sources.located import below
from antipode.launch.place import Asked
from antipode.launch.place import resources as wanted
from antipode.paths import absolute
from antipode.recipe.listed import by_name
from antipode.recipe.origin import PATHS, recorded
from antipode.recipe.parsing import settings
from antipode.recipe.request import Request, requested
from antipode.training.pretrain import run_folder


def plain_command(command: str, recipe: str | None, arguments: Mapping[str, Any]) -> str:
    """Return a command line with the arguments that have a value, as a shell takes it.

    Paths in a recipe file that are relative become arguments.
    """
    words = ["antipode", command, *([absolute_recipe(recipe)] if recipe else [])]
    for name, value in _anywhere(recipe, arguments).items():
        if name == "overrides":
            words += [word for key in value for word in ("--set", f"{key}={value[key]}")]
        elif value is True:
            words.append(f"--{name}")
        elif value is not None and value is not False:
            words += [f"--{name}", str(value)]
    return shlex.join(words)


def _anywhere(recipe: str | None, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return arguments of `pretrain` that mean the same in any folder."""
    overrides = settings(arguments.get("overrides") or ())
    request = requested(
        recipe, method=arguments.get("method"), data=arguments.get("data"), overrides=overrides
    )
    paths = relative_paths(recipe, request)
    given = dict(arguments)
    if arguments.get("data") and "data.name" in paths:
        given["data"] = paths.pop("data.name")
    if "out" in given:  # the default has the name of the data set in it, as the user has written it
        given["out"] = absolute(given["out"] or run_folder(request, None).path)
    return given | {"overrides": overrides | paths}


def relative_paths(recipe: Any, request: Request) -> dict[str, str]:
    """Return the values of a request that are relative paths, with absolute ones, by dotted key.

    The recipe in a run folder needs none: where its paths start is recorded beside it.
    """
    file = _file(recipe)
    stated = request.asked if file and recorded(file) == Path.cwd() else request.values
    values = {key: stated[key][0] for key in ("data.name", *PATHS) if key in stated}
    return {
        key: _absolute(key, value)
        for key, value in values.items()
        if isinstance(value, str) and _absolute(key, value) != value
    }


def absolute_recipe(recipe: str | Path) -> str:
    """Return the name of a recipe, or the absolute path of a recipe file."""
    return str(_file(recipe) or recipe)


def _file(recipe: Any) -> Path | None:
    """Return the absolute path of a recipe file or a run folder, None for other recipes."""
    if not isinstance(recipe, str | Path) or (isinstance(recipe, str) and by_name(recipe)):
        return None
    return absolute(recipe)


def _absolute(key: str, value: str) -> str:
    """Return a value of the recipe; the path in it, if it has one, is absolute."""
    if key == "data.name":
        return below(value, Path.cwd())
    return value if value == "torchvision" else str(absolute(value))


def ranked(line: str, resources: Asked = None) -> str:
    """Return a line in which the command runs with as many processes as the resources ask for.

    If they ask for no number of processes or GPUs, the line has as many as torchrun has started
    here. With several nodes, HOST stands for the name of the first one.
    """
    asked = wanted(resources)
    ranks, nodes = asked.ranks, asked.nodes
    if ranks == 1 and asked.gpus is None and asked.processes is None:
        ranks = dist.world_size()
        nodes = ranks // int(os.environ.get("LOCAL_WORLD_SIZE", ranks))
    if ranks == 1:
        return line
    words = f"torchrun --nnodes {nodes} --nproc-per-node {ranks // nodes}"
    if nodes > 1:
        words += " --rdzv-backend c10d --rdzv-endpoint HOST:29500"
    return line.replace("antipode pretrain", f"{words} -m antipode pretrain", 1)
