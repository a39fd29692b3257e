"""Analysis of stored negatives, after the claims of AdCo about its bank.

Are the negatives hard? Do they move with the queries? Do they cover the sphere? The analysis works
for a bank, a queue or a memory. Shapes: Q queries, K negatives, N other vectors, D features.
"""

import math
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from antipode.analysis.embeddings import PAIRS, RunEmbeddings
from antipode.analysis.result import Result, curve, histogram
from antipode.core.scores import product, unit
from antipode.core.traits import Stored
from antipode.data.progress import bar
from antipode.measures import uniformity

CELLS = 1 << 24  # maximum number of similarities in memory at a time
QUERIES = 1024, 8192  # queries on a CPU and on a GPU
FRESH = PAIRS[0], 1 << 16  # maximum number of fresh keys on a CPU and on a GPU
CHECKPOINTS = 16  # maximum number of checkpoints between which drift is measured
NEAR = 0.9  # cosine from which a vector counts as covered
THRESHOLDS = [place / 50 for place in range(51)]
# Title and label of the curves that are taken from the log, by metric.
LOGGED = {
    "bank_length": ("length over training", "mean norm of the bank's vectors"),
    "bank_drift": ("drift over training", "mean 1 - cosine to the previous check"),
    "queue_age": ("age over training", "mean age of a key in steps"),
}


class Hardness(NamedTuple):
    """How hard negatives (K,D) are for each of Q queries."""

    mean: Tensor  # (Q,) mean cosine with a negative
    hardest: Tensor  # (Q,) largest cosine with a negative
    repel: Tensor  # (Q,) log of the mean of exp(cosine / tau) over the negatives
    mass: Tensor  # (Q,) probability of the negatives in the softmax over positive and negatives
    top: Tensor  # (Q,) share of the hardest hundredth of the negatives in that probability
    effective: Tensor  # (Q,) effective number of negatives: exp of the entropy of their softmax


@torch.no_grad()
def hardness(
    queries: Tensor, keys: Tensor, vectors: Tensor, tau: float, own: Tensor | None = None
) -> Hardness:
    """Return how hard the negatives `vectors` (K,D) are for unit queries (Q,D) with keys (Q,D).

    The negatives are used as they are. `own` (Q,) is the index of each query's own image among the
    negatives, if they contain it. Such an entry is left out, because it does not repel the query.
    """
    _check_shapes(queries, keys, vectors)
    count = len(vectors) - (own is not None)
    if not count:
        raise ValueError("hardness needs a negative other than the query's own image, got K = 1")
    rows = max(1, CELLS // len(vectors))
    attract = (queries * keys).sum(-1) / tau
    hundredth = -(-count // 100)
    parts = []
    with bar(len(queries), "queries") as done:
        for start in range(0, len(queries), rows):
            part = queries[start : start + rows]
            cosines = product(part, vectors.to(part.dtype))
            mean = cosines.mean(1)
            if own is not None:
                place = own[start : start + rows, None]
                mean = (cosines.sum(1) - cosines.gather(1, place)[:, 0]) / count
                cosines = cosines.scatter(1, place, -torch.inf)
            share = (cosines / tau).softmax(1)
            repel = torch.logsumexp(cosines / tau, 1)
            mass = torch.sigmoid(repel - attract[start : start + rows])
            top = share.topk(hundredth, 1).values.sum(1)
            effective = torch.special.entr(share).sum(1).exp()
            parts.append((mean, cosines.amax(1), repel - math.log(count), mass, top, effective))
            done(len(part))
    return Hardness(*(torch.cat(column) for column in zip(*parts, strict=True)))


def _check_shapes(queries: Tensor, keys: Tensor, vectors: Tensor) -> None:
    matrices = queries.ndim == vectors.ndim == 2
    if queries.shape != keys.shape or not matrices or 0 in (len(queries), len(vectors)):
        shapes = ", ".join(str(tuple(x.shape)) for x in (queries, keys, vectors))
        raise ValueError(
            f"hardness needs queries (Q,D), keys (Q,D) and negatives (K,D), got {shapes}"
        )


@torch.no_grad()
def closest(x: Tensor, vectors: Tensor) -> Tensor:
    """Return the largest cosine (N,) of each of x (N,D) with any of `vectors` (K,D)."""
    others = unit(vectors)
    rows = max(1, CELLS // len(vectors))
    parts = torch.split(unit(x), rows)
    return torch.cat([product(part, others.to(part.dtype)).amax(1) for part in parts])


def drift(before: Tensor, after: Tensor) -> Tensor:
    """Return 1 - cosine (K,) between each vector (K,D) and the same vector at a later time.

    It is 0 for a vector that has not turned, and 2 for one that has reversed its direction.
    """
    if before.shape != after.shape:
        raise ValueError(
            "drift needs the same vectors at two times, got "
            f"{tuple(before.shape)} and {tuple(after.shape)}"
        )
    return 1 - (unit(before) * unit(after)).sum(-1)


# The analysis of a run


def bank(subject: RunEmbeddings) -> Result:
    """Return hardness, coverage and drift of the stored negatives of a run.

    Hardness and coverage of fresh keys of the same network are given for comparison.
    """
    stored = subject.stored
    tau = subject.tau
    assert stored is not None and tau is not None, "the catalogue requires both"
    ids, views = subject.pairs()
    images = len(subject.splits.pretrain)
    q = max(1, min(len(ids), QUERIES[subject.device.type != "cpu"], images // 2))
    fresh = _fresh(subject, q, len(stored.vectors))
    eval_embeddings = unit(subject.eval_features()[1])
    result: Result = {"values": {}, "curves": {}, "histograms": {}, "notes": []}
    own = ids[:q].to(subject.device) if stored.kind == "memory" else None
    for name, vectors, places in ((stored.kind, stored.vectors, own), ("fresh keys", fresh, None)):
        measured = hardness(views.query[0, :q], views.keys[-1, :q], vectors, tau, places)
        _add_hardness(result, name, measured)
        _coverage(result, name, closest(eval_embeddings, vectors), vectors)
    _add_drift(result, subject, stored)
    result["settings"] = subject.settings(
        kind=stored.kind,
        vectors=len(stored.vectors),
        fresh=len(fresh),
        queries=q,
        embeddings=len(eval_embeddings),
        tau=tau,
    )
    return {name: part for name, part in result.items() if part}


def _fresh(subject: RunEmbeddings, queries: int, count: int) -> Tensor:
    """Return up to `count` keys (K,D) of other training images than those of the queries.

    They are what a queue would contain if the present network had filled it.
    """
    n = min(count, subject.count(subject.splits.pretrain, FRESH))
    others = subject.draw(queries + n)[queries:]
    views = subject.embed_views(others, 1, salt=-1)
    # the keys of a memory are its entries, which may be old, so the queries stand for new keys
    from_memory = subject.stored is not None and subject.stored.kind == "memory"
    return views.query[0] if from_memory else views.keys[0]


def _add_hardness(result: Result, name: str, measured: Hardness) -> None:
    """Add the means and a histogram of the hardness of negatives called `name` to a result."""
    result["values"] |= {
        f"mean cosine, {name}": _mean(measured.mean),
        f"hardest cosine, {name}": _mean(measured.hardest),
        f"repulsion, {name}": _mean(measured.repel),
        f"probability of the negatives, {name}": _mean(measured.mass),
        f"share of the hardest hundredth, {name}": _mean(measured.top),
        f"effective negatives, {name}": _mean(measured.effective),
    }
    result["histograms"][f"hardest negative, {name}"] = histogram(
        measured.hardest, -1, 1, "cosine of a query with its hardest negative"
    )


def _coverage(result: Result, name: str, near: Tensor, vectors: Tensor) -> None:
    """Add to a result how well `vectors` (K,D) cover embeddings.

    `near` (N,) is the cosine of each embedding with the nearest of the vectors.
    """
    shares = [float((near >= threshold).double().mean()) for threshold in THRESHOLDS]
    result["curves"][f"coverage, {name}"] = curve(
        THRESHOLDS,
        shares,
        "cosine with the nearest",
        "share of embeddings with at least this cosine",
    )
    result["values"] |= {
        f"covered at {NEAR}, {name}": float((near >= NEAR).double().mean()),
        f"nearest cosine, {name}": _mean(near),
        f"uniformity, {name}": float(uniformity(vectors)) if len(vectors) > 1 else float("nan"),
    }


def _add_drift(result: Result, subject: RunEmbeddings, stored: Stored) -> None:
    """Add to a result the drift of vectors between checkpoints and the metrics of the log."""
    for name, (title, label) in LOGGED.items():
        points = [
            (row["epoch"] + 1, row[name]) for row in subject.rows() if row.get(name) is not None
        ]
        if points:
            epochs, numbers = zip(*points, strict=True)
            result["curves"][title] = curve(epochs, numbers, "epoch", label)
    if stored.kind == "queue":
        result["notes"].append(
            "drift is not measured for a queue, because its places are refilled with new keys"
        )
        return
    moments = [(moment.epoch, moment.stored) for moment in subject.history(CHECKPOINTS)]
    if len(moments) < 2:
        result["notes"].append(
            "drift between checkpoints needs two checkpoints, and the run has one: train.keep sets "
            "how many are kept"
        )
        return
    turned = [
        _mean(drift(before.vectors, after.vectors))
        for (_, before), (_, after) in pairwise(moments)
        if before and after
    ]
    result["values"]["drift since the checkpoint before"] = turned[-1]
    later = [epoch for epoch, _ in moments[1:]]
    result["curves"]["drift"] = curve(
        later, turned, "epoch", "mean 1 - cosine to the previous checkpoint"
    )


def _mean(x: Tensor) -> float:
    return float(x.double().mean())
