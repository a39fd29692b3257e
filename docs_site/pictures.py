"""Draw a picture of the loss of each method, as docs/pictures/losses/NAME.svg.

    python docs_site/pictures.py            write the pictures
    python docs_site/pictures.py --check    exit with status 1 if a picture is out of date

The colours are names of the report's palette, with the light value for viewers without it.
"""

import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from antipode.reporting.look import colours

FOLDER = Path(__file__).parents[1] / "docs" / "pictures" / "losses"
WIDTH, HEIGHT = 340, 286
LEFT, RIGHT, TOP, BOTTOM = 46, 16, 40, 84  # margins of a panel; the legend is at the bottom
SERIES = ("s0", "s1", "s2")
MINUS = "\u2212"
Curve = Callable[[float], float]


@dataclass(frozen=True)
class Panel:
    """One chart: curves by their label over an interval, with the names of both axes."""

    title: str
    across: str
    up: str
    x: tuple[float, float]
    y: tuple[float, float]
    curves: dict[str, Curve]
    log: bool = False  # x is the exponent of ten


def softplus(x: float) -> float:
    """Return log(1 + exp(x))."""
    return max(x, 0.0) + math.log1p(math.exp(-abs(x)))


def sigmoid(x: float) -> float:
    """Return the derivative of softplus."""
    return 1 / (1 + math.exp(-x))


def contrast(tau: float, negatives: float, alpha: float | None = None) -> Curve:
    """Return InfoNCE over the cosine with the positive; the negatives have cosine 0."""
    count = negatives if alpha is None else alpha
    return lambda cosine: softplus(math.log(count) - cosine / tau)


def over_k(cosine: float, tau: float, alpha: float | None = None) -> Curve:
    """Return InfoNCE over the number of negatives 10^x, which have cosine 0."""
    return lambda x: softplus((math.log(alpha) if alpha else x * math.log(10)) - cosine / tau)


def jcl(strength: float) -> Curve:
    """Return JCL's loss over the deviation of the positive cosines (mean .8, tau .2)."""
    a, r = 0.8 / 0.2, math.log(65536)

    def loss(deviation: float) -> float:
        p = a + strength / 2 * (deviation / 0.2) ** 2
        return max(p, r) + math.log1p(math.exp(-abs(p - r))) - a

    return loss


def share(tau: float, others: int = 4095) -> Curve:
    """Return a negative's share of the softmax over its cosine with the query.

    The positive has cosine .8 and all other negatives have cosine 0.
    """
    rest = math.exp(0.8 / tau) + others
    return lambda cosine: math.exp(cosine / tau) / (math.exp(cosine / tau) + rest)


COSINE = "cosine of the query and its positive"
SOFTMAX = {
    "softplus(r - a)": softplus,
    "its slope q": sigmoid,
}
PICTURES: dict[str, list[Panel]] = {
    "simclr": [
        Panel("Loss of an anchor", "r - a", "loss", (-6, 6), (0, 6), SOFTMAX),
        Panel(
            "By batch size, at tau .1",
            COSINE,
            "loss",
            (0, 1),
            (0, 8),
            {f"N = {n}": contrast(0.1, 2 * n - 2) for n in (1024, 256, 32)},
        ),
    ],
    "dcl": [
        Panel(
            "Loss of an anchor",
            "r - a",
            "loss",
            (-6, 6),
            (-6, 6),
            {"SimCLR": softplus, "DCL": lambda x: x},
        ),
        Panel(
            "Slope of the loss",
            "r - a",
            "slope",
            (-6, 6),
            (0, 1.2),
            {"DCL": lambda _: 1.0, "SimCLR: q": sigmoid},
        ),
    ],
    "moco": [
        Panel(
            "By queue size, at tau .2",
            COSINE,
            "loss",
            (0, 1),
            (0, 12),
            {f"K = {k:,}": contrast(0.2, k) for k in (65536, 4096, 256)},
        ),
        Panel(
            "By temperature, at K = 65,536",
            COSINE,
            "loss",
            (0, 1),
            (0, 12),
            {"tau .2 (v2)": contrast(0.2, 65536), "tau .07 (v1)": contrast(0.07, 65536)},
        ),
    ],
    "mocov3": [
        Panel(
            "One direction, by batch size, tau .2",
            COSINE,
            "2 tau x loss",
            (0, 1),
            (0, 4),
            {f"N = {n:,}": lambda x, n=n: 0.4 * contrast(0.2, n - 1)(x) for n in (4096, 1024, 256)},
        ),
    ],
    "eqco": [
        Panel(
            "Positive of cosine .8, at tau .2",
            "number of negatives K",
            "loss",
            (0, 5),
            (0, 9),
            {
                "EqCo, alpha = 65,536": over_k(0.8, 0.2, 65536),
                "InfoNCE": over_k(0.8, 0.2),
                "EqCo, alpha = 256": over_k(0.8, 0.2, 256),
            },
            log=True,
        ),
        Panel(
            "Slope of the loss",
            "number of negatives K",
            "q",
            (0, 5),
            (0, 1.2),
            {
                "alpha = 65,536": lambda _: sigmoid(math.log(65536) - 4),
                "InfoNCE": lambda x: sigmoid(x * math.log(10) - 4),
                "alpha = 256": lambda _: sigmoid(math.log(256) - 4),
            },
            log=True,
        ),
    ],
    "jcl": [
        Panel(
            "Mean cosine .8, tau .2, K = 65,536",
            "standard deviation of the positive cosines",
            "loss",
            (0, 0.6),
            (6, 18),
            {"lambda 4": jcl(4), "lambda 2": jcl(2), "MoCo v2 (lambda 0)": jcl(0)},
        ),
    ],
    "adco": [
        Panel(
            "Share of one negative in the softmax",
            "cosine of the query and the negative",
            "share",
            (0, 1),
            (0, 1),
            {"bank, tau .02": share(0.02), "encoder, tau .12": share(0.12)},
        ),
    ],
    "npid": [
        Panel(
            "49,999 other images in memory",
            "cosine of the image and its memory entry",
            "loss",
            (0, 1),
            (0, 12),
            {"tau .1": contrast(0.1, 49999), "tau .07": contrast(0.07, 49999)},
        ),
    ],
    "invspread": [
        Panel(
            "Two terms of the loss",
            "probability P of a view",
            "loss",
            (0.01, 0.99),
            (0, 5),
            {
                "own view: -log P": lambda p: -math.log(p),
                "other image: -log(1 - P)": lambda p: -math.log(1 - p),
            },
        ),
    ],
    "byol": [
        Panel(
            "One direction",
            "cosine of prediction and target",
            "loss",
            (-1, 1),
            (0, 4.4),
            {"2 - 2 cos": lambda c: 2 - 2 * c},
        ),
    ],
    "simsiam": [
        Panel(
            "One direction",
            "cosine of prediction and projection",
            "loss",
            (-1, 1),
            (-1.2, 1.2),
            {"-cos": lambda c: -c},
        ),
    ],
    "msbreg": [
        Panel(
            "Centroids",
            "cosine of the two centroids",
            "loss",
            (-1, 1),
            (0, 4.4),
            {"2 - 2 cos": lambda c: 2 - 2 * c},
        ),
        Panel(
            "Singular values, per direction",
            "d s²/n, 1 if all are equal",
            "loss",
            (0, 3),
            (0, 4.4),
            {
                "gram: (x - 1)²": lambda x: (x - 1) ** 2,
                "nuclear: (√x - 1)²": lambda x: (math.sqrt(x) - 1) ** 2,
            },
        ),
    ],
    "barlowtwins": [
        Panel(
            "An entry on the diagonal",
            "correlation of the two views",
            "loss",
            (-1, 1),
            (0, 4.4),
            {"(1 - C)²": lambda c: (1 - c) ** 2},
        ),
        Panel(
            "An entry off the diagonal",
            "correlation of two dimensions",
            "loss x 1,000",
            (-1, 1),
            (0, 6),
            {".0051 C²": lambda c: 5.1 * c**2},
        ),
    ],
    "vicreg": [
        Panel(
            "Variance: one dimension",
            "standard deviation over the batch",
            "loss",
            (0, 2),
            (0, 1.2),
            {"max(0, 1 - s)": lambda s: max(0.0, 1 - s)},
        ),
        Panel(
            "Invariance and covariance",
            "difference, or covariance",
            "loss",
            (-1, 1),
            (0, 1.2),
            {"x²": lambda x: x * x},
        ),
    ],
}


def paint(name: str) -> str:
    """Return a colour of the palette as CSS, with its light value for other viewers."""
    return f"var(--{name}, {colours()[name]})"


def drawing(panels: list[Panel]) -> str:
    """Return an SVG of the panels side by side. The site shows each panel by itself."""
    size = f'width="{WIDTH}" height="{HEIGHT}" viewBox="0 0 {WIDTH} {HEIGHT}"'
    parts = [
        f'<svg x="{WIDTH * place}" {size}>{panel_markup(panel)}</svg>'
        for place, panel in enumerate(panels)
    ]
    whole = WIDTH * len(panels)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{whole}" height="{HEIGHT}" '
        f'viewBox="0 0 {whole} {HEIGHT}" font-family="sans-serif" font-size="11.5">\n'
        + "\n".join(parts)
        + "\n</svg>\n"
    )


def panel_markup(panel: Panel) -> str:
    """Return the axes, curves and labels of one panel."""
    (x0, x1), (y0, y1) = panel.x, panel.y
    inner_width, inner_height = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM

    def place(x: float, y: float) -> tuple[float, float]:
        across = LEFT + inner_width * (x - x0) / (x1 - x0)
        return round(across, 1), round(TOP + inner_height * (y1 - y) / (y1 - y0), 1)

    middle = LEFT + inner_width / 2
    parts = [text(LEFT, 16, panel.title, "ink", weight=600, size=12.5)]
    parts += [text(middle, HEIGHT - BOTTOM + 36, panel.across, "soft", anchor="middle")]
    parts += [text(LEFT - 6, TOP - 10, panel.up, "soft", anchor="start", dx=-28)]
    for value in ticks(y0, y1):
        (left, height), (right, _) = place(x0, value), place(x1, value)
        parts.append(line(left, height, right, height, "line"))
        parts.append(text(left - 6, height + 4, short(value), "faint", anchor="end"))
    for value in ticks(x0, x1, whole=panel.log):
        across, base = place(value, y0)
        label = f"{10**value:,.0f}" if panel.log else short(value)
        parts.append(text(across, base + 16, label, "faint", anchor="middle"))
    for colour, curve in zip(SERIES, panel.curves.values(), strict=False):
        points = sampled(curve, panel)
        path = "M" + "L".join(f"{x} {y}" for x, y in (place(*point) for point in points))
        parts.append(f'<path d="{path}" fill="none" stroke="{paint(colour)}" stroke-width="2.2"/>')
    return "".join([*parts, *legend(list(panel.curves))])


def sampled(curve: Curve, panel: Panel) -> list[tuple[float, float]]:
    """Return the points of a curve that lie inside the panel."""
    (x0, x1), (y0, y1) = panel.x, panel.y
    points = [(x0 + (x1 - x0) * i / 96, 0.0) for i in range(97)]
    points = [(x, curve(x)) for x, _ in points]
    slack = 1e-9 * (y1 - y0)
    return [(x, y) for x, y in points if y0 - slack <= y <= y1 + slack]


def legend(labels: list[str]) -> list[str]:
    """Return the entries of the legend below the panel, in one or two lines."""
    parts = []
    x, y = float(LEFT), HEIGHT - BOTTOM + 56
    for colour, label in zip(SERIES, labels, strict=False):
        width = 18 + 6.4 * len(label)
        if x > LEFT and x + width > WIDTH - RIGHT:
            x, y = float(LEFT), y + 18
        parts.append(f'<circle cx="{round(x + 4, 1)}" cy="{y}" r="4" fill="{paint(colour)}"/>')
        parts.append(text(x + 13, y + 4, label, "ink"))
        x += width + 10
    return parts


def ticks(low: float, high: float, whole: bool = False) -> list[float]:
    """Return about five round numbers of an interval."""
    step = 10 ** math.floor(math.log10((high - low) / 3))
    while (high - low) / step > 6:
        step *= 2 if (high - low) / step <= 12 else 2.5
    step = max(1.0, round(step)) if whole else step
    first = math.ceil(low / step - 1e-9)
    return [round(i * step, 6) for i in range(first, math.floor(high / step + 1e-9) + 1)]


def short(value: float) -> str:
    """Return a number of an axis."""
    return f"{value:g}"


def line(x0: float, y0: float, x1: float, y1: float, colour: str) -> str:
    """Return a thin line."""
    return f'<path d="M{x0} {y0}L{x1} {y1}" stroke="{paint(colour)}"/>'


def text(
    x: float,
    y: float,
    content: str,
    colour: str,
    anchor: str = "start",
    weight: int = 400,
    size: float = 11.5,
    dx: float = 0,
) -> str:
    """Return a text; `anchor` says which end of it lies at x."""
    shown = content.replace("-", MINUS)
    return (
        f'<text x="{round(x + dx, 1)}" y="{round(y, 1)}" fill="{paint(colour)}" '
        f'text-anchor="{anchor}" font-weight="{weight}" font-size="{size}">{shown}</text>'
    )


def main() -> None:
    """Write the pictures, or compare them with the files."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    old = []
    for name, panels in PICTURES.items():
        file, new = FOLDER / f"{name}.svg", drawing(panels)
        if "--check" not in sys.argv:
            file.write_text(new)
        elif not file.exists() or file.read_text() != new:
            old.append(file.name)
    if old:
        sys.exit(f"out of date, run `python docs_site/pictures.py`: {', '.join(old)}")


if __name__ == "__main__":
    main()
