"""The evaluation transform of a run, for your own code. C channels, H W pixels, S view size."""

from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from antipode.data.sources import decode
from antipode.data.views.views import Views


class Transform:
    """A function from one image to the normalised tensor that evaluation feeds the network.

    It can be pickled, so a DataLoader may use it in its workers. Its steps are those by which
    image files are evaluated: resize and crop in 8 bits, then normalise. Data sets that are held in
    memory are resized without rounding to 8 bits, which differs by at most one grey level of 255;
    images that have the size of a view already are the same.

    Args:
        view: the evaluation view.
        channels: the number of channels C that the network takes.
    """

    def __init__(self, view: Views, channels: int) -> None:
        self.view = view
        self.channels = channels

    @property
    def size(self) -> int:
        """The side S of the result in pixels."""
        return self.view.sizes[0]

    def __repr__(self) -> str:
        return f"Transform(size={self.size}, channels={self.channels})"

    @torch.no_grad()
    def __call__(self, image: Any) -> Tensor:
        """Return the normalised tensor float32 (C,S,S) of an image.

        Args:
            image: a Pillow image, an array (H,W,C) or (H,W), or a uint8 tensor (C,H,W). Grey is
                repeated for a network with three channels, and an alpha channel is left out.
        """
        zeros = torch.zeros(1, self.view.count, self.view.slots)  # in place of random numbers
        crops = self.view.cut(self._pixels(image), zeros[0])
        return self.view.finish([crop[None] for crop in crops], zeros)[0][0]

    def _pixels(self, image: Any) -> Tensor:
        """Return an image as uint8 (C,H,W)."""
        try:
            if isinstance(image, Image.Image):
                pixels = decode.from_pillow(image, channels=self.channels)
            elif isinstance(image, np.ndarray):
                pixels = _from_array(image)
            elif isinstance(image, Tensor) and image.dtype == torch.uint8 and image.ndim == 3:
                pixels = image.cpu()
            else:
                raise ValueError(f"is {_kind(image)}")
            return decode.match_channels(pixels, self.channels).contiguous()
        except ValueError as error:
            raise ValueError(
                f"the image {error}; a Pillow image, an array (H,W,C) or a uint8 tensor (C,H,W) "
                "is needed"
            ) from None


def _from_array(array: "np.ndarray[Any, Any]") -> Tensor:
    """Return an array (H,W) or (H,W,C) as uint8 (C,H,W). The last axis has the channels."""
    array = array[:, :, None] if array.ndim == 2 else array
    return decode.from_array(array, channels=array.shape[-1] if array.ndim == 3 else None)


def _kind(image: Any) -> str:
    """Return what an object is that is not an image."""
    if isinstance(image, Tensor):
        return f"a tensor of {image.dtype} and shape {tuple(image.shape)}"
    return f"of the type {type(image).__name__}"
