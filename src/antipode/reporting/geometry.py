"""Pictures of features for the page: a map, histograms of similarities, a spectrum.

Shapes: N images, D features.
"""

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from antipode.data.loader import Loader
from antipode.data.sources.source import Source
from antipode.data.views.views import Views
from antipode.evaluation.task import Task
from antipode.measures import effective_rank, singular_values
from antipode.reporting.curves import short, thin
from antipode.reporting.images import centre, class_name, class_of, side_of, views_of
from antipode.reporting.thumbnails import atlas

COLUMNS = 32  # tiles in a row of the atlas of the map
COLOURS = 10  # classes with a colour of their own on the map: more could not be told apart
FEW = 20  # with fewer points there is no t-SNE, because they have no neighbourhoods to preserve
PAIRED = 512  # images whose views are compared
BATCH = 128  # views in one forward pass
BINS = 64  # bins of a histogram of similarities
POINTS = 300  # maximum number of points of a spectrum


def embedding_map(
    x: Tensor,
    images: Source,
    seed: int,
    classes: Sequence[str] | None,
    *,
    thumbnails: bool = True,
) -> dict[str, Any]:
    """Return features (N,D) of images in two dimensions, by t-SNE and by PCA.

    The features are normalised to unit length first. Each image has a thumbnail, unless
    `thumbnails` is False.
    """
    z = F.normalize(x)
    u, s, _ = torch.linalg.svd(z - z.mean(0), full_matrices=False)
    components = u * s  # (N, min(N,D)) principal components, in descending order of variance
    first_two = components[:, :2] if components.shape[1] > 1 else components.expand(-1, 2)
    layouts = {"PCA": _square(first_two)}
    if len(x) >= FEW:
        layouts = {"t-SNE": _square(_tsne(components[:, :50], seed)), **layouts}
    side = min(32, side_of(images))
    shown = [centre(images, at) for at in range(len(x))] if thumbnails else []
    colours, legend = _coloured(images.labels, classes)
    return {
        "layouts": layouts,
        "colour": colours,
        "classes": legend,
        "names": [class_of(images.labels, at, classes) for at in range(len(x))],
        "src": atlas(shown, side, COLUMNS) if shown else None,
        "side": side,
        "columns": COLUMNS,
    }


def _coloured(
    labels: Tensor | None, classes: Sequence[str] | None
) -> tuple[list[int] | None, list[str]]:
    """Return the colour of each image and the name of the class of each colour.

    The most frequent classes have a colour; images of other classes have -1. Without labels, or
    with several classes per image, the colours are None.
    """
    if labels is None or labels.ndim != 1:
        return None, []
    present, counts = torch.unique(labels[labels >= 0], return_counts=True)
    frequent = sorted(present[counts.argsort(descending=True, stable=True)[:COLOURS]].tolist())
    colour = {label: at for at, label in enumerate(frequent)}
    legend = [class_name(label, classes) for label in frequent]
    return [colour.get(label, -1) for label in labels.tolist()], legend


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


def _square(points: Tensor) -> list[int]:
    """Return points (N,2) as integers from 0 to 1000, x and y alternating, both on one scale."""
    low, high = points.amin(0), points.amax(0)
    scale = (high - low).amax().clamp(min=1e-9)
    centred = (points - (low + high) / 2) / scale + 0.5
    scaled = (centred * 1000).round().clamp(0, 1000)
    return [int(coordinate) for coordinate in scaled.flatten().tolist()]


@torch.no_grad()
def similarity(task: Task, make: Views, seed: int) -> dict[str, Any]:
    """Return histograms of cosine similarities between augmented views of training images.

    They compare two views of the same image with views of different images, by features of the
    backbone and, if the projection head is known, by projections.
    """
    source = task.splits.pretrain
    if len(source) < 2:
        raise ValueError(f"similarities need at least two images, and there are {len(source)}")
    ids = torch.randperm(len(source), generator=torch.Generator().manual_seed(seed))[:PAIRED]
    loader = Loader(source, make, batch=1, epochs=2, seed=seed)
    views = [
        view
        for epoch in (0, 1)
        for view in views_of(source, ids, make, loader.uniforms(epoch, ids))
    ]
    features = [
        torch.cat(
            [task.backbone(part.to(task.device)).float() for part in torch.split(view, BATCH)]
        )
        for view in views[:2]
    ]
    by_features = {"backbone": histograms(*(x.cpu() for x in features))}
    head = task.projection()
    if head is not None:
        by_features["projection"] = histograms(*(head(x).float().cpu() for x in features))
    return {"of": by_features, "images": len(ids)}


def histograms(first: Tensor, second: Tensor) -> dict[str, Any]:
    """Return histograms of the cosines between first views (N,D) and second views (N,D) of images.

    "positive" has the shares per bin for pairs of the same image and "negative" those for different
    images. "beats" is the percentage of comparisons in which the former have the larger cosine.
    """
    cosines = (F.normalize(first) @ F.normalize(second).T).clamp(-1, 1)
    same_image = torch.eye(len(cosines), dtype=torch.bool)
    positive, negative = cosines[same_image], cosines[~same_image]
    low = min(0.0, float(cosines.min()))
    shares = [torch.histc(part, BINS, low, 1.0) / len(part) for part in (positive, negative)]
    beaten = torch.searchsorted(negative.sort().values, positive)  # (N,) negatives below a positive
    return {
        "edges": [short(edge) for edge in torch.linspace(low, 1, BINS + 1).tolist()],
        "positive": [short(share) for share in shares[0].tolist()],
        "negative": [short(share) for share in shares[1].tolist()],
        "means": [short(float(part.mean())) for part in (positive, negative)],
        "beats": 100 * float(beaten.double().mean()) / len(negative),
    }


def spectrum(x: Tensor) -> dict[str, Any]:
    """Return the relative singular values of features (N,D) and their effective rank.

    The features are centred and not normalised. "ninety" is the number of dimensions that have 90 %
    of the variance.
    """
    centred = x - x.mean(0)
    values = singular_values(centred)[: max(1, len(x) - 1)]  # centring removes one dimension
    if float(values[0]) <= 0:
        raise ValueError(f"all {len(x)} images have the same feature, so there is no spectrum")
    energy = (values**2).cumsum(0) / (values**2).sum()
    relative = (values / values[0]).tolist()
    kept = thin(relative, POINTS)
    return {
        "x": [at + 1 for at in kept],
        "y": [short(relative[at]) for at in kept],
        "rank": short(effective_rank(values)),
        "ninety": int((energy < 0.9).sum()) + 1,
        "width": x.shape[1],
        "images": len(x),
    }
