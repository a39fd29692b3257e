"""Names, scales and arguments that MSBReg's tables share.

In tables 3 to 5, BYOL is MSBReg with two views and without regularisers (supplement, section 5).
"""

from statistics import fmean
from typing import Any

from antipode.reproduction.item import REFERENCE, Cells, Place, Verdict, score

PAPER = "MSBReg, supplement"
BYOL = "BYOL"
OURS = "Ours (K = 4)"
SMOKE = {"train.epochs": 2, "train.batch": 64}
SMALL = {"train.epochs": 50}
# Supplement 1.1 has 320 epochs for ImageNet-100, and section 5 has 300 for table 5. Tables 3 and 5
# agree in three accuracies (71.9, 72.8 and 80.4), so they most likely show the same runs.
ABLATION = {"train.epochs": 300}
DIGITS = "digits, resnet10-slim, 2 epochs, batch 64; logistic regression on frozen features"
CIFAR = "CIFAR-10, ResNet-18, 50 epochs, batch 256; logistic regression on frozen features"
OPTIMISER = (
    "the paper's optimiser and views (cifar10.msbreg-paper) with STL-10's base learning rate, "
    "times the number of views"
)
LINEAR = "linear-msbreg"
FAST = "linear-fast"
ACCURACY = {"smoke": score(FAST), "small": score(FAST), "paper": score(LINEAR)}


def arguments(views: int, singular: float, brownian: float, **more: Any) -> dict[str, Any]:
    """Return overrides for the arguments of MSBReg."""
    values = {"views": views, "singular_value": singular, "brownian": brownian, **more}
    return {f"method.{name}": value for name, value in values.items()}


def above_untrained(cells: Cells, place: Place) -> float:
    """Return by how many points an accuracy exceeds that of an untrained network."""
    untrained = max(fmean(values) for where, values in cells.items() if where[0] == REFERENCE)
    return fmean(cells[place]) - untrained


def guarded(verdict: Verdict, guard: float, words: str) -> Verdict:
    """Return the verdict, or one that does not hold, with the reason, if `guard` is not above 0.

    If it is uncertain whether `guard` is above 0, the verdict is undecided.
    """
    if guard > verdict.interval:
        return verdict
    return Verdict(min(guard, verdict.margin), f"{verdict.text}; {words}", verdict.interval)
