"""MSBReg's views."""

from antipode.data.views.augment import Range
from antipode.data.views.operation import Operation
from antipode.data.views.policy import View
from antipode.papers.byol import byol_view


def msbreg_views(
    size: int,
    normal: Operation,
    *,
    views: int = 4,
    scale: Range = (0.08, 1.0),
    blur: float = 1.0,
    solarise: float = 0.2,
) -> list[View]:
    """Return MSBReg's views (supplement, table 1, as printed: all views are alike)."""
    return views * [byol_view(size, normal, scale, blur, solarise)]


POLICIES = {"msbreg": msbreg_views}
