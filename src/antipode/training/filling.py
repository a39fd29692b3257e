"""The first steps of a method that stores negatives: keys replace the random vectors of its start.

Random vectors are easy to tell from an image, so the loss rises while they are replaced.
"""

import math

from antipode.core.learner import Learner
from antipode.core.traits import random_start


def filling_steps(kept: int, batch: int) -> int:
    """Return the number of steps until keys have replaced all random vectors of a queue or bank."""
    return math.ceil(kept / batch)


def filling_sentence(learner: Learner, batch: int) -> str:
    """Return a sentence about a loss that rises at the start; empty if nothing is stored."""
    found = random_start(learner)
    if found is None:
        return ""
    steps = filling_steps(found.size, batch)
    several = f"first {steps:,} steps" if steps > 1 else "first step"
    return (
        f"The loss may rise during the {several}, which is normal: the {found.kind} starts with "
        f"{found.size:,} random vectors, which are easy to tell from an image, and keys of images "
        "replace them."
    )
