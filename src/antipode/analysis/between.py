"""Do two runs see alike? Measures between the features of different networks on the same images."""

import math
from collections.abc import Callable
from itertools import combinations

import torch
from torch import Tensor

from antipode.analysis.embeddings import STILL, Subject
from antipode.analysis.result import Result
from antipode.core.scores import product, unit

NEAREST = 20
ROWS = 1 << 24  # similarities at a time


def cka(x: Tensor, y: Tensor) -> float:
    """Linear CKA (Kornblith et al. 2019) of features (N,D) and (N,E) of the same images: 1 up to rotation and scale.

    Not a number where a side is the same for all images: one collapsed run among several leaves the rest comparable.
    """
    if x.ndim != 2 or y.ndim != 2 or len(x) != len(y) or len(x) < 2:
        raise ValueError(
            f"CKA needs features of the same two images at least, got {tuple(x.shape)}, {tuple(y.shape)}"
        )
    a, b = (side.double() - side.double().mean(0) for side in (x, y))
    if any(_still(*sides) for sides in ((x, a), (y, b))):
        return math.nan
    shared = (product(a.T, b.T) ** 2).sum()
    own = [torch.linalg.matrix_norm(product(side.T, side.T)) for side in (a, b)]
    return float(shared / (own[0] * own[1]))


def _still(x: Tensor, centred: Tensor) -> bool:
    """Whether nothing but the rounding of the mean is left of features (N,D) once they are centred."""
    return bool(centred.abs().max() <= 1e-12 * x.double().abs().max())


def nearest(x: Tensor, k: int) -> Tensor:
    """The k other vectors (N,k) nearest by cosine to each of (N,D); exact, in pieces that bound the memory."""
    n = len(x)
    if not 1 <= k < n:
        raise ValueError(f"{n} images have 1 to {n - 1} neighbours, not {k}")
    z, rows, found = unit(x), max(1, ROWS // n), []
    for start in range(0, n, rows):
        scores = product(z[start : start + rows], z)
        itself = torch.arange(len(scores), device=x.device)
        scores[itself, itself + start] = -torch.inf
        found.append(scores.topk(k, 1).indices)
    return torch.cat(found)


def overlap(first: Tensor, second: Tensor) -> float:
    """The mean share of neighbours (N,k) that two lists have in common, 0 to 1; the order does not count."""
    if first.shape != second.shape or first.ndim != 2:
        raise ValueError(
            f"two lists (N,k) of neighbours are needed, got {tuple(first.shape)}, {tuple(second.shape)}"
        )
    parts = zip(torch.split(first, 4096), torch.split(second, 4096), strict=True)
    return float(
        torch.cat([(a[:, :, None] == b[:, None]).any(2) for a, b in parts]).double().mean()
    )


# The same of runs


def compare_cka(subjects: list[Subject]) -> list[Result]:
    """CKA of every two runs' backbones."""
    return _between(subjects, cka, {})


def compare_neighbours(subjects: list[Subject]) -> list[Result]:
    """Shared neighbours of every two runs' backbones."""
    n = subjects[0].count(subjects[0].judged, STILL)
    k = max(1, min(NEAREST, n // 10))  # of few images most would be neighbours, shared by chance
    lists: dict[int, Tensor] = {}

    def measure(x: Tensor, y: Tensor) -> float:
        for side in (x, y):
            if id(side) not in lists:
                lists[id(side)] = nearest(side, k).cpu()
        return overlap(lists[id(x)], lists[id(y)])

    return _between(subjects, measure, {"k": k, "by chance": round(k / max(n - 1, 1), 3)})


def _between(
    subjects: list[Subject], measure: Callable[[Tensor, Tensor], float], settings: dict[str, float]
) -> list[Result]:
    """A measure of every two runs on the first run's images, filed under both runs by the other's name."""
    source, first = subjects[0].judged, subjects[0]
    features = [subject.still(source)[0] for subject in subjects]
    values: list[dict[str, float]] = [{} for _ in subjects]
    for i, j in combinations(range(len(subjects)), 2):
        found = measure(features[i], features[j])
        values[i][subjects[j].name] = values[j][subjects[i].name] = found
    split = "pretrain" if first.splits.test is None else "test"
    common = {
        "images": len(features[0]),
        "data": first.splits.name,
        "split": split,
        "features": "backbone",
        **settings,
    }
    return [
        {"settings": subject.settings(**common), "values": own}
        for subject, own in zip(subjects, values, strict=True)
    ]
