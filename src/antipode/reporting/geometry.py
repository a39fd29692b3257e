"""Pictures of features for the page: histograms of similarities, a spectrum.

Shapes: N images, D features.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from antipode.data.loader import Loader
from antipode.data.views.views import Views
from antipode.evaluation.task import Task
from antipode.measures import effective_rank, singular_values
from antipode.reporting.curves import short, thin
from antipode.reporting.images import views_of

PAIRED = 512  # images whose views are compared
BATCH = 128  # views in one forward pass
BINS = 64  # bins of a histogram of similarities
POINTS = 300  # maximum number of points of a spectrum


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
