"""The results in analysis.json as values, curves and histograms that a page can draw without knowing what they are."""

from collections.abc import Callable
from typing import Any

from antipode.reporting.curves import number, short, thin

POINTS = 300


def drawable(analysis: dict[str, Any]) -> dict[str, Any]:
    """{what: result} with all that cannot be drawn left out, and a note where something was."""
    return {
        str(what): _result(result) for what, result in analysis.items() if isinstance(result, dict)
    }


def _result(result: dict[str, Any]) -> dict[str, Any]:
    notes = [str(note) for note in _list(result.get("notes"))]
    notes += [f"left out: {result['skipped']}"] if "skipped" in result else []
    shapes: dict[str, Callable[[Any], dict[str, Any] | None]] = {
        "curves": _curve,
        "histograms": _histogram,
    }
    found: dict[str, Any] = {
        "values": _values(_dict(result.get("values"))),
        "settings": _dict(result.get("settings")),
    }
    for kind, shape in shapes.items():
        drawn = {str(name): shape(content) for name, content in _dict(result.get(kind)).items()}
        found[kind] = {name: content for name, content in drawn.items() if content}
        notes += [f"{name} cannot be drawn" for name, content in drawn.items() if not content]
    return found | {"notes": notes}


def _values(values: dict[str, Any]) -> dict[str, Any]:
    """Numbers as they are, everything else as text."""
    return {str(name): value if number(value) else str(value) for name, value in values.items()}


def _curve(curve: Any) -> dict[str, Any] | None:
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
    if not isinstance(histogram, dict):
        return None
    edges, counts = _list(histogram.get("edges")), _list(histogram.get("counts"))
    if len(edges) != len(counts) + 1 or not counts or not all(map(number, (*edges, *counts))):
        return None
    edges, counts = ([short(value) for value in column] for column in (edges, counts))
    return {"edges": edges, "counts": counts, "xlabel": str(histogram.get("xlabel", ""))}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
