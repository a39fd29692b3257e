"""Resolve a recipe: the user's values, on top of those that papers and data sets suggest.

`request.requested` reads the user's values. `resolve` adds all other values, once for each new run.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from antipode.nets.weight_file import About, about
from antipode.papers import arguments, collect, methods, sketch
from antipode.paths import expanded
from antipode.recipe.check import check_recipe, check_size
from antipode.recipe.datasets import DATASETS, dataset_defaults, stands_for
from antipode.recipe.derived import derive
from antipode.recipe.layer import (
    DatasetDefaults,
    Default,
    Given,
    Layer,
    RecipeContext,
    stack,
    with_source,
)
from antipode.recipe.listed import variants
from antipode.recipe.own_data import OwnData, intervals, own_defaults
from antipode.recipe.parsing import check_key, convert
from antipode.recipe.recipe import Recipe, argument_owner, assemble, schema
from antipode.recipe.request import Request, requested
from antipode.schedule import scaled

LENGTH = ("train.batch", "train.epochs")


def resolve(
    recipe: "str | Path | Mapping[str, Any] | Recipe | Request | None" = None,
    *,
    method: str | None = None,
    data: str | None = None,
    overrides: Mapping[str, Any] | Sequence[str] = (),
    flags: Mapping[str, Any] | None = None,
    images: int | Callable[[], int] | None = None,
    own: OwnData | None = None,
) -> Recipe:
    """Return the complete recipe for the values that a user gave.

    The arguments are those of `requested`; `recipe` can also be its result. `images` is the number
    of images of a data set that is not built in, since some values depend on it. It can be a
    function that counts the images, which is called only if the request is valid. `own` describes
    data that has no recipe of its own, so that its defaults suit it (see `own_data`). Without
    `own`, such data gets ImageNet's settings.
    """
    if isinstance(recipe, Request):
        request = recipe
    else:
        request = requested(recipe, method=method, data=data, overrides=overrides, flags=flags)
    context = _context(request, images() if callable(images) else images, own)
    suggested = _suggested(context, request.name)
    if own is not None and context.batch:
        suggested |= intervals(own, context.batch, context.epochs)
    if "views.policy" in request.values:  # its arguments differ from those of the suggested policy
        suggested = {
            key: value
            for key, value in suggested.items()
            if not key.startswith("views.") or key == "views.size"
        }
    names = {"method.name": request.method, "data.name": request.data}
    values = suggested | with_source(Default("default"), names) | request.values
    kinds, defaults = schema(str(values["method.name"][0]), str(values["views.policy"][0]))
    for key in request.values:
        check_key(key, kinds, argument_owner(key, values))
    converted = {
        key: (convert(key, value, kinds[key]), source)
        for key, (value, source) in (defaults | values).items()
    }
    learner = sketch(request.method, _method_arguments(converted))
    check_size(request.method, learner)
    final = derive(converted, request.values, request.asked, learner)
    replaced = _replaced(request, defaults | suggested, final)
    result = assemble({key: final[key] for key in kinds if key in final}, request.name, replaced)
    check_recipe(result, learner.views)
    return result


def _method_arguments(values: Layer) -> dict[str, Any]:
    """Return the values of the method's arguments, by name."""
    return {
        key.removeprefix("method."): value
        for key, (value, _) in values.items()
        if key.startswith("method.") and key != "method.name"
    }


def _replaced(request: Request, usual: Layer, final: Layer) -> dict[str, Any]:
    """Return the values that would have been used if the user had not given others."""
    return {
        key: usual[key][0]
        for key in request.values
        if key in usual
        and key in final
        and usual[key][0] != final[key][0]
        # the decision about labels is added to a request, and not given by the user
        and (key != "data.labels" or isinstance(request.values[key][1], Given))
    }


def rescaled(recipe: Recipe) -> str | None:
    """Return a sentence on the scaled learning rates, or None if the user gave no batch size."""
    if not isinstance(recipe.sources.get("train.batch"), Given):
        return None
    batch = recipe.train.batch
    views = views_needed(recipe.method.name, recipe.method.arguments)
    several = len(recipe.optim) > 1
    rates = [
        f"{scaled(group.lr, group.rule, batch, views):.4g} "
        f"({f'{name}, ' if several else ''}{group.rule} rule)"
        for name, group in recipe.optim.items()
    ]
    fixed = all(group.rule == "fixed" for group in recipe.optim.values())
    verb = "stays" if fixed else "scaled to"
    return f"Batch size {batch}: learning rate {verb} {', '.join(rates)}."


def views_needed(method: str, arguments: Mapping[str, Any] | None = None) -> int:
    """Return the number of views of each image that a method takes."""
    return sketch(method, arguments or {}).views


def _suggested(context: RecipeContext, name: str) -> Layer:
    """Return the values that data set, method, network and named recipe suggest."""
    variant = variants().get(name)
    own_length = {key: context.dataset.layer[key] for key in LENGTH} if context.batch else {}
    return stack(
        _length(context.dataset, context.data, context.method),
        methods()[context.method].recipe(context),
        own_length,  # a method's batch size for a published data set does not suit other data
        *(layer(context) for layer in collect("NETWORKS").values()),
        variant.layer(context) if variant else {},
    )


def _length(dataset: DatasetDefaults, data: str, method: str) -> Layer:
    """Return network, view size, epochs and batch size, which do not depend on the context."""
    return stack(dataset.layer, methods()[method].lengths.get(data, {}))


def _context(request: Request, images: int | None, own: OwnData | None) -> RecipeContext:
    """Return what the values that papers suggest may depend on."""
    data = stands_for(request.data)
    takes = arguments(request.method)
    given = {
        name: convert(f"method.{name}", value, takes[name].annotation)
        for name, value in _method_arguments(request.values).items()
    }
    suited = None if data in DATASETS else own
    if suited is None:
        dataset = dataset_defaults(data)
    else:
        dataset = own_defaults(suited, _decisive(request), _stated(request))
    usual = _length(dataset, data, request.method)
    epochs = request.get("train.epochs") or usual["train.epochs"][0]
    batch = request.get("train.batch") or usual["train.batch"][0]
    backbone = str(request.get("backbone.name", usual["backbone.name"][0]))
    count = dataset.images if images is None else images
    least = 0 if suited is None else int(batch)
    return RecipeContext(request.method, data, dataset, given, int(epochs), count, backbone, least)


def _decisive(request: Request) -> dict[str, Any]:
    """Return the values that the user gave and that the defaults of `own_data` depend on."""
    keys = ("backbone.name", "backbone.weights", "views.size", *LENGTH)
    return {key: request.get(key) for key in keys if key in request.values}


def _stated(request: Request) -> About:
    """Return what the file of the weights to start from says about its network."""
    weights = request.get("backbone.weights")
    if not weights or weights == "torchvision":
        return About()
    try:
        return about(expanded(weights))
    except (ValueError, OSError):  # reported when the weights are loaded
        return About()
