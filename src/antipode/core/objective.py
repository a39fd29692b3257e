"""Objectives: a Pair in, a loss and its metrics out. Division by tau happens in objectives, here and those of methods
with one of their own (npid, invspread), and in `functional`; never in scores, negatives or couplings.
"""

from collections.abc import Iterable, Sequence
from typing import Protocol

import torch
from torch import Tensor, nn

from antipode.core.loss import (
    Coupling,
    Gaussian,
    Margin,
    Positives,
    average,
    coupled,
    multiplier,
    no_margin,
)
from antipode.core.negatives import Bank, Negatives, Pool
from antipode.core.scores import unit
from antipode.types import Pair, Terms

Metrics = dict[str, Tensor]


class Objective(Protocol):
    """What the learner needs of an objective."""

    pool: Pool | None  # which keys of the batch it wants in Pair.pool

    def __call__(self, pair: Pair) -> tuple[Tensor, Metrics]:
        """Loss () and detached metrics."""

    def at(self, progress: float) -> None:
        """Set what changes with time."""

    def push(self, keys: Tensor, image_ids: Tensor, noise: Tensor) -> bool:
        """Write state after the step; True when a bank has just been filled."""


class Contrast(nn.Module):
    """Attract the positives, repel the negatives; which paper it is, its four choices say."""

    def __init__(
        self,
        *negatives: Negatives,
        tau: float,
        positives: Positives = average,
        coupling: Coupling = coupled,
        margin: Margin = no_margin,
    ) -> None:
        super().__init__()
        if not 0 < tau < torch.inf:
            raise ValueError(f"the temperature tau must be positive, got {tau}")
        if not negatives:
            raise ValueError("a contrast needs negatives: in-batch, a queue or a bank")
        if coupling is not coupled and isinstance(positives, Gaussian):
            raise ValueError(
                "JCL's Gaussian acts in the denominator only, and a decoupled loss has no positive there"
            )
        if coupling is not coupled and margin is not no_margin:
            raise ValueError(
                "EqCo's margin on a decoupled loss only adds a constant, log(alpha/K): no gradient"
            )
        pools = {part.pool for part in negatives if part.pool}
        if len(pools) > 1:
            raise ValueError(
                "in-batch negatives were asked for twice, from the pair's keys and from all keys"
            )
        self.negatives = nn.ModuleList(negatives)  # type: ignore[arg-type]  # parts are modules that keep a protocol
        self.tau, self.positives, self.coupling, self.margin = tau, positives, coupling, margin
        self.pool: Pool | None = next(iter(pools), None)

    def terms(
        self,
        pair: Pair,
        tau: float | None = None,
        live: bool = False,
        among: Sequence[nn.Module] | None = None,
    ) -> Terms:
        """The three numbers of each query, with this tau and these negatives (all of them by default)."""
        return self.weigh(pair, [part(pair, live) for part in (among or self.negatives)], tau)

    def weigh(self, pair: Pair, scores: list[Tensor], tau: float | None = None) -> Terms:
        """The three numbers of each query from its scores (N,K) with each part's negatives."""
        tau = tau or self.tau
        attract, bound = self.positives((pair.query * pair.keys).sum(-1).T / tau)
        joint = (scores[0] if len(scores) == 1 else torch.cat(scores, 1)) / tau
        repel = torch.logsumexp(joint, 1)
        if self.margin is not no_margin:
            repel = repel + self.margin(joint.isfinite().sum(1).to(joint.dtype))
        return Terms(attract, bound, repel)

    def forward(
        self, pair: Pair, among: Sequence[nn.Module] | None = None
    ) -> tuple[Tensor, Metrics]:
        """Mean loss over the queries, against these negatives (all of them by default)."""
        parts = among or self.negatives
        scores = [part(pair) for part in parts]
        terms = self.weigh(pair, scores)
        loss = self.coupling(terms).mean()
        return loss, self.metrics(loss, terms) | {"negative": mean_score(parts, scores)}

    def metrics(self, loss: Tensor, terms: Terms) -> Metrics:
        """What the logs show: the loss itself, the mean positive cosine, the mean terms, DCL's multiplier."""
        attract = terms.attract.detach().mean()
        return {
            "contrast": loss.detach(),
            "positive": attract * self.tau,
            "attract": attract,
            "repel": terms.repel.detach().mean(),
            "multiplier": multiplier(terms).detach().mean(),
        }

    def at(self, progress: float) -> None:
        """Move JCL's ramp."""
        if isinstance(self.positives, Gaussian):
            self.positives.at(progress)

    def push(self, keys: Tensor, image_ids: Tensor, noise: Tensor) -> bool:
        """Hand the keys to every part that keeps some."""
        return any([part.push(keys, image_ids, noise) for part in self.negatives])  # type: ignore[operator]


class Adversarial(nn.Module):
    """AdCo: the encoder descends the contrast, the bank climbs it at its own temperature.

    One backward serves both: the encoder's term sees the bank detached, and the bank descends the negated loss of
    detached queries. The value of the difference means nothing; `contrast` in the metrics is the one to read. While
    the bank fills, training is ordinary InfoNCE against it alone, as in the authors' init_memory.
    """

    def __init__(self, contrast: Contrast, *, tau: float) -> None:
        super().__init__()
        if not 0 < tau < torch.inf:
            raise ValueError(f"the bank's temperature tau must be positive, got {tau}")
        banks = [part for part in contrast.negatives if isinstance(part, Bank)]
        if len(banks) != 1:
            raise ValueError(f"an adversarial contrast needs exactly one bank, got {len(banks)}")
        self.contrast, self.tau, self.pool = contrast, tau, contrast.pool

    @property
    def bank(self) -> Bank:
        """The adversaries among the negatives."""
        return next(part for part in self.contrast.negatives if isinstance(part, Bank))

    def forward(self, pair: Pair) -> tuple[Tensor, Metrics]:
        """The contrast, minus what the bank wants of it."""
        if self.bank.filling:
            alone: tuple[Tensor, Metrics] = self.contrast(pair, among=[self.bank])
            return alone
        loss, metrics = self.contrast(pair)
        seen = Pair(*(part.detach() for part in pair))
        rival = self.contrast.coupling(self.contrast.terms(seen, self.tau, live=True)).mean()
        return loss - rival, metrics | {"rival": rival.detach()}

    def at(self, progress: float) -> None:
        """Move JCL's ramp."""
        self.contrast.at(progress)

    def push(self, keys: Tensor, image_ids: Tensor, noise: Tensor) -> bool:
        """Fill the bank."""
        return self.contrast.push(keys, image_ids, noise)


class Align(nn.Module):
    """BYOL, SimSiam, MSBReg: come close to the (centroid of the) keys; no negatives, no temperature."""

    pool: Pool | None = None

    def __init__(self, *, squared: bool, renormalise: bool = True) -> None:
        super().__init__()
        self.squared, self.renormalise = squared, renormalise

    def forward(self, pair: Pair) -> tuple[Tensor, Metrics]:
        """Mean squared distance (BYOL: 2 - 2 cos for unit vectors) or negative cosine (SimSiam)."""
        key = centroid(pair.keys, self.renormalise)
        similarity = (pair.query * key).sum(-1)
        loss = ((pair.query - key) ** 2).sum(-1).mean() if self.squared else -similarity.mean()
        return loss, {"align": loss.detach(), "positive": similarity.detach().mean()}

    def at(self, progress: float) -> None:
        """Nothing changes with time."""

    def push(self, keys: Tensor, image_ids: Tensor, noise: Tensor) -> bool:
        """Nothing to keep."""
        return False


@torch.no_grad()
def mean_score(parts: Iterable[nn.Module], scores: list[Tensor]) -> Tensor:
    """The mean () of the scores (N,K) of each part but the excluded ones; one pass where a part excludes none."""
    total, count = scores[0].new_zeros(()), scores[0].new_zeros(())
    for part, some in zip(parts, scores, strict=True):
        if not getattr(part, "masked", True):
            total, count = total + some.sum(), count + some.numel()
        else:
            there = some != -torch.inf
            total, count = total + torch.where(there, some, 0).sum(), count + there.sum()
    return total / count


def centroid(vectors: Tensor, renormalise: bool = True) -> Tensor:
    """The mean direction (N,D) of unit vectors (M,N,D); their plain mean without renormalise."""
    if len(vectors) == 1:
        return vectors[0]
    mean = vectors.mean(0)
    return unit(mean) if renormalise else mean
