"""Compare the backbones of several runs: measures between their features of the same images."""

from collections.abc import Callable
from itertools import combinations

import torch
from torch import Tensor

from antipode.analysis.embeddings import EVAL_IMAGES, RunEmbeddings
from antipode.analysis.result import Result
from antipode.core.scores import product, unit
from antipode.measures import cka, overlap

NEAREST = 20  # neighbours of each image
CELLS = 1 << 24  # maximum number of similarities in memory at a time


def nearest(x: Tensor, k: int) -> Tensor:
    """Return the indices (N,k) of the k other vectors with the largest cosine to each of x (N,D).

    The search is exact. The rows are processed in parts, so that memory stays bounded.
    """
    n = len(x)
    if not 1 <= k < n:
        raise ValueError(f"{n} images have 1 to {n - 1} neighbours, not {k}")
    z = unit(x)
    rows = max(1, CELLS // n)
    parts = []
    for start in range(0, n, rows):
        scores = product(z[start : start + rows], z)
        itself = torch.arange(len(scores), device=x.device)
        scores[itself, itself + start] = -torch.inf
        parts.append(scores.topk(k, 1).indices)
    return torch.cat(parts)


# Analyses of runs


def compare_cka(subjects: list[RunEmbeddings]) -> list[Result]:
    """Return the CKA between the backbones of each two runs."""
    return _between(subjects, cka, {})


def compare_neighbours(subjects: list[RunEmbeddings]) -> list[Result]:
    """Return the share of nearest neighbours that the backbones of each two runs have in common."""
    n = subjects[0].count(subjects[0].eval_source, EVAL_IMAGES)
    # among few images most are neighbours, and two runs would share them by chance
    k = max(1, min(NEAREST, n // 10))
    lists: dict[int, Tensor] = {}

    def measure(x: Tensor, y: Tensor) -> float:
        for side in (x, y):
            if id(side) not in lists:
                lists[id(side)] = nearest(side, k).cpu()
        return overlap(lists[id(x)], lists[id(y)])

    return _between(subjects, measure, {"k": k, "by chance": round(k / max(n - 1, 1), 3)})


def _between(
    subjects: list[RunEmbeddings],
    measure: Callable[[Tensor, Tensor], float],
    settings: dict[str, float],
) -> list[Result]:
    """Measure each two runs on the images of the first run.

    The result of each run has one value per other run, under the other run's name.
    """
    first = subjects[0]
    source = first.eval_source
    features = [subject.eval_features(source)[0] for subject in subjects]
    values: list[dict[str, float]] = [{} for _ in subjects]
    for i, j in combinations(range(len(subjects)), 2):
        value = measure(features[i], features[j])
        values[i][subjects[j].name] = value
        values[j][subjects[i].name] = value
    common = {
        "images": len(features[0]),
        "data": first.splits.name,
        "split": first.eval_split,
        "features": "backbone",
        **settings,
    }
    return [
        {"settings": subject.settings(**common), "values": run_values}
        for subject, run_values in zip(subjects, values, strict=True)
    ]
