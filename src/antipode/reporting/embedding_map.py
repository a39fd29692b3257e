"""The map of images: places in two dimensions, neighbours, and small copies on a few sheets.

Shapes: N images, L landmarks, D features, k neighbours.
"""

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from antipode.core.scores import product
from antipode.evaluation.duplicates import Image
from antipode.reporting.images import class_name
from antipode.reporting.thumbnails import atlas

LANDMARKS = 1000  # images that t-SNE places; the others follow their neighbours among these
BANK = {"cpu": 10_000, "cuda": 50_000}  # images among which neighbours are searched
NEAR = 6  # neighbours of each image
FEW = 20  # with fewer points there is no t-SNE, because they have no neighbourhoods to preserve
SCALE = 4000  # places are whole numbers from 0 to this
PER_SHEET = 4096  # thumbnails on a sheet
COLUMNS = 64  # thumbnails in a row of a sheet
SHARP = 0.02  # temperature of the weights of landmarks
# side of a thumbnail in pixels and quality of its encoding, by the number of images
SIDES = ((5000, 32, 80), (10**9, 28, 65))
ROWS = 1 << 26  # similarities in memory at a time


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
    numbers, legend = coloured(labels, classes)
    side, quality = next(row[1:] for row in SIDES if len(images) <= row[0])
    sheets = [] if read is None else _sheets(read, len(images), side, quality)
    return {
        "layouts": {name: _whole(places) for name, places in layouts(z, seed).items()},
        "label": numbers,
        "classes": legend,
        "tests": sum(image.split == "test" for image in images),
        "near": neighbours(z, seed).flatten().tolist(),
        "k": min(NEAR, len(z) - 1),
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
    first_two = components[:, :2] if components.shape[1] > 1 else components.expand(-1, 2)
    if len(z) < FEW:
        return {"PCA": first_two}
    if len(z) <= LANDMARKS:
        return {"t-SNE": _tsne(components, seed), "PCA": first_two}
    chosen = torch.randperm(len(z), generator=torch.Generator().manual_seed(seed))[:LANDMARKS]
    placed = _tsne(components[chosen.to(components.device)], seed)
    return {"t-SNE": follow(z, chosen, placed, seed), "PCA": first_two}


def principal(z: Tensor, most: int) -> Tensor:
    """Return the first principal components (N,<=most) of vectors (N,D), by variance."""
    centred = (z - z.mean(0)).double()
    values, vectors = torch.linalg.eigh(centred.T @ centred)
    count = min(most, int((values > values[-1] * 1e-12).sum()) or 1)
    directions = vectors.flip(1)[:, :count]
    # the sign of an eigenvector is arbitrary, and must not depend on the number of threads
    largest = directions.abs().argmax(0)
    directions = directions * directions[largest, torch.arange(count)].sign()
    components: Tensor = (centred @ directions).float().cpu()
    return components


def follow(z: Tensor, chosen: Tensor, placed: Tensor, seed: int) -> Tensor:
    """Return places (N,2): those of landmarks, and for others the mean of their five nearest.

    Nearer landmarks weigh more. A small random shift keeps images from hiding each other.
    """
    landmarks = z[chosen.to(z.device)]
    span = float((placed.amax(0) - placed.amin(0)).max())
    shift = torch.randn(len(z), 2, generator=torch.Generator().manual_seed(seed + 1))
    places = torch.empty(len(z), 2)
    for rows in torch.split(torch.arange(len(z)), max(1, ROWS // len(landmarks))):
        near = product(z[rows.to(z.device)], landmarks).topk(min(5, len(landmarks)), 1)
        weights = (near.values / SHARP).softmax(1).cpu()
        places[rows] = (placed[near.indices.cpu()] * weights[:, :, None]).sum(1)
    places += 0.004 * span * shift
    places[chosen] = placed
    return places


def neighbours(z: Tensor, seed: int) -> Tensor:
    """Return the nearest neighbours (N,k) of unit features (N,D) among a bank of images.

    The bank has all images, or a random part of them if there are many.
    """
    k = min(NEAR, len(z) - 1)
    most = BANK["cpu" if z.device.type == "cpu" else "cuda"]
    bank = torch.arange(len(z))
    if len(z) > most:
        order = torch.randperm(len(z), generator=torch.Generator().manual_seed(seed + 2))
        bank = order[:most].sort().values
    place = torch.full((len(z),), -1)
    place[bank] = torch.arange(len(bank))
    keys = z[bank.to(z.device)]
    found = torch.empty(len(z), k, dtype=torch.int64)
    for rows in torch.split(torch.arange(len(z)), max(1, ROWS // len(bank))):
        cosines = product(z[rows.to(z.device)], keys)
        inside = (place[rows] >= 0).nonzero().flatten()
        cosines[inside.to(z.device), place[rows][inside].to(z.device)] = -torch.inf
        found[rows] = bank[cosines.topk(k, 1).indices.cpu()]
    return found


def _tsne(x: Tensor, seed: int) -> Tensor:
    """Return the t-SNE coordinates (N,2) of x (N,D).

    It runs on one thread. Several threads would compete for few cores, and would sum in another
    order each time.
    """
    from sklearn.manifold import TSNE  # noqa: PLC0415  (slow to import)
    from threadpoolctl import threadpool_limits  # noqa: PLC0415

    perplexity = min(30.0, (len(x) - 1) / 3)
    with threadpool_limits(1):
        tsne = TSNE(
            perplexity=perplexity,
            init="pca",
            max_iter=500,
            random_state=seed % 2**32,  # scikit-learn takes no larger seed
        )
        return torch.from_numpy(tsne.fit_transform(x.numpy()))


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
