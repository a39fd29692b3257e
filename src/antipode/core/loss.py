"""From scores to a loss: positives, margins and couplings as pure functions.

Scores here are cosines that are already divided by tau. A query has M positive scores and, through
log-sum-exp, one number for all its negatives. Every contrastive loss of our papers is a function of
the three numbers in `Terms`.
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


# Positives: how the M keys of an image attract its query


def average(scores: Tensor) -> tuple[Tensor, Tensor]:
    """Return the mean of the scores (N,M) as attract (N,) and bound (N,)."""
    mean = scores.mean(1)
    return mean, mean


class Gaussian(nn.Module):
    """JCL's positives: the keys of an image are a Gaussian (supplement, eq. M.8).

    Infinitely many positives then have a closed form, bound = q.mu/tau + lambda/(2 tau^2) q' Sigma
    q. q' Sigma q is the population variance of the M scores, so no D x D matrix is built. lambda
    rises in `stairs` equal steps over training, one per epoch in the authors' code (main_moco.py,
    1cefabb). With 0 stairs it is constant, as it is in a training loop that never calls `at`.
    """

    now: Tensor

    def __init__(self, strength: float, stairs: int = 0) -> None:
        super().__init__()
        if not 0 <= strength < torch.inf or stairs < 0:
            raise ValueError(
                "JCL's strength and ramp are finite numbers of 0 or more, "
                f"got {strength} and {stairs}"
            )
        self.strength = strength
        self.stairs = stairs
        self.register_buffer("now", torch.tensor(float(strength)))

    def at(self, progress: float) -> None:
        """Set lambda for a step at `progress` in [0,1)."""
        if self.stairs:
            # 1e-9 keeps step/total on its own stair if the division rounds down
            stair = min(int(progress * self.stairs + 1e-9), self.stairs - 1) + 1
            self.now.fill_(self.strength * stair / self.stairs)

    def forward(self, scores: Tensor) -> tuple[Tensor, Tensor]:
        """Return attract (N,) and bound (N,) of scores (N,M)."""
        return gaussian(scores, self.now)


def gaussian(scores: Tensor, strength: Tensor | float) -> tuple[Tensor, Tensor]:
    """Return JCL's attract (N,) and bound (N,) of scores (N,M)."""
    mean = scores.mean(1)
    # a centred variance: E[x^2] - E[x]^2 would lose precision
    return mean, mean + 0.5 * strength * scores.var(1, correction=0)


# Margins: how the number of negatives counts


def no_margin(count: Tensor) -> Tensor:
    """Return 0 (N,): each negative counts once."""
    return torch.zeros_like(count)


def eqco(alpha: float) -> Margin:
    """Return EqCo's margin (eq. 6), log(alpha/K): K negatives count as much as alpha would."""
    if not 0 < alpha < torch.inf:
        raise ValueError(f"EqCo's alpha must be positive, got {alpha}")
    return partial(_equivalent, alpha=alpha)


def _equivalent(count: Tensor, alpha: float) -> Tensor:
    return math.log(alpha) - count.log()


# Couplings: how attraction and repulsion become a loss


def coupled(terms: Terms) -> Tensor:
    """Return the loss (N,) of InfoNCE, EqCo and JCL: logaddexp(bound, repel) - attract.

    It is arranged so that equal terms cancel exactly.
    """
    return -F.logsigmoid(terms.bound - terms.repel) + (terms.bound - terms.attract)


def decoupled(terms: Terms) -> Tensor:
    """Return the loss (N,) of DCL (eq. 5): the denominator does not hold the positive."""
    return terms.repel - terms.attract


def weighted(sharpness: float | Tensor, detach: bool = True, gather: bool = True) -> Coupling:
    """Return DCLW's coupling (eq. 6): DCL with a weight w on the positive term.

    w = 2 - exp(s/sigma) / mean exp(s/sigma), whose mean is one. `sharpness` is tau/sigma, since
    `attract` is s/tau. With `gather` the mean runs over all ranks. The paper does not say whether w
    carries gradient; by default it does not. w may be negative and is not clamped.
    """
    if not isinstance(sharpness, Tensor) and not sharpness >= 0:
        raise ValueError(f"DCLW's sigma must be positive, got tau/sigma = {sharpness}")
    return partial(_weighted, sharpness=sharpness, detach=detach, gather=gather)


def _weighted(terms: Terms, sharpness: float | Tensor, detach: bool, gather: bool) -> Tensor:
    closeness = terms.attract * sharpness
    everyone = dist.gather(closeness) if gather else closeness
    share = closeness - torch.logsumexp(everyone, 0) + math.log(len(everyone))
    weight = 2 - torch.exp(share)
    return terms.repel - (weight.detach() if detach else weight) * terms.attract


def multiplier(terms: Terms) -> Tensor:
    """Return q_B (N,): the positive in the denominator scales the gradient by it.

    The gradient of SimCLR is q_B times that of DCL. DCL's printed eq. (3) leaves the positive out
    of the denominator; that version does not factor the gradient.
    """
    return torch.sigmoid(terms.repel - terms.bound)
