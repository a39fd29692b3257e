"""The results in analysis.json as values, curves and histograms, drawn alike for every analysis."""

from collections.abc import Callable
from typing import Any

from antipode.json_text import number
from antipode.reporting.curves import short, thin

POINTS = 300  # maximum number of points of a curve


def drawable(analysis: dict[str, Any]) -> dict[str, Any]:
    """Return {analysis: result} with what the page can draw, and a note for what it cannot."""
    return {
        str(what): _result(result) for what, result in analysis.items() if isinstance(result, dict)
    }


def _result(result: dict[str, Any]) -> dict[str, Any]:
    """Return the values, settings, curves, histograms and notes of one analysis."""
    notes = [str(note) for note in _list(result.get("notes"))]
    if "skipped" in result:
        notes.append(f"Skipped: {result['skipped']}")
    readers: dict[str, Callable[[Any], dict[str, Any] | None]] = {
        "curves": _curve,
        "histograms": _histogram,
    }
    content: dict[str, Any] = {
        "values": _values(_dict(result.get("values"))),
        "settings": _dict(result.get("settings")),
    }
    for kind, read in readers.items():
        shapes = {str(name): read(shape) for name, shape in _dict(result.get(kind)).items()}
        content[kind] = {name: shape for name, shape in shapes.items() if shape}
        notes += [f"{name} cannot be drawn" for name, shape in shapes.items() if not shape]
    return content | {"notes": notes}


def _values(values: dict[str, Any]) -> dict[str, Any]:
    """Return numbers unchanged and everything else as text."""
    return {str(name): value if number(value) else str(value) for name, value in values.items()}


def _curve(curve: Any) -> dict[str, Any] | None:
    """Return a curve without its non-finite points, or None if no point is left."""
    if not isinstance(curve, dict):
        return None
    pairs = list(zip(_list(curve.get("x")), _list(curve.get("y")), strict=False))
    points = [(x, y) for x, y in pairs if number(x) and number(y)]
    if not points:
        return None
    kept = thin([y for _, y in points], POINTS)
    x, y = ([short(points[at][axis]) for at in kept] for axis in (0, 1))
    return {
        "x": x,
        "y": y,
        "xlabel": str(curve.get("xlabel", "")),
        "ylabel": str(curve.get("ylabel", "")),
    }


def _histogram(histogram: Any) -> dict[str, Any] | None:
    """Return a histogram, or None if its edges and counts do not fit or are not finite."""
    if not isinstance(histogram, dict):
        return None
    edges = _list(histogram.get("edges"))
    counts = _list(histogram.get("counts"))
    if len(edges) != len(counts) + 1 or not counts or not all(map(number, (*edges, *counts))):
        return None
    edges, counts = ([short(value) for value in column] for column in (edges, counts))
    return {"edges": edges, "counts": counts, "xlabel": str(histogram.get("xlabel", ""))}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
