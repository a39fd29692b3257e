"""What training recorded, as curves that a page can hold: few points, none of them invented."""

import math
from collections.abc import Sequence
from typing import Any

KNOWN = {  # in the order of the page: title, how to read it
    "loss": ("Loss", "what training minimises; comparable between runs of one method only"),
    "contrast": ("Contrastive term", "the loss without regularisers"),
    "knn": ("kNN accuracy, %", "of the frozen backbone while it trains; it decides nothing"),
    "spread": (
        "Spread",
        "1: embeddings lie all over the sphere; 0: they have collapsed to a point",
    ),
    "rank": ("Effective rank", "how many dimensions the embeddings of a batch fill (RankMe)"),
    "uniformity": ("Uniformity", "log mean Gaussian potential of all pairs; lower is more even"),
    "similarity": ("Similarity of strangers", "mean cosine between different images; 0 is even"),
    "positive": ("Similarity of positives", "mean cosine between two views of one image"),
    "negative": ("Similarity of negatives", "mean cosine between a query and what repels it"),
    "align": ("Distance of positives", "between what is predicted and its target"),
    "rival": ("The bank's side", "the contrastive term that AdCo's negatives climb"),
    "alignment": ("Alignment", "mean squared distance of two views of one image; 0 is perfect"),
    "multiplier": (
        "Gradient multiplier",
        "what coupling leaves of the gradient: 1 all of it, 0 nothing (DCL)",
    ),
    "attract": ("Attraction", "mean positive score / tau"),
    "repel": ("Repulsion", "log-sum-exp of the negative scores / tau"),
    "mi_bound": (
        "Information bound, nats",
        "EqCo's lower bound on the mutual information of two views",
    ),
    "gradient": ("Gradient norm", "before clipping"),
    "bank_length": ("Length of bank vectors", "mean norm of AdCo's negatives"),
    "bank_drift": ("Drift of the bank", "mean 1 - cosine of AdCo's negatives since the last check"),
    "queue_age": ("Age of the queue", "mean age of its keys in steps"),
    "images_per_second": ("Images per second", "between two lines of the log"),
}
LINES = {"spread": [[0.1, "collapsed below"]]}
AXES = ("step", "epoch")


def explained(name: str) -> tuple[str, str]:
    """Title and reading of a metric; a name nobody knows is its own title."""
    if name.startswith("lr_"):
        return f"Rate of {name[3:]}", "the learning rate after warm-up and schedule"
    return KNOWN.get(name, (name, ""))


def ordered(names: set[str]) -> list[str]:
    """Metrics in the order of the page: known ones, rates, the rest by name."""
    place = {name: at for at, name in enumerate(KNOWN)}
    return sorted(
        names, key=lambda name: (place.get(name, 98 if name.startswith("lr_") else 99), name)
    )


def curves(rows: Sequence[dict[str, Any]], most: int) -> dict[str, Any]:
    """{"x": lists of steps, "y": {metric: [which of them, values]}}, each of at most `most` points."""
    found: dict[str, tuple[list[float], list[float]]] = {}
    for row in rows:
        for name, value in row.items():
            if name not in AXES and number(value) and number(row.get("step")):
                xs, ys = found.setdefault(name, ([], []))
                xs.append(row["step"])
                ys.append(value)
    steps: list[list[float]] = []
    values: dict[str, list[Any]] = {}
    for name in ordered(set(found)):
        kept = thin(found[name][1], most)
        xs, ys = ([column[at] for at in kept] for column in found[name])
        if xs not in steps:
            steps.append(xs)
        values[name] = [steps.index(xs), [short(y) for y in ys]]
    return {"x": steps, "y": values}


def once(drawn: Sequence[dict[str, Any]]) -> None:
    """Leave out the contrastive term where it is the loss in all runs of a page: twice the same curve."""
    if all(y["contrast"] == y.get("loss") for y in drawn if "contrast" in y):
        for y in drawn:
            y.pop("contrast", None)


def thin(values: Sequence[float], most: int) -> list[int]:
    """Indices of at most `most` values: the ends, and each stretch's lowest and highest, so that no spike hides."""
    n, stretches = len(values), max(1, (most - 2) // 2)
    if n <= most:
        return list(range(n))
    kept = {0, n - 1}
    for part in range(stretches):
        span = range(1 + part * (n - 2) // stretches, 1 + (part + 1) * (n - 2) // stretches)
        kept |= {min(span, key=values.__getitem__), max(span, key=values.__getitem__)}
    return sorted(kept)


def number(value: Any) -> bool:
    """Whether a value of a JSON file is a finite number."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def short(value: float) -> float | int:
    """Five digits, which is more than a screen shows."""
    return value if isinstance(value, int) else float(f"{value:.5g}")
