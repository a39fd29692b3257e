"""The log-sum-exp of scores that are never stored as a whole.

The matrix of scores (N,K) is computed tile by tile, so the extra memory grows with N + K and not
with N K. The result is exact: tiles change the order of sums and nothing else.

- The forward pass keeps, for each query, the largest score so far and the sum of exponentials
  relative to it (Milakov & Gimelshein 2018, arXiv 1805.02867). If a query needs a gradient, it also
  keeps the mean of the vectors, weighted by their softmax. This mean is the gradient of the
  log-sum-exp, so the backward pass only multiplies it by one number per query.
- The gradient of the vectors needs these numbers. The backward pass computes the tiles again, from
  the saved log-sum-exp, as FlashAttention does (Dao et al. 2022, arXiv 2205.14135).

Shapes: N queries, K vectors, D dimensions, and tiles (C,R) of C vectors and R queries.
"""

import math
import warnings
from collections.abc import Iterator, Sequence
from functools import cache
from importlib.util import find_spec
from typing import Any, NamedTuple

import torch
from torch import Tensor

from antipode import rng
from antipode.core.scores import ieee, needs_operator

# The largest number of scores that are stored as a whole, by `product` and torch.logsumexp. On a
# GPU this is AdCo's batch of 256 with its bank of 65,536 and the keys of the batch, and so MoCo's
# with its queue: 64 MiB in float32, and at most 4.5 times as much with the backward pass. A CPU is
# faster with tiles long before that, because a large matrix does not fit into its cache
# (benchmarks/streamed.py).
WHOLE = {"cpu": 1 << 20, "cuda": 256 * (65536 + 256)}
# The bytes of a tile. It should stay in the cache between the passes over it, which is 50 MiB on an
# H200; smaller tiles have more overhead.
TILE = {"cpu": 1 << 22, "cuda": 1 << 25}
# Whether a device runs the kernels of core/fused.py where they can compute a problem.
KERNELS = {"cuda": True}
# The largest lot of a vector, which stands for a vector that cannot be drawn.
NEVER = (1 << 63) - 1


class Draw(NamedTuple):
    """A random subset of the candidates for each query."""

    keys: Tensor  # (N,) or, if all queries have the same subset, (1,): keys of antipode.rng
    counters: Tensor  # (K,) one number per vector
    size: int  # number of vectors in the subset


class Candidates(NamedTuple):
    """Vectors that may repel the queries of a batch, and the rule that decides which of them do."""

    vectors: Tensor  # (K,D)
    # ids (N,) of the queries and (K,) of the vectors; a vector repels no query of the same image
    image_ids: tuple[Tensor, Tensor] | None = None
    draw: Draw | None = None  # only with image ids


class Repulsion(NamedTuple):
    """What the negatives of each query sum up to."""

    repel: Tensor  # (N,) log-sum-exp of the scores
    counts: Tensor  # (N,) number of negatives
    total: Tensor  # (N,) sum of the scores, without gradient; (0,) if it was not asked for


def is_large(queries: int, vectors: int, device: torch.device) -> bool:
    """Return True if a matrix of scores of this size is not to be stored as a whole."""
    return queries * vectors > WHOLE.get(device.type, WHOLE["cuda"])


def repulsion(query: Tensor, parts: Sequence[Candidates], summed: bool = False) -> Repulsion:
    """Return the repulsion of queries (N,D) by the candidates of all parts.

    A score is the product of a query and a vector, so queries must be divided by the temperature
    before. Set `summed` to get the sums of the scores. Second derivatives raise ValueError.
    """
    found = [_streamed(query, part, summed) for part in parts]
    if len(found) == 1:
        return found[0]
    repel, count, total = zip(*found, strict=True)
    return Repulsion(
        torch.logsumexp(torch.stack(repel), 0), torch.stack(count).sum(0), torch.stack(total).sum(0)
    )


def _streamed(query: Tensor, part: Candidates, summed: bool) -> Repulsion:
    """Return the repulsion by the candidates of one part."""
    rule = list(part.image_ids or ())
    count = 0
    if part.draw is not None:
        rule += [part.draw.keys.expand(len(query)), part.draw.counters]
        count = part.draw.size
    pulled = torch.is_grad_enabled() and query.requires_grad
    operator = _repel if needs_operator(query, part.vectors) else _forward
    repel, _, total, _ = operator(query, part.vectors, rule, count, pulled, summed)
    return Repulsion(repel, _counts(query, part), total.detach())


def _counts(query: Tensor, part: Candidates) -> Tensor:
    """Return the number of negatives of each query, (N,) in the type of the queries."""
    if part.image_ids is None:
        return query.new_full((len(query),), len(part.vectors))
    image_ids = part.image_ids[0].contiguous()
    ordered = part.image_ids[1].sort().values
    above = torch.searchsorted(ordered, image_ids, right=True)
    counts = len(part.vectors) - (above - torch.searchsorted(ordered, image_ids))
    return (counts if part.draw is None else counts.clamp(max=part.draw.size)).to(query.dtype)


# Tiles. `rule` is [] if every vector counts for every query. Otherwise it holds the image ids (N,)
# and (K,), then, for a draw, the keys (N,), the counters (K,) and the limits (N,).


def _tile_bytes(device: torch.device) -> int:
    return TILE.get(device.type, TILE["cuda"])


def _tile(n: int, k: int, like: Tensor) -> tuple[int, int]:
    """Return the number of queries and of vectors of a tile."""
    numbers = _tile_bytes(like.device) // like.element_size()
    queries = min(n, max(1 << (numbers.bit_length() - 1) // 2, numbers // k))
    return queries, min(k, max(1, numbers // queries))


def _pieces(length: int, size: int) -> Iterator[slice]:
    """Yield slices of at most `size` that cover range(length)."""
    for start in range(0, length, size):
        yield slice(start, min(start + size, length))


def _excluded(rule: Sequence[Tensor], queries: slice, vectors: slice) -> Tensor | None:
    """Return which scores of a tile do not count, (C,R) bool, or None if all of them count."""
    if not rule:
        return None
    own = rule[1][vectors, None] == rule[0][queries]
    if len(rule) == 2:
        return own
    keys, counters, limits = rule[2:]
    return own | (_lots(keys[queries], counters, vectors).T > limits[queries])


def _lots(keys: Tensor, counters: Tensor, vectors: slice) -> Tensor:
    """Return a random int64 (R,C) for each of R keys and some vectors; the smallest are drawn.

    The upper half is random, in the order of `rng.uniform` with the same keys. The lower half is
    the place of the vector, so that there are no ties if a batch holds an image twice.
    """
    places = torch.arange(vectors.start, vectors.stop, device=keys.device)
    drawn = rng.integers(rng.fold(keys[:, None], counters[vectors]), 1, NEVER).squeeze(-1)
    return (drawn & -(1 << 32)) | places


def _limits(rule: Sequence[Tensor], count: int) -> Tensor:
    """Return the `count`-th smallest lot of each query, (N,), among vectors of other images."""
    image_ids, owners, keys, counters = rule
    limits = torch.empty_like(image_ids)
    # an int64 has 8 bytes, and four such matrices exist at a time
    rows = max(1, _tile_bytes(keys.device) // (32 * len(owners)))
    for some in _pieces(len(image_ids), rows):
        own = image_ids[some, None] == owners
        drawn = _lots(keys[some], counters, slice(0, len(owners))).masked_fill_(own, NEVER)
        limits[some] = drawn.topk(count, 1, largest=False, sorted=False).values.amax(1)
    return limits


@cache
def _has_triton() -> bool:
    return find_spec("triton") is not None


def _kernels(query: Tensor, vectors: Tensor, rule: Sequence[Tensor]) -> Any:
    """Return the module core/fused.py if it can compute this problem, else None."""
    if not (KERNELS.get(query.device.type) and _has_triton()):
        return None
    from antipode.core import fused  # noqa: PLC0415 (Triton exists for CUDA only)

    return fused if fused.usable(query, vectors, rule) else None


def _by_kernels(
    name: str, query: Tensor, vectors: Tensor, rule: Sequence[Tensor], *args: Any
) -> Any:
    """Return what a function of core/fused.py computes, or None if torch has to compute it.

    If the kernels cannot be built (Triton needs a C compiler), a warning says so once.
    """
    kernels = _kernels(query, vectors, rule)
    if kernels is None:
        return None
    try:
        with torch.cuda.device_of(query):  # type: ignore[no-untyped-call]
            return getattr(kernels, name)(query, vectors, rule, *args)
    except torch.OutOfMemoryError:
        raise
    except Exception as error:
        KERNELS[query.device.type] = False
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        warnings.warn(f"losses run without kernels, and slower ({reason})", stacklevel=2)
        return None


def _forward(
    query: Tensor,
    vectors: Tensor,
    rule: Sequence[Tensor],
    count: int,
    pulled: bool,
    summed: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return repel (N,), its gradient (N,D), the sum of the scores (N,) and the limits (N,).

    The gradient is empty unless `pulled`, the sum unless `summed`, and the limits unless `count`
    vectors are drawn.
    """
    n, dim = query.shape
    found = None if count else _by_kernels("forward", query, vectors, rule, pulled, summed)
    if found is not None:
        return *found, query.new_empty(0, dtype=torch.int64)
    limits = _limits(rule, count) if count else query.new_empty(0, dtype=torch.int64)
    rule = [*rule, limits] if count else rule
    repel = query.new_empty(n)
    pull = query.new_zeros(n if pulled else 0, dim)
    total = query.new_zeros(n if summed else 0)
    rows, _ = _tile(n, len(vectors), query)
    with ieee(query.device):
        for some in _pieces(n, rows):
            own = (pull[some] if pulled else None, total[some] if summed else None)
            repel[some] = _forward_rows(query, vectors, rule, some, *own)
    return repel, pull, total, limits


def _forward_rows(
    query: Tensor,
    vectors: Tensor,
    rule: Sequence[Tensor],
    some: slice,
    pull: Tensor | None,
    total: Tensor | None,
) -> Tensor:
    """Return repel (R,) of some queries; add to their `pull` (R,D) and `total` (R,)."""
    lowest = torch.finfo(query.dtype).min
    x = query[some]
    top = x.new_full((len(x),), -math.inf)
    weight = x.new_zeros(len(x))  # the sum of exp(score - top)
    for part in _pieces(len(vectors), _tile(len(query), len(vectors), query)[1]):
        scores = vectors[part] @ x.T
        excluded = _excluded(rule, some, part)
        if total is not None:
            total += (scores if excluded is None else scores.masked_fill(excluded, 0)).sum(0)
        if excluded is not None:
            scores.masked_fill_(excluded, -math.inf)
        before = top
        top = torch.maximum(top, scores.amax(0))
        shift = top.clamp(min=lowest)  # -inf - -inf is not a number
        kept = (before - shift).exp()
        weights = scores.sub_(shift).exp_()
        weight.mul_(kept).add_(weights.sum(0))
        if pull is not None:
            pull.mul_(kept[:, None]).addmm_(weights.T, vectors[part])
    if pull is not None:
        pull.div_(weight.clamp(min=1)[:, None])  # at least 1, unless every vector is excluded
    return top + weight.log()


def _backward(
    grad: Tensor,
    query: Tensor,
    vectors: Tensor,
    repel: Tensor,
    pull: Tensor,
    rule: Sequence[Tensor],
    wants_query: bool,
    wants_vectors: bool,
) -> tuple[Tensor, Tensor]:
    """Return the gradients of queries (N,D) and vectors (K,D), empty if not wanted."""
    from_query = grad[:, None] * pull if wants_query else query.new_empty(0)
    if not wants_vectors:
        return from_query, query.new_empty(0)
    found = _by_kernels("backward", query, vectors, rule, grad, repel)
    if found is not None:
        return from_query, found
    from_vectors = vectors.new_zeros(vectors.shape)
    scaled = grad[:, None] * query
    rows, columns = _tile(len(query), len(vectors), query)
    with ieee(query.device):
        for part in _pieces(len(vectors), columns):
            for some in _pieces(len(query), rows):
                weights = torch.addmm(-repel[some], vectors[part], query[some].T)
                excluded = _excluded(rule, some, part)
                if excluded is not None:
                    weights.masked_fill_(excluded, -math.inf)
                from_vectors[part].addmm_(weights.exp_(), scaled[some])
    return from_query, from_vectors


# Operators, so that the switch of precision acts inside of them only (see `scores.product`) and a
# compiled graph holds one node in place of every tile.


_repel = torch.library.custom_op("antipode::repel", _forward, mutates_args=())
_repel_backward = torch.library.custom_op("antipode::repel_backward", _backward, mutates_args=())


@_repel.register_fake
def _(
    query: Tensor,
    vectors: Tensor,
    rule: Sequence[Tensor],
    count: int,
    pulled: bool,
    summed: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    n, dim = query.shape
    return (
        query.new_empty(n),
        query.new_empty(n if pulled else 0, dim),
        query.new_empty(n if summed else 0),
        query.new_empty(n if count else 0, dtype=torch.int64),
    )


@_repel_backward.register_fake
def _(
    grad: Tensor,
    query: Tensor,
    vectors: Tensor,
    repel: Tensor,
    pull: Tensor,
    rule: Sequence[Tensor],
    wants_query: bool,
    wants_vectors: bool,
) -> tuple[Tensor, Tensor]:
    return (
        query.new_empty(query.shape) if wants_query else query.new_empty(0),
        vectors.new_empty(vectors.shape) if wants_vectors else query.new_empty(0),
    )


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    query, vectors, rule, count, *_ = inputs
    repel, pull, _, limits = output
    ctx.save_for_backward(query, vectors, repel, pull, *rule, *([limits] if count else []))
    ctx.tensors_in_rule = len(rule)


def _differentiate(ctx: Any, grad: Tensor, *_: Tensor) -> tuple[Any, ...]:
    query, vectors, repel, pull, *rule = ctx.saved_tensors
    wants = ctx.needs_input_grad[:2]
    found = _repel_backward(grad, query, vectors, repel, pull, rule, *wants)
    gradients = [x if wanted else None for x, wanted in zip(found, wants, strict=True)]
    return (*gradients, [None] * ctx.tensors_in_rule, None, None, None)


def _keep_size(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.size = len(inputs[1]), len(inputs[2])


def _refuse(ctx: Any, *grads: Tensor) -> None:
    queries, vectors = ctx.size
    raise ValueError(
        f"a loss of {queries} queries and {vectors} negatives has no second derivative, because "
        "their scores are not stored"
    )


_repel.register_autograd(_differentiate, setup_context=_save)
_repel_backward.register_autograd(_refuse, setup_context=_keep_size)
