"""The result of a classification: accuracy, its interval, its chance level. N images."""

from typing import Any

import numpy as np
from torch import Tensor

from antipode import rng
from antipode.evaluation.score import Result

RESAMPLES = 10_000
MANY = 10  # the smallest number of classes with which the top-5 accuracy is reported


def classification(
    correct: Tensor,
    labels: Tensor,
    settings: dict[str, Any],
    *,
    seed: int,
    more: dict[str, Any] | None = None,
) -> Result:
    """Return the top-1 accuracy of test images as the result of a protocol.

    The balanced accuracy is added if the classes differ in their number of test images.

    Args:
        correct: whether the class of each test image was predicted, bool (N,).
        labels: the classes of the test images (N,).
        settings: the settings of the protocol.
        seed: the seed of the bootstrap.
        more: further numbers.
    """
    low, high = bootstrap(100 * correct, seed)
    return Result(
        100 * correct.double().mean().item(),
        "% top-1",
        settings,
        len(correct),
        balanced(correct, labels) | (more or {}),
        low=low,
        high=high,
        chance=100 * labels.bincount().max().item() / len(labels),
    )


def bootstrap(values: Tensor, seed: int) -> tuple[float, float]:
    """Return the 95 % bootstrap interval of the mean of values (N,), one value per image.

    A resample draws N of the N images with replacement. Only its counts of each different value
    matter, and these are multinomial. So the draws take a few milliseconds if the values are few,
    as they are for correct and wrong images. If all values are equal, the interval has no width.
    """
    unique, counts = np.unique(values.double().cpu().numpy(), return_counts=True)
    draw = np.random.default_rng(rng.number(seed, "bootstrap") & ((1 << 63) - 1))
    drawn = draw.multinomial(len(values), counts / len(values), RESAMPLES)
    low, high = np.quantile(drawn @ unique / len(values), (0.025, 0.975))
    return float(low), float(high)


def balanced(correct: Tensor, labels: Tensor) -> dict[str, float]:
    """Return the balanced accuracy in percent, or nothing if all classes have as many images.

    It is the mean over the classes of the share of their images that are classified correctly.
    Classes without test images do not count.
    """
    images = labels.bincount()
    present = images > 0
    if bool((images[present] == images.max()).all()):
        return {}
    right = labels.bincount(weights=correct.double())
    return {"balanced": 100 * (right[present] / images[present]).mean().item()}


def top5(correct: Tensor, classes: int) -> dict[str, float]:
    """Return the top-5 accuracy in percent if there are at least ten classes, else nothing.

    With six classes, the class of almost every image would be among the best five.
    """
    return {"top5": 100 * correct.double().mean().item()} if classes >= MANY else {}
