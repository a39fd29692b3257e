"""DCLW's multi-crop views."""

from antipode.data.views.augment import Range
from antipode.data.views.operation import Operation
from antipode.data.views.policy import View
from antipode.papers.cld import cld_views


def dclw_multicrop(
    size: int,
    normal: Operation,
    *,
    crops: int = 6,
    crop_size: int | None = None,
    scale: Range = (0.2, 1.0),
    crop_scale: Range = (0.05, 0.2),
) -> list[View]:
    """Two views and `crops` small ones in CLD's colours.

    No source gives sizes. Ours are 16 px for 32 px views, 48 for 96, and 96 for 224.
    """
    if crops < 0:
        raise ValueError(f"the number of small crops must not be negative but is {crops}")
    large = cld_views(size, normal, scale=scale)
    if not crops:
        return large
    default_size = size // 2 if size < 160 else round(size * 96 / 224)
    small = default_size if crop_size is None else crop_size
    return large + cld_views(small, normal, views=crops, scale=crop_scale)


POLICIES = {"dclw-multicrop": dclw_multicrop}
