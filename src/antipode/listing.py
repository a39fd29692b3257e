"""The names of methods, recipes, data sets and so on, each with a description."""

from collections.abc import Callable, Mapping

from antipode.analysis.catalog import analyses
from antipode.data.sources.catalog import summaries
from antipode.evaluation.protocol import protocols
from antipode.names import unknown
from antipode.nets.backbone import RESNETS
from antipode.papers import methods
from antipode.recipe.listed import by_name
from antipode.recipe.listed import list_recipes as recipe_names
from antipode.reproduction.catalog import items


def _methods() -> dict[str, str]:
    """Return the methods, each with the first line of its docstring."""
    return {name: (method.build.__doc__ or "").split("\n")[0] for name, method in methods().items()}


def _recipes() -> dict[str, str]:
    """Return the listed recipes, each with its method and data set."""
    contents = {name: by_name(name) or {} for name in recipe_names()}
    return {
        name: f"{content.get('method.name')} on {content.get('data.name')}"
        for name, content in contents.items()
    }


def _backbones() -> dict[str, str]:
    """Return the networks, each with its size."""
    rows = {
        name: f"{sum(shape.layers)} blocks, width {shape.width}" for name, shape in RESNETS.items()
    }
    return rows | {
        "timm:NAME": "any model of timm, with arguments as NAME?img_size=64,... (extra `timm`)"
    }


KINDS: Mapping[str, Callable[[], dict[str, str]]] = {
    "methods": _methods,
    "recipes": _recipes,
    "datasets": summaries,
    "protocols": lambda: {name: protocol.about for name, protocol in protocols().items()},
    "analyses": lambda: {name: analysis.about for name, analysis in analyses().items()},
    "items": lambda: {name: item.question for name, item in items().items()},
    "backbones": _backbones,
}


def list_names(what: str) -> dict[str, str]:
    """Return the names of one kind (a key of `KINDS`), each with a description of one line."""
    if what not in KINDS:
        raise unknown("list of", what, KINDS, 0.7)
    return KINDS[what]()


def list_recipes() -> list[str]:
    """Return the names of the listed recipes, which `pretrain` takes."""
    return recipe_names()


def list_datasets() -> list[str]:
    """Return the names of the data sets, and the prefixes for your own data such as `folder:`."""
    return list(summaries())


def list_protocols() -> list[str]:
    """Return the names of the evaluation protocols."""
    return list(protocols())
