"""Draw the panels of an item with matplotlib, which is an optional dependency."""

import io
import textwrap
from importlib import import_module
from typing import Any

from antipode.reporting.look import matplotlib_style, series
from antipode.reproduction.item import REFERENCE, Cells, Item, Panel
from antipode.reproduction.present import cell, column_text

DEVIATION = "deviation, "  # a row "deviation, X" is the standard deviation of the row "mean, X"

Groups = dict[str, dict[str, dict[str, Any]]]  # cells by title of an axis and by label


def draw(item: Item, cells: Cells, name: str, scale: str) -> bytes | None:
    """Return a PNG with one part for each panel that has numbers. None without matplotlib."""
    try:
        figure = import_module("matplotlib.figure")
        matplotlib = import_module("matplotlib")
    except ImportError:
        return None
    cycle = matplotlib.cycler(color=series())
    with matplotlib.rc_context({**matplotlib_style(), "axes.prop_cycle": cycle}):
        return _drawn(figure, item, cells, name, scale)


def _drawn(figure: Any, item: Item, cells: Cells, name: str, scale: str) -> bytes:
    """Return the PNG, drawn with the present settings of matplotlib."""
    filled = {place[0] for place in cells} - {REFERENCE}
    panels = [panel for panel in item.panels if panel.name in filled]
    groups = {panel: _groups(item, cells, panel) for panel in panels if panel.kind == "table"}
    widths = [max(5.5, 2.0 + 1.9 * len(groups.get(panel, {}))) for panel in panels]
    sheet = figure.Figure(figsize=(sum(widths), 4.4), layout="constrained")
    title = textwrap.fill(f"{name}, {scale}: {item.title}", round(14 * sum(widths)))
    sheet.suptitle(title, fontsize=10)
    fields = []
    if panels:
        fields = sheet.subfigures(1, len(panels), width_ratios=widths, squeeze=False)[0]
    comparable: dict[str, list[Any]] = {}
    for field, panel in zip(fields, panels, strict=True):
        if panel.kind == "table":
            _dots(field, groups[panel], panel)
        else:
            quantity = panel.y if panel.kind == "curve" else panel.name
            comparable.setdefault(quantity, []).append(_plot(field, item, cells, panel))
    for axes in comparable.values():
        _share_limits(axes)
    buffer = io.BytesIO()
    sheet.savefig(buffer, format="png", dpi=110)
    return buffer.getvalue()


def _plot(field: Any, item: Item, cells: Cells, panel: Panel) -> Any:
    """Draw a panel of curves or histograms, and return its axis."""
    axis = field.subplots()
    {"curve": _curves, "histogram": _histograms}[panel.kind](axis, item, cells, panel)
    axis.set_title(panel.name, fontsize=9)
    axis.tick_params(labelsize=7)
    axis.legend(fontsize=6)
    return axis


def _share_limits(axes: list[Any]) -> None:
    """Give axes that show the same quantity the same range, so that they can be compared."""
    limits = [limit for axis in axes for limit in axis.get_ylim()]
    for axis in axes if len(axes) > 1 else []:
        axis.set_ylim(min(limits), max(limits))


def _lines(item: Item, cells: Cells, panel: Panel) -> dict[str, list[dict[str, Any]]]:
    """Return the cells of a panel by row, sorted by column if all columns are numbers."""
    rows: dict[str, list[dict[str, Any]]] = {}
    places = [place for place in cells if place[0] == panel.name]
    for place in places:
        rows.setdefault(place[1], []).append(cell(item, cells, place))
    if any(isinstance(place[2], str) for place in places):
        return rows
    return {row: sorted(line, key=lambda entry: entry["column"]) for row, line in rows.items()}


def _curves(axis: Any, item: Item, cells: Cells, panel: Panel) -> None:
    """Draw a line for each row with a band of one standard deviation, and the paper as crosses.

    The band of a row "mean, X" is the row "deviation, X" if there is one. Other bands show the
    deviation over seeds.
    """
    lines = _lines(item, cells, panel)
    for row, line in lines.items():
        if row.startswith(DEVIATION):
            continue
        x = [entry["column"] for entry in line]
        y = [entry["mean"] for entry in line]
        style = "--" if row.startswith("bound") else "-"
        marker = "o" if len(x) < 20 else None
        (drawn,) = axis.plot(x, y, style, marker=marker, markersize=3, label=row)
        colour = drawn.get_color()
        spread = _deviation(lines, row)
        low = [a - b for a, b in zip(y, spread, strict=True)]
        high = [a + b for a, b in zip(y, spread, strict=True)]
        axis.fill_between(x, low, high, alpha=0.2, color=colour)
        paper = [(place[2], y) for place, y in item.paper.items() if place[:2] == (panel.name, row)]
        if paper:
            axis.plot(*zip(*paper, strict=True), "x", color=colour, label=f"{row}, paper")
    axis.set(xlabel=panel.x, ylabel=panel.y, xscale="log" if panel.log else "linear")


def _deviation(lines: dict[str, list[dict[str, Any]]], row: str) -> list[float]:
    """Return the deviation of a row at each x: its own deviation row, or that over seeds."""
    if row.startswith("mean, "):
        own = lines.get(DEVIATION + row.removeprefix("mean, "), [])
        if own:
            return [entry["mean"] for entry in own]
    return [entry["std"] or 0.0 for entry in lines[row]]


def _histograms(axis: Any, item: Item, cells: Cells, panel: Panel) -> None:
    """Draw the histogram of each row as steps."""
    for row, line in _lines(item, cells, panel).items():
        x = [entry["column"] for entry in line]
        y = [entry["mean"] for entry in line]
        axis.step(x, y, where="mid", label=row)
    axis.set(xlabel=panel.x, ylabel=panel.y)


def _groups(item: Item, cells: Cells, panel: Panel) -> Groups:
    """Return the cells of a table by column and row, or by row and column if those are fewer."""
    entries = [entry for line in _lines(item, cells, panel).values() for entry in line]
    sides = [(column_text(entry["column"]), entry["row"], entry) for entry in entries]
    if len({column for column, _, _ in sides}) > len({row for _, row, _ in sides}):
        sides = [(row, column, entry) for column, row, entry in sides]
    groups: Groups = {}
    for outer, inner, entry in sides:
        groups.setdefault(outer, {})[inner] = entry
    return groups


def _dots(field: Any, groups: Groups, panel: Panel) -> None:
    """Draw an axis for each group: our numbers as dots with a deviation, the paper's as crosses."""
    labels = list(dict.fromkeys(name for line in groups.values() for name in line))[::-1]
    # axes that show the same quantity share their range
    same_quantity = bool(panel.y) and " and " not in panel.y
    axes = field.subplots(1, len(groups), sharey=True, sharex=same_quantity, squeeze=False)[0]
    for axis, (title, line) in zip(axes, groups.items(), strict=True):
        _dots_of_group(axis, line, labels)
        axis.set_title(title, fontsize=8)
        axis.set_yticks(range(len(labels)), labels)
        axis.tick_params(labelsize=7)
        if axis.get_xscale() == "linear":
            axis.locator_params(axis="x", nbins=4)
        axis.set_ylim(-0.6, len(labels) - 0.4)
    axes[0].legend(fontsize=6)
    field.supxlabel(" ".join(part for part in (panel.name, panel.y) if part), fontsize=8)


def _dots_of_group(axis: Any, line: dict[str, dict[str, Any]], labels: list[str]) -> None:
    """Draw the numbers of one group."""
    y = [labels.index(name) for name in line]
    means = [entry["mean"] for entry in line.values()]
    spread = [entry["std"] or 0.0 for entry in line.values()]
    axis.errorbar(means, y, xerr=spread, fmt="o", markersize=4, label="ours")
    paper = [
        (entry["paper"], place)
        for entry, place in zip(line.values(), y, strict=True)
        if entry["paper"] is not None
    ]
    if paper:
        axis.plot(*zip(*paper, strict=True), "x", label="paper")
    shown = means + [value for value, _ in paper]
    # for instance the hours of a small run beside those of ImageNet
    if min(shown) > 0 and max(shown) > 50 * min(shown):
        axis.set_xscale("log")
