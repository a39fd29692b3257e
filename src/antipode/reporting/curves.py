"""Training curves for the page: metrics by step, downsampled without inventing values."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from antipode.json_text import number
from antipode.reporting.provenance import stored_vectors
from antipode.runs.log import Log, Numbers
from antipode.runs.run import Run
from antipode.training.filling import filling_steps

# Title and explanation of each metric, in the order of the page.
KNOWN = {
    "loss": ("Loss", "The training loss. Comparable only between runs of the same method."),
    "contrast": ("Contrastive term", "The loss without its regularisation terms."),
    "knn": (
        "kNN accuracy (%)",
        "kNN accuracy of the frozen backbone during training. For monitoring only.",
    ),
    "spread": (
        "Spread",
        "Spread of the keys of a batch, normalised to unit length. 1: they cover the whole "
        "sphere. 0: they have collapsed to one point.",
    ),
    "rank": (
        "Effective rank",
        "Effective number of dimensions that the keys of a batch use (RankMe). The keys are "
        "normalised to unit length and not centred. The Spectrum section centres its features, so "
        "its effective rank differs.",
    ),
    "uniformity": (
        "Uniformity",
        "Logarithm of the mean Gaussian potential over all pairs of keys of a batch, normalised to "
        "unit length. Lower is more uniform.",
    ),
    "similarity": (
        "Similarity between different images",
        "Mean cosine similarity between the keys of different images of a batch. "
        "0 for uniformly distributed keys.",
    ),
    "positive": (
        "Similarity of positive pairs",
        "Mean cosine similarity between two views of the same image.",
    ),
    "negative": (
        "Similarity of negative pairs",
        "Mean cosine similarity between a query and its negatives.",
    ),
    "align": (
        "Distance between prediction and target",
        "Mean squared distance, or negative cosine similarity in SimSiam.",
    ),
    "rival": (
        "Contrastive term of the bank",
        "The contrastive term that AdCo's adversarial negatives maximise.",
    ),
    "alignment": (
        "Alignment",
        "Mean squared distance between two views of the same image. 0 is perfect alignment.",
    ),
    "multiplier": (
        "Gradient multiplier",
        "Factor by which the coupling of positives and negatives scales the gradient (DCL). "
        "1: the full gradient. 0: no gradient.",
    ),
    "attract": ("Attraction", "Mean of score / tau over the positives."),
    "repel": ("Repulsion", "Log-sum-exp of score / tau over the negatives."),
    "mi_bound": (
        "Mutual information bound (nats)",
        "EqCo's lower bound on the mutual information between two views.",
    ),
    "gradient": ("Gradient norm", "Norm of the gradient before clipping."),
    "bank_length": ("Norm of the bank vectors", "Mean norm of AdCo's adversarial negatives."),
    "bank_drift": (
        "Drift of the bank",
        "Mean of 1 - cosine similarity of AdCo's negatives to those at the previous check.",
    ),
    "queue_age": ("Age of the queue", "Mean age of the keys in the queue, in steps."),
    "images_per_second": ("Images per second", "Training speed between two lines of the log."),
    "skipped": ("Skipped steps", "Steps so far whose loss or gradient was not finite."),
}
FILLED = ("loss", "contrast", "repel")  # metrics that rise while stored random vectors are replaced
LINES = {"spread": [[0.1, "collapse threshold"]]}  # reference lines of a chart: value and label
AXES = ("step", "epoch")


def explained(name: str) -> tuple[str, str]:
    """Return the title and the explanation of a metric; an unknown metric is titled by its name."""
    if name.startswith("lr_"):
        return f"Learning rate of the {name[3:]}", "The learning rate, with warm-up and schedule."
    return KNOWN.get(name, (name, ""))


def ordered(names: set[str]) -> list[str]:
    """Return metrics in page order: known ones, then learning rates, then the others by name."""
    place = {name: at for at, name in enumerate(KNOWN)}
    return sorted(
        names, key=lambda name: (place.get(name, 98 if name.startswith("lr_") else 99), name)
    )


def curves(log: Log, most: int) -> dict[str, Any]:
    """Return the curves of a log, with at most `most` points each.

    The result is {"x": lists of steps, "y": {metric: [index of its list of steps, values]}}.
    Metrics that were logged at the same steps share a list. Non-finite values are left out.
    """
    step = log.column("step")
    steps: list[list[float]] = []
    values: dict[str, list[Any]] = {}
    for name in ordered(set(log.series) - set(AXES)):
        lines, numbers = log.series[name]
        placed = ~np.isnan(step[lines])
        if not placed.any():
            continue
        numbers = numbers[placed]
        kept = thin(numbers, most)
        xs = [_whole(x) for x in step[lines[placed][kept]].tolist()]
        if xs not in steps:
            steps.append(xs)
        values[name] = [steps.index(xs), [short(y) for y in numbers[kept].tolist()]]
    return {"x": steps, "y": values}


def filling(run: Run) -> dict[str, Any] | None:
    """Return the steps in which keys replace random negatives, in which the loss may rise.

    "rises" says whether the loss is higher at the end of these steps than in their first one.
    Returns None if the run stores no negatives.
    """
    start = stored_vectors(run)
    batch = run.value("train.batch")
    if start is None or not number(batch) or "loss" not in run.log.series:
        return None
    steps = filling_steps(start.size, max(1, int(batch)))
    lines, losses = run.log.series["contrast" if "contrast" in run.log.series else "loss"]
    inside = losses[run.log.column("step")[lines] <= steps]
    rises = len(inside) > 1 and float(inside[-1]) > float(inside[0])
    return {"steps": steps, "kind": start.kind, "count": start.size, "rises": bool(rises)}


def _whole(step: float) -> float:
    return int(step) if step.is_integer() else step


def once(drawn: Sequence[dict[str, Any]]) -> None:
    """Remove the contrastive term if it equals the loss in every run, to avoid a duplicate curve.

    `drawn` holds the "y" part of the curves of each run on the page, and is changed in place.
    """
    if all(y["contrast"] == y.get("loss") for y in drawn if "contrast" in y):
        for y in drawn:
            y.pop("contrast", None)


def thin(values: Sequence[float] | Numbers, most: int) -> list[int]:
    """Return the indices of at most `most` values, in order.

    Keeps the first and the last value, and the minimum and maximum of each interval between them,
    so that no spike is lost.
    """
    n = len(values)
    if n <= most:
        return list(range(n))
    array = np.asarray(values, dtype=np.float64)
    intervals = max(1, (most - 2) // 2)
    kept = {0, n - 1}
    for part in range(intervals):
        start = 1 + part * (n - 2) // intervals
        span = array[start : 1 + (part + 1) * (n - 2) // intervals]
        kept |= {start + int(span.argmin()), start + int(span.argmax())}
    return sorted(kept)


def short(value: float) -> float | int:
    """Round a float to five significant digits, which is more than the page shows."""
    return value if isinstance(value, int) else float(f"{value:.5g}")
