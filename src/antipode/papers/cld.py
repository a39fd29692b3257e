"""CLD (Wang et al., CVPR 2021): the views of DCL's small-scale experiments and of Inv. Spread.

The method itself is not part of antipode. Source: frank-xwang/CLD-UnsupervisedLearning,
datasets/dataloader.py.
"""

from antipode.data.views.augment import Range
from antipode.data.views.operation import Crop, Erase, Jitter, Operation
from antipode.data.views.policy import View, crop_and_colour, grey


def cld_views(
    size: int,
    normal: Operation,
    *,
    views: int = 2,
    scale: Range = (0.2, 1.0),
    erase: float = 0.0,
) -> list[View]:
    """CLD's base views, also DCL's on CIFAR and STL-10; `erase=1` is its add_erasing."""
    colour = Jitter(0.4, 0.4, 0.4, 0.4)
    return views * [View(size, (Crop(size, scale), colour, grey(0.2), normal, Erase(erase)))]


def cld_plus_views(
    size: int,
    normal: Operation,
    *,
    views: int = 2,
    scale: Range = (0.2, 1.0),
    erase: float = 0.0,
) -> list[View]:
    """CLD's aug_plus: MoCo v2's views, and erasing."""
    plain = crop_and_colour(size, normal, views=1, scale=scale)[0]
    return views * [View(size, (*plain.operations, Erase(erase)))]


POLICIES = {"cld": cld_views, "cld-plus": cld_plus_views}
