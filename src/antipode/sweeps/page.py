"""The page of a sweep: the best setting, a sortable table, and what each varied key does."""

import html
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from antipode.reporting.look import document, stylesheet
from antipode.sweeps.charts import Line, line_chart
from antipode.sweeps.curves import mean_curve

SERIES = 10  # colours of the look
# curves that are drawn if a run has them, with their titles
CURVES = {"knn": "kNN accuracy during training (%)", "loss": "Loss", "rank": "Effective rank"}


def page(content: dict[str, Any], out: Path) -> str:
    """Return a self-contained HTML page for the content of sweep.json. All texts are escaped."""
    title = f"Sweep over {', '.join(content['vary']) or 'seeds'}"
    runs = len({run for row in content["rows"] for run in row["runs"]})
    parts = [
        f'<div class="sweep"><div class="hero"><p class="eyebrow">{len(content["rows"])} settings, '
        f"{runs} runs</p><h1>{html.escape(title)}</h1>{_best(content)}</div>",
        _failed(content),
        _table(content),
        *_effects(content),
        *_curves(content, out),
        "</div>",
    ]
    style = stylesheet() + (files("antipode.sweeps") / "sweep.css").read_text("utf-8")
    script = (files("antipode.sweeps") / "sort.js").read_text("utf-8")
    name = html.escape(title)
    return document(name, "".join(parts), command="antipode sweep", style=style, script=script)


def label(values: dict[str, Any]) -> str:
    """Return the values of a setting as a text."""
    return ", ".join(f"{key}={value}" for key, value in values.items()) or "the recipe"


def _best(content: dict[str, Any]) -> str:
    """Return the sentence on the best setting."""
    best = content["best"]
    if best is None:
        sentence = "No score that uses no test label is known for every setting, so none is chosen."
        return f'<p class="what">{sentence}</p>'
    row = content["rows"][best["row"]]
    others = [name for name in row["mean"] if name != content["chosen_by"]]
    shown = ", ".join(f"{html.escape(name)} {_mean(row, name)}" for name in others)
    beside = f" Its scores on test images: {shown}." if shown else ""
    chosen = f"{html.escape(content['chosen_by'])} {_mean(row, content['chosen_by'])}"
    return (
        '<div class="answer"><p><span class="badge good"><b aria-hidden="true">✓</b> Best setting'
        f"</span></p><p><strong>{html.escape(label(best['values']))}</strong></p>"
        f'<p class="small">Chosen by {chosen}, which uses no test label.{beside}</p></div>'
    )


def _mean(row: dict[str, Any], name: str) -> str:
    if name not in row["mean"]:
        return "-"
    spread = row["std"][name]
    return f"{row['mean'][name]:.2f}" + ("" if spread is None else f" ± {spread:.2f}")


def _failed(content: dict[str, Any]) -> str:
    """Return the list of runs that failed."""
    if not content["failed"]:
        return ""
    rows = "".join(f"<li>{html.escape(text)}</li>" for text in content["failed"].values())
    return f"<h2>Failed runs</h2><ul>{rows}</ul>"


def _table(content: dict[str, Any]) -> str:
    """Return the table of settings. A click on a heading sorts it."""
    names = score_names(content)
    keys = list(content["vary"])
    heads = "".join(
        f'<th scope="col" aria-sort="none"><button type="button">{html.escape(name)}</button></th>'
        for name in [*keys, "seeds", *names]
    )
    best = content["best"]["row"] if content["best"] else None
    rows = []
    for at, row in enumerate(content["rows"]):
        cells = [_cell(str(row["values"][key]), row["values"][key]) for key in keys]
        cells.append(_seeds(row))
        cells += [_cell(_mean(row, name), row["mean"].get(name)) for name in names]
        mark = ' class="best"' if at == best else ""
        rows.append(f"<tr{mark}>{''.join(cells)}</tr>")
    return (
        "<h2>Settings</h2><p>Mean over seeds ± standard deviation. Click a heading to sort.</p>"
        f'<div class="wide"><table class="sortable"><thead><tr>{heads}</tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table></div>"
    )


def _seeds(row: dict[str, Any]) -> str:
    """Return the cell with the number of seeds that have a score, and of all if some have none."""
    by_seed = zip(*row["scores"].values(), strict=True)
    scored = sum(any(score is not None for score in scores) for scores in by_seed)
    planned = len(row["seeds"])
    return _cell(str(planned) if scored == planned else f"{scored} of {planned}", scored)


def _cell(text: str, value: Any) -> str:
    known = "" if value is None else html.escape(str(value), quote=True)
    return f'<td data-value="{known}">{html.escape(text)}</td>'


def score_names(content: dict[str, Any]) -> list[str]:
    """Return the names of all scores, the one that chooses the best setting first."""
    names = dict.fromkeys(name for row in content["rows"] for name in row["mean"])
    return sorted(names, key=lambda name: name != content["chosen_by"])


def _effects(content: dict[str, Any]) -> list[str]:
    """Return a chart of the chosen score for each key that has several values."""
    names = score_names(content)
    keys = [key for key, values in content["vary"].items() if len(values) > 1]
    if not names or not keys:
        return []
    charts = [_effect(content, key, names[0]) for key in keys]
    text = "A line connects settings that differ only in this key."
    return [f'<h2>Effect of each key</h2><p>{text}</p><div class="grid">', *charts, "</div>"]


def _effect(content: dict[str, Any], key: str, name: str) -> str:
    """Return the chart of a score against the values of one key."""
    places = list(dict.fromkeys(str(row["values"][key]) for row in content["rows"]))
    groups: dict[str, list[tuple[float, float, float]]] = {}
    for row in content["rows"]:
        if name not in row["mean"]:
            continue
        rest = label({other: v for other, v in row["values"].items() if other != key})
        point = places.index(str(row["values"][key])), row["mean"][name], row["std"][name] or 0.0
        groups.setdefault(rest if len(row["values"]) > 1 else "", []).append(point)
    lines = [Line(rest, sorted(points)) for rest, points in groups.items()]
    return line_chart(f"{name} by {key}", lines, ticks=places)


def _finished(row: dict[str, Any], out: Path) -> list[Path]:
    """Return the folders of the finished runs of a setting."""
    folders = [out / run for run in row["runs"]]
    return [folder for folder in folders if (folder / "backbone.safetensors").exists()]


def _curves(content: dict[str, Any], out: Path) -> list[str]:
    """Return the training curves, one line per setting: the mean over its seeds."""
    rows: Sequence[dict[str, Any]] = content["rows"]
    if len(rows) > SERIES:  # the best ones, so that lines stay distinct
        name = (score_names(content) or [""])[0]
        rows = sorted(rows, key=lambda row: -row["mean"].get(name, float("-inf")))[:SERIES]
    charts = []
    for metric, title in CURVES.items():
        lines = [
            Line(label(row["values"]), [(x, y, 0.0) for x, y in points])
            for row in rows
            if (points := mean_curve(_finished(row, out), metric))
        ]
        if lines:
            charts.append(line_chart(title, lines, axis="epoch"))
    more = f" of the {SERIES} best settings" if len(content["rows"]) > SERIES else ""
    head = f"<h2>Training</h2><p>Mean over the seeds{more}.</p>" if charts else ""
    return [head, '<div class="grid">', *charts, "</div>"] if charts else []
