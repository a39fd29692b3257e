"""The recipe of a run: all of its settings, each with the source of its value.

This module reads, writes and compares recipes. Reading a recipe validates it and does not compute
any value; `antipode.recipe.resolve` computes values.
"""

import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from pydantic import Field

from antipode.data.views.policy import policies
from antipode.files import atomic_write
from antipode.names import brief, unknown
from antipode.papers import arguments
from antipode.recipe.layer import Default, Derived, Given, Layer, Source
from antipode.recipe.listed import list_recipes
from antipode.recipe.parsing import check_key, convert, flatten, nest, read_json
from antipode.recipe.schema import (
    GROUPS,
    SECTIONS,
    Backbone,
    Data,
    Group,
    Method,
    Monitor,
    Section,
    Train,
    Views,
    argument_fields,
    fields,
)

# keys of recipe.json that are not sections
ABOUT = ("format", "name", "sources", "kinds", "replaced")
# version of recipe.json; version 1 stored neither its number nor the kinds of sources
FORMAT = 2
# keys that may change when a run resumes, since the trained weights do not depend on them
HARMLESS = (
    *("data.root", "data.download", "data.workers"),
    *("train.device", "train.checkpoint_every", "train.keep", "train.on_collapse"),
    "train.checkpoint_steps",
    *(f"monitor.{name}" for name in Monitor.model_fields),
)


class Recipe(Section):
    """All settings of a run. Recipes are equal if their values are equal; sources are not compared.

    Args:
        sources: source of each value, by dotted key.
        name: the listed recipe that this one is based on; empty if there is none.
        replaced: for values that the user gave, the values that would have been used otherwise.
    """

    method: Method
    backbone: Backbone
    data: Data
    views: Views
    optim: dict[str, Group]  # one entry per parameter group of the method
    train: Train
    monitor: Monitor
    sources: dict[str, Source] = Field(default_factory=dict)
    name: str = ""
    replaced: dict[str, Any] = Field(default_factory=dict)

    def leaves(self) -> dict[str, Any]:
        """Return the values by dotted key, in the order of the sections."""
        sections = {name: _pairs(value) for name, value in self if isinstance(value, Section)}
        groups = {name: _pairs(group) for name, group in self.optim.items()}
        return flatten({name: groups if name == "optim" else sections[name] for name in SECTIONS})

    def __eq__(self, other: object) -> bool:
        return self.leaves() == other.leaves() if isinstance(other, Recipe) else NotImplemented

    __hash__ = None  # type: ignore[assignment]  # some values are dicts

    def layer(self) -> Layer:
        """Return all values with their sources."""
        unsourced = Source("recipe")
        return {
            key: (value, self.sources.get(key, unsourced)) for key, value in self.leaves().items()
        }

    def show(self) -> list[tuple[str, Any, str]]:
        """Return key, value and source text of every setting, in the order of the sections."""
        return [(key, value, source.text) for key, (value, source) in self.layer().items()]

    def write(self, path: str | Path) -> None:
        """Write the recipe as JSON, with the text and the kind of every source."""
        content = {"format": FORMAT, "name": self.name, **nest(self.leaves())}
        content["sources"] = {key: source.text for key, source in self.sources.items()}
        kinds = {key: kind_of(source) for key, source in self.sources.items()}
        content["kinds"] = {key: kind for key, kind in kinds.items() if kind}
        content["replaced"] = self.replaced
        with atomic_write(Path(path)) as file:
            file.write((json.dumps(content, indent=2) + "\n").encode())

    @staticmethod
    def read(path: str | Path) -> "Recipe":
        """Read a complete recipe from a file.

        A setting that was added to antipode after the file was written has its default value.
        Raises ValueError if any other setting is missing.
        """
        path = Path(path)
        return complete(read_json(path), str(path))


def complete(content: Mapping[str, Any], label: str) -> Recipe:
    """Return the recipe of a JSON object that holds every value; `label` names it in errors."""
    given = layer_of(content, label)
    for key in ("method.name", "views.policy"):
        if key not in given:
            raise _incomplete(label, key)
    kinds, defaults = schema(str(given["method.name"][0]), str(given["views.policy"][0]))
    for key in given:
        check_key(key, kinds, argument_owner(key, given))
    # a missing value that was not a default when the recipe was written must not become one now
    stored = stored_sources(content, label)
    lost = {key for key, source in stored.items() if not isinstance(source, Default)}
    values: Layer = {}
    for key, kind in kinds.items():
        if key in given:
            value, source = given[key]
        elif _of_absent_group(key, given):
            continue
        elif key in defaults and key not in lost:
            value, source = defaults[key]
        else:
            raise _incomplete(label, key)
        values[key] = convert(key, value, kind), source
    replaced = content.get("replaced", {})
    name = str(content.get("name", "")) or old_name(given)
    return assemble(values, name, replaced if isinstance(replaced, dict) else {})


def _of_absent_group(key: str, given: Layer) -> bool:
    """Return True for a setting of a parameter group that the method does not have."""
    group = key.rpartition(".")[0]
    optional = [f"optim.{name}" for name in GROUPS if name != "network"]
    return group in optional and not any(name.startswith(f"{group}.") for name in given)


def _incomplete(label: str, key: str) -> ValueError:
    return ValueError(f"{label} is not a complete recipe: {key} is missing")


def assemble(values: Layer, name: str, replaced: dict[str, Any]) -> Recipe:
    """Return the recipe that has these values, which must be converted already."""
    content = nest({key: value for key, (value, _) in values.items()})
    sources = {key: source for key, (_, source) in values.items()}
    return Recipe.model_validate(content | {"sources": sources, "name": name, "replaced": replaced})


def schema(method: str, policy: str) -> tuple[dict[str, Any], Layer]:
    """Return the annotations of all keys, in the order of the sections, and their defaults.

    The sections `method` and `views` include the arguments of the method and of the view policy.
    """
    if policy not in policies():
        raise unknown("view policy", policy, policies())
    sections = {
        "method": (f"default of method {method}", arguments(method)),
        "views": (f"default of policy {policy}", argument_fields(policies()[policy])),
    }
    # the arguments follow the last key of their section
    last = {"method.name": "method", "views.size": "views"}
    kinds: dict[str, Any] = {}
    defaults: Layer = {}
    for key, (kind, default) in fields().items():
        kinds[key] = kind
        if default is not ... and not key.startswith("optim.predictor."):
            defaults[key] = default, Default("default")
        section = last.get(key)
        if section is not None:
            text, parameters = sections[section]
            for name, parameter in parameters.items():
                kinds[f"{section}.{name}"] = parameter.annotation
                defaults[f"{section}.{name}"] = parameter.default, Default(text)
    return kinds, defaults


def argument_owner(key: str, values: Layer) -> str:
    """Return the view policy or method that `key` is an argument of, for error messages."""
    if key.startswith("views."):
        owner = "views.policy"
        word = "policy"
    else:
        owner = "method.name"
        word = "method"
    return f"{word} {values[owner][0]}" if owner in values else word


def difference(a: Recipe, b: Recipe, *, ignore: Collection[str] = HARMLESS) -> list[str]:
    """Return the differences between recipes `a` and `b`, as lines `key: old -> new`.

    By default, only keys that the trained weights depend on are compared.
    """
    old = a.leaves()
    new = b.leaves()
    changed = [
        key
        for key in old | new
        if key not in ignore and (key not in old or key not in new or old[key] != new[key])
    ]
    return [f"{key}: {_text(old, key)} -> {_text(new, key)}" for key in changed]


def layer_of(content: Mapping[str, Any], label: str) -> Layer:
    """Return the values of nested sections with their sources.

    A value without a stored source has the source `label`.
    """
    sources = stored_sources(content, label)
    sections = {name: value for name, value in content.items() if name not in ABOUT}
    unsourced = Source(label)
    return {key: (value, sources.get(key, unsourced)) for key, value in flatten(sections).items()}


def stored_sources(content: Mapping[str, Any], label: str) -> dict[str, Source]:
    """Return the sources that a recipe file stores, by dotted key; `label` names it in errors."""
    version = content.get("format", 1)
    if not isinstance(version, int) or version > FORMAT:
        raise ValueError(
            f"{label} has format {brief(version)}, but this version of antipode reads formats up "
            f"to {FORMAT}: update antipode"
        )
    texts = content.get("sources", {})
    kinds = content.get("kinds", {})
    for name, value in (("sources", texts), ("kinds", kinds)):
        if not isinstance(value, Mapping):
            raise ValueError(f"the {name} of {label} must be texts by key, not {brief(value)}")
    if version == 1:
        return {key: old_source(str(text)) for key, text in texts.items()}
    return {key: source_of(str(text), str(kinds.get(key, ""))) for key, text in texts.items()}


def kind_of(source: Source) -> str:
    """Return the kind of a source as recipe.json stores it; empty for a plain `Source`."""
    if isinstance(source, Derived):
        return f"derived from {source.from_}"
    return {Default: "default", Given: "given"}.get(type(source), "")


def source_of(text: str, kind: str) -> Source:
    """Return the source with this text and kind, as recipe.json stores them."""
    if kind.startswith("derived from "):
        return Derived(text, kind.removeprefix("derived from "))
    return {"default": Default, "given": Given}.get(kind, Source)(text)


# In format 1, the beginning of a source text marked a value that was derived from another setting
OLD_DERIVED = {
    "train.epochs: ": "train.epochs",
    "the method's number of views": "method.name",
    "as optim.network": "optim.network",
    "method.bank_": "method.name",
    "optim.bank.": "method.name",
    "backbone.name: it has a stem of its own": "backbone.name",
    "the images of the data set": "data.name",
}


def old_source(text: str) -> Source:
    """Return the typed source for a source text of format 1 of recipe.json."""
    for beginning, key in OLD_DERIVED.items():
        if text.startswith(beginning):
            return Derived(text, key)
    if text == "default" or text.startswith(("preset ", "policy ")):
        return Default(text)
    return Given(text) if text.startswith("--") else Source(text)


def old_name(given: Layer) -> str:
    """Return the name of the listed recipe; format 1 stored it as the source of method.name."""
    text = given["method.name"][1].text if "method.name" in given else ""
    return text if text in list_recipes() else ""


def _pairs(section: Section) -> dict[str, Any]:
    # not dict(section): dict would take an argument called `keys` for the method of that name
    return {name: value for name, value in section}


def _text(values: Mapping[str, Any], key: str) -> str:
    return json.dumps(values[key]) if key in values else "nothing"
