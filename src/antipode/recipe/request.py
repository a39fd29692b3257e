"""The values that a user gives for a recipe: a named recipe or a file, options and overrides."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from antipode.early import PREFIXES, data_sets
from antipode.names import LONGEST, brief, closest
from antipode.papers import arguments, default_method, methods
from antipode.paths import expanded
from antipode.recipe.check import check_backbone_name, check_data
from antipode.recipe.layer import Default, Derived, Given, Layer, with_source
from antipode.recipe.listed import by_name, list_recipes, variants
from antipode.recipe.origin import rooted
from antipode.recipe.parsing import check_key, convert, read_json, settings
from antipode.recipe.recipe import Recipe, layer_of, old_name
from antipode.recipe.schema import fields
from antipode.wording import from_command_line, option

# arguments, and flags of the command line, for keys of a recipe
FLAGS = {
    "method.name": "method",
    "data.name": "data",
    "data.labels": "labels",
    "backbone.name": "backbone",
    "train.epochs": "epochs",
    "train.batch": "batch",
    "train.seed": "seed",
    "train.device": "device",
    "train.precision": "precision",
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
    by_key = option("set") if from_command_line() else "overrides"
    asked = with_source(Given(by_key), settings(overrides))
    for key, value in {"method.name": method, "data.name": data, **(flags or {})}.items():
        if value is None:
            continue
        if key in asked and str(asked[key][0]) != str(value):
            flag = option(FLAGS[key]) if key in FLAGS else key
            other = str(asked[key][0])[:LONGEST]
            raise ValueError(
                f"{key} is given twice: {str(value)[:LONGEST]} by {flag} and {other} by {by_key}"
            )
        asked[key] = value, Given(option(FLAGS[key]) if key in FLAGS else by_key)
    _check_method(given, asked, name)
    request = Request(_lasting(given, asked) if asked else given, asked, name)
    _check_request(request)
    return request


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
            if recipe.startswith(PREFIXES) or recipe in data_sets():
                raise ValueError(
                    f"{brief(recipe)} is a data set and not a recipe: name a method as the recipe, "
                    f"and set data.name={recipe}"
                )
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
    layer, name = _of_content(read_json(path), path.name if path.is_file() else "recipe.json")
    return rooted(layer, path), name


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
