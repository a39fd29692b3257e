"""The images of a data set as a network takes them."""

from dataclasses import replace

from torch import nn

from antipode.data.sources.splits import Splits, splits_to_rgb
from antipode.nets.weights import Normal


def fitting(name: str, backbone: nn.Module, splits: Splits, pixels: Normal | None = None) -> Splits:
    """Return the images with as many channels as the network takes.

    Grey images become colour images for a network with three channels. Raises ValueError for other
    differences.

    Args:
        name: what the error message calls the network.
        backbone: the network. Its first convolution shows the number of channels.
        splits: the images.
        pixels: the normalisation of the pixels, which shows the number of channels of a network
            without convolutions.
    """
    first = next((layer for layer in backbone.modules() if isinstance(layer, nn.Conv2d)), None)
    if first is not None:
        channels = first.in_channels
    else:
        channels = len(pixels.mean) if pixels else splits.channels
    if channels == splits.channels:
        return splits
    if (channels, splits.channels) == (3, 1):
        return splits_to_rgb(splits)
    raise ValueError(
        f"{name} takes images of {channels} channels, but {splits.name} has {splits.channels} "
        "channels"
    )


def as_seen(splits: Splits, known: Normal | None) -> Splits:
    """Return the images with the normalisation that the network was trained with, if known."""
    if known is None or len(known.mean) != splits.channels:
        return splits
    return replace(splits, mean=known.mean, std=known.std)
