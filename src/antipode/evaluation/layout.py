"""Places of images in two dimensions, and their nearest neighbours, from features.

The map of the report and the files of `embed` show them. Shapes: N images, L landmarks, D features,
k neighbours.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from antipode.core.scores import product

LANDMARKS = 1000  # images that t-SNE places; the others follow their neighbours among these
BANK = {"cpu": 10_000, "cuda": 50_000}  # images among which neighbours are searched
NEAR = 6  # neighbours of each image
FEW = 20  # with fewer points there is no t-SNE, because they have no neighbourhoods to preserve
SHARP = 0.02  # temperature of the weights of landmarks
ROWS = 1 << 26  # similarities in memory at a time


def places(x: Tensor, seed: int) -> Tensor:
    """Return a place (N,2) for each image with features (N,D), by t-SNE.

    With fewer than `FEW` images, the places are the first two principal components. Only the
    landmarks, and some rows at a time, are in memory.
    """
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))
    chosen = order[:LANDMARKS].sort().values
    components = principal(F.normalize(x[chosen.to(x.device)].float()), 50)
    if len(x) < FEW:
        return first_two(components)
    return follow(x, chosen, tsne(components, seed), seed)


def first_two(components: Tensor) -> Tensor:
    """Return the first two principal components (N,2), the same twice if there is only one."""
    return components[:, :2] if components.shape[1] > 1 else components.expand(-1, 2)


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

    The features z (N,D) need not have unit length.
    Nearer landmarks weigh more. A small random shift keeps images from hiding each other.
    """
    landmarks = _unit(z, chosen)
    span = float((placed.amax(0) - placed.amin(0)).max())
    shift = torch.randn(len(z), 2, generator=torch.Generator().manual_seed(seed + 1))
    places = torch.empty(len(z), 2)
    for rows in torch.split(torch.arange(len(z)), max(1, ROWS // len(landmarks))):
        near = product(_unit(z, rows), landmarks).topk(min(5, len(landmarks)), 1)
        weights = (near.values / SHARP).softmax(1).cpu()
        places[rows] = (placed[near.indices.cpu()] * weights[:, :, None]).sum(1)
    places += 0.004 * span * shift
    places[chosen] = placed
    return places


def neighbours(z: Tensor, seed: int, k: int = NEAR) -> tuple[Tensor, Tensor]:
    """Return the nearest neighbours (N,k) of features (N,D) among a bank of images, and cosines.

    The bank has all images, or a random part of them if there are many. An image is not its own
    neighbour. k is at most the number of other images.
    """
    k = min(k, len(z) - 1)
    bank = _bank(z, seed)
    place = torch.full((len(z),), -1)
    place[bank] = torch.arange(len(bank))
    keys = _unit(z, bank)
    found = torch.empty(len(z), k, dtype=torch.int64)
    similar = torch.empty(len(z), k)
    for rows in torch.split(torch.arange(len(z)), max(1, ROWS // len(bank))):
        cosines = product(_unit(z, rows), keys)
        inside = (place[rows] >= 0).nonzero().flatten()
        cosines[inside.to(z.device), place[rows][inside].to(z.device)] = -torch.inf
        near = cosines.topk(k, 1)
        found[rows] = bank[near.indices.cpu()]
        similar[rows] = near.values.float().cpu()
    return found, similar


def _bank(z: Tensor, seed: int) -> Tensor:
    """Return the sorted indices of the images among which neighbours are searched."""
    most = BANK["cpu" if z.device.type == "cpu" else "cuda"]
    if len(z) <= most:
        return torch.arange(len(z))
    order = torch.randperm(len(z), generator=torch.Generator().manual_seed(seed + 2))
    return order[:most].sort().values


def _unit(z: Tensor, rows: Tensor) -> Tensor:
    """Return some rows of features with unit length."""
    return F.normalize(z[rows.to(z.device)].float())


def tsne(x: Tensor, seed: int) -> Tensor:
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
