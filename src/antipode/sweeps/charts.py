"""Line charts as SVG, in the colours of the report."""

import html
import math
from collections.abc import Sequence
from typing import NamedTuple

WIDTH = 520
HEIGHT = 300
LEFT, RIGHT, TOP, BOTTOM = 56, 16, 40, 44
SERIES = 10


class Line(NamedTuple):
    """A named line; its points are (x, y, half the height of the error bar)."""

    name: str
    points: Sequence[tuple[float, float, float]]


class Scale(NamedTuple):
    """A linear map from numbers to pixels."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        """Return the pixel of a number."""
        span = (self.high - self.low) or 1.0
        return self.start + (value - self.low) / span * (self.end - self.start)


def line_chart(
    title: str, lines: Sequence[Line], *, ticks: Sequence[str] | None = None, axis: str = ""
) -> str:
    """Return a figure with one line per series.

    With `ticks`, x is the place of a text in `ticks`. `axis` is the name of the x axis.
    """
    xs = [x for line in lines for x, _, _ in line.points]
    ys = [y + sign * half for line in lines for _, y, half in line.points for sign in (-1, 1)]
    across = Scale(min(xs), max(xs), LEFT + 12, WIDTH - RIGHT - 12)
    marks = steps(min(ys), max(ys))
    up = Scale(min(marks[0], *ys), max(marks[-1], *ys), HEIGHT - BOTTOM, TOP)
    below = list(enumerate(ticks)) if ticks else [(x, f"{x:g}") for x in steps(min(xs), max(xs))]
    safe = html.escape(title)
    parts = [
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{safe}">',
        *(_level(up(y), f"{y:g}") for y in marks),
        *(_tick(across(x), text) for x, text in below if min(xs) <= x <= max(xs)),
        *(_drawn(line, at % SERIES, across, up, dots=bool(ticks)) for at, line in enumerate(lines)),
        f'<text class="axis" x="{WIDTH - RIGHT}" y="{HEIGHT - 6}" text-anchor="end">'
        f"{html.escape(axis)}</text></svg>",
    ]
    return f"<figure><figcaption>{safe}</figcaption>{''.join(parts)}{_legend(lines)}</figure>"


def _level(y: float, text: str) -> str:
    return (
        f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
        f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{html.escape(text)}</text>'
    )


def _tick(x: float, text: str) -> str:
    place = f'x="{x:.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle"'
    return f"<text {place}>{html.escape(text)}</text>"


def _drawn(line: Line, colour: int, across: Scale, up: Scale, dots: bool) -> str:
    """Return a line; with `dots`, also its points and error bars."""
    points = [(across(x), up(y), up(y - half), up(y + half)) for x, y, half in line.points]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y, _, _ in points)
    parts = [f'<polyline class="series" stroke="var(--s{colour})" points="{path}"/>']
    for x, y, low, high in points if dots else ():
        parts.append(
            f'<line stroke="var(--s{colour})" x1="{x:.1f}" x2="{x:.1f}" y1="{low:.1f}" '
            f'y2="{high:.1f}"/><circle fill="var(--s{colour})" cx="{x:.1f}" cy="{y:.1f}" r="4"/>'
        )
    return "".join(parts)


def _legend(lines: Sequence[Line]) -> str:
    named = [(at % SERIES, line.name) for at, line in enumerate(lines) if line.name]
    items = "".join(
        f'<li><i style="background:var(--s{at})"></i>{html.escape(name)}</li>' for at, name in named
    )
    return f'<ul class="legend">{items}</ul>' if items else ""


def steps(low: float, high: float, most: int = 5) -> list[float]:
    """Return at most `most` + 1 round numbers that cover a range."""
    span = (high - low) or abs(high) or 1.0
    power = 10 ** math.floor(math.log10(span / most))
    size = next(power * factor for factor in (1, 2, 5, 10) if span / (power * factor) <= most)
    first = math.floor(low / size)
    count = math.ceil(high / size) - first + 1
    return [round((first + at) * size, 10) for at in range(count)]
