"""The map of images: places in two dimensions, neighbours, and small copies on a few sheets.

Shapes: N images, L landmarks, D features, k neighbours.
"""

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from antipode.evaluation.duplicates import Image
from antipode.evaluation.layout import (
    BANK,
    FEW,
    LANDMARKS,
    first_two,
    follow,
    neighbours,
    principal,
    tsne,
)
from antipode.reporting.images import class_name
from antipode.reporting.thumbnails import atlas

SCALE = 4000  # places are whole numbers from 0 to this
PER_SHEET = 4096  # thumbnails on a sheet
COLUMNS = 64  # thumbnails in a row of a sheet
# side of a thumbnail in pixels and quality of its encoding, by the number of images
SIDES = ((5000, 32, 80), (10**9, 28, 65))


def embedding_map(
    x: Tensor,
    images: Sequence[Image],
    labels: Tensor | None,
    classes: Sequence[str] | None,
    seed: int,
    *,
    read: "Any | None" = None,
) -> dict[str, Any]:
    """Return the map of images with features (N,D); test images come first.

    Args:
        x: the features; they are normalised to unit length here.
        images: the split and index of each image.
        labels: classes (N,), -1 for none; None if there are no single labels.
        classes: names of classes.
        seed: seed of t-SNE and of samples.
        read: function from positions (P,) to images uint8 (P,C,H,W); None for a map without images.
    """
    z = F.normalize(x)
    near, _ = neighbours(z, seed)
    numbers, legend = coloured(labels, classes)
    side, quality = next(row[1:] for row in SIDES if len(images) <= row[0])
    sheets = [] if read is None else _sheets(read, len(images), side, quality)
    return {
        "layouts": {name: _whole(places) for name, places in layouts(z, seed).items()},
        "label": numbers,
        "classes": legend,
        "tests": sum(image.split == "test" for image in images),
        "near": near.flatten().tolist(),
        "k": near.shape[1],
        "bank": min(len(z), BANK["cpu" if z.device.type == "cpu" else "cuda"]),
        "sheets": sheets,
        "side": side,
        "columns": COLUMNS,
        "perSheet": PER_SHEET,
        "scale": SCALE,
    }


def coloured(
    labels: Tensor | None, classes: Sequence[str] | None
) -> tuple[list[int] | None, list[str]]:
    """Return the class of each image as a number, and the names by number.

    The most frequent class has number 0, so that the first ones can have colours of their own.
    Images without a label have -1. Without labels, the numbers are None.
    """
    if labels is None or not len(labels) or int(labels.max()) < 0:
        return None, []
    present, counts = torch.unique(labels[labels >= 0], return_counts=True)
    frequent = present[counts.argsort(descending=True, stable=True)].tolist()
    number = {label: at for at, label in enumerate(frequent)}
    names = [class_name(label, classes) for label in frequent]
    return [number.get(label, -1) for label in labels.tolist()], names


def layouts(z: Tensor, seed: int) -> dict[str, Tensor]:
    """Return places (N,2) of unit features (N,D), by t-SNE and by PCA."""
    components = principal(z, 50)
    plane = first_two(components)
    if len(z) < FEW:
        return {"PCA": plane}
    if len(z) <= LANDMARKS:
        return {"t-SNE": tsne(components, seed), "PCA": plane}
    chosen = torch.randperm(len(z), generator=torch.Generator().manual_seed(seed))[:LANDMARKS]
    placed = tsne(components[chosen.to(components.device)], seed)
    return {"t-SNE": follow(z, chosen, placed, seed), "PCA": plane}


def _whole(points: Tensor) -> list[int]:
    """Return points (N,2) as whole numbers from 0 to SCALE, x and y alternating, on one scale.

    The places of the outermost points are clipped, so that a few of them do not shrink the rest.
    """
    low, high = points.quantile(0.001, 0), points.quantile(0.999, 0)
    low, high = (points.amin(0), points.amax(0)) if len(points) < 1000 else (low, high)
    scale = (high - low).amax().clamp(min=1e-9)
    centred = (points - (low + high) / 2) / scale + 0.5
    scaled = (centred * SCALE).round().clamp(0, SCALE)
    return [int(coordinate) for coordinate in scaled.flatten().tolist()]


def _sheets(read: Any, count: int, side: int, quality: int) -> list[str]:
    """Return the thumbnails of all images on sheets of PER_SHEET, as data URIs."""
    return [
        atlas(list(read(positions)), side, COLUMNS, quality)
        for positions in torch.split(torch.arange(count), PER_SHEET)
    ]
