"""AdCo's multi-crop views."""

from antipode.data.views.operation import Operation
from antipode.data.views.policy import Policy, View, crop_and_colour
from antipode.papers.simclr import simclr_cifar_views

# [adco: ops/argparser.py] (maple-research-lab/AdCo at fd65f12): sides in sevenths of the image, and
# the smallest and largest share of the image that a crop covers
SEVENTHS = (7, 7, 6, 5, 4, 3)
LOW = (0.2, 0.2, 0.172, 0.143, 0.114, 0.086)
HIGH = (1.0, 1.0, 0.86, 0.715, 0.571, 0.429)


def adco_multicrop(size: int, normal: Operation) -> list[View]:
    """AdCo's key and its five queries, in MoCo v2's colours.

    At 224 px the views measure 224, 224, 192, 160, 128 and 96 px.
    """
    return _crops(crop_and_colour, size, normal)


def adco_multicrop_cifar(size: int, normal: Operation) -> list[View]:
    """AdCo's key and its five queries, in SimCLR's colours for CIFAR-10: without blur."""
    return _crops(simclr_cifar_views, size, normal)


def _crops(colours: Policy, size: int, normal: Operation) -> list[View]:
    """Return the six crops in the colours of another policy."""
    return [
        colours(round(size * share / 7), normal, views=1, scale=scale)[0]
        for share, scale in zip(SEVENTHS, zip(LOW, HIGH, strict=True), strict=True)
    ]


POLICIES = {"adco-multicrop": adco_multicrop, "adco-multicrop-cifar": adco_multicrop_cifar}
