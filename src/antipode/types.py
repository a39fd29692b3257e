"""The records that flow between the stages.

Letters everywhere: N images of this rank, V views, M keys per query, K negatives, P pool, D embedding, C channels or
classes, H W pixels.
"""

from typing import NamedTuple

from torch import Tensor


class Batch(NamedTuple):
    """What a learner sees of the data: pixels and image numbers. It has no labels, so none can leak."""

    views: list[Tensor]  # V tensors (N,C,H,W); sizes may differ between views (multi-crop)
    owner: Tensor  # (N,) image ids, int64; masks compare ids, never places. Where the batch repels two at least differ


class Pair(NamedTuple):
    """Geometry: queries, what attracts them and what of the batch may repel them."""

    query: Tensor  # (N,D) unit, carries gradient
    keys: Tensor  # (M,N,D) unit; M=1 for MoCo, M' for JCL
    owner: Tensor  # (N,)
    pool: Tensor  # (P,D) vectors of all ranks that may repel; (0,D) where no part asks for them
    pool_owner: Tensor  # (P,) a query is never repelled by its own image
    noise: Tensor  # () key of this step's draws (antipode.rng), the same on all ranks


class Terms(NamedTuple):
    """Statistics: three numbers per query. Every contrastive loss here is a function of them (docs/design.md)."""

    attract: Tensor  # (N,) mean positive score / tau: what pulls
    bound: Tensor  # (N,) what the positive adds to the denominator; attract itself except in JCL
    repel: Tensor  # (N,) log-sum-exp of negative scores / tau, plus EqCo's margin


class Output(NamedTuple):
    """What a learner hands to the engine."""

    loss: Tensor  # ()
    metrics: dict[str, Tensor]  # detached scalars
    keys: Tensor  # (N,D) detached: what a queue, bank or memory may take in after the step
    owner: Tensor  # (N,) the images those keys belong to


class Features(NamedTuple):
    """What evaluation and analysis work on."""

    x: Tensor  # (N,D)
    y: Tensor  # (N,)
