"""Draw the pictures of RESULTS.md and README.md from the lines in results/, for tables.py."""

import statistics
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt

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


def draw() -> None:
    """Draw all pictures that there are results for."""
    PICTURES.mkdir(parents=True, exist_ok=True)
    if methods():
        draw_accuracy()
    if any(over_lightly(visit) for visit in visits()):
        draw_throughput()


def draw_accuracy() -> None:
    """Draw the accuracy of the methods, best first, beside DCL's gain at a small batch size."""
    groups = methods()
    figure, (left, right) = plt.subplots(
        1, 2, figsize=(10, 0.36 * len(groups) + 1.4), layout="constrained", width_ratios=(5, 3)
    )
    draw_methods(left, dict(reversed(groups.items())))
    left.set_title("CIFAR-10, ResNet-18, batch 256, 100 epochs", fontsize=10)
    older = any(differences for _, differences in groups)
    note = "; * with values from an earlier version of its recipe" if older else ""
    left.set_xlabel(f"test accuracy in %{note}")
    left.legend(loc="lower right")
    draw_batch_sizes(right)
    figure.savefig(PICTURES / "accuracy.png", dpi=120)
    plt.close(figure)


def draw_throughput() -> None:
    """Draw our images/s and lightly's, of the last visit that has both."""
    *_, (ours, theirs, _) = (speeds for visit in visits() if (speeds := over_lightly(visit)))
    figure, axes = plt.subplots(figsize=(7, 1.7), layout="constrained")
    bars = axes.barh(["antipode", "lightly 1.6.0"], [ours, theirs], color=["C0", "C7"])
    axes.bar_label(bars, fmt="{:,.0f}", padding=3)
    axes.invert_yaxis()
    axes.margins(x=0.15)
    axes.set_xlabel("images/s: SimCLR, ResNet-18, two views of 32 px, batch 256, bf16, one H200")
    figure.savefig(PICTURES / "throughput.png", dpi=120)
    plt.close(figure)


def draw_methods(axes: Any, groups: Groups) -> None:
    """Draw kNN and linear accuracy as a pair of dots for each run.

    They are not bars, because the axis does not start at zero.
    """
    rows = range(len(groups))
    ends = []
    for protocol, color, offset in (("knn", "C0", -9), ("linear-fast", "C1", 9)):
        means = [
            statistics.mean(score_values(lines, protocol) or [float("nan")])
            for lines in groups.values()
        ]
        axes.plot(means, rows, "o", color=color, label=protocol, zorder=2)
        for mean, row in zip(means, rows, strict=True):
            axes.annotate(
                f"{mean:.1f}",
                (mean, row),
                xytext=(offset, 0),
                textcoords="offset points",
                fontsize=8,
                ha="right" if offset < 0 else "left",
                va="center",
            )
        ends.append(means)
    axes.hlines(rows, *ends, color="0.75", zorder=1)
    axes.set_yticks(rows, [name + (" *" if differences else "") for name, differences in groups])
    axes.margins(x=0.12)
    axes.grid(axis="x", color="0.92")
    axes.set_axisbelow(True)


def draw_batch_sizes(axes: Any) -> None:
    """Draw kNN of SimCLR and DCL by batch size, ours and the paper's, in the paper's settings."""
    groups = grouped(accuracy_lines())
    batches = [str(row[0]) for row in TABLE_1]
    for name, column, color in (("simclr", 1, "C7"), ("dcl", 2, "C0")):
        ours = {}
        for batch in batches:
            knn = score_values(groups.get((f"{name}-paper-{batch}", ""), []), "knn")
            if knn:
                ours[batch] = statistics.mean(knn)
        axes.plot(batches, [row[column] for row in TABLE_1], ":", color=color, marker=".")
        axes.plot(list(ours), list(ours.values()), "-", color=color, marker="o", label=NAMES[name])
        for batch, mean in ours.items():
            axes.annotate(
                f"{mean:.1f}",
                (batch, mean),
                xytext=(0, 7),
                textcoords="offset points",
                fontsize=8,
                ha="center",
            )
    axes.plot([], [], "-o", color="black", label="ours, 100 epochs")
    axes.plot([], [], ":.", color="black", label="paper, 200 epochs")
    axes.margins(x=0.12, y=0.1)
    axes.set_xlabel("batch; DCL's own settings")
    axes.set_ylabel("kNN accuracy in %")
    # between the curves, where it hides no point
    axes.legend(loc="center right", bbox_to_anchor=(1, 0.37), fontsize=8)
