"""Suggestions for misspelt names."""

import difflib
from collections.abc import Iterable


def closest(name: str, known: Iterable[str], cutoff: float = 0.5) -> str | None:
    """Return the known name that is most similar to `name`, or None if none is similar."""
    matches = difflib.get_close_matches(str(name), list(known), 1, cutoff)
    return matches[0] if matches else None


def did_you_mean(name: str, known: Iterable[str], cutoff: float = 0.5) -> str:
    """Return the end of an error message about an unknown name: the closest and all known names."""
    known = list(known)
    match = closest(name, known, cutoff)
    if match is not None:
        return f", did you mean {match!r}? (choose from {', '.join(known)})"
    return f": choose from {', '.join(known)}" if known else ": there are none"


def unknown(kind: str, name: str, known: Iterable[str], cutoff: float = 0.5) -> ValueError:
    """Return a ValueError for a name that is not among the known ones.

    `kind` says what the name should name, such as "protocol".
    """
    return ValueError(f"there is no {kind} {name!r}{did_you_mean(name, known, cutoff)}")
