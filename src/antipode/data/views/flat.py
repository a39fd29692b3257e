"""Crops of images of different sizes that lie one after the other in memory.

Shapes: n images, C channels, S pixels of the side of a crop.

On a GPU one Triton kernel cuts the crops of all images. Elsewhere each image is cut by
`augment.crop`, which gives the same values up to the order of sums.
"""

from functools import cache
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from antipode.data.views import augment

BLOCK = 512  # pixels of a crop that one program of the kernel computes


def crop_flat(flat: Tensor, places: Tensor, boxes: Tensor, out: Tensor, *, cubic: bool) -> None:
    """Write the crops of n images to `out` uint8 (n,C,S,S).

    Args:
        flat: uint8 (L,), the images (C,H,W) one after the other.
        places: int64 (n,3), the first byte, height and width of each image.
        boxes: int32 (n,6), top, left, height and width in pixels, and whether to flip horizontally
            and vertically.
        out: where to write the crops, on the device of `flat`.
        cubic: bicubic interpolation in place of bilinear.
    """
    if flat.is_cuda and has_triton():
        launch(flat, places, boxes, out, cubic)
        return
    rows = zip(places.tolist(), torch.split(boxes, 1), out, strict=True)
    for (first, height, width), box, crop in rows:
        size = crop.shape[0] * height * width
        image = flat[first : first + size].view(1, -1, height, width) / 255
        mirror, upend = (box[:, 4:] > 0).unbind(1)
        values = augment.crop(
            image, box[:, :4].float(), crop.shape[1], mirror=mirror, upend=upend, cubic=cubic
        )
        crop.copy_((values[0] * 255).round())


@cache
def has_triton() -> bool:
    """Return True if Triton is installed, as it is with torch for CUDA on Linux."""
    return find_spec("triton") is not None


def launch(flat: Tensor, places: Tensor, boxes: Tensor, out: Tensor, cubic: bool) -> None:
    """Run the kernel; the arguments are those of `crop_flat`."""
    from antipode.data.views import flat_kernel  # noqa: PLC0415  (needs Triton)

    n, channels, size, _ = out.shape
    grid: Any = (n, channels, -(-size * size // BLOCK))
    if n:
        with torch.cuda.device(flat.device):
            flat_kernel.crop[grid](flat, places, boxes, out, SIZE=size, CUBIC=cubic, BLOCK=BLOCK)
