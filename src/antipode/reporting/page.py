"""One self-contained HTML page for one or several runs, made from their JSON files alone."""

import html
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

STYLE = """
:root{color-scheme:light dark;font:16px/1.5 system-ui,sans-serif}
body{max-width:60rem;margin:2rem auto;padding:0 1rem}
table{border-collapse:collapse;margin:.5rem 0}
td,th{padding:.2rem .8rem;border-bottom:1px solid #8884;text-align:left;font-variant-numeric:tabular-nums}
svg{width:100%;height:auto;border:1px solid #8884}
polyline{fill:none;stroke:#3b82f6;stroke-width:1.5}
details{margin:.5rem 0}pre{overflow:auto}
"""


def page(runs: list[Path]) -> str:
    """The whole page."""
    body = "\n".join(_run(path) for path in runs)
    title = "antipode: " + ", ".join(path.name for path in runs)
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f"<title>{html.escape(title)}</title><style>{STYLE}</style><body>{body}</body></html>\n"
    )


def _run(path: Path) -> str:
    recipe, scores, env = (_read(path / name) for name in ("recipe.json", "scores.json", "env.json"))
    rows = list(_rows(path / "metrics.jsonl"))
    parts = [f"<h1>{html.escape(path.name)}</h1>", _scores(scores)]
    for name, title in (("contrast", "loss"), ("loss", "loss"), ("spread", "spread of the embeddings"), ("knn", "kNN")):
        points = [(row["step"], row[name]) for row in rows if row.get(name) is not None and math.isfinite(row[name])]
        if len(points) > 1 and f"<h2>{title}</h2>" not in parts:
            parts += [f"<h2>{title}</h2>", curve(points)]
    for title, content in (("Recipe", recipe), ("Environment", env)):
        text = html.escape(json.dumps(content, indent=1))
        parts.append(f"<details><summary>{title}</summary><pre>{text}</pre></details>")
    return "\n".join(parts)


def _scores(scores: dict[str, Any]) -> str:
    if not scores:
        return "<p>No scores yet: antipode evaluate adds them.</p>"
    rows = "".join(
        f"<tr><td>{html.escape(name)}</td><td>{score['value']:.2f} {html.escape(score['unit'])}</td>"
        f"<td>{html.escape(score['data'])} {html.escape(score['split'])}, n = {score['n']}</td></tr>"
        for name, score in scores.items()
    )
    return f"<table><tr><th>protocol</th><th>score</th><th>on</th></tr>{rows}</table>"


def curve(points: list[tuple[float, float]], width: int = 800, height: int = 240) -> str:
    """A line through points as inline SVG, with its range written at the ends."""
    xs, ys = [x for x, _ in points], [y for _, y in points]
    left, right, low, high = min(xs), max(xs), min(ys), max(ys)
    across, up = (right - left) or 1.0, (high - low) or 1.0
    line = " ".join(
        f"{10 + (x - left) / across * (width - 20):.1f},{height - 20 - (y - low) / up * (height - 40):.1f}"
        for x, y in points
    )
    text = (
        f'<text x="12" y="14" font-size="12" fill="currentColor">{high:.4g}</text>'
        f'<text x="12" y="{height - 6}" font-size="12" fill="currentColor">{low:.4g}</text>'
    )
    return f'<svg viewBox="0 0 {width} {height}" role="img"><polyline points="{line}"/>{text}</svg>'


def _read(path: Path) -> dict[str, Any]:
    try:
        content: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    except ValueError as error:
        raise ValueError(f"{path} is not JSON: {error}") from error
    return content


def _rows(path: Path) -> Iterator[dict[str, Any]]:
    """The whole lines of a log."""
    for line in path.read_text().splitlines() if path.exists() else []:
        try:
            yield json.loads(line)
        except ValueError:  # a line that a crash cut short
            continue
