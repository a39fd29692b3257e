"""Is it learning anything? Answered without labels, from the keys of a step (N,D)."""

import math
from typing import Any

import torch
from torch import Tensor

from antipode.core.learner import Learner
from antipode.core.loss import coupled
from antipode.core.objective import Adversarial, Contrast
from antipode.core.regularise import potential
from antipode.core.scores import product, unit

YOUNG = 100  # steps in which a network may still be as narrow as it was made: heads without BN start that way
FLAT = 0.1  # below this share of an even spread, or of the possible rank, embeddings have collapsed


@torch.no_grad()
def measure(learner: Learner, keys: Tensor) -> dict[str, float]:
    """Spread, rank, uniformity and mean similarity of a batch of keys (N,D), and the state of a bank.

    spread: mean standard deviation of a dimension, times sqrt(D): 1 for vectors all over the sphere, 0 in collapse.
    rank: RankMe (Garrido et al. 2023), the exponential of the entropy of the singular values, of at most min(N,D).
    """
    z = unit(keys)
    if not z.isfinite().all():
        return {}
    n, d = z.shape
    spectrum = torch.linalg.svdvals(z)
    share = spectrum / spectrum.sum() + 1e-7
    own = torch.arange(n, device=z.device)
    values = {
        "spread": z.std(0).mean() * math.sqrt(d),
        "rank": (-(share * share.log()).sum()).exp(),
        "uniformity": potential(z, z, own, own).log() if n > 1 else z.new_tensor(torch.nan),
        "similarity": (product(z, z).sum() - n) / max(n * (n - 1), 1),
    }
    if isinstance(learner.objective, Adversarial):
        values["bank_length"] = learner.objective.bank.weight.norm(dim=1).mean()
    return {name: float(value) for name, value in values.items()}


def bound(learner: Learner, contrast: float, negatives: int) -> float | None:
    """EqCo's lower bound on mutual information, for a coupled contrast."""
    objective = learner.objective
    if not isinstance(objective, Contrast) or objective.coupling is not coupled or not negatives:
        return None
    alpha = getattr(objective.margin, "keywords", {}).get("alpha", negatives)
    return math.log1p(alpha) - contrast


def complaint(row: dict[str, Any], limit: int) -> str | None:
    """What is wrong, with the likely cause, in a sentence; None where nothing is. `limit` is min(N,D)."""
    if not math.isfinite(row["loss"]):
        return f"the loss is {row['loss']} at step {row['step']}: the learning rate is likely too high"
    if row["step"] < YOUNG:
        return None
    if row.get("spread", 1.0) < FLAT:
        return (
            f"the embeddings have collapsed at step {row['step']} (spread {row['spread']:.3f} of 1): "
            "a missing predictor, stop-gradient or batch norm, or too high a rate"
        )
    if row.get("rank", limit) < max(1.5, FLAT * 0.2 * limit):
        return (
            f"the embeddings of step {row['step']} fill only {row['rank']:.1f} of {limit} dimensions: "
            "a temperature or rate out of range"
        )
    return None
