"""View policies: which operations turn an image into each of its views.

A policy is a function of the view size and the normalisation that returns a list of views, and a
view is a list of operations. Policies of papers are defined in the rooms of `antipode.papers`; this
module has those that belong to no paper, and the parts that several share.

A flip is part of the crop, wherever a paper names it. It commutes with every operation here, and as
part of the crop's weights it costs nothing.
"""

import math
from collections.abc import Callable, Mapping
from functools import cache
from typing import NamedTuple

from antipode.data.views import augment
from antipode.data.views.augment import Range
from antipode.data.views.operation import (
    Blur,
    Centre,
    Chance,
    Crop,
    Jitter,
    Mix,
    Operation,
    Standardise,
    Turn,
)


class View(NamedTuple):
    """One view: its side in pixels and its operations in order."""

    size: int
    operations: tuple[Operation, ...]


Policy = Callable[..., list[View]]


def grey(p: float) -> Chance:
    """Return torchvision's RandomGrayscale with chance p."""
    return Chance(augment.greyscale, p)


def tenth(size: int) -> int:
    """Return the taps of a blur kernel of a tenth of the view: 23 at 224 px, 3 at 32 px.

    SimCLR and BYOL use this size.
    """
    return 2 * (size // 20) + 1


# Pillow's blur, which MoCo uses, is three box filters; they reach 6 pixels at the largest sigma, 2
PILLOW = 13


def crop_and_colour(
    size: int, normal: Operation, *, views: int = 2, scale: Range = (0.2, 1.0)
) -> list[View]:
    """Return MoCo v2's views [moco: main_moco.py --aug-plus], which most later methods use."""
    colour = Jitter(0.4, 0.4, 0.4, 0.1, p=0.8)
    operations = (Crop(size, scale), colour, grey(0.2), Blur(0.5, PILLOW), normal)
    return views * [View(size, operations)]


def shapes(
    size: int,
    normal: Operation,
    *,
    views: int = 2,
    scale: Range = (0.5, 1.0),
    degrees: float = 180.0,
    mix: float = 1.0,
    invert: float = 0.5,
    channels: int = 3,
) -> list[View]:
    """Return the views of the data set `shapes`, whose colours would identify an image.

    Colours are mixed to grey, inverted or not, and standardised.
    """
    crop = Crop(size, scale, upend=0.5)
    colour = (Mix(mix, channels), Chance(augment.invert, invert), Standardise())
    return views * [View(size, (Turn(degrees), crop, *colour))]


def shapes_eval(size: int, normal: Operation) -> list[View]:
    """Return the evaluation view of the data set `shapes`: centre, grey, standardised."""
    return [View(size, (Centre(size, size), grey(1.0), Standardise()))]


def linear(size: int, normal: Operation, *, scale: Range = (0.08, 1.0)) -> list[View]:
    """Return one view with crop and flip alone, to train a classifier [moco: main_lincls.py]."""
    return [View(size, (Crop(size, scale), normal))]


def evaluation(size: int, normal: Operation, *, ratio: float | None = None) -> list[View]:
    """Return the evaluation view: resize, then centre crop.

    Photographs are resized to 256 px for a crop of 224 px. Small images are only resized, and stay
    as they are if they have the size already.
    """
    ratio = (256 / 224 if size >= 160 else 1.0) if ratio is None else ratio
    if not 1 <= ratio < math.inf:
        raise ValueError(
            f"the ratio of resized edge to crop must be a number of at least 1 but is {ratio}"
        )
    return [View(size, (Centre(size, round(size * ratio)), normal))]


GENERAL: dict[str, Policy] = {
    "shapes": shapes,
    "shapes-eval": shapes_eval,
    "linear": linear,
    "eval": evaluation,
}


@cache
def policies() -> Mapping[str, Policy]:
    """Return all policies by name: those of this module and those of the papers."""
    from antipode.papers import collect  # noqa: PLC0415  (the papers' policies use this module)

    return {**collect("POLICIES"), **GENERAL}


def evaluation_policy(training: str) -> str:
    """Return the name of the evaluation policy that fits a training policy."""
    return f"{training}-eval" if f"{training}-eval" in GENERAL else "eval"


def standardises(training: str) -> bool:
    """Return True if a policy standardises each image instead of normalising by channel."""
    return evaluation_policy(training) != "eval"
