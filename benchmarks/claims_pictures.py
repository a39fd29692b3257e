"""Draw the pictures of docs/claims.md: one for each item with runs, and one of all headlines."""

import re
import textwrap
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt

from antipode.reporting.look import colours, matplotlib_style
from antipode.reproduction.catalog import items
from antipode.reproduction.item import Cells
from antipode.reproduction.picture import DPI, WIDTH, draw
from claims import SCALE
from claims_text import NOT_RUN, PAPERS, Claim, capital

ROW = 0.27  # inches of a claim
# sides of the axes; the claims are on the left, the verdicts on the right
LEFT, RIGHT = 0.645, 0.87
EDGE = 0.012  # left edge of all texts
TEXT = (EDGE - LEFT) / (RIGHT - LEFT)  # the same as a share of the axes
LIMIT = 6.0  # points; a margin beyond is at the edge, with an arrow
SUBTITLE = "ResNet-18, 50 epochs, one H200. A claim holds in the shaded half."
# colour, marker and fill of the verdicts: they differ in shape, too
MARKS = {
    "holds": ("s0", "o", True),
    "does not hold": ("s1", "X", True),
    "undecided": ("faint", "D", False),
}


def draw_all(claims: list[Claim], found: Mapping[str, Cells], folder: Path) -> None:
    """Draw all pictures in a folder, and remove those of items that have no runs."""
    folder.mkdir(parents=True, exist_ok=True)
    for file in folder.glob("*.png"):
        file.unlink()
    for name in dict.fromkeys(claim.name for claim in claims if claim.seeds):
        picture = draw(items()[name], found[name], name, SCALE)
        if picture is not None:
            (folder / f"{name}.png").write_bytes(picture)
    with plt.rc_context(matplotlib_style()):
        draw_headlines(claims, folder / "headlines.png")


def draw_headlines(claims: list[Claim], file: Path) -> None:
    """Draw by how much the headline claims hold or fail, one row each, by paper."""
    rows = headline_rows(claims)
    height = ROW * len(rows) + 1.35
    figure, axes = plt.subplots(figsize=(WIDTH, height))
    figure.subplots_adjust(LEFT, 0.6 / height, RIGHT, 1 - 0.75 / height)
    for at, row in enumerate(rows):
        draw_row(axes, at, row)
    palette = colours()
    axes.axvline(0, color=palette["ink"], linewidth=1)
    axes.axvspan(0, LIMIT + 1, color=palette["goodback"], zorder=0)
    axes.set(xlim=(-LIMIT - 1, LIMIT + 1), ylim=(len(rows) - 0.4, -0.6), yticks=[])
    axes.set_xticks([-5, 0, 5], ["-5", "limit", "+5"])
    axes.grid(axis="y", visible=False)
    axes.spines["left"].set_visible(False)
    axes.set_xlabel("distance to the limit in points, 95 % interval")
    title = {"x": EDGE, "ha": "left", "va": "top"}
    figure.text(
        y=1 - 0.13 / height,
        s="Do the papers' headline claims hold on CIFAR-10?",
        fontsize=13,
        fontweight="bold",
        **title,
    )
    figure.text(y=1 - 0.42 / height, s=SUBTITLE, fontsize=9.5, color=palette["soft"], **title)
    figure.savefig(file, dpi=DPI)
    plt.close(figure)


def headline_rows(claims: Iterable[Claim]) -> list[str | Claim]:
    """Return the judged headline claims below the titles of their papers.

    The last row of a paper says how many of its headlines have not been run.
    """
    rows: list[str | Claim] = []
    headlines = [claim for claim in claims if claim.law.headline]
    for paper, title in PAPERS.items():
        own = [claim for claim in headlines if claim.name.startswith(paper)]
        absent = sum(claim.word == NOT_RUN for claim in own)
        rows += [title, *(claim for claim in own if claim.word != NOT_RUN)]
        rows += [f"- {absent} of {len(own)} headline claims not run"] if absent else []
    return rows


def draw_row(axes: Any, at: int, row: str | Claim) -> None:
    """Draw a title, or a claim: its text, the margin with its interval, and the verdict."""
    palette = colours()
    if isinstance(row, str):
        style = {"color": palette["faint"]} if row[0] == "-" else {"weight": "bold"}
        write(axes, TEXT, at, row.removeprefix("- "), size=9.5, **style)
        return
    text = re.sub(r" \(.*\)$", "", capital(row.law.text))
    write(axes, TEXT, at, textwrap.shorten(text, 78, placeholder=" …"), size=9)
    name, marker, full = MARKS[row.word]
    colour = palette[name]
    write(axes, 1.04, at, row.word, size=9, color=colour, weight="bold")
    if ratio := re.search(r"ratio of (\S+)", row.verdict.text):  # not in points
        write(axes, 0.06, at, f"ratio {ratio[1].rstrip('.')}", size=8, color=palette["soft"])
        return
    margin, interval = row.verdict.margin, row.verdict.interval
    shown = max(-LIMIT, min(LIMIT, margin))
    ends = [max(-LIMIT - 1, min(LIMIT + 1, margin + side)) for side in (-interval, interval)]
    axes.plot(ends, [at, at], color=colour, linewidth=2, solid_capstyle="butt")
    face = colour if full else palette["card"]
    axes.plot(shown, at, marker, color=colour, markerfacecolor=face, markersize=7)
    if shown != margin:
        arrow = "<" if margin < 0 else ">"
        axes.plot(1.12 * shown, at, arrow, color=colour, markerfacecolor=colour, markersize=5)


def write(axes: Any, across: float, row: int, text: str, **style: Any) -> None:
    """Write a text in a row, at a share of the width of the axes."""
    axes.text(across, row, text, transform=axes.get_yaxis_transform(), va="center", **style)
