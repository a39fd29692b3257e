"""Pictures of features: a map, similarities, a spectrum. N images, D features."""

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from antipode.data.loader import Loader
from antipode.data.sources.source import Source
from antipode.data.views.views import Views
from antipode.evaluation.task import Task
from antipode.reporting.curves import short, thin
from antipode.reporting.images import centre, class_name, class_of, side_of, views_of
from antipode.reporting.thumbnails import atlas

COLUMNS = 32  # tiles in a row of the map's atlas
COLOURS = 10  # classes that an eye can tell apart on a map
FEW = 20  # fewer points have no neighbourhoods for t-SNE to keep
PAIRED = 512  # images whose views are compared
BINS = 64
POINTS = 300


def embedding_map(
    x: Tensor, shown: Source, seed: int, classes: Sequence[str] | None
) -> dict[str, Any]:
    """Features (N,D) in two dimensions, by t-SNE and by the two widest directions, with a thumbnail of each image."""
    flat = F.normalize(x)
    u, s, _ = torch.linalg.svd(flat - flat.mean(0), full_matrices=False)
    wide = u * s  # (N, min(N,D)) by falling variance
    layouts = {"PCA": _square(wide[:, :2] if wide.shape[1] > 1 else wide.expand(-1, 2))}
    if len(x) >= FEW:
        layouts = {"t-SNE": _square(_tsne(wide[:, :50], seed)), **layouts}
    side = min(32, side_of(shown))
    places, named = _coloured(shown.labels, classes)
    return {
        "layouts": layouts,
        "colour": places,
        "classes": named,
        "names": [class_of(shown.labels, at, classes) for at in range(len(x))],
        "src": atlas([centre(shown, at) for at in range(len(x))], side, COLUMNS),
        "side": side,
        "columns": COLUMNS,
    }


def _coloured(
    labels: Tensor | None, classes: Sequence[str] | None
) -> tuple[list[int] | None, list[str]]:
    """For each image the place of its class among the commonest, -1 for the others, and the names of these classes."""
    if labels is None or labels.ndim != 1:
        return None, []
    found, counts = torch.unique(labels[labels >= 0], return_counts=True)
    common = sorted(found[counts.argsort(descending=True, stable=True)[:COLOURS]].tolist())
    place = {label: at for at, label in enumerate(common)}
    return [place.get(label, -1) for label in labels.tolist()], [
        class_name(label, classes) for label in common
    ]


def _tsne(x: Tensor, seed: int) -> Tensor:
    """Places (N,2); on one thread, since several fight over few cores and sum in another order each time."""
    from sklearn.manifold import TSNE  # noqa: PLC0415  (slow to import)
    from threadpoolctl import threadpool_limits  # noqa: PLC0415

    perplexity = min(30.0, (len(x) - 1) / 3)
    with threadpool_limits(1):
        tsne = TSNE(
            perplexity=perplexity, init="pca", max_iter=500, random_state=seed % 2**32
        )  # all that it takes
        return torch.from_numpy(tsne.fit_transform(x.numpy()))


def _square(places: Tensor) -> list[int]:
    """Places (N,2) as whole numbers from 0 to 1000, x and y in turn, both to one scale."""
    low, high = places.amin(0), places.amax(0)
    scale = (high - low).amax().clamp(min=1e-9)
    centred = (places - (low + high) / 2) / scale + 0.5
    return [int(one) for one in (centred * 1000).round().clamp(0, 1000).flatten().tolist()]


@torch.no_grad()
def similarity(task: Task, make: Views, seed: int) -> dict[str, Any]:
    """Histograms of cosines between two views of one image and between views of two, before and after the head."""
    source = task.splits.pretrain
    if len(source) < 2:
        raise ValueError(f"similarities need two images at least, and there are {len(source)}")
    ids = torch.randperm(len(source), generator=torch.Generator().manual_seed(seed))[:PAIRED]
    loader = Loader(source, make, batch=1, epochs=2, seed=seed)
    seen = [
        view
        for epoch in (0, 1)
        for view in views_of(source, ids, make, loader.uniforms(epoch, ids))
    ]
    before = [
        torch.cat([task.backbone(part.to(task.device)).float() for part in torch.split(view, 128)])
        for view in seen[:2]
    ]
    found = {"backbone": histograms(*(one.cpu() for one in before))}
    if task.head is not None:
        found["projection"] = histograms(*(task.head(one).float().cpu() for one in before))
    return {"of": found, "images": len(ids)}


def histograms(one: Tensor, two: Tensor) -> dict[str, Any]:
    """Of all cosines between views (N,D) and views (N,D): shares per bin, means, and how well they separate."""
    scores = (F.normalize(one) @ F.normalize(two).T).clamp(-1, 1)
    own = torch.eye(len(scores), dtype=torch.bool)
    pulled, pushed = scores[own], scores[~own]
    low = min(0.0, float(scores.min()))
    shares = [torch.histc(part, BINS, low, 1.0) / len(part) for part in (pulled, pushed)]
    beaten = torch.searchsorted(
        pushed.sort().values, pulled
    )  # by each positive, of all pairs of strangers
    return {
        "edges": [short(edge) for edge in torch.linspace(low, 1, BINS + 1).tolist()],
        "positive": [short(share) for share in shares[0].tolist()],
        "negative": [short(share) for share in shares[1].tolist()],
        "means": [short(float(part.mean())) for part in (pulled, pushed)],
        "beats": 100 * float(beaten.double().mean()) / len(pushed),
    }


def spectrum(x: Tensor) -> dict[str, Any]:
    """Singular values of centred features (N,D), over the largest, and the dimensions they fill (RankMe)."""
    values = torch.linalg.svdvals(x - x.mean(0))[
        : max(1, len(x) - 1)
    ]  # centring has taken one dimension
    if float(values[0]) <= 0:
        raise ValueError(f"the {len(x)} images have one and the same feature: there is no spectrum")
    share = values / values.sum() + 1e-7
    energy = (values**2).cumsum(0) / (values**2).sum()
    relative = (values / values[0]).tolist()
    kept = thin(relative, POINTS)
    return {
        "x": [at + 1 for at in kept],
        "y": [short(relative[at]) for at in kept],
        "rank": short(float((-(share * share.log()).sum()).exp())),
        "ninety": int((energy < 0.9).sum()) + 1,
        "width": x.shape[1],
        "images": len(x),
    }
