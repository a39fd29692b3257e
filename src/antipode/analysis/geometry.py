"""Analyses of the geometry of embeddings: spread of views, alignment, uniformity, spectrum.

Shapes: N images, V views of each image, D features.
"""

import torch
from torch import Tensor

from antipode.analysis.embeddings import RunEmbeddings
from antipode.analysis.result import Result, curve, histogram
from antipode.core.scores import unit
from antipode.data.progress import bar
from antipode.measures import alignment, effective_rank, singular_values, uniformity

VIEWS = 32  # views of each image in figure M.3 of JCL
IMAGES = 512, 32768  # images in that figure, on a CPU and on a GPU; the paper has the second number
PART = 1024  # images whose views are in memory at a time


def similarity(views: Tensor) -> Tensor:
    """Return the mean cosine (N,) of all V x V pairs of an image's views (V,N,D) (JCL, M.3a).

    The pairs of a view with itself are included.
    """
    return (unit(views).mean(0) ** 2).sum(-1)


def variance(views: Tensor) -> Tensor:
    """Return the variance (N,) of an image's unit views (V,N,D), mean over dimensions (JCL, M.3b).

    It is the mean of the diagonal of the biased covariance.
    """
    return unit(views).var(0, correction=0).mean(-1)


# Analyses of a run


def similarity_variance(subject: RunEmbeddings) -> Result:
    """Return figure M.3 of JCL for the backbone and the projection head."""
    ids = subject.draw(subject.count(subject.splits.pretrain, IMAGES))
    measured: dict[str, list[tuple[Tensor, Tensor]]] = {"backbone": [], "head": []}
    dims: dict[str, int] = {}
    with bar(len(ids) * VIEWS, "views") as done:
        for number, part in enumerate(torch.split(ids, PART)):
            views = subject.embed_views(part, VIEWS, salt=number, keys=False)
            for name, x in (("backbone", views.backbone), ("head", views.head)):
                measured[name].append((similarity(x), variance(x)))
                dims[name] = x.shape[-1]
            done(len(part) * VIEWS)
    values: dict[str, float] = {}
    histograms: dict[str, Result] = {}
    for name, parts in measured.items():
        similarities, variances = (torch.cat(column) for column in zip(*parts, strict=True))
        values[f"mean similarity, {name}"] = float(similarities.double().mean())
        values[f"mean variance, {name}"] = float(variances.double().mean())
        histograms[f"similarity, {name}"] = histogram(
            similarities, 0, 1, "mean cosine of an image's views"
        )
        histograms[f"variance, {name}"] = histogram(
            variances, 0, 1 / dims[name], "mean variance of a feature"
        )
    settings = subject.settings(images=len(ids), views=VIEWS, policy=subject.recipe.views.policy)
    notes = [
        "for unit vectors the two measures are equivalent: variance = (1 - similarity) / D, "
        "where D is the number of dimensions"
    ]
    return {"settings": settings, "values": values, "histograms": histograms, "notes": notes}


def alignment_uniformity(subject: RunEmbeddings) -> Result:
    """Return Wang & Isola's alignment and uniformity of pairs of augmented views.

    Uniformity is the mean over the first and the second views.
    """
    ids, views = subject.pairs()
    values = {}
    embeddings = {"backbone": views.backbone, "head": views.head}
    if subject.learner.predictor is not None:
        embeddings["prediction"] = views.query
    for name, (x, y) in embeddings.items():
        values[f"alignment, {name}"] = float(alignment(x, y))
        values[f"uniformity, {name}"] = float(uniformity(x) + uniformity(y)) / 2
    settings = subject.settings(images=len(ids), alpha=2, t=2, views=subject.recipe.views.policy)
    return {"settings": settings, "values": values}


def spectra(subject: RunEmbeddings) -> Result:
    """Return singular values and effective rank of features in the evaluation view.

    The features are normalised to unit length and not centred.
    """
    values: dict[str, float] = {}
    curves: dict[str, Result] = {}
    features = dict(zip(("backbone", "head"), subject.eval_features(), strict=True))
    for name, x in features.items():
        spectrum = singular_values(unit(x.double()))
        values[f"effective rank, {name}"] = effective_rank(spectrum)
        values[f"dimensions, {name}"] = x.shape[1]
        ranks = list(range(1, len(spectrum) + 1))
        relative = spectrum / (spectrum[0] or 1)
        curves[name] = curve(ranks, relative, "rank", "singular value over the largest")
    settings = subject.settings(
        images=len(features["backbone"]),
        split=subject.eval_split,
        vectors="normalised to unit length, not centred",
    )
    notes = [
        "the features are normalised to unit length and not centred; the spectrum section of the "
        "report centres features that are not normalised, so its effective rank differs"
    ]
    return {"settings": settings, "values": values, "curves": curves, "notes": notes}
