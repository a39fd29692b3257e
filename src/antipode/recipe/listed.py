"""The names of recipes."""

from collections.abc import Mapping
from functools import cache

from antipode.papers import collect, methods
from antipode.recipe.datasets import DATASETS, LISTED
from antipode.recipe.layer import Variant


@cache
def variants() -> Mapping[str, Variant]:
    """Return the recipes that papers define beside `dataset.method`, by name.

    An example is a paper's own settings for small images.
    """
    return collect("RECIPES")


def list_recipes() -> list[str]:
    """Return the names of all listed recipes.

    Data sets that are not listed can be combined with every method as well.
    """
    names = [name for name, method in methods().items() if method.listed]
    plain = [f"{data}.{name}" for data in LISTED for name in names]
    return [*plain, *variants()]


def by_name(recipe: str) -> dict[str, str] | None:
    """Return the method and the data set of a recipe name, or None if there is no such recipe.

    The name of a method alone is a recipe without a data set.
    """
    data, dot, method = recipe.partition(".")
    variant = variants().get(recipe)
    if variant is not None:
        return {"method.name": variant.method, "data.name": variant.data}
    if data in DATASETS and method in methods():
        return {"method.name": method, "data.name": data}
    return {"method.name": data} if not dot and data in methods() else None
