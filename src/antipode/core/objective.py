"""Objectives: a `Pair` in, a loss and its metrics out.

Scores are divided by tau in objectives and in `functional`, and never in scores, negatives or
couplings.
"""

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

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
from antipode.core.negatives import Bank, Negatives, Noise, Pool
from antipode.core.scores import unit
from antipode.core.streamed import Candidates, is_large, repulsion
from antipode.types import Pair, Terms

Metrics = dict[str, Tensor]


class Objective(Protocol):
    """What the learner needs of an objective."""

    pool: Pool | None  # which keys of the batch it needs in Pair.pool
    unit_vectors: bool  # queries and keys arrive at unit length

    def __call__(self, pair: Pair) -> tuple[Tensor, Metrics]:
        """Return the loss () and detached metrics."""

    def at(self, progress: float) -> None:
        """Set what changes over training, for a step at `progress` in [0,1]."""

    def push(self, keys: Tensor, image_ids: Tensor, noise: Noise) -> bool:
        """Update state after the step; return True if a bank has just been filled."""


class Contrast(nn.Module):
    """Attract the positives and repel the negatives. The four choices decide which paper it is."""

    unit_vectors = True

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
                "JCL's Gaussian acts in the denominator only, and a decoupled loss has no "
                "positive there"
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
        # the parts are modules that follow a protocol
        self.negatives = nn.ModuleList(negatives)  # type: ignore[arg-type]
        self.tau = tau
        self.positives = positives
        self.coupling = coupling
        self.margin = margin
        self.pool: Pool | None = next(iter(pools), None)

    def replace(self, **choices: Any) -> "Contrast":
        """Return a contrast with the same negatives, of which the named `choices` are replaced."""
        kept = ("tau", "positives", "coupling", "margin")
        return Contrast(*self.negatives, **{name: getattr(self, name) for name in kept} | choices)

    def terms(
        self,
        pair: Pair,
        tau: float | None = None,
        live: bool = False,
        among: Sequence[nn.Module] | None = None,
    ) -> Terms:
        """Return the three numbers of each query, with this tau and these negatives.

        `among` are all negatives by default.
        """
        parts = among or self.negatives
        if (found := too_many(parts, pair, live)) is not None:
            return self.stream(pair, found, tau)[0]
        return self.weigh(pair, [part(pair, live) for part in parts], tau)

    def weigh(self, pair: Pair, scores: list[Tensor], tau: float | None = None) -> Terms:
        """Return the three numbers of each query from its scores (N,K) with each part."""
        tau = tau or self.tau
        joint = (scores[0] if len(scores) == 1 else torch.cat(scores, 1)) / tau
        repel = torch.logsumexp(joint, 1)
        if self.margin is not no_margin:
            repel = repel + self.margin(joint.isfinite().sum(1).to(joint.dtype))
        return Terms(*self._attraction(pair, tau), repel)

    def stream(
        self, pair: Pair, parts: list[Candidates], tau: float | None = None, summed: bool = False
    ) -> tuple[Terms, Tensor]:
        """Return the three numbers of each query without storing scores, and the mean score ().

        The mean score is computed only if `summed`.
        """
        tau = tau or self.tau
        repel, count, total = repulsion(pair.query / tau, parts, summed)
        if self.margin is not no_margin:
            repel = repel + self.margin(count)
        mean = total.sum() * tau / count.sum()
        return Terms(*self._attraction(pair, tau), repel), mean

    def _attraction(self, pair: Pair, tau: float) -> tuple[Tensor, Tensor]:
        """Return attract (N,) and bound (N,)."""
        return self.positives((pair.query * pair.keys).sum(-1).T / tau)

    def forward(
        self, pair: Pair, among: Sequence[nn.Module] | None = None
    ) -> tuple[Tensor, Metrics]:
        """Return the mean loss over the queries, against these negatives (by default all)."""
        parts = among or self.negatives
        if (found := too_many(parts, pair)) is not None:
            terms, negative = self.stream(pair, found, summed=True)
        else:
            scores = [part(pair) for part in parts]
            terms, negative = self.weigh(pair, scores), mean_score(parts, scores)
        loss = self.coupling(terms).mean()
        return loss, self.metrics(loss, terms) | {"negative": negative}

    def metrics(self, loss: Tensor, terms: Terms) -> Metrics:
        """Return loss, mean positive cosine, mean terms and DCL's multiplier, for the log."""
        attract = terms.attract.detach().mean()
        return {
            "contrast": loss.detach(),
            "positive": attract * self.tau,
            "attract": attract,
            "repel": terms.repel.detach().mean(),
            "multiplier": multiplier(terms).detach().mean(),
        }

    def at(self, progress: float) -> None:
        """Set JCL's lambda."""
        if isinstance(self.positives, Gaussian):
            self.positives.at(progress)

    def push(self, keys: Tensor, image_ids: Tensor, noise: Noise) -> bool:
        """Pass the keys to every part that stores some."""
        parts: Iterable[Any] = self.negatives
        return any([part.push(keys, image_ids, noise) for part in parts])


class Adversarial(nn.Module):
    """AdCo: the encoder minimises the contrast, the bank maximises it at its own temperature.

    One backward pass serves both. The encoder's term sees the bank detached, and the bank minimises
    the negated loss of detached queries. The difference itself has no meaning; read `contrast` in
    the metrics. While the bank fills, training is ordinary InfoNCE against the bank alone, as in
    the authors' init_memory.
    """

    unit_vectors = True

    def __init__(self, contrast: Contrast, *, tau: float) -> None:
        super().__init__()
        if not 0 < tau < torch.inf:
            raise ValueError(f"the bank's temperature tau must be positive, got {tau}")
        banks = [part for part in contrast.negatives if isinstance(part, Bank)]
        if len(banks) != 1:
            raise ValueError(f"an adversarial contrast needs exactly one bank, got {len(banks)}")
        self.contrast = contrast
        self.tau = tau
        self.pool = contrast.pool

    @property
    def bank(self) -> Bank:
        """The adversarial negatives."""
        return next(part for part in self.contrast.negatives if isinstance(part, Bank))

    def forward(self, pair: Pair) -> tuple[Tensor, Metrics]:
        """Return the contrast minus the bank's own objective."""
        if self.bank.filling:
            alone: tuple[Tensor, Metrics] = self.contrast(pair, among=[self.bank])
            return alone
        loss, metrics = self.contrast(pair)
        detached = Pair(*(part.detach() for part in pair))
        rival = self.contrast.coupling(self.contrast.terms(detached, self.tau, live=True)).mean()
        return loss - rival, metrics | {"rival": rival.detach()}

    def at(self, progress: float) -> None:
        """Set JCL's lambda."""
        self.contrast.at(progress)

    def push(self, keys: Tensor, image_ids: Tensor, noise: Noise) -> bool:
        """Pass the keys to the bank, which stores them while it fills."""
        return self.contrast.push(keys, image_ids, noise)


class Align(nn.Module):
    """Move queries towards the centroid of their keys; no negatives (BYOL, SimSiam, MSBReg)."""

    pool: Pool | None = None
    unit_vectors = True

    def __init__(self, *, squared: bool, renormalise: bool = True) -> None:
        super().__init__()
        self.squared = squared
        self.renormalise = renormalise

    def forward(self, pair: Pair) -> tuple[Tensor, Metrics]:
        """Return the mean squared distance (BYOL) or the mean negative cosine (SimSiam).

        The squared distance of unit vectors is 2 - 2 cos.
        """
        key = centroid(pair.keys, self.renormalise)
        similarity = (pair.query * key).sum(-1)
        loss = ((pair.query - key) ** 2).sum(-1).mean() if self.squared else -similarity.mean()
        return loss, {"align": loss.detach(), "positive": similarity.detach().mean()}

    def at(self, progress: float) -> None:
        """Do nothing: nothing changes over training."""

    def push(self, keys: Tensor, image_ids: Tensor, noise: Noise) -> bool:
        """Keep nothing."""
        return False


def too_many(parts: Iterable[nn.Module], pair: Pair, live: bool = False) -> list[Candidates] | None:
    """Return the candidates of all parts if they give too many scores to store, else None."""
    sources: list[Any] = list(parts)
    if not all(hasattr(part, "candidates") for part in sources):
        return None
    count = sum(part.candidate_count(pair) for part in sources)
    if not is_large(len(pair.query), count, pair.query.device):
        return None
    return [part.candidates(pair, live) for part in sources]


@torch.no_grad()
def mean_score(parts: Iterable[nn.Module], scores: list[Tensor]) -> Tensor:
    """Return the mean () of the scores (N,K) of all parts, without the excluded ones."""
    total = scores[0].new_zeros(())
    count = scores[0].new_zeros(())
    for part, values in zip(parts, scores, strict=True):
        if getattr(part, "masked", True):
            included = values != -torch.inf
            total = total + torch.where(included, values, 0).sum()
            count = count + included.sum()
        else:
            total = total + values.sum()
            count = count + values.numel()
    return total / count


def centroid(vectors: Tensor, renormalise: bool = True) -> Tensor:
    """Return the mean (N,D) of unit vectors (M,N,D), scaled to unit length if `renormalise`."""
    if len(vectors) == 1:
        return vectors[0]
    mean = vectors.mean(0)
    return unit(mean) if renormalise else mean
