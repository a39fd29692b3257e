"""EqCo's and DCL's figures: what the number of negatives does to the information bound, the gradient and q_B."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from antipode import rng
from antipode.analysis.embeddings import Subject
from antipode.analysis.result import Result, curve, histogram
from antipode.core.loss import coupled
from antipode.core.scores import product
from antipode.data.progress import bar
from antipode.functional import mi_lower_bound, npc_multiplier
from antipode.types import Terms

QUERIES = 1024, 16384  # how many queries to average over, on a CPU and on a GPU
CELLS = 1 << 24  # similarities at a time: 64 MiB
EPOCHS = 8  # checkpoints of which gradients are measured, at most
BATCHES = [4, 8, 16, 32, 64, 128, 256, 512, 1024]


class Drawn(NamedTuple):
    """What a query feels of its positive and K negatives."""

    attract: Tensor  # (Q,) positive score / tau
    repel: Tensor  # (Q,) log-sum-exp of the negative scores / tau
    distance: Tensor  # (Q,) from the positive key to the softmax-weighted mean of the negatives


@torch.no_grad()
def drawn(queries: Tensor, keys: Tensor, count: int, tau: float) -> Drawn:
    """Unit queries (Q,D) against unit keys (N,D), Q <= N: key i is query i's positive, the `count` next its negatives.

    "Next" goes round in a circle. With images in random order that is a draw without replacement for every query, of
    exactly `count`, and a larger draw contains the smaller ones.
    """
    q, n = len(queries), len(keys)
    if not 1 <= count < n or q > n:
        raise ValueError(
            f"{count} negatives cannot be drawn for {q} queries from {n} keys: 1 to {n - 1} for {n} keys"
        )
    repel, distance = queries.new_empty(q), queries.new_empty(q)
    rows = max(1, min(256, CELLS // count))
    for start in range(0, q, rows):
        some = queries[start : start + rows]
        ahead = torch.arange(count + len(some) - 1, device=keys.device)
        others = keys[(start + 1 + ahead) % n]
        before = (
            ahead - torch.arange(len(some), device=keys.device)[:, None]
        )  # (R,W) places behind the first negative
        scores = (product(some, others) / tau).masked_fill(
            (before < 0) | (before >= count), -torch.inf
        )
        repel[start : start + rows] = torch.logsumexp(scores, 1)
        centre = product(scores.softmax(1), others.T)
        distance[start : start + rows] = torch.linalg.vector_norm(
            centre - keys[start : start + len(some)], dim=1
        )
    return Drawn((queries * keys[:q]).sum(-1) / tau, repel, distance)


def information(found: Drawn, count: int, alpha: float | None = None) -> float:
    """EqCo's empirical lower bound on mutual information (section 2.1); with alpha by its rule."""
    repel = found.repel + _margin(count, alpha)
    loss = coupled(Terms(found.attract, found.attract, repel)).double().mean()
    return float(mi_lower_bound(loss, count, alpha))


def gradient(found: Drawn, count: int, tau: float, alpha: float | None = None) -> Tensor:
    """The length (Q,) of the gradient of each query's loss with respect to the query.

    It is (1/tau)(-(1-P0) k + sum_j P_j k_j), and the P_j are 1-P0 times the softmax of the negatives alone: alpha only
    enters 1-P0. (The text's eq. 11 misprints a numerator; eq. 12 has it right.)
    """
    return torch.sigmoid(found.repel + _margin(count, alpha) - found.attract) * found.distance / tau


def ceiling(found: Drawn, count: int, tau: float, alpha: float) -> Tensor:
    """Theorem 2's bound (Q,) on the expected gradient, 2/tau (1 - s0/(s0 + alpha E[s])); E[s] is over the `count`."""
    return 2 / tau * torch.sigmoid(found.repel - math.log(count) + math.log(alpha) - found.attract)


def _margin(count: int, alpha: float | None) -> float:
    return 0.0 if alpha is None else math.log(alpha / count)


def multipliers(z0: Tensor, z1: Tensor, batch: int, tau: float, key: Tensor) -> Tensor:
    """DCL's q_B of all anchors of batches of so many images, drawn from two views (N,D) each without replacement."""
    n = len(z0)
    if not 2 <= batch <= n:
        raise ValueError(f"batches of {batch} cannot be drawn from {n} images: 2 to {n}")
    order = rng.permutation(key, n)[: n // batch * batch]
    return torch.cat(
        [npc_multiplier(z0[some], z1[some], tau=tau) for some in torch.split(order, batch)]
    )


def grid(most: int) -> list[int]:
    """Numbers of negatives: powers of four up to `most`, or `most` itself where it is below four."""
    powers = [4**power for power in range(1, 9) if 4**power <= most]
    return powers or [most]


# The same of a run


def mi_bound(subject: Subject) -> Result:
    """EqCo's figure 1, over training and against K."""
    counts, tau, alpha, draws = _draws(subject)
    with_eqco = [information(draw, count, alpha) for count, draw in zip(counts, draws, strict=True)]
    without = [information(draw, count) for count, draw in zip(counts, draws, strict=True)]
    label = "lower bound on mutual information (nats)"
    curves = {
        "with EqCo": curve(counts, with_eqco, "negatives K", label),
        "without EqCo": curve(counts, without, "negatives K", label),
    }
    epochs, logged, notes = _logged_bound(subject.rows())
    if epochs:
        curves["over training"] = curve(epochs, logged, "epoch", label)
    first = (
        1 if len(counts) > 1 else 0
    )  # from K = 16 on, where the paper claims it: four are too few for a mean
    values = {
        f"range from K = {counts[first]} on with EqCo": max(with_eqco[first:])
        - min(with_eqco[first:]),
        f"range from K = {counts[first]} on without EqCo": max(without[first:])
        - min(without[first:]),
        f"bound at K = {counts[-1]}": without[-1],
    }
    return {
        "settings": _settings(subject, tau, alpha),
        "values": values,
        "curves": curves,
        "notes": notes,
    }


def gradient_norm(subject: Subject) -> Result:
    """EqCo's figure 4: mean and deviation of the gradient against K, at every kept checkpoint."""
    curves: dict[str, Any] = {}
    history = subject.history(EPOCHS)
    for moment in history:
        counts, tau, alpha, draws = _draws(moment)
        when = "" if moment is subject else f", epoch {moment.epoch:g}"
        widest = draws[-1], counts[-1]
        for name, weight in (("with EqCo", alpha), ("without EqCo", None)):
            norms = [
                gradient(draw, count, tau, weight)
                for count, draw in zip(counts, draws, strict=True)
            ]
            limits = [ceiling(*widest, tau, weight or count).mean() for count in counts]
            for what, numbers in {
                "mean": [norm.mean() for norm in norms],
                "std": [norm.std(correction=0) for norm in norms],
                "bound": limits,
            }.items():
                curves[f"{what} {name}{when}"] = _against(counts, numbers)
    values = {
        f"mean at K = {count} {name}": curves[f"mean {name}"]["y"][place]
        for name in ("with EqCo", "without EqCo")
        for place, count in ((0, counts[0]), (-1, counts[-1]))
    }
    notes = ["the gradient is with respect to the unit query, and the deviation is over queries"]
    if len(history) == 1:
        notes.append(
            "one checkpoint is kept; train.keep and train.checkpoint_every keep more of the training"
        )
    return {
        "settings": _settings(subject, tau, alpha),
        "values": values,
        "curves": curves,
        "notes": notes,
    }


def npc(subject: Subject) -> Result:
    """DCL's figure 1: mean, coefficient of variation and histogram of q_B against the batch size."""
    tau = _tau(subject)
    ids, seen = subject.pairs()
    sizes = [size for size in BATCHES if size <= len(ids)] or [len(ids)]
    mean, variation, histograms = [], [], {}
    with bar(len(sizes), "batch sizes", least=len(BATCHES)) as done:
        for size in sizes:
            key = rng.key(subject.seed, "npc", size, device=subject.device)
            found = multipliers(seen.head[0], seen.head[1], size, tau, key).double()
            mean.append(float(found.mean()))
            variation.append(float(found.std(correction=0)) / mean[-1])
            histograms[f"batch {size}"] = histogram(found, 0, 1, "q_B")
            done(1)
    curves = {
        "mean": curve(sizes, mean, "batch size", "mean of q_B"),
        "coefficient of variation": curve(
            sizes, variation, "batch size", "deviation of q_B over its mean"
        ),
    }
    logged = per_epoch(subject.rows(), "multiplier")
    if logged:
        curves["over training"] = curve(
            [*logged], [*logged.values()], "epoch", "mean of the multiplier in training"
        )
    last = f"at batch {sizes[-1]}"
    values = {f"mean {last}": mean[-1], f"coefficient of variation {last}": variation[-1]}
    settings = subject.settings(
        images=len(ids), tau=tau, features="head", views=subject.recipe.views.policy
    )
    return {"settings": settings, "values": values, "curves": curves, "histograms": histograms}


def _draws(subject: Subject) -> tuple[list[int], float, float, list[Drawn]]:
    """Numbers of negatives, tau, alpha, and what queries feel of each number; made once for both figures of EqCo."""
    if "draws" not in subject.kept:
        tau, (ids, seen) = _tau(subject), subject.pairs()
        if len(ids) < 2:
            raise ValueError(f"negatives need at least two images, got {len(ids)}")
        counts = grid(len(ids) - 1)
        q = min(len(ids), QUERIES[subject.device.type != "cpu"])
        queries, keys = seen.query[0, :q], seen.keys[-1]
        draws = [drawn(queries, keys, count, tau) for count in counts]
        subject.kept["draws"] = counts, tau, _alpha(subject)[0], draws
    found: tuple[list[int], float, float, list[Drawn]] = subject.kept["draws"]
    return found


def _alpha(subject: Subject) -> tuple[float, str]:
    """What EqCo's rule aims at, and why: its own alpha, or as many negatives as the run was trained against."""
    if subject.alpha:
        return subject.alpha, "the run's own"
    if subject.stored is not None:
        return float(len(subject.stored.vectors)), f"the run's {subject.stored.kind}"
    ids, _ = subject.pairs()
    return float(grid(len(ids) - 1)[-1]), "the largest K"


def _settings(subject: Subject, tau: float, alpha: float) -> dict[str, Any]:
    ids, _ = subject.pairs()
    source = _alpha(subject)[1]
    queries = min(len(ids), QUERIES[subject.device.type != "cpu"])
    return subject.settings(
        images=len(ids), queries=queries, tau=tau, alpha=alpha, alpha_from=source
    )


def _tau(subject: Subject) -> float:
    tau = subject.tau
    assert tau is not None, "the catalogue asks for a method with negatives"
    return tau


def _against(counts: Sequence[int], numbers: Sequence[Tensor]) -> Result:
    return curve(
        counts,
        [float(number) for number in numbers],
        "negatives K",
        "length of the gradient of a query",
    )


def _logged_bound(rows: list[dict[str, Any]]) -> tuple[list[float], list[float], list[str]]:
    """Epochs and the mean bound in each, from the log.

    The log has the bound now and then and the loss often; they differ by a constant, which one row with both tells.
    """
    both = next(
        (
            row
            for row in rows
            if row.get("mi_bound") is not None and row.get("contrast") is not None
        ),
        None,
    )
    if both is None:
        return (
            [],
            [],
            [
                "the log of this run holds no bound: it is kept for InfoNCE against a batch or a queue"
            ],
        )
    constant = both["mi_bound"] + both["contrast"]
    means = per_epoch(rows, "contrast")
    return [*means], [constant - mean for mean in means.values()], []


def per_epoch(rows: list[dict[str, Any]], name: str) -> dict[float, float]:
    """The mean of a logged number in each epoch, counted from one; a line stands for the steps since the one before.

    So the first step, which is always logged, is one of many: a queue of random vectors says much that is not learned.
    """
    found, before = dict[float, list[tuple[float, int]]](), -1
    for row in rows:
        if row.get(name) is not None:
            step = row.get("step", before + 1)
            found.setdefault(row["epoch"] + 1, []).append((row[name], max(1, step - before)))
            before = step
    return {
        epoch: sum(number * steps for number, steps in parts) / sum(steps for _, steps in parts)
        for epoch, parts in found.items()
    }
