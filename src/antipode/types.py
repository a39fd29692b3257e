"""The records that flow between the stages, and whether an argument is of the kind that its annotation says.

Letters everywhere: N images of this rank, V views, M keys per query, K negatives, P pool, D embedding, C channels or
classes, H W pixels.
"""

from numbers import Integral, Real
from types import NoneType, UnionType
from typing import Any, NamedTuple, Union, get_args, get_origin

from torch import Tensor
from torch import bool as bool_dtype

WORDS = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "a text",
    NoneType: "None",
}


class Batch(NamedTuple):
    """What a learner sees of the data: pixels and image numbers. It has no labels, so none can leak."""

    views: list[Tensor]  # V tensors (N,C,H,W); sizes may differ between views (multi-crop)
    image_ids: Tensor  # (N,) image ids, int64; masks compare ids, never places. Where the batch repels two at least differ


class Pair(NamedTuple):
    """Geometry: queries, what attracts them and what of the batch may repel them."""

    query: Tensor  # (N,D) unit, carries gradient
    keys: Tensor  # (M,N,D) unit; M=1 for MoCo, M' for JCL
    image_ids: Tensor  # (N,)
    pool: Tensor  # (P,D) vectors of all ranks that may repel; (0,D) where no part asks for them
    pool_ids: Tensor  # (P,) a query is never repelled by its own image
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
    image_ids: Tensor  # (N,) the images those keys belong to


class Features(NamedTuple):
    """What evaluation and analysis work on."""

    x: Tensor  # (N,D)
    y: Tensor  # (N,)


def fitted(name: str, value: Any, kind: Any) -> Any:
    """An argument by name that is of its annotated kind, lists as tuples; not-a-number is no number.

    Literals and kinds that are not plain values pass: whoever takes them says what they are.
    """
    value = _single(value)
    kinds = get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)
    if bool in kinds and isinstance(value, int) and value in (0, 1):
        return bool(value)
    parts = next((get_args(one) for one in kinds if get_origin(one) is tuple), ())
    if any(_fits(value, one) for one in kinds):
        return value
    if parts and isinstance(value, list | tuple) and len(value) == len(parts):
        if all(_fits(one, part) for one, part in zip(value, parts, strict=True)):
            return tuple(value)
    words = [WORDS.get(one, f"{len(parts)} numbers") for one in kinds]
    raise ValueError(f"{name} is {' or '.join(words)}, not {value!r}")


def _single(value: Any) -> Any:
    """A numpy scalar, or an array or tensor of one number, as that number; a tensor stays one, of no axes."""
    if isinstance(value, Tensor):
        return value.reshape(()) if value.numel() == 1 else value
    return value.item() if hasattr(value, "item") and getattr(value, "size", 0) == 1 else value


def _fits(value: Any, kind: Any) -> bool:
    if kind in (int, float) and isinstance(value, Tensor):  # nobody waits to see what it holds
        whole = not value.is_floating_point() and value.dtype != bool_dtype
        return value.ndim == 0 and not value.is_complex() and (kind is float or whole)
    if kind in (int, float):
        number = isinstance(value, Integral if kind is int else Real) and not isinstance(
            value, bool
        )
        return number and value == value  # noqa: PLR0124  (nan is not itself)
    return isinstance(value, kind) if kind in WORDS else get_origin(kind) is not tuple
