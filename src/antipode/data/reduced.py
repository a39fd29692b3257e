"""Crops of JPEG files that are decoded at a half, a quarter or an eighth of their size.

Shapes: n images, V views, U uniform numbers per view, C channels, S pixels of the side of a view.

libjpeg computes a reduced image from the low frequencies of each block, in less time than the full
one. An image is reduced as long as the boxes of all its views keep at least as many pixels as the
views have. The boxes are those of the full image. The pixels differ slightly, because the image is
smoothed by another filter.
"""

import io

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from antipode.data.chunks import Maker
from antipode.data.encoded import Bytes, boxes_of, device_file
from antipode.data.sources.source import Decoded

SCALES = (8, 4, 2)  # of libjpeg


def cut_reduced(
    source: Decoded, views: Maker, ids: list[int], unit: Tensor, crops: list[Tensor]
) -> list[int]:
    """Write the crops of all images that can be reduced, and return the rows of the others.

    Args:
        source: the images.
        views: the views, which must be `boxed`.
        ids: the n images.
        unit: the uniform numbers (n,V,U) of the images.
        crops: V tensors uint8 (n,C,S,S), to write to.
    """
    files = [device_file(source, index) for index in ids]
    sides = torch.tensor([sides for _, sides in files])
    boxes = boxes_of(views, unit, sides).transpose(0, 1).numpy()  # (n,V,6)
    left = []
    for row, (data, (height, _)) in enumerate(files):
        scale = _scale(boxes[row], views.sizes) if height else 1
        if scale == 1 or not _cut(data, scale, boxes[row], views, row, crops):
            left.append(row)
    return left


def _scale(boxes: Bytes, sizes: list[int]) -> int:
    """Return the largest scale at which the boxes (V,6) have as many pixels as the views."""
    shortest = boxes[:, 2:4].min(1).tolist()
    most = min(pixels / size for pixels, size in zip(shortest, sizes, strict=True))
    return next((scale for scale in SCALES if scale <= most), 1)


def _cut(
    data: Bytes, scale: int, boxes: Bytes, views: Maker, row: int, crops: list[Tensor]
) -> bool:
    """Write the crops of one image; return False if the file cannot be decoded."""
    try:
        file = Image.open(io.BytesIO(data.data), formats=("JPEG",))
        width, height = file.size
        file.draft(None, (width // scale, height // scale))
        image = file.convert("RGB")
    except Exception:  # Pillow raises many kinds; the full image is decoded, which reports errors
        return False
    # the reduced image has the rounded-up size, so its last row and column may be incomplete
    for view, (top, left, rows, columns, mirror, upend) in enumerate(boxes.tolist()):
        corners = [left / scale, top / scale, (left + columns) / scale, (top + rows) / scale]
        corners = [min(at, image.size[axis % 2]) for axis, at in enumerate(corners)]
        size = views.sizes[view]
        method = Image.Resampling.BICUBIC if views.cubic(view) else Image.Resampling.BILINEAR
        part = np.asarray(image.resize((size, size), method, box=tuple(corners)))
        part = part[:: -1 if upend else 1, :: -1 if mirror else 1]
        crops[view][row] = torch.from_numpy(part.copy()).permute(2, 0, 1)
    return True
