"""One room per paper: its methods, recipes, views, protocols, analyses, tables and figures.

A room is a module of this package, or a package with one file per kind of content. The rest of
antipode does not know any paper by name: it calls `collect`, which looks into this folder. To add a
method, add one file here (docs/methods/add-a-method.md).

| what            | file of a package room | content                                   |
| `METHODS`       | `method.py`            | method name -> `Method`                   |
| `RECIPES`       | `recipe.py`            | recipe name -> `recipe.layer.Variant`     |
| `POLICIES`      | `views.py`             | policy name -> function that returns views |
| `PROTOCOLS`     | `protocols.py`         | protocol name -> `evaluation.task.Protocol` |
| `ANALYSES`      | `analyses.py`          | analysis name -> `analysis.catalog.Analysis` |
| `ITEMS`         | `tables.py`            | item name -> `reproduction.item.Item`     |
| `NETWORKS`      | `networks.py`          | kind of network -> function that returns settings |
"""

import inspect
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch
from torch import nn

from antipode.core.learner import Learner
from antipode.limits import LIMITS, check_limit
from antipode.names import check_name, did_you_mean
from antipode.nets.backbone import Stem
from antipode.nets.backbone import backbone as make_backbone
from antipode.recipe.layer import Layer, RecipeContext
from antipode.recipe.schema import argument_fields
from antipode.types import fitted

FILES = {
    "METHODS": "method",
    "RECIPES": "recipe",
    "POLICIES": "views",
    "PROTOCOLS": "protocols",
    "ANALYSES": "analyses",
    "ITEMS": "tables",
    "NETWORKS": "networks",
}


@dataclass(frozen=True, kw_only=True)
class Method:
    """A method of a paper.

    Args:
        build: function from a backbone to a `Learner`. Its keyword-only arguments, with their
            annotations and defaults, are the arguments of the method, and its docstring describes
            the method.
        recipe: function from a `RecipeContext` to the values that the method is trained with.
        lengths: for some data sets, the network, epochs and batch size of the paper's experiments.
        listed: whether `dataset.method` is a listed recipe for every data set.
        default: whether it is the method of a recipe that names none; exactly one method is.
    """

    build: Callable[..., Learner]
    recipe: Callable[[RecipeContext], Layer]
    lengths: Mapping[str, Layer] = field(default_factory=dict)
    listed: bool = True
    default: bool = False


@cache
def collect(kind: str) -> Mapping[str, Any]:
    """Return the dictionaries called `kind` (a key of `FILES`) of all rooms as one."""
    content: dict[str, Any] = {}
    for room in pkgutil.iter_modules(__path__):
        name = f"{__name__}.{room.name}"
        if room.ispkg:
            name = f"{name}.{FILES[kind]}"
            if find_spec(name) is None:
                continue
        for key, value in getattr(import_module(name), kind, {}).items():
            if key in content:
                raise ValueError(f"two papers define {key!r} in their {kind}")
            content[key] = value
    return content


def methods() -> Mapping[str, Method]:
    """Return all methods by name."""
    return collect("METHODS")


def method(name: str) -> Method:
    """Return a method by name."""
    check_name("method", name, methods())
    return methods()[name]


def list_methods() -> list[str]:
    """Return the names that `build` takes."""
    return list(methods())


def default_method() -> str:
    """Return the method of a recipe that names none."""
    return next(name for name, one in methods().items() if one.default)


def arguments(name: str) -> dict[str, inspect.Parameter]:
    """Return the arguments of a method, which are the keyword-only parameters of its function."""
    return argument_fields(method(name).build)


def build(
    method: str,
    backbone: str | nn.Module = "resnet50",
    *,
    stem: Stem | None = None,
    channels: int = 3,
    seed: int = 0,
    **arguments: Any,
) -> Learner:
    """Build the learner of a method, for your own training loop.

    Args:
        method: name of the method.
        backbone: name of a network, or your own module from images (N,C,H,W) to features (N,D).
        stem: first layers of a ResNet: "imagenet" (7x7, stride 2, max pool; the default), "half"
            (3x3, stride 2) or "small" (3x3, stride 1).
        channels: number of channels of the images.
        seed: seed of what the learner draws while it trains (noise, subsets, shuffles). The weights
            are drawn from torch's global generator.
        **arguments: arguments of the method.

    A training loop is:

        for batch in batches:                               # antipode.types.Batch(views, image_ids)
            learner.before_step(progress)                   # in [0,1]
            out = learner(batch)
            out.loss.backward()
            optimiser.step(); optimiser.zero_grad()         # over learner.param_groups()
            learner.after_step(out)
    """
    chosen = _checked(method, arguments)
    net = make_backbone(backbone, stem=stem, channels=channels)
    learner = methods()[method].build(net, **chosen).reseed(seed)
    # a backbone in eval mode would keep its running statistics, and so would its copy, the twin
    return learner.train()


def sketch(method: str, arguments: Mapping[str, Any]) -> Learner:
    """Build a learner on torch's meta device, to read its traits and to check its arguments.

    It holds no numbers, so it costs next to nothing. The backbone is a stand-in with 512 features.
    """
    net = nn.Flatten()
    net.width = 512  # type: ignore[assignment]
    with torch.device("meta"):
        return methods()[method].build(net, **arguments)


def _checked(name: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a method, converted to the kinds that its signature asks for."""
    known = arguments(name)
    for key in given:
        if key not in known:
            raise ValueError(f"method {name} has no argument {key!r}{did_you_mean(key, known)}")
    chosen = {
        key: fitted(f"{name}'s {key}", value, known[key].annotation) for key, value in given.items()
    }
    for key, value in chosen.items():
        if key in LIMITS:
            check_limit(f"{name}'s {key}", key, value)
    return chosen
