"""Intervals of margins from the spread over seeds.

Runs with equal seeds are not paired: two networks that differ in one setting soon have unrelated
weights.
"""

from collections.abc import Callable, Iterable
from math import cos, pi, sin, sqrt, tan
from statistics import fmean, stdev, variance

from antipode.reproduction.item import REFERENCE, Cells, Place

# Standard deviation of an accuracy over seeds, in points, and the degrees of freedom behind it: 16
# runs on CIFAR-10 in 6 settings have .25 (benchmarks/results), which is rounded up.
NOISE = 0.3
KNOWN = 10
# Seeds with a larger variance, as a multiple of that of NOISE, are numbers of another kind, such as
# the accuracies of a network that collapses with some seeds. It is about the 95 % quantile of the
# ratio of variances with 2 and with KNOWN degrees of freedom.
OTHER = 4.0
OUTSIDE = 0.05  # probability that the truth is outside an interval


def interval(cells: Cells, places: Iterable[Place], among: int = 1) -> float:
    """Return half of the 95 % interval of a sum or difference of accuracies.

    The variance is pooled over the places with several seeds and over the runs behind `NOISE`: the
    two or three seeds of a claim alone would say little about it. If the seeds vary far more than
    `NOISE`, their own variance counts alone. `among` is the number of comparisons that this one was
    selected from, for instance as the worst: they share the probability of an error (Bonferroni).
    """
    values = [cells[place] for place in places]
    freedom = sum(len(numbers) - 1 for numbers in values)
    spread = sum((len(numbers) - 1) * variance(numbers) for numbers in values if len(numbers) > 1)
    if not freedom or spread / freedom <= OTHER * NOISE**2:
        freedom += KNOWN
        spread += KNOWN * NOISE**2
    error = sqrt(sum(spread / freedom / len(numbers) for numbers in values))
    return error * student(freedom, OUTSIDE / among)


def over_seeds(margin: Callable[[Cells], float], cells: Cells) -> float:
    """Return half of the 95 % interval of a margin, from its values for single seeds.

    It is 0, which means unknown, unless all places have the same number of seeds, two or more. The
    scores of an untrained network are left as they are.
    """
    trained = {place: values for place, values in cells.items() if place[0] != REFERENCE}
    counts = {len(values) for values in trained.values()}
    if len(counts) != 1 or counts == {1}:
        return 0.0
    (count,) = counts
    found = [
        margin(cells | {place: [values[seed]] for place, values in trained.items()})
        for seed in range(count)
    ]
    return student(count - 1, OUTSIDE) * stdev(found) / sqrt(count)


def seed_means(places: Iterable[list[float]]) -> list[float]:
    """Return the mean over places for each seed that all of them have."""
    return [fmean(of_seed) for of_seed in zip(*places, strict=False)]


def student(freedom: int, outside: float) -> float:
    """Return the t that Student's distribution exceeds in size with the probability `outside`."""
    low, high = 0.0, pi / 2
    for _ in range(60):
        middle = (low + high) / 2
        if _inside(middle, freedom) < 1 - outside:
            low = middle
        else:
            high = middle
    return sqrt(freedom) * tan(low)


def _inside(angle: float, freedom: int) -> float:
    """Return the probability that Student's t is below sqrt(freedom) * tan(angle) in size.

    Abramowitz and Stegun, 26.7.3 and 26.7.4.
    """
    odd = freedom % 2
    total, term = 0.0, cos(angle) if odd else 1.0
    for power in range(odd, freedom - 1, 2):
        total += term
        term *= cos(angle) ** 2 * (power + 1) / (power + 2)
    total *= sin(angle)
    return 2 / pi * (angle + total) if odd else total
