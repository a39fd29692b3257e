"""The settings that `pretrain` would use, for display."""

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from antipode.data.sources.catalog import load
from antipode.recipe.recipe import Recipe
from antipode.recipe.resolve import Request, requested, resolve


def shown_recipe(
    recipe: str | None, method: str | None, data: str | None, overrides: Sequence[str]
) -> list[tuple[str, Any, str]]:
    """Return key, value and source text of every setting that `pretrain` would use.

    For a run folder without other arguments, these are the settings of that run.
    """
    if recipe is None and method is None and data is None:
        raise ValueError("Missing argument 'recipe': give a recipe, or --method and --data instead")
    file = Path(recipe or "") / "recipe.json"
    if recipe is not None and file.exists() and not (method or data or overrides):
        return Recipe.read(file).show()
    source = file if recipe is not None and file.exists() else recipe
    request = requested(source, method=method, data=data, overrides=overrides)
    return resolve(request, images=_count(request)).show()


def _count(request: Request) -> int | None:
    """Return the number of images of a data set that is not built in.

    Returns None for built-in data sets, and with a warning for data that cannot be opened.
    """
    if ":" not in request.data:
        return None
    try:
        return len(load(request.data, request.get("data.root")).pretrain)
    except (ValueError, OSError) as error:
        warnings.warn(
            "the number of images is unknown, so the size of a queue or bank may differ in "
            f"training ({error})",
            stacklevel=2,
        )
        return None
