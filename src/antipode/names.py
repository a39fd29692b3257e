"""Names in messages: suggestions for misspelt names, and names that are safe to print."""

import difflib
import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any

LONGEST = 60  # characters of a value in a message

# Control characters (C0, DEL and C1, with which every escape sequence of a terminal starts), line
# separators, controls of the writing direction, and surrogates, which stand for bytes that are not
# valid UTF-8.
UNSAFE = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def printable(text: str) -> str:
    r"""Return a text that is safe to print: one line, without control characters.

    Control characters become visible escapes such as \x1b. All other characters stay. Names of
    files, archive members and runs may contain anything, and a terminal would obey their escape
    sequences.
    """
    return UNSAFE.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


def brief(value: Any, most: int = LONGEST) -> str:
    """Return the representation of a value for a message: one line of at most `most` characters."""
    try:
        text = re.sub(r"\s*\n\s*", " ", repr(value))  # that of a matrix has several lines
    except (ValueError, RecursionError):  # a number of thousands of digits, or deep nesting
        return f"a very large {type(value).__name__}"
    return text if len(text) <= most else f"{text[: most - 4]} ..."


def closest(name: Any, known: Iterable[str], cutoff: float = 0.5) -> str | None:
    """Return the known name that is most similar to `name`, or None if none is similar."""
    text = str(name)[:LONGEST]
    known = list(known)
    for spelling in (text, text.lower()):  # "ONNX" shares no letter with "onnx"
        if matches := difflib.get_close_matches(spelling, known, 1, cutoff):
            return matches[0]
    return None


def did_you_mean(name: Any, known: Iterable[str], cutoff: float = 0.5) -> str:
    """Return the end of an error message about an unknown name: the closest and all known names."""
    known = list(known)
    match = closest(name, known, cutoff)
    if match is not None:
        return f", did you mean {match!r}? (choose from {', '.join(known)})"
    return f": choose from {', '.join(known)}" if known else ": there are none"


def check_name(kind: str, name: Any, known: Collection[str], cutoff: float = 0.5) -> None:
    """Raise ValueError if `name`, which may be anything, is not among the known names."""
    if not isinstance(name, str) or name not in known:
        raise unknown(kind, name, known, cutoff)


def several(argument: str, given: Any) -> list[Any] | None:
    """Return one name or several as a list, and None as it is.

    `argument` is what the sentence calls what was given if that is neither.
    """
    if given is None or isinstance(given, str):
        return None if given is None else [given]
    if isinstance(given, Mapping) or not isinstance(given, Iterable):
        raise ValueError(f"{argument} must be a name or a list of names, not {brief(given)}")
    return list(given)


def unknown(kind: str, name: Any, known: Iterable[str], cutoff: float = 0.5) -> ValueError:
    """Return a ValueError for a name that is not among the known ones.

    `kind` says what the name should name, such as "protocol".
    """
    return ValueError(f"there is no {kind} {brief(name)}{did_you_mean(name, known, cutoff)}")
