"""AdCo's claims about its bank: are the negatives hard, do they move with the queries, do they cover the sphere?"""

from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from antipode.analysis.embeddings import PAIRS, Stored, Subject
from antipode.analysis.geometry import uniformity
from antipode.analysis.result import Result, curve, histogram
from antipode.core.scores import product, unit
from antipode.data.progress import bar
from antipode.papers.npid import Recall

CELLS = 1 << 24  # similarities at a time
QUERIES = 1024, 8192  # on a CPU and on a GPU
CHECKPOINTS = 16  # between which drift is measured, at most
NEAR = 0.9  # a cosine from which on a vector counts as covered
THRESHOLDS = [place / 50 for place in range(51)]
LOGGED = {
    "bank_length": ("length over training", "mean length of the bank's vectors"),
    "bank_drift": ("drift over training", "mean 1 - cos with the check before"),
    "queue_age": ("age over training", "mean age of a key in steps"),
}


class Hardness(NamedTuple):
    """How hard negatives (K,D) are for each of Q queries."""

    mean: Tensor  # (Q,) cosine with a negative
    hardest: Tensor  # (Q,) largest cosine
    mass: Tensor  # (Q,) probability that the softmax over positive and negatives gives to the negatives
    top: Tensor  # (Q,) share of the hardest hundredth of the negatives in that
    effective: (
        Tensor  # (Q,) number of negatives that would share the mass equally: exp of the entropy
    )


@torch.no_grad()
def hardness(
    queries: Tensor, keys: Tensor, vectors: Tensor, tau: float, own: Tensor | None = None
) -> Hardness:
    """Of unit queries (Q,D) with their positive keys (Q,D) against negatives (K,D) used as they are.

    `own` (Q,) is the place of a query's own image among the negatives, where there is one: it does not repel.
    """
    if (
        queries.shape != keys.shape
        or queries.ndim != 2
        or vectors.ndim != 2
        or 0 in (len(queries), len(vectors))
    ):
        shapes = ", ".join(str(tuple(one.shape)) for one in (queries, keys, vectors))
        raise ValueError(
            f"hardness needs queries (Q,D), keys (Q,D) and negatives (K,D), got {shapes}"
        )
    count, rows = len(vectors) - (own is not None), max(1, CELLS // len(vectors))
    if not count:
        raise ValueError(
            "hardness needs a negative besides the query's own image, and this one is all there is: K = 1"
        )
    attract, few = (queries * keys).sum(-1) / tau, -(-count // 100)
    parts = []
    with bar(len(queries), "queries") as done:
        for start in range(0, len(queries), rows):
            some, pull = queries[start : start + rows], attract[start : start + rows]
            cosines = product(some, vectors.to(some.dtype))
            mean = cosines.mean(1)
            if own is not None:
                place = own[start : start + rows, None]
                mean = (cosines.sum(1) - cosines.gather(1, place)[:, 0]) / count
                cosines = cosines.scatter(1, place, -torch.inf)
            share = (cosines / tau).softmax(1)
            mass = torch.sigmoid(torch.logsumexp(cosines / tau, 1) - pull)
            effective = torch.special.entr(share).sum(1).exp()
            parts.append((mean, cosines.amax(1), mass, share.topk(few, 1).values.sum(1), effective))
            done(len(some))
    return Hardness(*(torch.cat(column) for column in zip(*parts, strict=True)))


@torch.no_grad()
def closest(x: Tensor, vectors: Tensor) -> Tensor:
    """The largest cosine (N,) of each of the vectors x (N,D) with any of `vectors` (K,D)."""
    others, rows = unit(vectors), max(1, CELLS // len(vectors))
    return torch.cat(
        [product(some, others.to(some.dtype)).amax(1) for some in torch.split(unit(x), rows)]
    )


def drift(before: Tensor, after: Tensor) -> Tensor:
    """How far (K,) each vector (K,D) has turned by a later time, 1 - cos: 0 not at all, 2 about."""
    if before.shape != after.shape:
        raise ValueError(
            f"drift needs the same vectors twice, got {tuple(before.shape)} and {tuple(after.shape)}"
        )
    return 1 - (unit(before) * unit(after)).sum(-1)


# The same of a run


def bank(subject: Subject) -> Result:
    """Hardness, coverage and drift of what a run keeps, beside fresh keys of its own, as many if time allows."""
    stored, tau = subject.stored, subject.tau
    assert stored is not None and tau is not None, "the catalogue asks for both"
    ids, seen = subject.pairs()
    q = max(
        1, min(len(ids), QUERIES[subject.device.type != "cpu"], len(subject.splits.pretrain) // 2)
    )
    fresh = _fresh(subject, q, len(stored.vectors))
    sides = {stored.kind: stored.vectors, "fresh keys": fresh}
    test = unit(subject.still()[1])
    result: Result = {"values": {}, "curves": {}, "histograms": {}, "notes": []}
    own = ids[:q].to(subject.device) if stored.kind == "memory" else None
    for name, vectors in sides.items():
        mine = own if vectors is stored.vectors else None
        _hardness(result, name, hardness(seen.query[0, :q], seen.keys[-1, :q], vectors, tau, mine))
        _coverage(result, name, closest(test, vectors), vectors)
    _drift(result, subject, stored)
    result["settings"] = subject.settings(
        kind=stored.kind,
        vectors=len(stored.vectors),
        fresh=len(fresh),
        queries=q,
        embeddings=len(test),
        tau=tau,
    )
    return {name: part for name, part in result.items() if part}


def _fresh(subject: Subject, queries: int, count: int) -> Tensor:
    """Up to `count` keys (K,D) of other training images than the queries': the queue that the run's keys would fill."""
    n = min(count, subject.count(subject.splits.pretrain, (PAIRS[0], 1 << 16)))
    others = subject.draw(queries + n)[queries:]
    seen = subject.see(others, 1, salt=-1)
    recalled = isinstance(
        subject.learner.twin, Recall
    )  # whose keys are the memory itself, however old
    return seen.query[0] if recalled else seen.keys[0]


def _hardness(result: Result, name: str, found: Hardness) -> None:
    result["values"] |= {
        f"mean cosine, {name}": _mean(found.mean),
        f"hardest cosine, {name}": _mean(found.hardest),
        f"probability of the negatives, {name}": _mean(found.mass),
        f"share of the hardest hundredth, {name}": _mean(found.top),
        f"effective negatives, {name}": _mean(found.effective),
    }
    result["histograms"][f"hardest negative, {name}"] = histogram(
        found.hardest, -1, 1, "cosine of a query with its hardest negative"
    )


def _coverage(result: Result, name: str, near: Tensor, vectors: Tensor) -> None:
    shares = [float((near >= threshold).double().mean()) for threshold in THRESHOLDS]
    result["curves"][f"coverage, {name}"] = curve(
        THRESHOLDS, shares, "cosine with the nearest", "share of embeddings at least so near"
    )
    result["values"] |= {
        f"covered at {NEAR}, {name}": float((near >= NEAR).double().mean()),
        f"nearest cosine, {name}": _mean(near),
        f"uniformity, {name}": uniformity(vectors) if len(vectors) > 1 else float("nan"),
    }


def _drift(result: Result, subject: Subject, stored: Stored) -> None:
    """How far vectors turn from one kept checkpoint to the next, and what the log says of them."""
    for name, (title, label) in LOGGED.items():
        found = [
            (row["epoch"] + 1, row[name]) for row in subject.rows() if row.get(name) is not None
        ]
        if found:
            epochs, numbers = zip(*found, strict=True)
            result["curves"][title] = curve(epochs, numbers, "epoch", label)
    if stored.kind == "queue":
        result["notes"].append(
            "the places of a queue are refilled all the time, so its vectors have no drift"
        )
        return
    moments = [(moment.epoch, moment.stored) for moment in subject.history(CHECKPOINTS)]
    if len(moments) < 2:
        result["notes"].append(
            "drift between checkpoints needs two, and one is kept: see train.keep"
        )
        return
    turned = [
        _mean(drift(one.vectors, other.vectors))
        for (_, one), (_, other) in pairwise(moments)
        if one and other
    ]
    result["values"]["drift since the checkpoint before"] = turned[-1]
    when = [epoch for epoch, _ in moments[1:]]
    result["curves"]["drift"] = curve(
        when, turned, "epoch", "mean 1 - cos with the checkpoint before"
    )


def _mean(x: Tensor) -> float:
    return float(x.double().mean())
