"""The settings that `pretrain` would use, for display."""

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from antipode.recipe.opening import open_data, open_recipe
from antipode.recipe.recipe import Recipe
from antipode.recipe.request import Request, requested
from antipode.recipe.resolve import resolve
from antipode.wording import option


def shown_recipe(
    recipe: str | None,
    method: str | None,
    data: str | None,
    overrides: Sequence[str],
    flags: Mapping[str, Any] | None = None,
) -> list[tuple[str, Any, str]]:
    """Return key, value and source text of every setting that `pretrain` would use.

    For a run folder without other arguments, these are the settings of that run. `flags` are values
    that have their own option, by dotted key; None means that the option was not given.
    """
    given = {key: value for key, value in (flags or {}).items() if value is not None}
    if recipe is None and method is None and data is None:
        raise ValueError(
            f"Missing argument 'recipe': give a recipe, or {option('method')} and "
            f"{option('data')} instead"
        )
    file = Path(recipe or "") / "recipe.json"
    if recipe is not None and file.exists() and not (method or data or overrides or given):
        return Recipe.read(file).show()
    source = file if recipe is not None and file.exists() else recipe
    request = requested(source, method=method, data=data, overrides=overrides, flags=given)
    return _resolved(request).show()


def _resolved(request: Request) -> Recipe:
    """Return the recipe of a request. Warns if its data cannot be opened."""
    if ":" not in request.data:
        return resolve(request)
    try:
        splits, settled = open_data(request)
    except (ValueError, OSError) as error:
        warnings.warn(
            "the images are unknown, so network, view size, batch size and epochs may differ in "
            f"training ({error})",
            stacklevel=2,
        )
        return resolve(request)
    return open_recipe(settled, splits)
