"""The result of an analysis: plain JSON that a report can draw without knowing the analysis.

A result is a dictionary with these keys. Keys that an analysis does not need are absent.

    settings    how the analysis was made, by name
    values      {name: number}
    curves      {name: {x, y, xlabel, ylabel}}
    histograms  {name: {edges, counts, xlabel}}
    notes       list of sentences
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

Result = dict[str, Any]


def curve(
    x: Sequence[float] | Tensor, y: Sequence[float] | Tensor, xlabel: str, ylabel: str
) -> Result:
    """Return a curve through the points (x,y)."""
    xs, ys = (side.tolist() if isinstance(side, Tensor) else list(side) for side in (x, y))
    if len(xs) != len(ys):
        raise ValueError(f"a curve needs as many y as x, got {len(ys)} and {len(xs)}")
    return {"x": xs, "y": ys, "xlabel": xlabel, "ylabel": ylabel}


def histogram(values: Tensor, low: float, high: float, xlabel: str, bins: int = 100) -> Result:
    """Return how many values (N,) fall into each of `bins` equal parts of [low,high].

    Values outside the range, such as those that rounding moved there, count in the first or last
    part. The edges do not depend on the values, so that the histograms of two runs can share a
    chart.
    """
    if not values.numel() or not low < high or bins < 1:
        raise ValueError(
            f"a histogram needs values and a range, got {values.numel()} values in [{low}, {high}]"
        )
    edges = torch.linspace(low, high, bins + 1, dtype=torch.float64)
    inside = values.detach().double().cpu().flatten().clamp(low, high)
    places = (torch.bucketize(inside, edges, right=True) - 1).clamp(0, bins - 1)
    return {
        "edges": edges.tolist(),
        "counts": places.bincount(minlength=bins).tolist(),
        "xlabel": xlabel,
    }
