"""AdCo's multi-crop views."""

from antipode.data.views.operation import Operation
from antipode.data.views.policy import View, crop_and_colour


def adco_multicrop(size: int, normal: Operation) -> list[View]:
    """AdCo's key and its five queries, in MoCo v2's colours [adco: ops/argparser.py].

    At 224 px the views measure 224, 224, 192, 160, 128 and 96 px (maple-research-lab/AdCo at
    fd65f12).
    """
    sevenths = (7, 7, 6, 5, 4, 3)
    low = (0.2, 0.2, 0.172, 0.143, 0.114, 0.086)
    high = (1.0, 1.0, 0.86, 0.715, 0.571, 0.429)
    return [
        crop_and_colour(round(size * share / 7), normal, views=1, scale=scale)[0]
        for share, scale in zip(sevenths, zip(low, high, strict=True), strict=True)
    ]


POLICIES = {"adco-multicrop": adco_multicrop}
