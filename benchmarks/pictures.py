"""Draw the pictures of RESULTS.md and README.md from the lines in results/, for tables.py."""

import statistics
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt

from antipode.reporting.look import colours, matplotlib_style
from antipode.reproduction.picture import DPI, WIDTH
from records import (
    NAMES,
    TABLE_1,
    Groups,
    accuracy_lines,
    grouped,
    methods,
    over_lightly,
    score_values,
    visits,
)

PICTURES = Path(__file__).parents[1] / "docs" / "pictures"
ROW = 0.29  # inches of a method
TITLE = {"x": 0.012, "ha": "left", "va": "top", "fontsize": 13, "fontweight": "bold"}


def draw() -> None:
    """Draw all pictures that there are results for."""
    PICTURES.mkdir(parents=True, exist_ok=True)
    with plt.rc_context(matplotlib_style()):
        if methods():
            draw_accuracy()
        if any(over_lightly(visit) for visit in visits()):
            draw_throughput()


def draw_accuracy() -> None:
    """Draw the accuracy of the methods, best first, above DCL's gain at a small batch size."""
    groups = methods()
    rows = ROW * len(groups)
    height = rows + 4.3
    figure, (top, bottom) = plt.subplots(
        2, 1, figsize=(WIDTH, height), layout="constrained", height_ratios=(rows + 0.7, 2.8)
    )
    figure.suptitle("Accuracy on CIFAR-10: ResNet-18, batch size 256", **TITLE)
    draw_methods(top, dict(reversed(groups.items())))
    older = any(differences for _, differences in groups)
    top.set_title("Methods; 100 epochs if not given")
    note = "; * with values from an earlier version of its recipe" if older else ""
    top.set_xlabel(f"test accuracy in %{note}")
    top.legend(loc="lower right")
    draw_batch_sizes(bottom)
    bottom.set_title("DCL against SimCLR by batch size, in the settings of the DCL paper")
    figure.savefig(PICTURES / "accuracy.png", dpi=DPI)
    plt.close(figure)


def draw_throughput() -> None:
    """Draw our images/s and lightly's, of the last visit that has both."""
    *_, (ours, theirs, _) = (speeds for visit in visits() if (speeds := over_lightly(visit)))
    palette = colours()
    figure, axes = plt.subplots(figsize=(WIDTH, 2.1), layout="constrained")
    colour = [palette["s0"], palette["faint"]]
    bars = axes.barh(["antipode", "lightly 1.6.0"], [ours, theirs], color=colour, height=0.62)
    axes.bar_label(bars, fmt="{:,.0f}", padding=6, fontsize=11, fontweight="bold")
    axes.invert_yaxis()
    axes.margins(x=0.15)
    axes.grid(visible=False)
    axes.tick_params(axis="y", labelsize=11, labelcolor=palette["ink"])
    axes.set_xticks([])
    axes.spines["bottom"].set_visible(False)
    figure.suptitle("Training speed in images per second", **TITLE)
    axes.set_xlabel(
        "SimCLR, ResNet-18, two views of 32 px, batch size 256, bf16, one H200", loc="left"
    )
    figure.savefig(PICTURES / "throughput.png", dpi=DPI)
    plt.close(figure)


def draw_methods(axes: Any, groups: Groups) -> None:
    """Draw kNN and linear accuracy as a pair of marks for each run.

    They are not bars, because the axis does not start at zero.
    """
    rows = range(len(groups))
    palette = colours()
    ends = []
    kinds = (("knn", "kNN", "s0", "o", -9), ("linear-fast", "linear", "s1", "D", 9))
    for protocol, label, name, marker, offset in kinds:
        means = [
            statistics.mean(score_values(lines, protocol) or [float("nan")])
            for lines in groups.values()
        ]
        axes.plot(means, rows, marker, color=palette[name], label=label, zorder=2)
        for mean, row in zip(means, rows, strict=True):
            write_value(axes, mean, row, (offset, 0), palette[name])
        ends.append(means)
    axes.hlines(rows, *ends, color=palette["line"], linewidth=3, zorder=1)
    axes.set_yticks(rows, [name + (" *" if differences else "") for name, differences in groups])
    axes.tick_params(axis="y", labelcolor=palette["ink"])
    axes.margins(x=0.12, y=0.03)
    axes.grid(axis="y", visible=False)


def draw_batch_sizes(axes: Any) -> None:
    """Draw kNN of SimCLR and DCL by batch size, ours and the paper's, in the paper's settings."""
    groups = grouped(accuracy_lines())
    palette = colours()
    batches = [str(row[0]) for row in TABLE_1]
    for name, column, colour in (("simclr", 1, palette["faint"]), ("dcl", 2, palette["s0"])):
        ours = {}
        for batch in batches:
            knn = score_values(groups.get((f"{name}-paper-{batch}", ""), []), "knn")
            if knn:
                ours[batch] = statistics.mean(knn)
        theirs = [row[column] for row in TABLE_1]
        axes.plot(batches, theirs, ":D", color=colour, markerfacecolor="none", markersize=5)
        axes.plot(list(ours), list(ours.values()), "-o", color=colour, label=NAMES[name])
        for batch, mean in ours.items():
            write_value(axes, batch, mean, (0, 9), colour)
    axes.plot([], [], "-o", color=palette["ink"], label="ours, 100 epochs")
    hollow = {"color": palette["ink"], "markerfacecolor": "none", "markersize": 5}
    axes.plot([], [], ":D", label="paper, 200 epochs", **hollow)
    axes.margins(x=0.08, y=0.14)
    axes.set_xlabel("batch size")
    axes.set_ylabel("kNN accuracy in %")
    # between the curves, where it hides no point
    axes.legend(loc="center", bbox_to_anchor=(0.5, 0.42), ncols=2)


def write_value(axes: Any, x: Any, y: Any, offset: tuple[int, int], colour: str) -> None:
    """Write a value beside its mark: the one of the two coordinates that is a number."""
    value = y if isinstance(x, str) else x
    across = "center" if not offset[0] else "right" if offset[0] < 0 else "left"
    axes.annotate(
        f"{value:.1f}",
        (x, y),
        xytext=offset,
        textcoords="offset points",
        fontsize=9,
        color=colour,
        ha=across,
        va="center",
    )
