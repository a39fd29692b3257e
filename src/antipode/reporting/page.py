"""One self-contained HTML page for one or several runs: no server, no network, nothing but this file.

Texts that come from a run are escaped here or set as text by the script, so that none of them is ever markup.
"""

import base64
import hashlib
import html
import json
from collections.abc import Callable, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from antipode.evaluation.task import Task
from antipode.files import finite
from antipode.reporting import provenance as facts
from antipode.reporting import seed_groups as spread
from antipode.reporting.analyses import drawable
from antipode.reporting.curves import LINES, curves, explained, once, ordered
from antipode.reporting.gather import Record, gather
from antipode.reporting.head import hero, noted, title, worth
from antipode.reporting.pictures import Album, nothing, pictures
from antipode.reporting.seed_groups import Column, Group

PICTURED = 4  # settings of which one run gets pictures: each takes seconds and half a megabyte
SCRIPTS = (
    "chart",
    "map",
    "state",
    "scores",
    "training",
    "pictures",
    "origin",
    "page",
)  # in one scope, in this order
POINTS = {True: 300, False: 150}  # of a curve: of few runs, of more than 50


def page(paths: Sequence[Path], open_task: Callable[[Path], Task]) -> str:
    """The whole page; `open_task` gives a run's backbone on its images, or an error whose sentence the page prints."""
    records = gather(paths)
    settings, columns = spread.groups(records), spread.columns(records)
    trained = [group.runs[0] for group in settings if records[group.runs[0]].recipe]
    albums = [_album(one, at in trained[:PICTURED], open_task) for at, one in enumerate(records)]
    content = data(records, albums, settings, columns)
    head, notes = (
        hero(records, albums, settings, columns),
        worth(noted(records, albums), len(records)),
    )
    return document(title(records), head, notes, content)


def _album(one: Record, chosen: bool, open_task: Callable[[Path], Task]) -> Album:
    if not one.recipe:
        return nothing("there is no recipe here, so its images are not known")
    if not chosen:
        return nothing(f"they are drawn for one run of each of the first {PICTURED} settings only")
    return pictures(one.path, one.name, open_task)


def data(
    records: Sequence[Record],
    albums: Sequence[Album],
    settings: Sequence[Group],
    columns: Sequence[Column],
) -> dict[str, Any]:
    """All that the script draws, as JSON would have it."""
    member = {run: at for at, group in enumerate(settings) for run in group.runs}
    vary, most = spread.telling(records), POINTS[len(records) <= 50]
    runs = [
        _run(one, album, columns, most)
        | {"group": member[at], "vary": [spread.plain(one.value(key)) for key in vary]}
        for at, (one, album) in enumerate(zip(records, albums, strict=True))
    ]
    once([run["curves"]["y"] for run in runs])
    metrics = ordered({name for run in runs for name in run["curves"]["y"]})
    return {
        "runs": runs,
        "groups": [{"label": group.label, "runs": group.runs} for group in settings],
        "columns": [_column(column, columns, records) for column in columns],
        "main": spread.headline(columns, records),
        "vary": vary,
        "metrics": [[name, *explained(name), LINES.get(name, [])] for name in metrics],
        "axes": list(facts.AXES.items()),
    }


def _run(one: Record, album: Album, columns: Sequence[Column], most: int) -> dict[str, Any]:
    return {
        "name": one.name,
        "method": one.method,
        "data": one.value("data.name", ""),
        "seed": one.value("train.seed"),
        "finished": one.finished,
        "status": _status(one),
        "scores": {
            columns.index(spread.column_of(k, s)): s["value"] for k, s in one.scores.items()
        },
        "more": {
            columns.index(spread.column_of(k, s)): s.get("more") or {}
            for k, s in one.scores.items()
        },
        "curves": curves(one.rows, most),
        "perEpoch": one.per_epoch,
        "recipe": facts.recipe_rows(one),
        "choices": facts.choices(one) if one.recipe else None,
        "env": facts.environment(one),
        "commands": facts.commands(one) if one.recipe else [],
        "started": facts.started(one),
        "analysis": drawable(one.analysis),
        "pictures": album.found,
        "absent": album.absent,
    }


def _status(one: Record) -> str:
    if not one.recipe:
        return "not trained here"
    return "finished" if one.finished else f"epoch {one.epochs_done} of {one.value('train.epochs')}"


def _column(column: Column, columns: Sequence[Column], records: Sequence[Record]) -> dict[str, Any]:
    """A column under a name of its own, with its settings."""
    alike = [other for other in columns if other.name == column.name]
    return column._asdict() | {
        "label": column.name if len(alike) == 1 else f"{column.name} #{alike.index(column) + 1}",
        "settings": spread.settings(column, records),
    }


def document(name: str, head: str, notes: str, content: dict[str, Any]) -> str:
    """The file itself. Its policy lets no request out and no script in but the one whose hash it names."""
    here = files("antipode.reporting")
    body = (here / "page.html").read_text(encoding="utf-8")
    style = (here / "page.css").read_text(encoding="utf-8")
    script = "\n".join((here / f"{name}.js").read_text(encoding="utf-8") for name in SCRIPTS)
    script = f'(() => {{\n"use strict";\n{script}\n}})();'
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    parts = {
        "TITLE": html.escape(name),
        "POLICY": policy,
        "STYLE": style,
        "HERO": head,
        "NOTES": notes,
    }
    for mark, text in (parts | {"DATA": embedded(content), "SCRIPT": script}).items():
        before, _, after = body.partition(
            f"<!--{mark}-->"
        )  # the first only: what a run holds is not searched again
        body = before + text + after
    return body


def embedded(content: Any) -> str:
    """JSON that may stand inside a script element: no character of it can end the element or begin a comment."""
    text = json.dumps(finite(content), separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
