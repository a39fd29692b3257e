"""The folder in which a run was started: the relative paths of its recipe start there."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from antipode import json_text
from antipode.data.sources.located import located
from antipode.recipe.layer import Layer

PATHS = ("data.root", "backbone.weights")  # keys whose values are paths


def directory(environment: Mapping[str, Any]) -> Path | None:
    """Return the folder in which a run was started, by its env.json; None if it is not stored."""
    text = environment.get("directory")
    return Path(text) if isinstance(text, str) and Path(text).is_absolute() else None


def located_path(path: str, home: Path | None) -> str:
    """Return a path in the recipe of a run that was started in `home`, as `located` does."""
    return located(f"folder:{path}", home).removeprefix("folder:")


def rooted(layer: Layer, recipe: Path) -> Layer:
    """Return the values of a recipe file, or of a run folder, with paths that are valid here.

    Nothing changes in the folder in which the run was started, or if no run recorded one.
    """
    home = recorded(recipe)
    return {key: (_rooted(key, value, home), source) for key, (value, source) in layer.items()}


def _rooted(key: str, value: Any, home: Path | None) -> Any:
    if not isinstance(value, str):
        return value
    if key == "data.name":
        return located(value, home)
    return located_path(value, home) if key in PATHS and value != "torchvision" else value


def recorded(recipe: Path) -> Path | None:
    """Return the folder in which the run of a recipe file, or of a run folder, was started.

    None if the file is not in a run folder, or if the run did not record it.
    """
    folder = recipe if recipe.is_dir() else recipe.parent
    try:
        content = json_text.read(folder / "env.json")
    except (OSError, ValueError):  # a recipe needs no env.json
        return None
    return directory(content) if isinstance(content, dict) else None
