"""The images of a data set as a network takes them."""

from dataclasses import replace

from torch import nn

from antipode.data.sources.splits import Splits, splits_to_rgb
from antipode.nets.weight_file import Normal


def channels_of(backbone: nn.Module, pixels: Normal | None = None) -> int | None:
    """Return the number of channels that a network takes, None if unknown.

    Its first convolution shows it. For a network without convolutions, the normalisation of its
    pixels does.
    """
    first = next((layer for layer in backbone.modules() if isinstance(layer, nn.Conv2d)), None)
    if first is not None:
        return first.in_channels
    return None if pixels is None else len(pixels.mean)


def fitting(name: str, backbone: nn.Module, splits: Splits, pixels: Normal | None = None) -> Splits:
    """Return the images with as many channels as the network takes.

    Grey images become colour images for a network with three channels. Raises ValueError for other
    differences.

    Args:
        name: what the error message calls the network.
        backbone: the network.
        splits: the images.
        pixels: the normalisation of the pixels, if known.
    """
    channels = channels_of(backbone, pixels)
    if channels in (None, splits.channels):
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
