"""What a built learner is like: its temperature, its stored negatives, its number of negatives.

Other parts of antipode ask these functions and never a list of method names.
"""

from typing import Any, NamedTuple

from torch import Tensor, nn

from antipode.core.learner import Learner
from antipode.core.loss import Gaussian
from antipode.core.objective import Adversarial, Contrast


class Stored(NamedTuple):
    """Vectors (K,D) that a method keeps to repel its queries, as its loss uses them."""

    kind: str  # bank, queue or memory
    vectors: Tensor


def objective_parts(learner: Learner) -> list[Any]:
    """Return the objective and all modules that it consists of."""
    objective: Any = learner.objective
    return list(objective.modules()) if isinstance(objective, nn.Module) else [objective]


def contrast(learner: Learner) -> Contrast | None:
    """Return the contrastive part of the objective, None if there is none."""
    objective = learner.objective
    if isinstance(objective, Adversarial):
        return objective.contrast
    return objective if isinstance(objective, Contrast) else None


def temperature(learner: Learner) -> float | None:
    """Return the temperature of the contrastive loss, None for a method without negatives."""
    parts = [part for part in objective_parts(learner) if not isinstance(part, Adversarial)]
    return next((part.tau for part in parts if hasattr(part, "tau")), None)


def alpha(learner: Learner) -> float | None:
    """Return EqCo's alpha, None for a method without such a margin."""
    margins = [part.margin for part in objective_parts(learner) if isinstance(part, Contrast)]
    keywords = [margin.keywords for margin in margins if hasattr(margin, "keywords")]
    return next((found["alpha"] for found in keywords), None)


def strength(learner: Learner) -> float | None:
    """Return the strength of a Gaussian of positives, None for a method without one."""
    parts = [part for part in objective_parts(learner) if isinstance(part, Gaussian)]
    return next((part.strength for part in parts), None)


def stored_negatives(learner: Learner) -> Stored | None:
    """Return the vectors that the method keeps, None if it keeps none."""
    for part in objective_parts(learner):
        if hasattr(part, "stored"):
            return Stored(part.kind, part.stored())
    return None


def stored_size(learner: Learner) -> int:
    """Return how many vectors the largest queue, bank or memory that fills step by step holds."""
    fills = [part for part in learner.modules() if getattr(part, "kind", None) in ("queue", "bank")]
    return max((len(part.stored()) for part in fills), default=0)  # type: ignore[operator]


class RandomStart(NamedTuple):
    """Stored negatives that start as `size` random vectors, which keys replace step by step."""

    kind: str  # bank, queue or memory
    size: int


def random_start(learner: Learner) -> RandomStart | None:
    """Return the largest store of random vectors that keys replace, None if there is none.

    A bank that is trained from its random vectors on is none, because keys never replace them.
    """
    stores = [
        RandomStart(part.kind, len(part.stored()))  # type: ignore[arg-type,operator]
        for part in learner.modules()
        if hasattr(part, "stored") and getattr(part, "filling", True)
    ]
    return max(stores, key=lambda store: store.size, default=None)


def negatives_per_query(learner: Learner, images: int) -> int:
    """Return how many negatives from the batch and from a queue a query has.

    `images` is the batch size. Vectors of a bank or memory are not counted.
    """
    objective = contrast(learner)
    if objective is None:
        return 0
    count = 0
    for part in objective.negatives:
        if getattr(part, "kind", None) == "queue":
            count += len(part.stored())  # type: ignore[operator]
        elif getattr(part, "pool", None):
            views = len(learner.key_views) if part.pool == "all" else 1
            others = views * (images - 1)
            count += min(getattr(part, "subset", None) or others, others)
    return count
