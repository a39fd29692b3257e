"""Resolve a recipe: the user's values, on top of those that papers and data sets suggest.

`requested` reads the user's values. `resolve` adds all other values, once for each new run.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from antipode.names import LONGEST, brief, closest
from antipode.papers import arguments, default_method, methods, sketch
from antipode.paths import expanded
from antipode.recipe.check import check_backbone_name, check_data, check_recipe, check_size
from antipode.recipe.datasets import dataset_defaults, stands_for
from antipode.recipe.derived import derive
from antipode.recipe.layer import (
    Default,
    Derived,
    Given,
    Layer,
    RecipeContext,
    stack,
    with_source,
)
from antipode.recipe.listed import by_name, list_recipes, variants
from antipode.recipe.parsing import check_key, convert, read_json, settings
from antipode.recipe.recipe import Recipe, argument_owner, assemble, layer_of, old_name, schema
from antipode.recipe.schema import fields
from antipode.schedule import scaled

# options of the command line for keys of a recipe
FLAGS = {
    "method.name": "--method",
    "data.name": "--data",
    "backbone.name": "--backbone",
    "train.epochs": "--epochs",
    "train.batch": "--batch",
    "train.seed": "--seed",
    "train.device": "--device",
    "train.precision": "--precision",
}


class Request(NamedTuple):
    """The values that a user gave.

    Args:
        given: values of the recipe that the user named.
        asked: values that the user gave on top of it, by options or overrides.
        name: name of the listed recipe; empty if there is none.
    """

    given: Layer
    asked: Layer
    name: str = ""

    @property
    def values(self) -> Layer:
        """The values of both layers."""
        return self.given | self.asked

    @property
    def method(self) -> str:
        """The name of the method."""
        return str(self.get("method.name", default_method()))

    @property
    def data(self) -> str:
        """The name of the data set."""
        return str(self.get("data.name", "shapes"))

    def get(self, key: str, default: Any = None) -> Any:
        """Return a value that the user gave, converted to its type.

        Otherwise return `default`. If `default` is None, return the default of the schema.
        """
        kind, schema_default = fields()[key]
        if key not in self.values:
            return schema_default if default is None and schema_default is not ... else default
        return convert(key, self.values[key][0], kind)


def requested(
    recipe: "str | Path | Mapping[str, Any] | Recipe | None" = None,
    *,
    method: str | None = None,
    data: str | None = None,
    overrides: Mapping[str, Any] | Sequence[str] = (),
    flags: Mapping[str, Any] | None = None,
) -> Request:
    """Read the values that a user gave, and check their names.

    Args:
        recipe: `dataset.method`, a method, a file, a run folder or a mapping.
        method: name of the method.
        data: name of the data set.
        overrides: values on top of the recipe, by dotted key or as texts `section.key=value`.
        flags: values on top of the recipe that have their own option on the command line, by dotted
            key. None means that the option was not given.

    Raises:
        ValueError: with one sentence, for wrong input.
    """
    given, name = _given(recipe)
    asked = with_source(Given("--set"), settings(overrides))
    for key, value in {"method.name": method, "data.name": data, **(flags or {})}.items():
        if value is None:
            continue
        if key in asked and str(asked[key][0]) != str(value):
            flag = FLAGS.get(key, key)
            other = str(asked[key][0])[:LONGEST]
            raise ValueError(
                f"{key} is given twice: {str(value)[:LONGEST]} by {flag} and {other} by --set"
            )
        asked[key] = value, Given(FLAGS.get(key, "--set"))
    _check_method(given, asked, name)
    request = Request(_lasting(given, asked) if asked else given, asked, name)
    _check_request(request)
    return request


def resolve(
    recipe: "str | Path | Mapping[str, Any] | Recipe | Request | None" = None,
    *,
    method: str | None = None,
    data: str | None = None,
    overrides: Mapping[str, Any] | Sequence[str] = (),
    flags: Mapping[str, Any] | None = None,
    images: int | Callable[[], int] | None = None,
) -> Recipe:
    """Return the complete recipe for the values that a user gave.

    The arguments are those of `requested`; `recipe` can also be its result. `images` is the number
    of images of a data set that is not built in, since some values depend on it. It can be a
    function that counts the images, which is called only if the request is valid.
    """
    if isinstance(recipe, Request):
        request = recipe
    else:
        request = requested(recipe, method=method, data=data, overrides=overrides, flags=flags)
    context = _context(request, images() if callable(images) else images)
    suggested = _suggested(context, request.name)
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
        if key in usual and key in final and usual[key][0] != final[key][0]
    }


def rescaled(recipe: Recipe) -> str | None:
    """Return a sentence on the scaled learning rates, or None if the user gave no batch size."""
    if not isinstance(recipe.sources.get("train.batch"), Given):
        return None
    batch = recipe.train.batch
    views = views_needed(recipe.method.name, recipe.method.arguments)
    rates = [
        f"{scaled(group.lr, group.rule, batch, views):.4g} ({name}, {group.rule} rule)"
        for name, group in recipe.optim.items()
    ]
    return f"Batch size {batch}: learning rate scaled to {', '.join(rates)}."


def views_needed(method: str, arguments: Mapping[str, Any] | None = None) -> int:
    """Return the number of views of each image that a method takes."""
    return sketch(method, arguments or {}).views


def _suggested(context: RecipeContext, name: str) -> Layer:
    """Return the values that the data set, the method and the named recipe suggest."""
    variant = variants().get(name)
    return stack(
        _length(context.data, context.method),
        methods()[context.method].recipe(context),
        variant.layer(context) if variant else {},
    )


def _length(data: str, method: str) -> Layer:
    """Return network, view size, epochs and batch size, which do not depend on the context."""
    return stack(dataset_defaults(data).layer, methods()[method].lengths.get(data, {}))


def _given(recipe: Any) -> tuple[Layer, str]:
    """Return the values of a recipe, and the name of the listed recipe that it is based on."""
    if recipe is None:
        return {}, ""
    if isinstance(recipe, Recipe):
        return recipe.layer(), recipe.name
    if isinstance(recipe, Mapping):
        return _of_content(recipe, "recipe")
    if isinstance(recipe, str):
        named = by_name(recipe)
        if named is not None:
            return with_source(recipe, named), recipe
        if not recipe or not (Path(recipe).exists() or "/" in recipe or recipe.endswith(".json")):
            match = closest(recipe, [*list_recipes(), *methods()])
            hint = f", did you mean {match!r}?" if match else ""
            raise ValueError(
                f"there is no recipe {brief(recipe)}{hint} "
                "(a recipe is dataset.method, a method or a file)"
            )
    if not isinstance(recipe, str | Path):
        raise ValueError(
            f"a recipe must be a name, a file or a mapping, not {type(recipe).__name__}"
        )
    path = expanded(recipe)
    return _of_content(read_json(path), path.name if path.is_file() else "recipe.json")


def _of_content(content: Mapping[str, Any], label: str) -> tuple[Layer, str]:
    """Return the values of a JSON object and the name of the recipe in it."""
    layer = layer_of(content, label)
    return layer, str(content.get("name", "")) or old_name(layer)


def _check_method(given: Layer, asked: Layer, name: str) -> None:
    """Raise ValueError if the user asks for another method than the one the recipe was made for."""
    if "method.name" not in given:
        return
    before = given["method.name"][0]
    after = asked.get("method.name", given["method.name"])[0]
    has_settings = name in variants() or any(
        key.startswith(("method.", "views.", "optim.")) for key in given if key != "method.name"
    )
    if has_settings and after != before:
        raise ValueError(
            f"this recipe is for method {before}, and its settings do not fit {after}: "
            "leave out the recipe"
        )


def _lasting(given: Layer, asked: Layer) -> Layer:
    """Return the values of a recipe that stay valid when the values in `asked` are put on top.

    Values that are derived from others are left out, since they are computed again.
    """
    policy = given.get("views.policy")
    new_policy = "views.policy" in asked or (policy is not None and isinstance(policy[1], Derived))
    return {
        key: (value, source)
        for key, (value, source) in given.items()
        if not isinstance(source, Derived)
        # another policy has other defaults
        and not (new_policy and key.startswith("views.") and isinstance(source, Default))
    }


def _check_request(request: Request) -> None:
    """Raise ValueError for wrong names and values that can be found before resolving the recipe."""
    takes = {f"method.{name}": p.annotation for name, p in arguments(request.method).items()}
    check_data(request.data)
    known = {key: kind for key, (kind, _) in fields().items()} | takes
    for key, (value, _) in request.values.items():
        if key.startswith("views."):
            continue  # the keys depend on the policy, which may not be known yet
        check_key(key, known, f"method {request.method}")
        convert(key, value, known[key])
    if "backbone.name" in request.values:
        check_backbone_name(str(request.get("backbone.name")))


def _context(request: Request, images: int | None) -> RecipeContext:
    """Return what the values that papers suggest may depend on."""
    data = stands_for(request.data)
    takes = arguments(request.method)
    given = {
        name: convert(f"method.{name}", value, takes[name].annotation)
        for name, value in _method_arguments(request.values).items()
    }
    epochs = request.get("train.epochs") or _length(data, request.method)["train.epochs"][0]
    dataset = dataset_defaults(data)
    count = dataset.images if images is None else images
    return RecipeContext(request.method, data, dataset, given, int(epochs), count)
