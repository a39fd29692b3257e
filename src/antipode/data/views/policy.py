"""What the papers do to an image, as data: a policy is a list of views, a view a list of operations with their numbers.

Flips stand inside the crop, wherever the paper names them: they commute with every operation here, and fold into the
crop's weights for nothing. Sources in brackets are repositories: simclr is google-research/simclr, moco is
facebookresearch/moco at 132aea9, byol is google-deepmind/deepmind-research at 4822a45, adco is maple-research-lab/AdCo
at fd65f12, cld is frank-xwang/CLD-UnsupervisedLearning.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

from antipode.data.views import augment
from antipode.data.views.augment import Range
from antipode.data.views.operation import (
    Blur,
    Centre,
    Chance,
    Crop,
    Erase,
    Jitter,
    Mix,
    Operation,
    Standardise,
    Turn,
)


class View(NamedTuple):
    """One view: its side in pixels and the operations in order."""

    size: int
    operations: tuple[Operation, ...]


def grey(p: float) -> Chance:
    """RandomGrayscale."""
    return Chance(augment.greyscale, p)


def tenth(size: int) -> int:
    """Taps of a blur kernel of a tenth of the view [simclr, byol]: 23 at 224 pixels, 3 at 32."""
    return 2 * (size // 20) + 1


# Pillow's blur, which MoCo uses, is three box filters; they reach 6 pixels at the largest sigma, 2
PILLOW = 13
SOLARISE = augment.solarise


def mocov1(
    size: int, normal: Operation, *, views: int = 2, scale: Range = (0.2, 1.0)
) -> list[View]:
    """MoCo v1 [moco: main_moco.py]."""
    return views * [View(size, (Crop(size, scale), grey(0.2), Jitter(0.4, 0.4, 0.4, 0.4), normal))]


def mocov2(
    size: int, normal: Operation, *, views: int = 2, scale: Range = (0.2, 1.0)
) -> list[View]:
    """MoCo v2 [moco: main_moco.py --aug-plus]; also AdCo, EqCo, SiMo, JCL, SimSiam."""
    jitter = Jitter(0.4, 0.4, 0.4, 0.1, p=0.8)
    return views * [View(size, (Crop(size, scale), jitter, grey(0.2), Blur(0.5, PILLOW), normal))]


def simclr(
    size: int,
    normal: Operation,
    *,
    views: int = 2,
    scale: Range = (0.08, 1.0),
    strength: float = 1.0,
    blur: float = 0.5,
) -> list[View]:
    """SimCLR [simclr: data_util.py]; DCL on ImageNet."""
    jitter = Jitter(0.8 * strength, 0.8 * strength, 0.8 * strength, 0.2 * strength, p=0.8)
    return views * [
        View(size, (Crop(size, scale), jitter, grey(0.2), Blur(blur, tenth(size)), normal))
    ]


def simclr_cifar(
    size: int,
    normal: Operation,
    *,
    views: int = 2,
    scale: Range = (0.08, 1.0),
    strength: float = 0.5,
) -> list[View]:
    """SimCLR on CIFAR-10: half the jitter, no blur [simclr: README]."""
    jitter = Jitter(0.8 * strength, 0.8 * strength, 0.8 * strength, 0.2 * strength, p=0.8)
    return views * [View(size, (Crop(size, scale), jitter, grey(0.2), normal))]


def _byol(size: int, normal: Operation, scale: Range, blur: float, solarise: float) -> View:
    jitter = Jitter(0.4, 0.4, 0.2, 0.1, p=0.8)
    crop = Crop(size, scale, cubic=True)
    return View(
        size, (crop, jitter, grey(0.2), Blur(blur, tenth(size)), Chance(SOLARISE, solarise), normal)
    )


def byol(size: int, normal: Operation, *, views: int = 2, scale: Range = (0.08, 1.0)) -> list[View]:
    """BYOL [byol: utils/augmentations.py]: blur 1, solarise 0 in the first half of the views, .1 and .2 in the rest."""
    first, second = _byol(size, normal, scale, 1.0, 0.0), _byol(size, normal, scale, 0.1, 0.2)
    return (views - views // 2) * [first] + views // 2 * [second]


def msbreg(
    size: int,
    normal: Operation,
    *,
    views: int = 4,
    scale: Range = (0.08, 1.0),
    blur: float = 1.0,
    solarise: float = 0.2,
) -> list[View]:
    """MSBReg (supplement, Table 1, as printed: all views alike)."""
    return views * [_byol(size, normal, scale, blur, solarise)]


def cld(
    size: int, normal: Operation, *, views: int = 2, scale: Range = (0.2, 1.0), erase: float = 0.0
) -> list[View]:
    """CLD's base [cld: datasets/dataloader.py]; DCL on CIFAR and STL-10; `erase=1` is its add_erasing."""
    return views * [
        View(size, (Crop(size, scale), Jitter(0.4, 0.4, 0.4, 0.4), grey(0.2), normal, Erase(erase)))
    ]


def cld_plus(
    size: int, normal: Operation, *, views: int = 2, scale: Range = (0.2, 1.0), erase: float = 0.0
) -> list[View]:
    """CLD's aug_plus [cld: datasets/dataloader.py]: MoCo v2's, and erasing."""
    plain = mocov2(size, normal, views=1, scale=scale)[0]
    return views * [View(size, (*plain.operations, Erase(erase)))]


def adco_multicrop(size: int, normal: Operation) -> list[View]:
    """AdCo's key and its five queries [adco: ops/argparser.py]: 224, 192, 160, 128, 96 of 224; MoCo v2's colours."""
    shares = (7, 7, 6, 5, 4, 3)
    low, high = (0.2, 0.2, 0.172, 0.143, 0.114, 0.086), (1.0, 1.0, 0.86, 0.715, 0.571, 0.429)
    return [
        mocov2(round(size * share / 7), normal, views=1, scale=scale)[0]
        for share, scale in zip(shares, zip(low, high, strict=True), strict=True)
    ]


def dclw_multicrop(
    size: int,
    normal: Operation,
    *,
    crops: int = 6,
    crop_size: int | None = None,
    scale: Range = (0.2, 1.0),
    crop_scale: Range = (0.05, 0.2),
) -> list[View]:
    """Two views and `crops` small ones in CLD's colours. No source has numbers: ours, 16 of 32, 48 of 96, 96 of 224."""
    if crops < 0:
        raise ValueError(f"the number of small crops must not be negative but is {crops}")
    large = cld(size, normal, scale=scale)
    fitting = size // 2 if size < 160 else round(size * 96 / 224)
    small = fitting if crop_size is None else crop_size
    return large + cld(small, normal, views=crops, scale=crop_scale) if crops else large


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
    """For the data set `shapes`, where colour tells images apart: mixed to grey, inverted or not, standardised."""
    crop = Crop(size, scale, upend=0.5)
    colour = (Mix(mix, channels), Chance(augment.invert, invert), Standardise())
    return views * [View(size, (Turn(degrees), crop, *colour))]


def shapes_eval(size: int, normal: Operation) -> list[View]:
    """What `shapes` tends to, without chance: centre, grey, standardised."""
    return [View(size, (Centre(size, size), grey(1.0), Standardise()))]


def linear(size: int, normal: Operation, *, scale: Range = (0.08, 1.0)) -> list[View]:
    """One view, to train a classifier on a backbone with: crop and flip alone [moco: main_lincls.py]."""
    return [View(size, (Crop(size, scale), normal))]


def evaluation(size: int, normal: Operation, *, ratio: float | None = None) -> list[View]:
    """Resize and centre crop, 256 to 224 for photos, plain resize for small images, nothing where the size fits."""
    ratio = (256 / 224 if size >= 160 else 1.0) if ratio is None else ratio
    if not 1 <= ratio < math.inf:
        raise ValueError(
            f"the ratio of resized edge to crop must be a number of at least 1 but is {ratio}"
        )
    return [View(size, (Centre(size, round(size * ratio)), normal))]


POLICIES: dict[str, Callable[..., list[View]]] = {
    "mocov1": mocov1,
    "mocov2": mocov2,
    "simclr": simclr,
    "simclr-cifar": simclr_cifar,
    "byol": byol,
    "msbreg": msbreg,
    "cld": cld,
    "cld-plus": cld_plus,
    "adco-multicrop": adco_multicrop,
    "dclw-multicrop": dclw_multicrop,
    "shapes": shapes,
    "shapes-eval": shapes_eval,
    "linear": linear,
    "eval": evaluation,
}
