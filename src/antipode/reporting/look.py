"""The look that all pages and pictures of the package share: colours, type, the bar at the top."""

import base64
import hashlib
import re
from functools import cache
from importlib.resources import files
from typing import Any

# The mark of the project: a point and its antipode.
MARK = (
    '<svg viewBox="0 0 24 24" aria-hidden="true"><circle cx="12" cy="12" r="8.5"/>'
    '<path d="M6 6 18 18"/><circle class="pole" cx="6" cy="6" r="2.6"/>'
    '<circle class="pole far" cx="18" cy="18" r="2.6"/></svg>'
)
BRAND = (
    f'<a class="brand" href="#top" aria-label="antipode, back to top">{MARK}'
    "<span>antipode</span></a>"
)
FAMILY = ("Inter", "Helvetica Neue", "Arial", "DejaVu Sans")


@cache
def stylesheet(*names: str) -> str:
    """Return the CSS of the look, followed by that of further files such as "page"."""
    here = files("antipode.reporting")
    return "\n".join((here / f"{name}.css").read_text("utf-8") for name in ("look", *names))


def document(title: str, content: str, *, command: str, style: str, script: str = "") -> str:
    """Return an HTML page with the bar at the top and a footer, which makes no request.

    Args:
        title: the title of the page, already escaped.
        content: the HTML of its main part.
        command: the command that writes it, for the footer.
        style: its CSS.
        script: its script; the content security policy permits no other.
    """
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"
    policy += f"; script-src 'sha256-{digest}'" if script else ""
    head = (
        '<meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f"<title>{title} · antipode</title><style>{style}</style>"
    )
    footer = (
        f"<footer>Created by <code>{command}</code>. This page is self-contained and makes no "
        "network requests.</footer>"
    )
    last = f"<script>{script}</script>" if script else ""
    return (
        f'<!doctype html><html lang="en"><head>{head}</head><body>'
        f'<header class="bar">{BRAND}</header><main id="top">{content}</main>'
        f"{footer}{last}</body></html>\n"
    )


@cache
def colours(dark: bool = False) -> dict[str, str]:
    """Return the colours of the light or the dark theme by name, such as "paper" and "s0"."""
    css = stylesheet()
    start = css.index(':root[data-theme="dark"]' if dark else ":root {")
    block = css[start : css.index("}", start)]
    return dict(re.findall(r"--([a-z0-9]+): (#[0-9a-f]{6})", block))


def series() -> list[str]:
    """Return the colours of the series of a chart, in their order."""
    found = colours()
    return [found[f"s{place}"] for place in range(10)]


def matplotlib_style() -> dict[str, Any]:
    """Return the settings of matplotlib with which a picture looks like the charts of a page."""
    palette = colours()
    return {
        "figure.facecolor": palette["paper"],
        "savefig.facecolor": palette["paper"],
        "axes.facecolor": palette["card"],
        "axes.edgecolor": palette["line"],
        "axes.labelcolor": palette["soft"],
        "axes.titlecolor": palette["ink"],
        "axes.titleweight": "bold",
        "axes.titlesize": 10,
        "axes.labelsize": 9.5,
        "axes.titlelocation": "left",
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.grid": True,
        "axes.axisbelow": True,
        "grid.color": palette["line"],
        "text.color": palette["ink"],
        "xtick.color": palette["soft"],
        "ytick.color": palette["soft"],
        "xtick.major.size": 0,
        "ytick.major.size": 0,
        "xtick.labelsize": 9,
        "ytick.labelsize": 9,
        "legend.frameon": False,
        "legend.fontsize": 9,
        "font.family": "sans-serif",
        "font.sans-serif": list(FAMILY),
        "lines.linewidth": 1.8,
        "lines.solid_capstyle": "round",
    }
