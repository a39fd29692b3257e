"""The settings of a sweep: every combination of the values that the user varies."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from typing import Any

from antipode.names import brief
from antipode.recipe.parsing import settings
from antipode.wording import option

MOST = 10_000  # settings of a sweep
OPENING = "[{("
CLOSING = "]})"


def varied(vary: Mapping[str, Iterable[Any]] | Sequence[str]) -> dict[str, list[Any]]:
    """Return the values of each varied key, from a mapping or from texts `key=value,value,...`.

    Raises ValueError if there is no key, for a key without values, for the same value twice, and
    for `train.seed` and `train.device`.
    """
    if isinstance(vary, Mapping):
        found = {str(key): _listed(key, values) for key, values in vary.items()}
    elif isinstance(vary, str) or not isinstance(vary, Iterable):
        raise ValueError(f"vary must be a mapping or a list of key=value,value, not {brief(vary)}")
    else:
        found = {key: _split(value) for key, value in settings(vary).items()}
    if not found:
        raise ValueError(f"a sweep needs {option('vary')}, the values of at least one key")
    for key, values in found.items():
        _check(key, values)
    return found


def _listed(key: Any, values: Any) -> list[Any]:
    """Return the values of a key that were passed from Python."""
    if isinstance(values, str | Mapping) or not isinstance(values, Iterable):
        raise ValueError(f"vary[{key!r}] must be a list of values, not {brief(values)}")
    # scalars of NumPy and torch become Python's
    return [value.item() if hasattr(value, "item") else value for value in values]


def _check(key: str, values: list[Any]) -> None:
    if key == "train.seed":
        raise ValueError(f"use {option('seeds')} in place of train.seed to vary the seeds")
    if key == "train.device":
        raise ValueError(f"all runs of a sweep use one device: choose it with {option('device')}")
    if not values or "" in values:
        raise ValueError(f"{brief(key)} needs values to vary, such as {key}=1,2")
    texts = [str(value) for value in values]
    twice = next((text for text in texts if texts.count(text) > 1), None)
    if twice is not None:
        raise ValueError(f"{brief(key)} has the value {brief(twice)} twice")


def _split(text: str) -> list[str]:
    """Return the parts of a text between commas; commas inside brackets or quotes do not count."""
    parts = [""]
    depth = 0
    quote = ""
    for sign in text:
        if quote:
            quote = "" if sign == quote else quote
        elif sign in "'\"":
            quote = sign
        else:
            depth += (sign in OPENING) - (sign in CLOSING)
        if sign == "," and not depth and not quote:
            parts.append("")
        else:
            parts[-1] += sign
    return [part.strip() for part in parts]


def combinations(vary: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    """Return every combination of values by key; the last key varies fastest."""
    count = 1
    for values in vary.values():
        count *= len(values)
    if count > MOST:
        raise ValueError(f"a sweep takes at most {MOST:,} settings, but these are {count:,}")
    return [dict(zip(vary, values, strict=True)) for values in product(*vary.values())]
