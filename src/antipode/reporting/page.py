"""The report: one self-contained HTML page for one or several runs, without server or network.

Texts that come from a run are either escaped here or set as text by the script, so that they are
never interpreted as markup.
"""

import base64
import hashlib
import html
import json
import sys
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from antipode.early import no_run
from antipode.files import atomic_write, check_folder, finite
from antipode.json_text import number
from antipode.names import printable
from antipode.reporting import provenance, seed_groups
from antipode.reporting.analyses import drawable
from antipode.reporting.curves import FILLED, LINES, curves, explained, filling, once, ordered
from antipode.reporting.head import hero, title
from antipode.reporting.look import BRAND, stylesheet
from antipode.reporting.notes import collect_notes, gaps_html, warnings_html
from antipode.reporting.pictures import Album, no_pictures, pictures
from antipode.reporting.seed_groups import Column, Group
from antipode.reporting.summary import epochs_done, gather, steps_per_epoch
from antipode.runs.folder import PAGE
from antipode.runs.run import Run
from antipode.wording import option

# Settings of which one run gets pictures. Each album takes seconds and half a megabyte.
PICTURED = 4
# The scripts share one scope, in this order.
SCRIPTS = (
    *("chart", "state", "map_view", "map", "scores", "training"),
    *("pictures", "duplicates", "origin", "page"),
)
SUFFIXES = (".html", ".htm")
SPAN = ("low", "high", "chance")  # keys of a score that stand beside its value
# a sentence of the footer
HAS_IMAGES = (
    "It contains small copies of images of the data set (<code>--no-images</code> omits them)."
)
WITHOUT_IMAGES = "It contains no images of the data set."
POINTS = {True: 300, False: 150}  # maximum number of points of a curve: up to 50 runs, more runs


def write(runs: Sequence[Run], out: Path | None = None, *, images: bool = True) -> Path:
    """Write the page of one or several runs and return its path.

    Without `out`, the page is written to report.html in the first run folder. If the page contains
    images of the data sets, a sentence on stderr says so. `images=False` leaves them out. Another
    one says if the images of a run cannot be opened, so that the page has no pictures of it.
    """
    absent = [
        run.path
        for run in runs
        if not any((run.path / name).exists() for name in ("recipe.json", "scores.json"))
    ]
    if not runs or absent:
        raise FileNotFoundError(no_run(absent[0]) if absent else "there is no run in an empty list")
    file = out or runs[0].path / PAGE
    _check_file(file)  # before the pictures are drawn
    text = page(runs, images=images)
    with atomic_write(file) as handle:
        handle.write(text.encode("utf-8", "backslashreplace"))
    if HAS_IMAGES in text:
        name = printable(file.name)
        print(
            f"{name} contains small copies of images of the data set; "
            f"a report with {option('images', False)} has none",
            file=sys.stderr,
        )
    return file


def _check_file(file: Path) -> None:
    """Raise ValueError if a page cannot be written to a file of this name."""
    if file.is_dir():
        raise ValueError(
            f"{file} is a directory, not a file: use {option('out', f'{file}/report.html')}"
        )
    if file.suffix.lower() not in SUFFIXES:
        raise ValueError(
            f"a report is written to a *{' or *'.join(SUFFIXES)} file, not to {file.name!r}"
        )
    check_folder(file)


def page(runs: Sequence[Run], *, images: bool = True) -> str:
    """Return the page of one or several runs as HTML."""
    opened = gather(runs)
    groups = seed_groups.groups(opened)
    columns = seed_groups.columns(opened)
    trained = [group.runs[0] for group in groups if opened[group.runs[0]].values]
    albums = [_album(run, at in trained[:PICTURED], images) for at, run in enumerate(opened)]
    content = data(opened, albums, groups, columns)
    head = hero(opened, albums, groups, columns)
    notes = collect_notes(opened, albums)
    warned, gaps = (make(notes, len(opened)) for make in (warnings_html, gaps_html))
    privacy = HAS_IMAGES if any(album.has_images for album in albums) else WITHOUT_IMAGES
    return document(title(opened), head, warned, content, privacy, gaps)


def _album(run: Run, chosen: bool, images: bool) -> Album:
    """Return the pictures of a run, or the reason why it has none."""
    if not run.values:
        return no_pictures("there is no recipe, so the images are unknown")
    if not chosen:
        return no_pictures(
            f"they are drawn for one run of each of the first {PICTURED} settings only"
        )
    album = pictures(run, images)
    if album.error:
        text = f"the report has no pictures of {run.label}: {album.error}"
        print(printable(text), file=sys.stderr)
    return album


def data(
    runs: Sequence[Run],
    albums: Sequence[Album],
    groups: Sequence[Group],
    columns: Sequence[Column],
) -> dict[str, Any]:
    """Return everything that the script draws, as values that JSON can represent."""
    group_of = {run: at for at, group in enumerate(groups) for run in group.runs}
    vary = seed_groups.distinguishing_keys(runs)
    points = POINTS[len(runs) <= 50]
    contents = [
        _run(run, album, columns, points)
        | {"group": group_of[at], "vary": [seed_groups.plain(run.value(key)) for key in vary]}
        for at, (run, album) in enumerate(zip(runs, albums, strict=True))
    ]
    once([content["curves"]["y"] for content in contents])
    metrics = ordered({name for content in contents for name in content["curves"]["y"]})
    return {
        "runs": contents,
        "groups": [{"label": group.label, "runs": group.runs} for group in groups],
        "columns": [_column(column, columns, runs) for column in columns],
        "main": seed_groups.headline(columns, runs),
        "vary": vary,
        "metrics": [[name, *explained(name), LINES.get(name, [])] for name in metrics],
        "filled": list(FILLED),
        "axes": list(provenance.AXES.items()),
    }


def _run(run: Run, album: Album, columns: Sequence[Column], points: int) -> dict[str, Any]:
    """Return what the script draws of one run."""
    scores = {
        columns.index(seed_groups.column_of(name, score)): score
        for name, score in run.shown_scores.items()
    }
    return {
        "name": run.label,
        "method": run.method,
        "data": str(run.value("data.name", "")),
        "seed": run.value("train.seed"),
        "finished": run.finished,
        "status": _status(run),
        "scores": {column: score["value"] for column, score in scores.items()},
        "more": {column: _numbers(score.get("more")) for column, score in scores.items()},
        "spans": {
            column: [score.get(key) if number(score.get(key)) else None for key in SPAN]
            for column, score in scores.items()
        },
        "curves": curves(run.log, points),
        "filling": filling(run) if run.values else None,
        "perEpoch": steps_per_epoch(run),
        "recipe": provenance.recipe_rows(run),
        "about": provenance.recipe_about(run),
        "choices": provenance.choices(run) if run.values else None,
        "env": provenance.environment(run),
        "commands": provenance.commands(run) if run.values else [],
        "started": provenance.start_command(run),
        "analysis": drawable(run.analysis),
        "pictures": album.pictures,
        "absent": album.absent,
    }


def _numbers(values: Any) -> dict[str, Any]:
    """Return the numbers of an object in a JSON file; empty if it is not an object."""
    items = values.items() if isinstance(values, dict) else ()
    return {str(name): value for name, value in items if number(value)}


def _status(run: Run) -> str:
    if not run.values:
        return "not trained here"
    if run.finished:
        return "finished"
    return f"epoch {epochs_done(run)} of {run.value('train.epochs')}"


def _column(column: Column, columns: Sequence[Column], runs: Sequence[Run]) -> dict[str, Any]:
    """Return a column with a distinct label and with its settings."""
    same_name = [other for other in columns if other.name == column.name]
    number = f" #{same_name.index(column) + 1}" if len(same_name) > 1 else ""
    return column._asdict() | {
        "label": f"{column.name}{number}",
        "settings": seed_groups.settings(column, runs),
    }


def document(
    name: str,
    head: str,
    notes: str,
    content: dict[str, Any],
    privacy: str = "",
    gaps: str = "",
) -> str:
    """Return the HTML of the page.

    Its content security policy permits no request, and no script but the one with the given hash.
    """
    here = files("antipode.reporting")
    body = (here / "page.html").read_text(encoding="utf-8")
    script = "\n".join((here / f"{name}.js").read_text(encoding="utf-8") for name in SCRIPTS)
    script = f'(() => {{\n"use strict";\n{script}\n}})();'
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = (
        "default-src 'none'; img-src data:; style-src 'unsafe-inline'; "
        f"script-src 'sha256-{digest}'"
    )
    parts = {
        "TITLE": html.escape(printable(name)),
        "POLICY": policy,
        "STYLE": stylesheet("page"),
        "BRAND": BRAND,
        "HERO": head,
        "NOTES": notes,
        "GAPS": gaps,
        "PRIVACY": privacy,
        "DATA": embedded(content),
        "SCRIPT": script,
    }
    for mark, text in parts.items():
        # Only the first mark is replaced. Texts of a run contain none, since < is escaped there.
        before, _, after = body.partition(f"<!--{mark}-->")
        body = before + text + after
    return body


def embedded(content: Any) -> str:
    """Return JSON for a script element, in which nothing can end the element or begin a comment."""
    text = json.dumps(finite(content), separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
