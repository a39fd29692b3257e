"""Show our numbers beside the paper's, as text and as an HTML page.

The functions read the record of an item, which is the content of its JSON file.
"""

import base64
import html
from statistics import fmean, stdev
from typing import Any

from antipode.reporting.look import document, stylesheet
from antipode.reproduction.item import Cells, Item, Place

FEW = 9  # columns of a curve in a text, besides those with a number of the paper


def cell(item: Item, cells: Cells, place: Place) -> dict[str, Any]:
    """Return the record of a place.

    It holds our values with mean, standard deviation and count, and the paper's number with its
    source.
    """
    values = cells.get(place, [])
    paper = item.paper.get(place)
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
    """Format a number: one decimal from 10 on, three significant digits below, "-" for None."""
    if value is None:
        return "-"
    if abs(value) >= 10 or value == 0:
        return f"{value:.1f}"
    short = f"{value:.3g}"
    # a fourth digit if three would show .9996 as 1
    return short if float(short) == value or "." in short else f"{value:.4g}"


def ours(entry: dict[str, Any]) -> str:
    """Format the mean of a cell, with the standard deviation over seeds if there are several."""
    spread = "" if entry["std"] is None else f" ± {number(entry['std'])}"
    return number(entry["mean"]) + spread


def summary_text(record: dict[str, Any]) -> str:
    """Return the text for a terminal: panels, the paper's finding, laws and missing numbers."""
    lines = [
        f"{record['item']} ({record['scale']}): {record['title']}",
        record["question"],
        record["note"],
    ]
    for panel in record["panels"]:
        panel_lines = _panel(record, panel)
        lines += ["", *panel_lines] if panel_lines else []
    lines += ["", f"the paper ({record['source']}): {record['trend']}", seeds(record)]
    lines += [f"{verdict(law)}: {law['law']} ({law['found']})" for law in record["laws"]]
    lines += [not_judged(record)] if record["not judged"] else []
    return "\n".join(lines + [f"MISSING: {sentence}" for sentence in record["missing"]])


def seeds(record: dict[str, Any]) -> str:
    """Return the number of seeds behind the numbers, such as "n = 3 seeds"."""
    counts = sorted({entry["n"] for entry in record["cells"] if entry["n"]})
    return f"n = {' or '.join(map(str, counts)) or 0} {'seed' if counts == [1] else 'seeds'}"


def verdict(law: dict[str, Any]) -> str:
    """Return the verdict on a law in a few words.

    It is undecided if the 95 % interval of its margin over seeds contains 0, and not judged if
    numbers are missing.
    """
    if law["margin"] is None:
        return "NOT JUDGED"
    by_mean = "holds" if law["holds"] else "VIOLATED"
    return f"undecided, {by_mean} on average" if law["verdict"] == "undecided" else by_mean


def not_judged(record: dict[str, Any]) -> str:
    """Return a sentence on the laws that are not checked at the scale of a record."""
    count = len(record["not judged"])
    laws = "law is" if count == 1 else "laws are"
    return f"{count} {laws} not checked at scale {record['scale']}"


def _panel(record: dict[str, Any], panel: dict[str, Any]) -> list[str]:
    """Return the lines of one panel. A number in brackets is the paper's."""
    rows, columns, entries = grid(record, panel, FEW)
    if not entries:
        return []
    table = [[_head(panel), *map(column_text, columns)]]
    for row in rows:
        table.append([row, *(_with_paper(entries.get((row, column))) for column in columns)])
    widths = [max(len(line[index]) for line in table) for index in range(len(table[0]))]
    lines = [
        "  ".join(part.ljust(width) for part, width in zip(line, widths, strict=True)).rstrip()
        for line in table
    ]
    total = len(grid(record, panel)[1])
    return [*lines, f"({len(columns)} of {total} shown)"] if len(columns) < total else lines


def grid(
    record: dict[str, Any], panel: dict[str, Any], few: int | None = None
) -> tuple[list[str], list[Any], dict[tuple[str, Any], dict[str, Any]]]:
    """Return the rows, the columns, and the cells by row and column of a panel.

    If `few` is given, a longer curve keeps that many columns, and those with a number of the paper.
    A histogram has no rows here: it is only drawn.
    """
    inside = [entry for entry in record["cells"] if entry["panel"] == panel["name"]]
    if panel["kind"] == "histogram":
        return [], [], {}
    rows = list(dict.fromkeys(entry["row"] for entry in inside))
    columns = list(dict.fromkeys(entry["column"] for entry in inside))
    if panel["kind"] == "curve" or not any(isinstance(column, str) for column in columns):
        columns.sort()
    if panel["kind"] == "curve" and few is not None and len(columns) > few:
        last = len(columns) - 1
        kept = {columns[round(index * last / (few - 1))] for index in range(few)}
        columns = sorted(kept | {entry["column"] for entry in inside if entry["paper"] is not None})
    return rows, columns, {(entry["row"], entry["column"]): entry for entry in inside}


def _head(panel: dict[str, Any]) -> str:
    """Return the heading of a table: panel, what the numbers are, and what the columns are."""
    x = f"by {panel['x']}" if panel["x"] and panel["kind"] != "histogram" else ""
    name, y = panel["name"], panel["y"]
    return " ".join(part for part in (f"{name}:" if name and (x or y) else name, y, x) if part)


def column_text(column: Any) -> str:
    """Format the name of a column, which is a text or a number."""
    return column if isinstance(column, str) else f"{column:g}"


def _with_paper(entry: dict[str, Any] | None) -> str:
    """Format our number, followed by the paper's in brackets."""
    if entry is None:
        return ""
    return ours(entry) if entry["paper"] is None else f"{ours(entry)} ({number(entry['paper'])})"


def page(record: dict[str, Any], picture: bytes | None) -> str:
    """Return a self-contained HTML page with an optional PNG picture. All texts are escaped."""
    safe = html.escape
    parts = [
        f'<div class="hero"><p class="eyebrow">{safe(record["item"])}, scale '
        f"{safe(record['scale'])}</p><h1>{safe(record['title'])}</h1>",
        f'<p class="what">{safe(record["question"])}</p>',
        f'<p class="small">{safe(record["note"])}</p></div>',
    ]
    if picture is not None:
        source = f"data:image/png;base64,{_base64(picture)}"
        alt = f"Our numbers and those of the paper: {record['title']}"
        parts.append(
            f'<div class="picture" tabindex="0" role="region" aria-label="picture">'
            f'<img alt="{safe(alt)}" src="{source}"></div>'
        )
    parts += [
        "<h2>What the paper finds</h2>",
        f"<p>{safe(_sentence(record['trend']))}</p>",
        f'<p class="small">Source: {safe(record["source"])}</p>',
        "<h2>Do our runs agree?</h2>",
        *_verdicts(record),
        f'<p class="small">{seeds(record)}</p>',
        "<h2>Numbers</h2>",
    ]
    for panel in record["panels"]:
        parts += _table(record, panel)
    runs = "".join(f"<li>{safe(run['label'])}</li>" for run in record["runs"])
    parts.append(
        f"<details><summary>Runs ({len(record['runs'])})</summary><ul>{runs}</ul></details>"
    )
    return document(
        safe(record["item"]),
        "".join(parts),
        command="antipode reproduce",
        style=stylesheet("item"),
    )


def _sentence(text: str) -> str:
    """Return a text that begins with a capital letter and ends with a full stop."""
    return text[:1].upper() + text[1:] + ("" if text.endswith(".") else ".")


def _verdicts(record: dict[str, Any]) -> list[str]:
    """Return the HTML list of laws and of missing numbers."""
    safe = html.escape
    parts = ['<ul class="laws">']
    for law in record["laws"]:
        word = verdict(law)
        kind = {"holds": "good", "VIOLATED": "bad"}.get(word, "open")
        shown = f"<b>{safe(word.lower())}</b>"
        found = f"<small>{safe(law['found'])}</small>"
        parts.append(f'<li class="{kind}">{shown}: {safe(law["law"])} {found}</li>')
    for sentence in record["missing"]:
        parts.append(f'<li class="bad"><b>missing</b>: {safe(sentence)}</li>')
    if record["not judged"]:
        parts.append(f'<li class="open">{not_judged(record)}</li>')
    return [*parts, "</ul>"]


def _table(record: dict[str, Any], panel: dict[str, Any]) -> list[str]:
    """Return the HTML table of a panel."""
    rows, columns, entries = grid(record, panel)
    if not entries:
        return []
    safe = html.escape
    top = "".join(f'<th scope="col">{safe(column_text(column))}</th>' for column in columns)
    name = safe(_head(panel))
    body = [
        f'<div class="wide" tabindex="0" role="region" aria-label="{name}"><table>'
        f'<thead><tr><th scope="col">{name}</th>{top}</tr></thead><tbody>'
    ]
    for row in rows:
        line = "".join(f"<td>{_html_cell(entries.get((row, column)))}</td>" for column in columns)
        body.append(f'<tr><th scope="row">{safe(row)}</th>{line}</tr>')
    return [*body, "</tbody></table></div>"]


def _html_cell(entry: dict[str, Any] | None) -> str:
    """Format our number, followed by the paper's in small print."""
    if entry is None:
        return ""
    paper = "" if entry["paper"] is None else f" <small>paper {number(entry['paper'])}</small>"
    return html.escape(ours(entry)) + paper


def _base64(content: bytes) -> str:
    return base64.b64encode(content).decode()
