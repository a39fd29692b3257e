"""Formulas of EqCo and DCL as functions of embeddings: mutual information, gradient norm, q_B.

Shapes: N images, V views of each image, Q queries, K negatives of each query, D features.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from antipode import rng
from antipode.core.loss import coupled
from antipode.core.scores import product
from antipode.functional import mi_lower_bound, npc_multiplier
from antipode.types import Terms

CELLS = 1 << 24  # maximum number of similarities in memory at a time: 64 MiB


class QueryTerms(NamedTuple):
    """The terms of Q queries with one positive and K negatives each."""

    attract: Tensor  # (Q,) positive score / tau
    repel: Tensor  # (Q,) log-sum-exp of the negative scores / tau
    distance: Tensor  # (Q,) from the positive key to the softmax-weighted mean of the negatives


@torch.no_grad()
def query_terms(queries: Tensor, keys: Tensor, count: int, tau: float) -> QueryTerms:
    """Return the terms of unit queries (Q,D) with unit keys (V,N,D) and `count` negatives, Q <= N.

    Query i is a view of image i, and the first key of this image is its positive. The negatives
    are the `count` keys that follow the positive: first those of the first view, then those of the
    next view. After the last key of the last view comes the first key of the first view. All keys
    of the query's own image are skipped, so that V(N-1) negatives are possible. If the images are
    in random order, this is a draw without replacement for every query, and a larger draw contains
    the smaller ones.
    """
    _check_count(queries, keys, count)
    q, n = len(queries), keys.shape[1]
    flat = keys.flatten(0, 1)
    length = count + (count - 1) // (n - 1)  # the last n-th key of a stretch is the query's own
    repel = queries.new_empty(q)
    distance = queries.new_empty(q)
    rows = max(1, min(256, CELLS // length))
    for start in range(0, q, rows):
        part = queries[start : start + rows]
        ahead = torch.arange(length + len(part) - 1, device=keys.device)
        others = flat[(start + 1 + ahead) % len(flat)]
        # (R,W) offset of each of W keys from the first negative of each of R queries
        offset = ahead - torch.arange(len(part), device=keys.device)[:, None]
        outside = (offset < 0) | (offset >= length)
        if length > count:
            outside |= (offset + 1) % n == 0  # another key of the query's own image
        scores = (product(part, others) / tau).masked_fill(outside, -torch.inf)
        repel[start : start + rows] = torch.logsumexp(scores, 1)
        centre = product(scores.softmax(1), others.T)
        positive = keys[0, start : start + len(part)]
        distance[start : start + rows] = torch.linalg.vector_norm(centre - positive, dim=1)
    return QueryTerms((queries * keys[0, :q]).sum(-1) / tau, repel, distance)


def _check_count(queries: Tensor, keys: Tensor, count: int) -> None:
    """Raise ValueError if `count` negatives cannot be drawn for queries (Q,D) from keys (V,N,D)."""
    q = len(queries)
    v, n = keys.shape[:2]
    if not 1 <= count <= v * (n - 1) or q > n:
        raise ValueError(
            f"{count} negatives cannot be drawn for {q} queries from {v} x {n} keys: {v} views of "
            f"{n} images allow 1 to {v * (n - 1)} negatives and at most {n} queries"
        )


def information(terms: QueryTerms, count: int, alpha: float | None = None) -> float:
    """Return EqCo's empirical lower bound on mutual information (section 2.1).

    With `alpha`, the loss has EqCo's margin.
    """
    repel = terms.repel + _margin(count, alpha)
    loss = coupled(Terms(terms.attract, terms.attract, repel)).double().mean()
    return float(mi_lower_bound(loss, count, alpha))


def gradient(terms: QueryTerms, count: int, tau: float, alpha: float | None = None) -> Tensor:
    """Return the norm (Q,) of the gradient of each query's loss with respect to the query.

    The gradient is (1/tau)(-(1-P0) k + sum_j P_j k_j), where P_j is 1-P0 times the softmax over the
    negatives alone. So alpha only enters 1-P0. (Eq. 11 of the paper has a misprint in a numerator;
    eq. 12 is right.)
    """
    return torch.sigmoid(terms.repel + _margin(count, alpha) - terms.attract) * terms.distance / tau


def ceiling(terms: QueryTerms, count: int, tau: float, alpha: float) -> Tensor:
    """Return theorem 2's bound (Q,) on the expected gradient, 2/tau (1 - s0/(s0 + alpha E[s])).

    E[s] is estimated by the mean over the `count` negatives.
    """
    return 2 / tau * torch.sigmoid(terms.repel - math.log(count) + math.log(alpha) - terms.attract)


def _margin(count: int, alpha: float | None) -> float:
    return 0.0 if alpha is None else math.log(alpha / count)


def multipliers(z0: Tensor, z1: Tensor, batch: int, tau: float, key: Tensor) -> Tensor:
    """Return DCL's q_B of all anchors in batches of `batch` images with two views z0, z1 (N,D).

    The batches are drawn without replacement.
    """
    n = len(z0)
    if not 2 <= batch <= n:
        raise ValueError(f"batches of {batch} cannot be drawn from {n} images: 2 to {n}")
    order = rng.permutation(key, n)[: n // batch * batch]
    return torch.cat(
        [npc_multiplier(z0[ids], z1[ids], tau=tau) for ids in torch.split(order, batch)]
    )
