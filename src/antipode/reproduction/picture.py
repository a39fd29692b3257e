"""Draw the panels of an item with matplotlib, which is an optional dependency.

A picture is `WIDTH` inches wide, whatever the item has. So its text keeps the same size where
several pictures stand below each other. Our numbers are filled, and those of the paper are hollow.
"""

import io
import textwrap
from importlib import import_module
from typing import Any, NamedTuple

from antipode.reporting.look import colours, matplotlib_style, series
from antipode.reproduction.item import REFERENCE, Cells, Item, Panel
from antipode.reproduction.present import cell, column_text, number

DEVIATION = "deviation, "  # a row "deviation, X" is the standard deviation of the row "mean, X"
WIDTH = 8.3  # inches
DPI = 200
ACROSS = {"table": 3, "curve": 2, "histogram": 2}  # axes beside each other
ROW = 0.27  # inches of a row of dots
LINE = 0.1  # inches that each further line of a label adds to all rows
CURVE = 3.0  # inches of a panel of curves
FRAME = 0.75  # inches of titles and ticks around the rows of dots
HEAD = 0.75  # inches of the title and of the legend
PAPER = {"markerfacecolor": "none", "markeredgewidth": 1.5, "linestyle": "none"}

Entry = dict[str, Any]  # a cell as `present.cell` returns it
Groups = dict[str, dict[str, Entry]]  # cells by title of an axis and by label


class Band(NamedTuple):
    """Axes beside each other: one panel each, or some groups of one table."""

    panels: list[Panel]
    groups: Groups
    labels: list[str]

    @property
    def height(self) -> float:
        """The height in inches."""
        if not self.groups:
            return CURVE
        lines = max(label.count("\n") for label in map(wrapped, self.labels))
        return (ROW + LINE * lines) * len(self.labels) + FRAME


def wrapped(label: str) -> str:
    """Return the label of a row of dots in lines that leave space for the dots."""
    return textwrap.fill(label, 34)


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
    bands = _bands(item, cells)
    heights = [band.height for band in bands]
    sheet = figure.Figure(figsize=(WIDTH, HEAD + sum(heights)), layout="constrained")
    title = textwrap.fill(f"{item.title} ({name}, {scale})", 82)
    sheet.suptitle(title, x=0.01, ha="left", fontsize=12, fontweight="bold")
    fields = []
    if bands:
        fields = sheet.subfigures(len(bands), 1, height_ratios=heights, squeeze=False)[:, 0]
    alike: dict[str, list[Any]] = {}  # axes that show the same quantity
    for field, band in zip(fields, bands, strict=True):
        if band.groups:
            _dots(field, band, alike)
        else:
            _plots(field, item, cells, band, alike)
    _share_limits(alike)
    _legend(sheet, any(entry["paper"] is not None for entry in _entries(item, cells)))
    buffer = io.BytesIO()
    sheet.savefig(buffer, format="png", dpi=DPI)
    return buffer.getvalue()


def _bands(item: Item, cells: Cells) -> list[Band]:
    """Return the panels that have numbers, as rows of axes in their order."""
    filled = {place[0] for place in cells} - {REFERENCE}
    bands: list[Band] = []
    for panel in item.panels:
        if panel.name not in filled:
            continue
        if panel.kind == "table":
            bands += _table_bands(panel, _groups(item, cells, panel))
        elif bands and not bands[-1].groups and len(bands[-1].panels) < ACROSS[panel.kind]:
            bands[-1].panels.append(panel)
        else:
            bands.append(Band([panel], {}, []))
    return bands


def _table_bands(panel: Panel, groups: Groups) -> list[Band]:
    """Return the groups of a table, some in each band, all with the same labels."""
    labels = list(dict.fromkeys(name for line in groups.values() for name in line))[::-1]
    titles = list(groups)
    starts = range(0, len(titles), ACROSS["table"])
    parts = [titles[start : start + ACROSS["table"]] for start in starts]
    return [Band([panel], {title: groups[title] for title in part}, labels) for part in parts]


def _legend(sheet: Any, paper: bool) -> None:
    """Say below a picture what the marks are, if it has numbers of the paper."""
    if not paper:
        return
    lines = import_module("matplotlib.lines")
    ours, theirs = colours()["s0"], colours()["s1"]
    handles = [
        lines.Line2D([], [], color=ours, marker="o", label="ours (bar: deviation over seeds)"),
        lines.Line2D([], [], color=theirs, marker="D", label="paper", **PAPER),
    ]
    sheet.legend(handles=handles, loc="outside lower left", ncols=2)


def _share_limits(alike: dict[str, list[Any]]) -> None:
    """Give axes that show the same quantity the same range, so that they can be compared."""
    for quantity, axes in alike.items():
        side = "x" if quantity.startswith("x ") else "y"
        limits = [limit for axis in axes for limit in getattr(axis, f"get_{side}lim")()]
        for axis in axes if len(axes) > 1 else []:
            getattr(axis, f"set_{side}lim")(min(limits), max(limits))


def _entries(item: Item, cells: Cells, panel: Panel | None = None) -> list[Entry]:
    """Return the cells of a panel, or of all panels."""
    return [cell(item, cells, place) for place in cells if panel is None or place[0] == panel.name]


def _lines(item: Item, cells: Cells, panel: Panel) -> dict[str, list[Entry]]:
    """Return the cells of a panel by row, sorted by column if all columns are numbers."""
    rows: dict[str, list[Entry]] = {}
    entries = _entries(item, cells, panel)
    for entry in entries:
        rows.setdefault(entry["row"], []).append(entry)
    if any(isinstance(entry["column"], str) for entry in entries):
        return rows
    return {row: sorted(line, key=lambda entry: entry["column"]) for row, line in rows.items()}


def _plots(field: Any, item: Item, cells: Cells, band: Band, alike: dict[str, list[Any]]) -> None:
    """Draw panels of curves or histograms beside each other."""
    axes = field.subplots(1, len(band.panels), squeeze=False)[0]
    for axis, panel in zip(axes, band.panels, strict=True):
        {"curve": _curves, "histogram": _histograms}[panel.kind](axis, item, cells, panel)
        axis.set_title(panel.name)
        axis.legend()
        quantity = panel.y if panel.kind == "curve" else panel.name
        alike.setdefault(f"y {quantity}", []).append(axis)


def _curves(axis: Any, item: Item, cells: Cells, panel: Panel) -> None:
    """Draw a line for each row with a band of one standard deviation, and the paper hollow.

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
        (drawn,) = axis.plot(x, y, style, marker=marker, markersize=4, label=row)
        colour = drawn.get_color()
        spread = _deviation(lines, row)
        low = [a - b for a, b in zip(y, spread, strict=True)]
        high = [a + b for a, b in zip(y, spread, strict=True)]
        axis.fill_between(x, low, high, alpha=0.2, color=colour, linewidth=0)
        paper = [(place[2], y) for place, y in item.paper.items() if place[:2] == (panel.name, row)]
        if paper:
            label = f"{row}, paper"
            axis.plot(*zip(*paper, strict=True), color=colour, marker="D", label=label, **PAPER)
    axis.set(xlabel=panel.x, ylabel=panel.y, xscale="log" if panel.log else "linear")
    if panel.log:
        _plain_ticks(axis, sorted({entry["column"] for line in lines.values() for entry in line}))


def _plain_ticks(axis: Any, places: list[float]) -> None:
    """Mark some of the places of the points on a logarithmic axis, as plain numbers."""
    shown = places[:: -(-len(places) // 6)]
    axis.set_xticks(shown, [column_text(place) for place in shown])
    axis.minorticks_off()


def _deviation(lines: dict[str, list[Entry]], row: str) -> list[float]:
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
    sides = [(_column(panel, entry), entry["row"], entry) for entry in entries]
    if len({column for column, _, _ in sides}) > len({row for _, row, _ in sides}):
        sides = [(row, column, entry) for column, row, entry in sides]
    groups: Groups = {}
    for outer, inner, entry in sides:
        groups.setdefault(outer, {})[inner] = entry
    return groups


def _column(panel: Panel, entry: Entry) -> str:
    """Return the name of a column: a number follows what the columns are."""
    column = column_text(entry["column"])
    return f"{panel.x} {column}" if panel.x and not isinstance(entry["column"], str) else column


def _dots(field: Any, band: Band, alike: dict[str, list[Any]]) -> None:
    """Draw an axis for each group: our numbers as dots with a deviation, the paper's hollow."""
    (panel,) = band.panels
    labels = band.labels
    axes = field.subplots(1, len(band.groups), sharey=True, squeeze=False)[0]
    for axis, (title, line) in zip(axes, band.groups.items(), strict=True):
        _dots_of_group(axis, line, labels)
        axis.set_title(title)
        axis.set_yticks(range(len(labels)), list(map(wrapped, labels)))
        axis.grid(axis="y", visible=False)
        axis.set_ylim(-0.6, len(labels) - 0.4)
        if panel.y and " and " not in panel.y and axis.get_xscale() == "linear":
            alike.setdefault(f"x {panel.name}", []).append(axis)
    name = ", ".join(part for part in (panel.name, panel.y) if part)
    field.supxlabel(name, fontsize=9.5, color=colours()["soft"])


def _dots_of_group(axis: Any, line: dict[str, Entry], labels: list[str]) -> None:
    """Draw the numbers of one group, each written beside its mark."""
    ours, theirs = colours()["s0"], colours()["s1"]
    shown = []
    for name, entry in line.items():
        row = labels.index(name)
        mean, paper = entry["mean"], entry["paper"]
        shown += [mean] if paper is None else [mean, paper]
        if paper is not None:
            axis.plot([mean, paper], [row, row], color=colours()["line"], linewidth=3, zorder=1)
            axis.plot(paper, row, color=theirs, marker="D", markersize=5, **PAPER)
            _write(axis, paper, row, 0.0, after=paper > mean, colour=theirs)
        spread = entry["std"] or 0.0
        axis.errorbar(mean, row, xerr=spread, fmt="o", markersize=5.5, color=ours, zorder=3)
        _write(axis, mean, row, spread, after=paper is None or mean >= paper, colour=ours)
    # for instance the hours of a small run beside those of ImageNet
    if min(shown) > 0 and max(shown) > 50 * min(shown):
        axis.set_xscale("log")
    else:
        axis.locator_params(axis="x", nbins=4)
    axis.margins(x=0.3)


def _write(axis: Any, value: float, row: int, spread: float, *, after: bool, colour: str) -> None:
    """Write a number on the outer side of its mark and of its error bar."""
    axis.annotate(
        number(value),
        (value + spread if after else value - spread, row),
        xytext=(7 if after else -7, 0),
        textcoords="offset points",
        ha="left" if after else "right",
        va="center",
        fontsize=9,
        color=colour,
    )
