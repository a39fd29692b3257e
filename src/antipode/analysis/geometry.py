"""How embeddings lie on the sphere: spread of an image's views, alignment, uniformity, spectrum."""

import math

import torch
from torch import Tensor

from antipode.analysis.embeddings import Subject
from antipode.analysis.result import Result, curve, histogram
from antipode.core.scores import product, unit
from antipode.data.progress import bar
from antipode.functional import alignment, energies

VIEWS = 32  # of an image in JCL's figure M.3
IMAGES = 512, 32768  # in that figure, on a CPU and on a GPU; the paper's own number is the second
PART = 1024  # images whose views are held at once
ROWS = 1 << 24  # similarities at a time


def similarity(views: Tensor) -> Tensor:
    """Mean cosine (N,) of all V x V pairs of an image's views (V,N,D), each view with itself included (JCL, M.3a)."""
    return (unit(views).mean(0) ** 2).sum(-1)


def variance(views: Tensor) -> Tensor:
    """Mean (N,) of the diagonal of the biased covariance of an image's unit views (V,N,D) (JCL, M.3b)."""
    return unit(views).var(0, correction=0).mean(-1)


def uniformity(x: Tensor, t: float = 2) -> float:
    """Wang & Isola's log mean exp(-t |x_i-x_j|^2) over all pairs of vectors (N,D), in pieces that bound the memory."""
    n = len(x)
    if x.ndim != 2 or n < 2:
        raise ValueError(f"uniformity needs at least two vectors (N,D), got {tuple(x.shape)}")
    z, own = unit(x), torch.arange(n, device=x.device)
    rows = max(1, ROWS // n)
    parts = zip(torch.split(z, rows), torch.split(own, rows), strict=True)
    sums = [torch.logsumexp(energies(some, z, ids, t), 1).double() for some, ids in parts]
    return float(torch.logsumexp(torch.cat(sums), 0)) - math.log(n * (n - 1))


def spectrum(x: Tensor) -> Tensor:
    """Singular values (min(N,D),) of vectors (N,D) at length one, largest first, in float64.

    From the D x D product: exact to 1e-8 of the largest, whatever N is.
    """
    if x.ndim != 2 or 0 in x.shape:
        raise ValueError(f"a spectrum needs vectors (N,D), got {tuple(x.shape)}")
    z = unit(x.double())
    squares: Tensor = torch.linalg.eigvalsh(product(z.T, z.T)).flip(0).clamp(min=0)
    return squares.sqrt()[: min(x.shape)]


def effective_rank(values: Tensor) -> float:
    """RankMe (Garrido et al. 2023): the exponential of the entropy of the singular values (R,); 1 to R.

    Vectors that are all zero, as those that are all one, have collapsed to a point: rank 1.
    """
    if not values.any():
        return 1.0
    share = values / values.sum()
    return float(torch.special.entr(share).sum().exp())


# The same of a run


def similarity_variance(subject: Subject) -> Result:
    """JCL's figure M.3, of backbone and head."""
    ids = subject.draw(subject.count(subject.splits.pretrain, IMAGES))
    found: dict[str, list[tuple[Tensor, Tensor]]] = {"backbone": [], "head": []}
    dims: dict[str, int] = {}
    with bar(len(ids) * VIEWS, "views") as done:
        for number, part in enumerate(torch.split(ids, PART)):
            seen = subject.see(part, VIEWS, salt=number, keys=False)
            for name, x in (("backbone", seen.backbone), ("head", seen.head)):
                found[name].append((similarity(x), variance(x)))
                dims[name] = x.shape[-1]
            done(len(part) * VIEWS)
    values, histograms = {}, {}
    for name, parts in found.items():
        alike, spread = (torch.cat(column) for column in zip(*parts, strict=True))
        values[f"mean similarity, {name}"] = float(alike.double().mean())
        values[f"mean variance, {name}"] = float(spread.double().mean())
        histograms[f"similarity, {name}"] = histogram(
            alike, 0, 1, "mean cosine of an image's views"
        )
        histograms[f"variance, {name}"] = histogram(
            spread, 0, 1 / dims[name], "mean variance of a feature"
        )
    settings = subject.settings(images=len(ids), views=VIEWS, policy=subject.recipe.views.policy)
    notes = ["of unit vectors the two say the same: variance = (1 - similarity) / D"]
    return {"settings": settings, "values": values, "histograms": histograms, "notes": notes}


def alignment_uniformity(subject: Subject) -> Result:
    """Wang & Isola's two measures of pairs of augmented views; uniformity is the mean of both sides'."""
    ids, seen = subject.pairs()
    values = {}
    places = {"backbone": seen.backbone, "head": seen.head}
    if subject.learner.predictor is not None:
        places["prediction"] = seen.query
    for name, (x, y) in places.items():
        values[f"alignment, {name}"] = float(alignment(x, y))
        values[f"uniformity, {name}"] = (uniformity(x) + uniformity(y)) / 2
    settings = subject.settings(images=len(ids), alpha=2, t=2, views=subject.recipe.views.policy)
    return {"settings": settings, "values": values}


def spectra(subject: Subject) -> Result:
    """Singular values and effective rank of features, each image seen once."""
    values, curves = {}, {}
    n = 0
    for name, x in zip(("backbone", "head"), subject.still(), strict=True):
        found, n = spectrum(x), len(x)
        values[f"effective rank, {name}"] = effective_rank(found)
        values[f"dimensions, {name}"] = x.shape[1]
        ranks = list(range(1, len(found) + 1))
        curves[name] = curve(
            ranks, found / (found[0] or 1), "rank", "singular value over the largest"
        )
    split = "pretrain" if subject.splits.test is None else "test"
    settings = subject.settings(images=n, split=split, vectors="at length one, not centred")
    return {"settings": settings, "values": values, "curves": curves}
