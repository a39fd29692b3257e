"""Our numbers beside the paper's: as text, as a picture, as a page. Reads records only; matplotlib is an extra."""

import base64
import html
import io
import textwrap
from importlib import import_module
from statistics import fmean, stdev
from typing import Any

from antipode.reproduction.item import Cells, Item, Panel, Place

DEVIATION = "deviation, "  # a row that is the ribbon of the row "mean, "
FEW = 9  # columns of a curve that a text shows, and those with a number of the paper's
STYLE = """body{font:15px/1.5 system-ui,sans-serif;max-width:1000px;margin:2em auto;padding:0 1em;color:#222}
table{border-collapse:collapse;margin:1em 0}th,td{border-bottom:1px solid #ccc;padding:.3em .8em;text-align:right}
th:first-child{text-align:left}.wide{overflow-x:auto}small{color:#666}.bad{color:#b00;font-weight:bold}img{max-width:100%}
@media(prefers-color-scheme:dark){body{background:#181818;color:#ddd}img{background:#fff}}"""


def cell(item: Item, cells: Cells, place: Place) -> dict[str, Any]:
    """All that is known of a place: our values with mean, spread and number, and the paper's number with its source."""
    values, paper = cells.get(place, []), item.paper.get(place)
    return {
        **dict(zip(("panel", "row", "column"), place, strict=True)),
        "values": values,
        "mean": fmean(values) if values else None,
        "std": stdev(values) if len(values) > 1 else None,
        "n": len(values),
        "paper": paper,
        "source": None if paper is None else item.sources.get(place, item.source),
    }


def number(value: float | None) -> str:
    """One decimal for percentages, three digits for what is smaller."""
    if value is None:
        return "-"
    if abs(value) >= 10 or value == 0:
        return f"{value:.1f}"
    short = f"{value:.3g}"
    return short if float(short) == value or "." in short else f"{value:.4g}"  # .9996 is not 1


def duration(seconds: float) -> str:
    """In seconds, minutes or hours."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def ours(one: dict[str, Any]) -> str:
    """Mean and spread over seeds."""
    spread = "" if one["std"] is None else f" ± {number(one['std'])}"
    return number(one["mean"]) + spread


def text(record: dict[str, Any]) -> str:
    """For a terminal: every panel, the laws, what is missing, and what the paper found."""
    lines = [
        f"{record['item']} ({record['scale']}): {record['title']}",
        record["question"],
        record["note"],
    ]
    for panel in record["panels"]:
        found = _panel(record, panel)
        lines += ["", *found] if found else []
    lines += ["", f"the paper ({record['source']}): {record['trend']}", seeds(record)]
    lines += [
        f"{'holds' if law['holds'] else 'VIOLATED'}: {law['law']} ({law['found']})"
        for law in record["laws"]
    ]
    return "\n".join(lines + [f"MISSING: {sentence}" for sentence in record["missing"]])


def seeds(record: dict[str, Any]) -> str:
    """Over how many runs the numbers are."""
    runs = sorted({one["n"] for one in record["cells"] if one["n"]})
    return f"n = {' or '.join(map(str, runs)) or 0} {'seed' if runs == [1] else 'seeds'}"


def _panel(record: dict[str, Any], panel: dict[str, Any]) -> list[str]:
    """The lines of one panel; a number in brackets is the paper's."""
    rows, columns, found = grid(record, panel, FEW)
    if not found:
        return []
    table = [[_head(panel), *map(_column, columns)]]
    for row in rows:
        table.append([row, *(_pair(found.get((row, column))) for column in columns)])
    widths = [max(len(line[place]) for line in table) for place in range(len(table[0]))]
    lines = [
        "  ".join(part.ljust(width) for part, width in zip(line, widths, strict=True)).rstrip()
        for line in table
    ]
    every = len(grid(record, panel)[1])
    return [*lines, f"({len(columns)} of {every} shown)"] if len(columns) < every else lines


def grid(
    record: dict[str, Any], panel: dict[str, Any], few: int | None = None
) -> tuple[list[str], list[Any], dict[tuple[str, Any], dict[str, Any]]]:
    """Rows, columns and cells of a panel; of a long curve `few` columns if that is asked, of a histogram none."""
    inside = [one for one in record["cells"] if one["panel"] == panel["name"]]
    if panel["kind"] == "histogram":
        return [], [], {}  # a picture; means that are worth a number have places of their own
    rows, columns = (list(dict.fromkeys(one[side] for one in inside)) for side in ("row", "column"))
    if panel["kind"] == "curve" or not any(isinstance(column, str) for column in columns):
        columns.sort()
    if panel["kind"] == "curve":
        if few is not None and len(columns) > few:
            kept = {columns[round(place * (len(columns) - 1) / (few - 1))] for place in range(few)}
            columns = sorted(kept | {one["column"] for one in inside if one["paper"] is not None})
    return rows, columns, {(one["row"], one["column"]): one for one in inside}


def _head(panel: dict[str, Any]) -> str:
    """What the numbers are, and what the columns."""
    x = f"by {panel['x']}" if panel["x"] and panel["kind"] != "histogram" else ""
    name, y = panel["name"], panel["y"]
    return " ".join(part for part in (f"{name}:" if name and (x or y) else name, y, x) if part)


def _column(column: Any) -> str:
    return column if isinstance(column, str) else f"{column:g}"


def _pair(one: dict[str, Any] | None) -> str:
    if one is None:
        return ""
    return ours(one) if one["paper"] is None else f"{ours(one)} ({number(one['paper'])})"


def page(record: dict[str, Any], picture: bytes | None) -> str:
    """One self-contained page; every text in it is escaped."""
    safe = html.escape
    parts = [f"<h1>{safe(record['title'])}</h1>", f"<p>{safe(record['question'])}</p>"]
    parts.append(
        f"<p><small>{safe(record['item'])}, scale {safe(record['scale'])}: {safe(record['note'])}</small></p>"
    )
    if picture is not None:
        parts.append(
            f'<img alt="{safe(record["title"])}" src="data:image/png;base64,{_text(picture)}">'
        )
    for panel in record["panels"]:
        parts += _table(record, panel)
    parts.append(
        f"<p>The paper ({safe(record['source'])}): {safe(record['trend'])}.</p><p>{seeds(record)}</p><ul>"
    )
    for law in record["laws"]:
        verdict = "holds" if law["holds"] else '<span class="bad">violated</span>'
        parts.append(
            f"<li>{verdict}: {safe(law['law'])} <small>({safe(law['found'])})</small></li>"
        )
    parts += [
        f'<li><span class="bad">missing</span>: {safe(sentence)}</li>'
        for sentence in record["missing"]
    ]
    parts += [
        "</ul><h2>Runs</h2><ul>",
        *(f"<li>{safe(run['label'])}</li>" for run in record["runs"]),
        "</ul>",
    ]
    head = f'<meta charset="utf-8"><title>{safe(record["item"])}</title><style>{STYLE}</style>'
    return (
        f'<!doctype html><html lang="en"><head>{head}</head><body>{"".join(parts)}</body></html>\n'
    )


def _table(record: dict[str, Any], panel: dict[str, Any]) -> list[str]:
    rows, columns, found = grid(record, panel)
    if not found:
        return []
    safe = html.escape
    top = "".join(f"<th>{safe(_column(column))}</th>" for column in columns)
    body = [f"<div class='wide'><table><tr><th>{safe(_head(panel))}</th>{top}</tr>"]
    for row in rows:
        line = "".join(f"<td>{_both(found.get((row, column)))}</td>" for column in columns)
        body.append(f"<tr><th>{safe(row)}</th>{line}</tr>")
    return [*body, "</table></div>"]


def _both(one: dict[str, Any] | None) -> str:
    if one is None:
        return ""
    paper = "" if one["paper"] is None else f" <small>paper {number(one['paper'])}</small>"
    return html.escape(ours(one)) + paper


def _text(picture: bytes) -> str:
    return base64.b64encode(picture).decode()


def picture(item: Item, cells: Cells, name: str, scale: str) -> bytes | None:
    """A PNG with a part for each panel that has numbers; None where matplotlib is not installed."""
    try:
        figure = import_module("matplotlib.figure")
    except ImportError:
        return None
    drawn = [panel for panel in item.panels if any(place[0] == panel.name for place in cells)]
    parts = {panel: _groups(item, cells, panel) if panel.kind == "table" else {} for panel in drawn}
    widths = [max(5.5, 2.0 + 1.9 * len(parts[panel])) for panel in drawn]
    sheet = figure.Figure(figsize=(sum(widths), 4.4), layout="constrained")
    sheet.suptitle(
        textwrap.fill(f"{name}, {scale}: {item.title}", round(14 * sum(widths))), fontsize=10
    )
    fields = sheet.subfigures(1, len(drawn), width_ratios=widths, squeeze=False)[0] if drawn else []
    alike: dict[str, list[Any]] = {}
    for field, panel in zip(fields, drawn, strict=True):
        if panel.kind == "table":
            _dots(field, parts[panel], panel)
            continue
        axis = field.subplots()
        {"curve": _curves, "histogram": _steps}[panel.kind](axis, item, cells, panel)
        axis.set_title(panel.name, fontsize=9)
        axis.tick_params(labelsize=7)
        axis.legend(fontsize=6)
        alike.setdefault(panel.y if panel.kind == "curve" else panel.name, []).append(axis)
    for axes in alike.values():  # curves of one number are there to be compared
        limits = [limit for axis in axes for limit in axis.get_ylim()]
        for axis in axes if len(axes) > 1 else []:
            axis.set_ylim(min(limits), max(limits))
    buffer = io.BytesIO()
    sheet.savefig(buffer, format="png", dpi=110)
    return buffer.getvalue()


def _lines(item: Item, cells: Cells, panel: Panel) -> dict[str, list[dict[str, Any]]]:
    """The cells of a panel by row, sorted by column where that is a number."""
    rows: dict[str, list[dict[str, Any]]] = {}
    for place in [place for place in cells if place[0] == panel.name]:
        rows.setdefault(place[1], []).append(cell(item, cells, place))
    numeric = not any(isinstance(place[2], str) for place in cells if place[0] == panel.name)
    return {
        row: sorted(line, key=lambda one: one["column"]) if numeric else line
        for row, line in rows.items()
    }


def _curves(axis: Any, item: Item, cells: Cells, panel: Panel) -> None:
    """A line for each row with a ribbon of one deviation, of seeds or of its own, and crosses for the paper."""
    lines = _lines(item, cells, panel)
    for row, line in lines.items():
        if row.startswith(DEVIATION):
            continue
        x, y = [one["column"] for one in line], [one["mean"] for one in line]
        style = "--" if row.startswith("bound") else "-"
        (drawn,) = axis.plot(
            x, y, style, marker="o" if len(x) < 20 else None, markersize=3, label=row
        )
        measured = (
            lines.get(DEVIATION + row.removeprefix("mean, "), [])
            if row.startswith("mean, ")
            else []
        )
        spread = [one["mean"] for one in measured] or [one["std"] or 0.0 for one in line]
        low, high = ([a + sign * b for a, b in zip(y, spread, strict=True)] for sign in (-1, 1))
        axis.fill_between(x, low, high, alpha=0.2, color=drawn.get_color())
        known = [
            (place[2], value)
            for place, value in item.paper.items()
            if place[:2] == (panel.name, row)
        ]
        if known:
            axis.plot(
                *zip(*known, strict=True), "x", color=drawn.get_color(), label=f"{row}, paper"
            )
    axis.set(xlabel=panel.x, ylabel=panel.y, xscale="log" if panel.log else "linear")


def _steps(axis: Any, item: Item, cells: Cells, panel: Panel) -> None:
    for row, line in _lines(item, cells, panel).items():
        axis.step(
            [one["column"] for one in line], [one["mean"] for one in line], where="mid", label=row
        )
    axis.set(xlabel=panel.x, ylabel=panel.y)


def _groups(item: Item, cells: Cells, panel: Panel) -> dict[str, dict[str, dict[str, Any]]]:
    """The cells of a table by column and row, or by row and column where that makes fewer groups."""
    found = [one for line in _lines(item, cells, panel).values() for one in line]
    sides = [(_column(one["column"]), one["row"], one) for one in found]
    if len({column for column, _, _ in sides}) > len({row for _, row, _ in sides}):
        sides = [(row, column, one) for column, row, one in sides]
    groups: dict[str, dict[str, dict[str, Any]]] = {}
    for outer, inner, one in sides:
        groups.setdefault(outer, {})[inner] = one
    return groups


def _dots(field: Any, groups: dict[str, dict[str, dict[str, Any]]], panel: Panel) -> None:
    """An axis for each group: dots with a deviation for our numbers, crosses for the paper's."""
    labels = list(dict.fromkeys(name for line in groups.values() for name in line))[::-1]
    one_number = (
        bool(panel.y) and " and " not in panel.y
    )  # then equal numbers stand at equal places
    axes = field.subplots(1, len(groups), sharey=True, sharex=one_number, squeeze=False)[0]
    for axis, (title, line) in zip(axes, groups.items(), strict=True):
        at = [labels.index(name) for name in line]
        spread = [one["std"] or 0.0 for one in line.values()]
        axis.errorbar(
            [one["mean"] for one in line.values()],
            at,
            xerr=spread,
            fmt="o",
            markersize=4,
            label="ours",
        )
        paper = [
            (one["paper"], y)
            for one, y in zip(line.values(), at, strict=True)
            if one["paper"] is not None
        ]
        if paper:
            axis.plot(*zip(*paper, strict=True), "x", label="paper")
        shown = [one["mean"] for one in line.values()] + [value for value, _ in paper]
        if min(shown) > 0 and max(shown) > 50 * min(
            shown
        ):  # hours of a toy beside those of ImageNet
            axis.set_xscale("log")
        axis.set_title(title, fontsize=8)
        axis.set_yticks(range(len(labels)), labels)
        axis.tick_params(labelsize=7)
        if axis.get_xscale() == "linear":
            axis.locator_params(axis="x", nbins=4)
        axis.set_ylim(-0.6, len(labels) - 0.4)
    axes[0].legend(fontsize=6)
    field.supxlabel(" ".join(part for part in (panel.name, panel.y) if part), fontsize=8)
