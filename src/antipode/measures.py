"""Measures of embeddings, each defined once. Training health, analyses and report all use these.

Shapes: N images, P other images, D and E features, k neighbours, R singular values. A docstring
says whether a function normalises its vectors to unit length, or takes them as they are.
"""

import math

import torch
from torch import Tensor

from antipode.core.scores import product, unit

# Embeddings with a smaller spread have collapsed. A rank below a fifth of this share of the
# possible rank is too low.
FLAT = 0.1
SIMILARITIES = 1 << 24  # maximum number of similarities in memory at a time: 64 MiB in float32


def alignment(x: Tensor, y: Tensor) -> Tensor:
    """Return the mean squared distance () of positive pairs x, y (N,D) (Wang & Isola 2020).

    The vectors are normalised to unit length first.
    """
    return ((unit(x) - unit(y)) ** 2).sum(-1).mean()


def uniformity(x: Tensor, t: float = 2.0) -> Tensor:
    """Return log mean exp(-t |x_i-x_j|^2) () over pairs i != j of x (N,D) (Wang & Isola 2020).

    The vectors are normalised to unit length first.
    """
    if x.ndim != 2 or len(x) < 2:
        raise ValueError(f"uniformity needs at least two vectors (N,D), got {tuple(x.shape)}")
    z = unit(x)
    ids = torch.arange(len(z), device=z.device)
    return log_potential(z, z, ids, ids, t)


def log_potential(
    x: Tensor, others: Tensor, ids: Tensor, other_ids: Tensor, t: float = 2.0
) -> Tensor:
    """Return log mean exp(-t |x-y|^2) () over pairs of unit x (N,D) and unit y in `others` (P,D).

    Pairs of the same image are left out: `ids` (N,) and `other_ids` (P,) are the indices of the
    images. The rows of x are processed in parts, so that memory stays bounded.
    """
    rows = max(1, SIMILARITIES // max(1, len(others)))
    sums = []
    count = torch.zeros((), dtype=torch.int64, device=x.device)
    for part, part_ids in zip(torch.split(x, rows), torch.split(ids, rows), strict=True):
        same = part_ids[:, None] == other_ids
        energy = -t * (2 - 2 * product(part, others)).clamp(min=0)
        sums.append(torch.logsumexp(energy.masked_fill(same, -torch.inf), 1))
        count = count + (~same).sum()
    total = torch.logsumexp(torch.cat(sums), 0)
    return total - count.to(total.dtype).log()


def singular_values(x: Tensor) -> Tensor:
    """Return the singular values (min(N,D),) of vectors (N,D) as they are, in float64.

    The largest comes first.
    """
    if x.ndim != 2 or 0 in x.shape:
        raise ValueError(f"a spectrum needs vectors (N,D), got {tuple(x.shape)}")
    wide = x.cpu().double() if x.device.type == "mps" else x.double()  # mps has no float64
    if len(wide) > wide.shape[1]:
        # a triangular factor (D,D) has the same singular values, and its SVD does not depend on N
        wide = torch.linalg.qr(wide, mode="r").R
    values: Tensor = torch.linalg.svdvals(wide)
    return values


def effective_rank(values: Tensor) -> float:
    """Return the effective rank of singular values (R,), between 1 and R.

    It is the exponential of the entropy of the values divided by their sum (RankMe, Garrido et al.
    2023). If all values are 0, the result is 1, as for vectors that have collapsed to any other
    point.
    """
    if not bool(values.any()):
        return 1.0
    share = values / values.sum()
    return float(torch.special.entr(share).sum().exp())


def spread(z: Tensor) -> Tensor:
    """Return the mean over dimensions of the standard deviation of unit z (N,D), times sqrt(D).

    It is 1 for vectors that are spread evenly over the sphere, and 0 for vectors that have
    collapsed to a point.
    """
    return z.std(0).mean() * math.sqrt(z.shape[1])


def mean_similarity(z: Tensor) -> Tensor:
    """Return the mean cosine similarity () between different vectors of unit z (N,D)."""
    n = len(z)
    return (product(z, z).sum() - n) / max(n * (n - 1), 1)


def overlap(first: Tensor, second: Tensor) -> float:
    """Return the mean share of neighbours that two lists (N,k) have in common, in any order."""
    if first.shape != second.shape or first.ndim != 2:
        raise ValueError(
            "overlap needs two lists (N,k) of neighbours, got "
            f"{tuple(first.shape)} and {tuple(second.shape)}"
        )
    parts = zip(torch.split(first, 4096), torch.split(second, 4096), strict=True)
    shared = [(a[:, :, None] == b[:, None]).any(2) for a, b in parts]
    return float(torch.cat(shared).double().mean())


def cka(x: Tensor, y: Tensor) -> float:
    """Return the linear CKA of features (N,D) and (N,E) of the same images (Kornblith et al. 2019).

    The features are centred and not normalised. The result is 1 for features that differ only by a
    rotation and a scale. It is NaN if one side is constant over the images, so that one collapsed
    run does not prevent a comparison of the others.
    """
    if x.ndim != 2 or y.ndim != 2 or len(x) != len(y) or len(x) < 2:
        raise ValueError(
            "CKA needs features (N,D) and (N,E) of the same images, of at least two images, got "
            f"{tuple(x.shape)} and {tuple(y.shape)}"
        )
    a = x.double() - x.double().mean(0)
    b = y.double() - y.double().mean(0)
    if _is_constant(x, a) or _is_constant(y, b):
        return math.nan
    shared = (product(a.T, b.T) ** 2).sum()
    norms = [torch.linalg.matrix_norm(product(side.T, side.T)) for side in (a, b)]
    return float(shared / (norms[0] * norms[1]))


def _is_constant(x: Tensor, centred: Tensor) -> bool:
    """Return True if only rounding errors remain of features (N,D) after centring."""
    return bool(centred.abs().max() <= 1e-12 * x.double().abs().max())
