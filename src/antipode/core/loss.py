"""From scores to a loss: positives, margins and couplings as pure functions. This file is the literature.

Scores here are cosines already divided by tau. A query has M positive scores and, through log-sum-exp, one number for
all its negatives; every contrastive loss of our papers is a function of the three numbers in `Terms`.
"""

import math
from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from antipode import dist
from antipode.types import Terms

Positives = Callable[[Tensor], tuple[Tensor, Tensor]]  # scores (N,M) -> attract (N,), bound (N,)
Margin = Callable[[Tensor], Tensor]  # count of negatives (N,) -> added to repel (N,)
Coupling = Callable[[Terms], Tensor]  # -> loss per query (N,)


# Positives: how the M keys of an image pull its query


def average(scores: Tensor) -> tuple[Tensor, Tensor]:
    """One key, or several treated as their mean."""
    mean = scores.mean(1)
    return mean, mean


class Gaussian(nn.Module):
    """JCL: the keys of an image are a Gaussian, so infinitely many positives have a closed form (supplement eq. M.8).

    bound = q.mu/tau + lambda/(2 tau^2) q' Sigma q, and q' Sigma q is the population variance of the M scores: no D x D
    matrix is ever built. lambda rises in `stairs` equal steps over training, one an epoch in the authors' code
    (main_moco.py, 1cefabb); 0 stairs hold it constant, and so does a loop that never calls `at`.
    """

    now: Tensor

    def __init__(self, strength: float, stairs: int = 0) -> None:
        super().__init__()
        if not 0 <= strength < torch.inf or stairs < 0:
            raise ValueError(
                f"JCL's strength and ramp are finite numbers of 0 or more, got {strength} and {stairs}"
            )
        self.strength, self.stairs = strength, stairs
        self.register_buffer("now", torch.tensor(float(strength)))

    def at(self, progress: float) -> None:
        """Set lambda for a step at `progress` in [0,1)."""
        if self.stairs:
            # the tiny share keeps step/total on its own stair where the division rounds down
            stair = min(int(progress * self.stairs + 1e-9), self.stairs - 1) + 1
            self.now.fill_(self.strength * stair / self.stairs)

    def forward(self, scores: Tensor) -> tuple[Tensor, Tensor]:
        """Scores (N,M) -> attract (N,), bound (N,)."""
        return gaussian(scores, self.now)


def gaussian(scores: Tensor, strength: Tensor | float) -> tuple[Tensor, Tensor]:
    """JCL's attract (N,) and bound (N,) of scores (N,M). The variance is centred: E[x^2]-E[x]^2 would cancel."""
    mean = scores.mean(1)
    return mean, mean + 0.5 * strength * scores.var(1, correction=0)


# Margins: how much the number of negatives counts


def no_margin(count: Tensor) -> Tensor:
    """Each negative counts once."""
    return torch.zeros_like(count)


def eqco(alpha: float) -> Margin:
    """EqCo eq. (6): K negatives weigh as much as alpha would, log(alpha/K) on each of them."""
    if not 0 < alpha < torch.inf:
        raise ValueError(f"EqCo's alpha must be positive, got {alpha}")
    return partial(_equivalent, alpha=alpha)


def _equivalent(count: Tensor, alpha: float) -> Tensor:
    return math.log(alpha) - count.log()


# Couplings: how attraction and repulsion meet


def coupled(terms: Terms) -> Tensor:
    """InfoNCE, EqCo, JCL: logaddexp(bound, repel) - attract, arranged so that equal terms cancel exactly."""
    return -F.logsigmoid(terms.bound - terms.repel) + (terms.bound - terms.attract)


def decoupled(terms: Terms) -> Tensor:
    """DCL eq. (5): the positive is struck out of the denominator, so the softplus becomes its straight line."""
    return terms.repel - terms.attract


def weighted(sharpness: float | Tensor, detach: bool = True, gather: bool = True) -> Coupling:
    """DCLW eq. (6): the positive term is weighed by w = 2 - exp(s/sigma) / mean exp(s/sigma), whose mean is one.

    `sharpness` is tau/sigma, since `attract` is s/tau. With `gather` the mean runs over all ranks. Whether
    w carries gradient is not said in the paper; as a weight it does not, by default. w may be negative; no clamp.
    """
    if not isinstance(sharpness, Tensor) and not sharpness >= 0:
        raise ValueError(f"DCLW's sigma must be positive, got tau/sigma = {sharpness}")
    return partial(_weighted, sharpness=sharpness, detach=detach, gather=gather)


def _weighted(terms: Terms, sharpness: float | Tensor, detach: bool, gather: bool) -> Tensor:
    closeness = terms.attract * sharpness
    everyone = dist.gather(closeness) if gather else closeness
    weight = 2 - torch.exp(closeness - torch.logsumexp(everyone, 0) + math.log(len(everyone)))
    return terms.repel - (weight.detach() if detach else weight) * terms.attract


def multiplier(terms: Terms) -> Tensor:
    """q_B (N,), the factor by which the positive in the denominator scales the gradient: grad SimCLR = q_B grad DCL.

    DCL's printed eq. (3) leaves the positive out of the denominator; that version does not factor the gradient.
    """
    return torch.sigmoid(terms.repel - terms.bound)
