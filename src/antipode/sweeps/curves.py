"""Training curves of a setting: the mean over its seeds."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from antipode.json_text import number
from antipode.runs.run import Run

POINTS = 120  # of a curve


def mean_curve(folders: Sequence[Path], metric: str) -> list[tuple[float, float]]:
    """Return the mean of a metric over runs as points (epoch, value), at most `POINTS` of them.

    The curves of all runs are read at the epochs of the first one. Runs without the metric are left
    out.
    """
    curves = [curve for folder in folders if len(curve := _curve(folder, metric))]
    if not curves:
        return []
    x = curves[0][:, 0]
    y = np.mean([np.interp(x, curve[:, 0], curve[:, 1]) for curve in curves], axis=0)
    kept = np.unique(np.linspace(0, len(x) - 1, POINTS).round().astype(int))
    return [(float(a), float(b)) for a, b in zip(x[kept], y[kept], strict=True)]


def _curve(folder: Path, metric: str) -> np.ndarray:
    """Return the logged points (N,2) of a metric: epochs so far and value."""
    rows = Run(folder).metrics() if (folder / "metrics.jsonl").exists() else []
    placed = [row for row in rows if number(row.get("step")) and number(row.get("epoch"))]
    if not placed:
        return np.empty((0, 2))
    epochs_per_step = (placed[-1]["epoch"] + 1) / (placed[-1]["step"] + 1)
    points = [
        ((row["step"] + 1) * epochs_per_step, row[metric])
        for row in placed
        if number(row.get(metric))
    ]
    return np.array(points, dtype=float).reshape(-1, 2)
