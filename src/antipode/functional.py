"""Losses and measures as plain functions of vectors, for your own training loop.

Queries, keys and views are scaled to unit length inside, in at least float32, also under autocast.
Negatives are used as they are. Every loss is the mean over its queries. Nothing is detached unless
stated otherwise: pass detached keys and targets. tau may be a tensor of one number, for a learned
temperature.

With gather=True the negatives are those of all ranks, with exact gradients: the mean over ranks of
the losses, and of their gradients, equals one process on the whole batch. All ranks must hold the
same number of images.

Memory grows with the number of queries plus the number of negatives, not with their product: a
large matrix of scores is computed in tiles, forward and backward, and never stored
(core/streamed.py). The loss of such a matrix has no second derivative.
"""

import math
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor

from antipode import dist, measures
from antipode.core import loss as forms
from antipode.core import regularise
from antipode.core.negatives import InBatch
from antipode.core.neighbours import nearest
from antipode.core.objective import Contrast
from antipode.core.objective import centroid as mean_direction
from antipode.core.scores import precise, product, raised, unit
from antipode.core.streamed import Candidates, is_large, repulsion
from antipode.names import brief
from antipode.types import Pair, Terms, check_kind, fitted

__all__ = [
    "alignment",
    "barlow_twins",
    "brownian",
    "byol",
    "centroid",
    "dcl",
    "dclw",
    "info_nce",
    "jcl",
    "knn",
    "mi_lower_bound",
    "npc_multiplier",
    "nt_xent",
    "simsiam",
    "singular_value",
    "uniformity",
    "vicreg",
]


def __dir__() -> list[str]:
    return __all__


# Contrast within the batch


def nt_xent(
    z0: Tensor, z1: Tensor, *, tau: float | Tensor, alpha: float | None = None, gather: bool = False
) -> Tensor:
    """Return SimCLR's loss of two views (N,D), over 2N anchors.

    `alpha` applies EqCo's rule with K = 2N-2.
    """
    with _exact(z0, z1):
        margin = forms.no_margin if alpha is None else forms.eqco(fitted("alpha", alpha, float))
        return forms.coupled(_batch_terms(z0, z1, tau, gather, margin)).mean()


def dcl(z0: Tensor, z1: Tensor, *, tau: float | Tensor, gather: bool = False) -> Tensor:
    """Return DCL's loss of two views (N,D).

    One log-sum-exp runs over both views of all other images.
    """
    with _exact(z0, z1):
        return forms.decoupled(_batch_terms(z0, z1, tau, gather)).mean()


def dclw(
    z0: Tensor, z1: Tensor, *, tau: float | Tensor, sigma: float = 0.5, gather: bool = False
) -> Tensor:
    """Return DCLW's loss of two views (N,D); the weight of the positive has no gradient."""
    sigma = fitted("sigma", sigma, float)
    if not sigma > 0:
        raise ValueError(f"sigma must be positive, got {sigma}")
    tau = _temperature(tau)
    with _exact(z0, z1):
        terms = _batch_terms(z0, z1, tau, gather)
        return forms.weighted(tau / sigma, gather=gather)(terms).mean()


def npc_multiplier(z0: Tensor, z1: Tensor, *, tau: float | Tensor) -> Tensor:
    """Return DCL's q_B (2N,) of each anchor, first those of z0.

    The gradient of SimCLR is q_B times that of DCL.
    """
    with _exact(z0, z1):
        return forms.multiplier(_batch_terms(z0, z1, tau, gather=False))


def _batch_terms(
    z0: Tensor,
    z1: Tensor,
    tau: float | Tensor,
    gather: bool,
    margin: forms.Margin = forms.no_margin,
) -> Terms:
    """Return the three numbers of all 2N anchors, first those of z0."""
    _views(z0, z1)
    tau = _temperature(tau)
    first, second = unit(z0), unit(z1)
    query, keys = torch.cat([first, second]), torch.cat([second, first])[None]
    ranks = dist.world() if fitted("gather", gather, bool) else 1
    images = len(z0) * ranks
    if images < 2:
        raise ValueError("negatives come from the batch, which needs at least two images, got one")
    pool = torch.cat([dist.gather(first), dist.gather(second)]) if gather else query
    ids = torch.arange(images, device=z0.device).repeat(2)
    start = dist.rank() * len(z0) if gather else 0
    image_ids = torch.arange(start, start + len(z0), device=z0.device).repeat(2)
    if isinstance(
        tau, Tensor
    ):  # before an own image is set to -inf, over which a learned tau would have no gradient
        query, tau = query / tau, 1.0
    pair = Pair(query, keys, image_ids, pool, ids, image_ids.new_zeros(()))
    return Contrast(InBatch("all"), tau=tau, margin=margin).terms(pair)


def _temperature(tau: float | Tensor) -> float | Tensor:
    """Return tau as a number or as a tensor ().

    The value of a tensor on a GPU is not checked, since reading it would synchronise.
    """
    if isinstance(tau, Tensor):
        if tau.numel() != 1 or not tau.is_floating_point():
            raise ValueError(
                f"tau is one positive number, not a tensor {tuple(tau.shape)} of {tau.dtype}"
            )
        tau = tau.reshape(())
    else:
        tau = float(fitted("tau", tau, float))
    seen = not isinstance(tau, Tensor) or (tau.is_cpu and not torch.compiler.is_compiling())
    if seen and not 0 < tau < torch.inf:
        raise ValueError(f"tau must be positive and finite, got {float(tau)}")
    return tau


# Contrast with given negatives


def info_nce(
    query: Tensor,
    keys: Tensor,
    negatives: Tensor,
    *,
    tau: float | Tensor,
    alpha: float | None = None,
    decoupled: bool = False,
) -> Tensor:
    """Return MoCo's loss of queries (N,D), keys (N,D) or (M,N,D) and negatives (K,D).

    `alpha` applies EqCo's rule and `decoupled` DCL's. With M keys the result is the mean of M
    losses, which is JCL's vanilla baseline.
    """
    if fitted("decoupled", decoupled, bool) and alpha is not None:
        raise ValueError("alpha on a decoupled loss only adds a constant: choose one of the two")
    with _exact(query, keys, negatives):
        scores, repel = _queue_terms(query, keys, negatives, tau)
        if alpha is not None:
            repel = repel + forms.eqco(fitted("alpha", alpha, float))(
                repel.new_tensor(float(len(negatives)))
            )
        terms = Terms(scores, scores, repel[:, None])
        return (forms.decoupled if decoupled else forms.coupled)(terms).mean()


def jcl(
    query: Tensor, keys: Tensor, negatives: Tensor, *, tau: float | Tensor, strength: float
) -> Tensor:
    """Return JCL's loss of queries (N,D), M keys each (M,N,D) and negatives (K,D).

    `strength` is lambda at the 1/(2 tau^2) scale; 0 gives InfoNCE against the mean key.
    """
    strength = fitted("strength", strength, float)
    if not 0 <= strength < torch.inf:
        raise ValueError(f"strength is a finite number of 0 or more, got {strength}")
    with _exact(query, keys, negatives):
        scores, repel = _queue_terms(query, keys, negatives, tau)
        attract, bound = forms.gaussian(scores, strength)
        return forms.coupled(Terms(attract, bound, repel)).mean()


def _queue_terms(
    query: Tensor, keys: Tensor, negatives: Tensor, tau: float | Tensor
) -> tuple[Tensor, Tensor]:
    """Return positive scores / tau (N,M) and repel (N,)."""
    tau = _temperature(tau)
    if query.ndim != 2 or 0 in query.shape:
        raise ValueError(
            f"queries are (N,D) with at least one image and one number, got {tuple(query.shape)}"
        )
    given = tuple(keys.shape)
    keys = keys[None] if keys.ndim == 2 else keys
    if keys.ndim != 3 or keys.shape[1:] != query.shape or not keys.shape[0]:
        raise ValueError(f"keys {given} do not fit queries {tuple(query.shape)}: (N,D) or (M,N,D)")
    if negatives.ndim != 2 or negatives.shape[1] != query.shape[1]:
        raise ValueError(
            f"negatives {tuple(negatives.shape)} do not fit queries {tuple(query.shape)}: (K,D)"
        )
    if not len(negatives):
        raise ValueError(f"a contrast needs at least one negative, got {tuple(negatives.shape)}")
    query, keys = unit(query), unit(keys)
    return (query * keys).sum(-1).T / tau, _repel(query, raised(negatives).to(query.dtype), tau)


def _repel(query: Tensor, negatives: Tensor, tau: float | Tensor) -> Tensor:
    """Return the log-sum-exp (N,) of the scores / tau of queries (N,D) and negatives (K,D)."""
    if is_large(len(query), len(negatives), query.device):
        return repulsion(query / tau, [Candidates(negatives)]).repel
    return torch.logsumexp(product(query, negatives) / tau, 1)


# Alignment without negatives


def byol(prediction: Tensor, target: Tensor) -> Tensor:
    """Return BYOL's mean of 2 - 2 cos over predictions and targets (N,D)."""
    return 2 - 2 * _cosine(prediction, target)


def simsiam(prediction: Tensor, target: Tensor) -> Tensor:
    """Return SimSiam's mean of -cos over predictions and targets (N,D); detaches the target."""
    _views(prediction, target)
    return -_cosine(prediction, target.detach())


def centroid(online: Tensor, target: Tensor) -> Tensor:
    """Return MSBReg's multiview loss of V online and V target vectors (V,N,D), V even.

    The centroid of each half of the views is compared with that of the other half. The loss is the
    sum over both directions of 2 - 2 cos; with V = 2 it is BYOL's symmetric loss.
    """
    _real(online, target)
    if online.ndim != 3 or online.shape != target.shape or 0 in online.shape or len(online) % 2:
        raise ValueError(
            f"centroids need (V,N,D) twice with V even, got {tuple(online.shape)}, "
            f"{tuple(target.shape)}"
        )
    half = len(online) // 2
    with precise(online.device):
        o, t = unit(online), unit(target)
        first = (mean_direction(o[:half]) - mean_direction(t[half:])) ** 2
        second = (mean_direction(o[half:]) - mean_direction(t[:half])) ** 2
        return (first + second).sum(-1).mean()


def _cosine(x: Tensor, y: Tensor) -> Tensor:
    _views(x, y)
    with _exact(x, y):
        return (unit(x) * unit(y)).sum(-1).mean()


# Decorrelation of the dimensions


def barlow_twins(z0: Tensor, z1: Tensor, *, weight: float = 0.0051, gather: bool = False) -> Tensor:
    """Return the loss of Barlow Twins of two views (N,D) (Zbontar et al. 2021, eq. 1 and 2).

    Each dimension is standardised over the batch (population variance, eps 1e-5), and C = z0' z1 /
    N is the cross-correlation. The loss is the sum of (1 - C_ii)^2 plus `weight` times the sum of
    C_ij^2 over i != j. The vectors are not scaled to unit length.
    """
    weight = _not_negative("weight", weight)
    count = _batch_size(z0, z1, gather)
    with _exact(z0, z1):
        first = _standardised(raised(z0), count, gather)
        second = _standardised(raised(z1), count, gather)
        correlation = _over_ranks(product(first.T, second.T), gather) / count
        diagonal = correlation.diagonal()
        off_diagonal = (correlation**2).sum() - (diagonal**2).sum()
        return ((1 - diagonal) ** 2).sum() + weight * off_diagonal


def vicreg(
    z0: Tensor,
    z1: Tensor,
    *,
    invariance: float = 25.0,
    variance: float = 25.0,
    covariance: float = 1.0,
    gather: bool = False,
) -> Tensor:
    """Return VICReg's loss of two views (N,D), as in the authors' release (Bardes et al. 2022).

    It is the weighted sum of three terms. Invariance: the mean squared distance over all entries.
    Variance: the mean over dimensions of max(0, 1 - sqrt(var + 1e-4)), averaged over the views.
    Covariance: the sum of squared off-diagonal covariances over D, summed over the views. Variances
    and covariances divide by N - 1. The vectors are not scaled to unit length.
    """
    weights = [
        _not_negative(name, value)
        for name, value in (
            ("invariance", invariance),
            ("variance", variance),
            ("covariance", covariance),
        )
    ]
    count = _batch_size(z0, z1, gather)
    with _exact(z0, z1):
        views = [raised(z0), raised(z1)]
        distance = ((views[0] - views[1]) ** 2).mean()
        hinges = []
        covariances = []
        for z in views:
            centred = z - _over_ranks(z.sum(0), gather) / count
            outer = _over_ranks(product(centred.T, centred.T), gather) / (count - 1)
            spread = outer.diagonal()
            hinges.append(torch.relu(1 - (spread + 1e-4).sqrt()).mean())
            covariances.append(((outer**2).sum() - (spread**2).sum()) / len(outer))
        hinge = (hinges[0] + hinges[1]) / 2
        return (
            weights[0] * distance
            + weights[1] * hinge
            + weights[2] * (covariances[0] + covariances[1])
        )


def _batch_size(z0: Tensor, z1: Tensor, gather: bool) -> int:
    """Return the number of images that statistics are taken over."""
    _views(z0, z1)
    count = len(z0) * (dist.world() if fitted("gather", gather, bool) else 1)
    if count < 2:
        raise ValueError("statistics over the batch need at least two images, got one")
    return count


def _standardised(z: Tensor, count: int, gather: bool) -> Tensor:
    """Return vectors (N,D) whose dimensions have mean 0 and variance 1 over the batch."""
    centred = z - _over_ranks(z.sum(0), gather) / count
    variance = _over_ranks((centred**2).sum(0), gather) / count
    return centred * torch.rsqrt(variance + 1e-5)  # eps of torch's batch norm


def _over_ranks(x: Tensor, gather: bool) -> Tensor:
    return dist.total(x) if gather else x


def _not_negative(name: str, value: float) -> float:
    number = float(fitted(name, value, float))
    if not 0 <= number < torch.inf:
        raise ValueError(f"{name} is a finite number of 0 or more, got {number}")
    return number


# Regularisers


def singular_value(z: Tensor) -> Tensor:
    """Return MSBReg's || (d/n) Z'Z - I ||^2 of embeddings (N,D), or its mean over views (V,N,D)."""
    with _exact(z):
        return torch.stack([_spread_of(view) for view in unit(_stacked(z))]).mean()


def _spread_of(z: Tensor) -> Tensor:
    return regularise.isotropy(product(z.T, z.T), len(z))


def brownian(z: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """Return MSBReg's random kick of embeddings (N,D) or (V,N,D): the mean of <z, eta>.

    eta is a random unit direction per image, shared by its views.
    """
    check_kind(torch.Generator | None, generator=generator)
    with _exact(z):
        views = unit(_stacked(z))
        where = "cpu" if generator is None else generator.device
        # float32 whatever z is: one generator state gives one kick
        kick = torch.randn(views.shape[1:], generator=generator, device=where, dtype=torch.float32)
        return regularise.drift(views, unit(kick.to(views)))


def _stacked(z: Tensor) -> Tensor:
    if z.ndim not in (2, 3) or 0 in z.shape:
        raise ValueError(f"embeddings must be (N,D) or (V,N,D) and not empty, got {tuple(z.shape)}")
    return z if z.ndim == 3 else z[None]


# Measures


def mi_lower_bound(
    loss: Tensor | float, negatives: int, alpha: float | None = None
) -> Tensor | float:
    """Return EqCo's empirical bound on mutual information.

    It is log(1+K) - loss, and log(1+alpha) - loss with EqCo's rule.
    """
    alpha, negatives = fitted("alpha", alpha, float | None), fitted("negatives", negatives, float)
    if negatives < 1 or (alpha is not None and not alpha > 0):
        raise ValueError(
            f"the bound needs at least one negative and a positive alpha, got {negatives} and "
            f"{alpha}"
        )
    try:
        return math.log1p(negatives if alpha is None else alpha) - loss
    except TypeError:
        raise ValueError(f"loss must be a number or a tensor, not {brief(loss)}") from None


def alignment(x: Tensor, y: Tensor) -> Tensor:
    """Return Wang & Isola's mean |x-y|^2 over positive pairs (N,D)."""
    _views(x, y)
    with _exact(x, y):
        return measures.alignment(x, y)


def uniformity(x: Tensor, t: float = 2) -> Tensor:
    """Return Wang & Isola's log mean exp(-t |x_i-x_j|^2) over pairs i < j of vectors (N,D)."""
    _real(x)
    t = float(fitted("t", t, float))
    if not 0 < t < torch.inf:
        raise ValueError(f"t is a finite number above 0, got {t}")
    if x.ndim != 2 or len(x) < 2 or not x.shape[1]:
        raise ValueError(f"uniformity needs at least two vectors (N,D), got {tuple(x.shape)}")
    with _exact(x):
        return measures.uniformity(x, t)


def knn(
    train: Tensor,
    labels: Tensor,
    test: Tensor,
    *,
    k: int = 200,
    tau: float | None = 0.07,
    classes: int | None = None,
) -> Tensor:
    """Return class votes (N,C) of test features (N,D) from the k nearest of train (B,D).

    Neighbours are found by cosine; `labels` (B,) are those of the train features. A neighbour votes
    with weight exp(similarity/tau), or with weight 1 if tau is None. The result is exact. Memory is
    bounded: train is never copied as a whole. The work is done on the device of `test`; train may
    lie elsewhere. A vote of k exp(1/tau) must fit into float64.
    """
    k, tau = int(fitted("k", k, int)), None if tau is None else float(fitted("tau", tau, float))
    classes = _check_knn(train, labels, test, k, classes)
    largest = math.log(k) if tau is None else _largest(k, tau)
    with torch.no_grad(), _exact(test):
        wide = torch.float64 if largest > 87 else raised(test).dtype  # exp(88) leaves float32
        near, index = nearest(train, unit(test.to(wide)), k)
        if near[:, :1].isnan().any():
            raise ValueError(
                "kNN needs features that are numbers, and some are infinite or not a number"
            )
        weight = torch.ones_like(near) if tau is None else (near / tau).exp()
        return near.new_zeros(len(test), classes).scatter_add_(
            1, labels.long().to(near.device)[index], weight
        )


def _check_knn(train: Tensor, labels: Tensor, test: Tensor, k: int, classes: int | None) -> int:
    """Check the arguments of `knn`, and return the number of classes."""
    _real(train, labels, test)
    if (
        train.ndim != 2
        or test.ndim != 2
        or train.shape[1] != test.shape[1]
        or labels.shape != train.shape[:1]
    ):
        shapes = f"{tuple(train.shape)}, {tuple(labels.shape)} and {tuple(test.shape)}"
        raise ValueError(f"kNN needs train (B,D), labels (B,) and test (N,D), got {shapes}")
    if not train.shape[1]:
        raise ValueError(f"kNN needs features of at least one number, got {tuple(train.shape)}")
    if not 1 <= k <= len(train):
        raise ValueError(f"k must lie between 1 and the {len(train)} train features, got {k}")
    if labels.is_floating_point():
        raise ValueError(f"labels are whole numbers, not {labels.dtype}")
    least, most = int(labels.min()), int(labels.max())
    classes = fitted("classes", classes, int | None)
    found = most + 1 if classes is None else int(classes)
    if least < 0 or most >= found:
        raise ValueError(f"labels {least} to {most} do not fit {found} classes")
    return found


def _largest(k: int, tau: float) -> float:
    """Return the logarithm of the largest vote, k exp(1/tau)."""
    if not tau > 0:
        raise ValueError(f"tau must be positive or None, got {tau}")
    if 1 / tau + math.log(k) > 709:
        raise ValueError(
            f"tau {tau:g} is too small: {k} votes of exp(1/tau) leave float64, which ends at "
            "exp(709)"
        )
    return 1 / tau + math.log(k)


def _views(z0: Tensor, z1: Tensor) -> None:
    _real(z0, z1)
    if z0.ndim != 2 or z0.shape != z1.shape:
        raise ValueError(
            f"two views (N,D) of one shape are needed, got {tuple(z0.shape)} and {tuple(z1.shape)}"
        )
    if 0 in z0.shape:
        raise ValueError(
            f"two views (N,D) need at least one image and one number, got {tuple(z0.shape)}"
        )


def _exact(*vectors: Tensor) -> AbstractContextManager[Any]:
    """Check that the vectors are real tensors, and return a context of full precision."""
    _real(*vectors)
    return precise(vectors[0].device)


def _real(*vectors: Tensor) -> None:
    for x in vectors:
        if not isinstance(x, Tensor) or x.is_complex():
            kind = (
                str(x.dtype)
                if isinstance(x, Tensor)
                else f"{type(x).__module__}.{type(x).__qualname__}"
            )
            raise ValueError(
                "vectors and labels are tensors of real numbers, not "
                f"{kind.removeprefix('builtins.')}"
            )
