"""The records that the stages of training exchange, and a check of arguments by their annotations.

Shapes in all files: N images of this rank, V views, M keys per query, K negatives, P vectors in the
pool, D dimensions of the embedding, C channels or classes, H and W pixels.
"""

import math
import sys
from numbers import Integral, Real
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, NamedTuple, Union, get_args, get_origin

from torch import Generator, Tensor, nn
from torch import bool as bool_dtype

from antipode.names import brief

WORDS = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "a string",
    Path: "a path",
    Generator: "a torch.Generator",
    nn.Module: "a torch.nn.Module",
    NoneType: "None",
}
LARGEST = sys.float_info.max


class Batch(NamedTuple):
    """A batch as a learner receives it: pixels and image ids.

    It has no labels, so labels cannot leak into pretraining.
    """

    views: list[Tensor]  # V tensors (N,C,H,W); sizes may differ between views (multi-crop)
    # (N,) int64. Masks compare these ids, never positions in the batch. If the batch provides the
    # negatives, it must contain at least two different ids.
    image_ids: Tensor


class Pair(NamedTuple):
    """Queries, their positive keys, and the vectors of the batch that may serve as negatives."""

    query: Tensor  # (N,D) unit vectors with gradient
    keys: Tensor  # (M,N,D) unit vectors; M=1 for MoCo, M' for JCL
    image_ids: Tensor  # (N,)
    pool: Tensor  # (P,D) candidate negatives of all ranks; (0,D) if the loss does not use them
    pool_ids: Tensor  # (P,) image ids of the pool; a query is never repelled by its own image
    noise: Tensor  # () key of this step's random draws (antipode.rng), the same on all ranks


class Terms(NamedTuple):
    """Three statistics per query; every contrastive loss is a function of them (docs/design.md)."""

    attract: Tensor  # (N,) mean positive score / tau
    bound: Tensor  # (N,) log of the positive term in the denominator; equals attract except in JCL
    repel: Tensor  # (N,) log-sum-exp of negative scores / tau, plus EqCo's margin


class Output(NamedTuple):
    """The result of a learner's forward pass."""

    loss: Tensor  # ()
    metrics: dict[str, Tensor]  # detached scalars
    keys: Tensor  # (N,D) detached; a queue, bank or memory may store them after the step
    image_ids: Tensor  # (N,) the image ids of the keys


class Features(NamedTuple):
    """Features and labels, the input of evaluation and analysis."""

    x: Tensor  # (N,D) features
    y: Tensor  # (N,) labels


class Embedded(Features):
    """The features that `embed` returns, with the number of images that were left out."""

    left_out: int = 0


def fitted(name: str, value: Any, kind: Any) -> Any:
    """Return the argument `name` if its value fits the annotation `kind`, else raise ValueError.

    Lists become tuples. NaN is not accepted as a number. Literals and annotations that are not
    plain values are not checked here; the function that takes them checks them.
    """
    value = _single(value)
    kinds = get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)
    if bool in kinds and isinstance(value, int) and value in (0, 1):
        return bool(value)
    elements = next((get_args(option) for option in kinds if get_origin(option) is tuple), ())
    if any(_fits(value, option) for option in kinds):
        return value
    if elements and isinstance(value, list | tuple) and len(value) == len(elements):
        if all(_fits(item, element) for item, element in zip(value, elements, strict=True)):
            return tuple(value)
    words = [WORDS.get(option, f"{len(elements)} numbers") for option in kinds]
    raise ValueError(f"{name} must be {' or '.join(words)}, not {brief(value)}")


def check_kind(kind: Any, **given: Any) -> None:
    """Raise ValueError for an argument whose value does not fit the annotation `kind`."""
    for name, value in given.items():
        fitted(name, value, kind)


def check_seed(seed: Any) -> int:
    """Return a seed as an int. Raise ValueError if it is not one or out of range."""
    number = int(fitted("seed", seed, int))
    if not 0 <= number < 2**63:
        raise ValueError(f"a seed must be a whole number from 0 to 2^63 - 1, got {brief(number)}")
    return number


def _single(value: Any) -> Any:
    """Return the number in a numpy scalar or in an array of one element.

    A tensor of one element becomes a tensor without axes. Other values are returned unchanged.
    """
    if isinstance(value, Tensor):
        return value.reshape(()) if value.numel() == 1 else value
    return value.item() if hasattr(value, "item") and getattr(value, "size", 0) == 1 else value


def _fits(value: Any, kind: Any) -> bool:
    # reading the value of a tensor would synchronise with the device, so only its type is checked
    if kind in (int, float) and isinstance(value, Tensor):
        whole = not value.is_floating_point() and value.dtype != bool_dtype
        return value.ndim == 0 and not value.is_complex() and (kind is float or whole)
    if kind is int:
        return isinstance(value, Integral) and not isinstance(value, bool)
    if kind is float:
        number = isinstance(value, Real) and not isinstance(value, bool)
        # False for NaN, and for a whole number that no float can hold
        return number and (-LARGEST <= value <= LARGEST or abs(value) == math.inf)
    return isinstance(value, kind) if kind in WORDS else get_origin(kind) is not tuple
