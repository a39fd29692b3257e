"""Convert what a user writes to the values of a recipe.

Users write texts `section.key=value`, nested JSON files, and texts where numbers are meant.
"""

import types
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path, PurePath
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo

from antipode import json_text
from antipode.limits import check_limit
from antipode.names import brief, closest, did_you_mean
from antipode.recipe.schema import GROUPS, SECTIONS
from antipode.wording import option

# words for the bounds of pydantic fields
SYNONYMS = {"gpu": "cuda"}  # what users write in place of a choice
BOUNDS = {"ge": "of at least", "gt": "above", "le": "of at most", "lt": "below"}


def settings(overrides: Mapping[str, Any] | Sequence[str]) -> dict[str, Any]:
    """Return values by dotted key, from a mapping or from texts `section.key=value`."""
    if isinstance(overrides, Mapping):
        return {str(key): value for key, value in overrides.items()}
    if isinstance(overrides, str):
        raise ValueError(
            f"overrides must be a list of section.key=value, not the single text {brief(overrides)}"
        )
    if not isinstance(overrides, Iterable):
        raise ValueError(
            f"overrides must be a mapping or a list of section.key=value, not {brief(overrides)}"
        )
    values: dict[str, Any] = {}
    for text in overrides:
        key, sign, value = str(text).partition("=")
        key = key.strip()
        value = value.strip()
        if not sign or not key:
            raise ValueError(f"a setting must have the form section.key=value, not {brief(text)}")
        if values.get(key, value) != value:
            before, now = brief(values[key]), brief(value)
            raise ValueError(f"{brief(key)} is set twice, to {before} and to {now}")
        values[key] = value
    return values


def flatten(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return values by dotted key, from nested sections."""
    flat: dict[str, Any] = {}
    for section, values in content.items():
        check_section(str(section))
        if not isinstance(values, Mapping):
            raise ValueError(f"section {section} must hold keys and values, not {brief(values)}")
        for key, value in values.items():
            if section != "optim":
                flat[f"{section}.{key}"] = value
            elif isinstance(value, Mapping):
                flat |= {f"optim.{key}.{name}": setting for name, setting in value.items()}
            else:
                hint = "" if key in GROUPS else _group_hint(str(key))
                raise ValueError(f"optim.{key} must hold keys and values, not {brief(value)}{hint}")
    return flat


def read_json(path: Path) -> dict[str, Any]:
    """Return the object in a recipe file, or in the recipe.json of a run folder."""
    folder = path if path.is_dir() else None
    file = path / "recipe.json" if folder else path
    if not file.is_file():
        images = ""
        if folder:
            images = f"; if {folder} holds images, use {option('data', f'folder:{folder}')}"
        raise ValueError(f"there is no recipe file {file}{images}")
    content = json_text.read(file)
    if not isinstance(content, dict):
        raise ValueError(
            f"{file} holds no recipe: a recipe is an object of sections, "
            f"not a {type(content).__name__}"
        )
    return content


def nest(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return nested sections, from values by dotted key."""
    sections: dict[str, Any] = {}
    for key, value in values.items():
        *outer, last = key.split(".")
        section = sections
        for name in outer:
            section = section.setdefault(name, {})
        section[last] = value
    return sections


def check_section(name: str) -> None:
    """Raise ValueError if a recipe has no section of this name."""
    if name not in SECTIONS:
        raise ValueError(f"a recipe has no section {brief(name)}{did_you_mean(name, SECTIONS)}")


def check_key(key: str, known: Mapping[str, Any], owner: str) -> None:
    """Raise ValueError if a dotted key is not among the known ones.

    `owner` is the method or view policy whose arguments are keys, such as "method NAME".
    """
    if key in known:
        return
    section, _, rest = key.partition(".")
    if not rest and section not in SECTIONS:
        matches = [name for name in known if name.rpartition(".")[2] == section]
        hint = f", did you mean {matches[0]!r}?" if matches else did_you_mean(section, SECTIONS)
        raise ValueError(f"{brief(key)} does not have the form section.key{hint}")
    check_section(section)
    if section == "optim":
        group, _, last = rest.partition(".")
        if group not in GROUPS or not last:
            hint = _group_hint(group)
            raise ValueError(f"{brief(key)} does not have the form optim.group.key{hint}")
        section = f"optim.{group}"
        rest = last
    prefix = f"{section}."
    names = [name.removeprefix(prefix) for name in known if name.startswith(prefix)]
    if not rest:
        keys = ", ".join(f"{section}.{name}" for name in names)
        raise ValueError(f"{brief(key)} is a section; its keys are {keys}")
    if section in ("method", "views"):
        problem = f"{owner} has no argument"
    else:
        problem = f"section {section} has no key"
    raise ValueError(f"{problem} {brief(rest)}{did_you_mean(rest, names)}")


def _group_hint(name: str) -> str:
    """Return the end of an error message about an unknown parameter group."""
    keys = SECTIONS["optim"].model_fields
    return f", did you mean 'optim.network.{name}'?" if name in keys else did_you_mean(name, GROUPS)


def convert(key: str, value: Any, kind: Any) -> Any:
    """Return a value converted to its annotation `kind`; raise ValueError if that is impossible.

    A text is first read as JSON, and taken as it is if that does not fit. `key` names the value in
    the error. A whole number must not exceed the limit of its key (`antipode.limits`).
    """
    adapter = _adapter(kind)
    whole = _accepts(kind, int) and not _accepts(kind, float)
    for candidate in _candidates(value):
        if isinstance(candidate, bool) and not _accepts(kind, bool):
            continue  # pydantic would convert True to 1
        if whole:
            check_limit(key, key.rpartition(".")[2], candidate)
        try:
            return adapter.validate_python(candidate)
        except (ValidationError, OverflowError):
            continue
    choices = [choice for choice in _choices(kind) if isinstance(choice, str)]
    match = closest(SYNONYMS.get(value, value), choices, 0.6) if isinstance(value, str) else None
    hint = f", did you mean {match!r}?" if match else ""
    raise ValueError(f"{key} must be {allowed(kind)}, not {brief(value)}{hint}")


@lru_cache(maxsize=256)
def _adapter(kind: Any) -> TypeAdapter[Any]:
    """Return what validates values of an annotation; building it takes longer than using it."""
    return TypeAdapter(kind, config=ConfigDict(allow_inf_nan=False))


def _candidates(value: Any) -> list[Any]:
    """Return what a value may mean, the likeliest meaning first."""
    if isinstance(value, PurePath):
        return [str(value)]
    if not isinstance(value, str):
        return [value]
    if value.lower() in ("none", "true", "false"):
        return [{"none": None, "true": True, "false": False}[value.lower()], value]
    try:
        return [json_text.parse(value, "the value"), value]
    except ValueError:
        return [value]


def allowed(kind: Any) -> str:
    """Return a description of the values that an annotation allows."""
    if get_origin(kind) is Annotated:
        inner, *notes = get_args(kind)
        bounds = [
            limit
            for note in notes
            for limit in (note.metadata if isinstance(note, FieldInfo) else [note])
        ]
        texts = [
            f"{word} {getattr(limit, name):g}"
            for limit in bounds
            for name, word in BOUNDS.items()
            if hasattr(limit, name)
        ]
        return f"{allowed(inner)} {' and '.join(texts)}".strip()
    if get_origin(kind) in (Union, types.UnionType):
        return " or ".join(allowed(part) for part in get_args(kind))
    if get_origin(kind) is Literal:
        return f"one of {', '.join(map(str, get_args(kind)))}"
    if get_origin(kind) is tuple:
        parts = get_args(kind)
        if parts[-1] is Ellipsis:
            return f"a list of values, each {allowed(parts[0])}"
        return f"a list of {len(parts)} values, each {allowed(parts[0])}"
    words = {
        int: "a whole number",
        float: "a number",
        bool: "true or false",
        str: "a text",
        types.NoneType: "none",
    }
    return words.get(kind, str(kind))


def _choices(kind: Any) -> list[Any]:
    """Return all values of the `Literal` types in an annotation."""
    if get_origin(kind) is Literal:
        return list(get_args(kind))
    return [choice for part in get_args(kind) for choice in _choices(part)]


def _accepts(kind: Any, type_: type) -> bool:
    """Return True if an annotation names this type, on its own or in a union or list."""
    if get_origin(kind) is Literal:
        return False
    return kind is type_ or any(_accepts(part, type_) for part in get_args(kind))
