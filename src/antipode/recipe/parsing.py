"""Values as people give them: `section.key=value`, nested files, texts where numbers are meant."""

import difflib
import json
import types
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path, PurePath
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo

from antipode.recipe.layer import Layer
from antipode.recipe.schema import GROUPS, SECTIONS

SIGNS = {"ge": "at least", "gt": "above", "le": "at most", "lt": "below"}


def nearest(name: str, known: Iterable[str]) -> str:
    """The end of a sentence about a name that is none: the nearest, and all there are."""
    known = list(known)
    near = difflib.get_close_matches(name, known, 1, 0.5)
    if near:
        return f", did you mean {near[0]!r}? (known are {', '.join(known)})"
    return f": choose from {', '.join(known)}" if known else ": there are none"


def settings(overrides: Mapping[str, Any] | Sequence[str]) -> dict[str, Any]:
    """Values by dotted key, of a mapping or of texts `section.key=value`."""
    if isinstance(overrides, Mapping):
        return {str(key): value for key, value in overrides.items()}
    if isinstance(overrides, str):
        raise ValueError(f"overrides are a list of section.key=value, not the text {overrides!r}")
    found: dict[str, Any] = {}
    for text in overrides:
        key, sign, value = str(text).partition("=")
        if not sign or not key.strip():
            raise ValueError(f"a setting is section.key=value, not {text!r}")
        key, value = key.strip(), value.strip()
        if found.get(key, value) != value:
            raise ValueError(f"{key} is set twice, to {found[key]} and to {value}")
        found[key] = value
    return found


def flatten(content: Mapping[str, Any]) -> dict[str, Any]:
    """Values by dotted key, of nested sections."""
    found: dict[str, Any] = {}
    for section, values in content.items():
        check_section(str(section))
        if not isinstance(values, Mapping):
            raise ValueError(f"section {section} holds keys and values, not {values!r}")
        for key, value in values.items():
            if section != "optim":
                found[f"{section}.{key}"] = value
            elif isinstance(value, Mapping):
                found |= {f"optim.{key}.{inner}": one for inner, one in value.items()}
            else:
                raise ValueError(
                    f"optim.{key} holds keys and values, not {value!r}{'' if key in GROUPS else _group(str(key))}"
                )
    return found


def of_file(path: Path) -> Layer:
    """The values of a recipe file, or of a run folder."""
    folder = path if path.is_dir() else None
    path = path / "recipe.json" if folder else path
    if not path.is_file():
        images = (
            f"; if {folder} holds images, write --data folder:{folder} --method dcl"
            if folder
            else ""
        )
        raise ValueError(f"there is no recipe file {path}{images}")
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not JSON: {error}") from None
    if not isinstance(content, dict):
        raise ValueError(
            f"{path} holds no recipe: a recipe is an object of sections, not a {type(content).__name__}"
        )
    return of_content(content, path.name)


def of_content(content: Mapping[str, Any], label: str) -> Layer:
    """The values of nested sections, with the sources that stand beside them, else the label."""
    sources = content.get("sources", {})
    if not isinstance(sources, Mapping):
        raise ValueError(f"the sources of {label} are texts by key, not {sources!r}")
    values = flatten({name: value for name, value in content.items() if name != "sources"})
    return {key: (value, str(sources.get(key, label))) for key, value in values.items()}


def nest(values: Mapping[str, Any]) -> dict[str, Any]:
    """Nested sections, of values by dotted key."""
    whole: dict[str, Any] = {}
    for key, value in values.items():
        *outer, last = key.split(".")
        place = whole
        for name in outer:
            place = place.setdefault(name, {})
        place[last] = value
    return whole


def check_section(name: str) -> None:
    """Refuse a section that is none."""
    if name not in SECTIONS:
        raise ValueError(f"a recipe has no section {name!r}{nearest(name, SECTIONS)}")


def check_key(key: str, known: Mapping[str, Any], owner: str) -> None:
    """Refuse a dotted key that is none; `owner` is what the open sections' arguments belong to."""
    if key in known:
        return
    section, _, rest = key.partition(".")
    if not rest and section not in SECTIONS:
        whole = [name for name in known if name.rpartition(".")[2] == section]
        hint = f", did you mean {whole[0]!r}?" if whole else nearest(section, SECTIONS)
        raise ValueError(f"{key!r} names no section and key{hint}")
    check_section(section)
    if section == "optim":
        group, _, last = rest.partition(".")
        if group not in GROUPS or not last:
            raise ValueError(f"{key!r} names no parameter group and key{_group(group)}")
        section, rest = f"optim.{group}", last
    inside = [name.removeprefix(f"{section}.") for name in known if name.startswith(f"{section}.")]
    if not rest:
        keys = ", ".join(f"{section}.{name}" for name in inside)
        raise ValueError(f"{key!r} is a section, whose keys are {keys}")
    what = (
        f"{owner} has no argument"
        if section in ("method", "views")
        else f"section {section} has no key"
    )
    raise ValueError(f"{what} {rest!r}{nearest(rest, inside)}")


def _group(name: str) -> str:
    keys = SECTIONS["optim"].model_fields
    return f", did you mean 'optim.network.{name}'?" if name in keys else nearest(name, GROUPS)


def convert(key: str, value: Any, kind: Any) -> Any:
    """A value as its annotation has it; texts are read as JSON where that fits, else taken as they are."""
    for candidate in _candidates(value):
        if isinstance(candidate, bool) and not _takes(kind, bool):
            continue  # pydantic would take true for 1
        try:
            return TypeAdapter(kind, config=ConfigDict(allow_inf_nan=False)).validate_python(
                candidate
            )
        except ValidationError:
            continue
    choices = [choice for choice in _choices(kind) if isinstance(choice, str)]
    near = difflib.get_close_matches(value, choices, 1) if isinstance(value, str) else []
    raise ValueError(
        f"{key} is {allowed(kind)}, not {value!r}"
        + (f": did you mean {near[0]!r}?" if near else "")
    )


def _candidates(value: Any) -> list[Any]:
    if isinstance(value, PurePath):
        return [str(value)]
    if not isinstance(value, str):
        return [value]
    if value.lower() in ("none", "true", "false"):
        return [{"none": None, "true": True, "false": False}[value.lower()], value]
    try:
        return [json.loads(value), value]
    except json.JSONDecodeError:
        return [value]


def allowed(kind: Any) -> str:
    """What an annotation takes, in words."""
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
            for name, word in SIGNS.items()
            if hasattr(limit, name)
        ]
        return f"{allowed(inner)} {' and '.join(texts)}".strip()
    if get_origin(kind) in (Union, types.UnionType):
        return " or ".join(allowed(part) for part in get_args(kind))
    if get_origin(kind) is Literal:
        return "one of " + ", ".join(map(str, get_args(kind)))
    if get_origin(kind) is tuple:
        parts = get_args(kind)
        if parts[-1] is Ellipsis:
            return f"a list, each {allowed(parts[0])}"
        return f"a list of {len(parts)}, each {allowed(parts[0])}"
    words = {
        int: "a whole number",
        float: "a number",
        bool: "true or false",
        str: "a text",
        types.NoneType: "none",
    }
    return words.get(kind, str(kind))


def _choices(kind: Any) -> list[Any]:
    if get_origin(kind) is Literal:
        return list(get_args(kind))
    return [choice for part in get_args(kind) for choice in _choices(part)]


def _takes(kind: Any, what: type) -> bool:
    return kind is what or any(
        _takes(part, what) for part in get_args(kind) if get_origin(kind) is not Literal
    )
