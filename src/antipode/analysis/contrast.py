"""Analyses of how the number of negatives changes the loss, after the figures of EqCo and DCL.

They cover the bound on mutual information and the gradient (EqCo) and the multiplier q_B (DCL).
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

from torch import Tensor

from antipode import rng
from antipode.analysis.embeddings import RunEmbeddings
from antipode.analysis.formulas import (
    QueryTerms,
    ceiling,
    gradient,
    information,
    multipliers,
    query_terms,
)
from antipode.analysis.result import Result, curve, histogram
from antipode.data.progress import bar

QUERIES = 1024, 16384  # queries to average over, on a CPU and on a GPU
EPOCHS = 8  # maximum number of checkpoints at which gradients are measured
BATCHES = [4, 8, 16, 32, 64, 128, 256, 512, 1024]


class Draws(NamedTuple):
    """The terms of the same queries for several numbers of negatives."""

    counts: list[int]  # numbers of negatives
    tau: float
    alpha: float
    terms: list[QueryTerms]  # one for each of `counts`


def grid(most: int) -> list[int]:
    """Return numbers of negatives: powers of four up to `most`, or `most` if it is below four."""
    powers = [4**power for power in range(1, 9) if 4**power <= most]
    return powers or [most]


def mi_bound(subject: RunEmbeddings) -> Result:
    """Return figure 1 of EqCo: the bound on mutual information against K and over training."""
    draws = _draws(subject)
    counts = draws.counts
    pairs = list(zip(draws.terms, counts, strict=True))
    with_eqco = [information(terms, count, draws.alpha) for terms, count in pairs]
    without = [information(terms, count) for terms, count in pairs]
    label = "lower bound on mutual information (nats)"
    curves = {
        "with EqCo": curve(counts, with_eqco, "negatives K", label),
        "without EqCo": curve(counts, without, "negatives K", label),
    }
    epochs, logged, notes = _logged_bound(subject.rows())
    if epochs:
        curves["over training"] = curve(epochs, logged, "epoch", label)
    # the paper's claim starts at K = 16: four negatives are too few to estimate a mean
    first = 1 if len(counts) > 1 else 0
    start = f"range from K = {counts[first]} on"
    values = {
        f"{start} with EqCo": max(with_eqco[first:]) - min(with_eqco[first:]),
        f"{start} without EqCo": max(without[first:]) - min(without[first:]),
        f"bound at K = {counts[-1]}": without[-1],
    }
    return {
        "settings": _settings(subject, draws),
        "values": values,
        "curves": curves,
        "notes": notes,
    }


def gradient_norm(subject: RunEmbeddings) -> Result:
    """Return figure 4 of EqCo: mean and standard deviation of the gradient norm against K.

    They are measured at every stored checkpoint.
    """
    curves: dict[str, Any] = {}
    history = subject.history(EPOCHS)
    for moment in history:
        when = "" if moment is subject else f", epoch {moment.epoch:g}"
        curves |= _gradient_curves(_draws(moment), when)
    draws = _draws(subject)
    values = {
        f"mean at K = {count} {name}": curves[f"mean {name}"]["y"][place]
        for name in ("with EqCo", "without EqCo")
        for place, count in ((0, draws.counts[0]), (-1, draws.counts[-1]))
    }
    notes = [
        "the gradient is with respect to the unit query; the standard deviation is over queries"
    ]
    if len(history) == 1:
        notes.append(
            "the run has one checkpoint; train.keep and train.checkpoint_every keep more of them"
        )
    return {
        "settings": _settings(subject, draws),
        "values": values,
        "curves": curves,
        "notes": notes,
    }


def _gradient_curves(draws: Draws, when: str) -> dict[str, Any]:
    """Return mean, standard deviation and bound of the gradient norm against K, by name."""
    counts, tau, alpha, terms = draws
    curves: dict[str, Any] = {}
    for name, weight in (("with EqCo", alpha), ("without EqCo", None)):
        norms = [gradient(t, count, tau, weight) for count, t in zip(counts, terms, strict=True)]
        # the largest draw estimates the expectation in the bound
        bounds = [ceiling(terms[-1], counts[-1], tau, weight or count).mean() for count in counts]
        curves |= {
            f"mean {name}{when}": _against(counts, [norm.mean() for norm in norms]),
            f"std {name}{when}": _against(counts, [norm.std(correction=0) for norm in norms]),
            f"bound {name}{when}": _against(counts, bounds),
        }
    return curves


def npc(subject: RunEmbeddings) -> Result:
    """Return figure 1 of DCL: q_B against the batch size.

    It has the mean, the coefficient of variation and the histograms of q_B.
    """
    tau = _tau(subject)
    ids, views = subject.pairs()
    sizes = [size for size in BATCHES if size <= len(ids)] or [len(ids)]
    mean: list[float] = []
    variation: list[float] = []
    histograms: dict[str, Result] = {}
    with bar(len(sizes), "batch sizes", least=len(BATCHES)) as done:
        for size in sizes:
            key = rng.key(subject.seed, "npc", size, device=subject.device)
            factors = multipliers(views.head[0], views.head[1], size, tau, key).double()
            mean.append(float(factors.mean()))
            variation.append(float(factors.std(correction=0)) / mean[-1])
            histograms[f"batch {size}"] = histogram(factors, 0, 1, "q_B")
            done(1)
    curves = {
        "mean": curve(sizes, mean, "batch size", "mean of q_B"),
        "coefficient of variation": curve(
            sizes, variation, "batch size", "standard deviation of q_B / its mean"
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


def _draws(subject: RunEmbeddings) -> Draws:
    """Return the terms for each number of negatives, computed once for both figures of EqCo."""
    if "draws" not in subject.cache:
        tau = _tau(subject)
        keys = subject.keys()
        views, images = keys.shape[:2]
        if images < 2:
            raise ValueError(f"negatives need at least two images, got {images}")
        counts = grid(views * (images - 1))
        queries = _queries(subject)
        terms = [query_terms(queries, keys, count, tau) for count in counts]
        subject.cache["draws"] = Draws(counts, tau, _alpha(subject, counts[-1])[0], terms)
    draws: Draws = subject.cache["draws"]
    return draws


def _queries(subject: RunEmbeddings) -> Tensor:
    """Return the queries (Q,D): the first view of the first images."""
    _, views = subject.pairs()
    return views.query[0, : QUERIES[subject.device.type != "cpu"]]


def _alpha(subject: RunEmbeddings, largest: int) -> tuple[float, str]:
    """Return the number of negatives that EqCo's margin imitates, and where it comes from.

    It is the alpha of the run, or else the number of negatives that the run was trained with, or
    else the largest number that is drawn.
    """
    if subject.alpha:
        return subject.alpha, "the run's own"
    if subject.stored is not None:
        return float(len(subject.stored.vectors)), f"the run's {subject.stored.kind}"
    return float(largest), "the largest K"


def _settings(subject: RunEmbeddings, draws: Draws) -> dict[str, Any]:
    views, images = subject.keys().shape[:2]
    return subject.settings(
        images=images,
        views=views,
        queries=len(_queries(subject)),
        tau=draws.tau,
        alpha=draws.alpha,
        alpha_from=_alpha(subject, draws.counts[-1])[1],
    )


def _tau(subject: RunEmbeddings) -> float:
    tau = subject.tau
    assert tau is not None, "the catalogue requires a method with negatives"
    return tau


def _against(counts: Sequence[int], numbers: Sequence[Tensor]) -> Result:
    label = "length of the gradient of a query"
    return curve(counts, [float(number) for number in numbers], "negatives K", label)


def _logged_bound(rows: list[dict[str, Any]]) -> tuple[list[float], list[float], list[str]]:
    """Return epochs, the mean bound in each epoch, and notes, from the log.

    The log has the loss more often than the bound. The two differ by a constant, which is computed
    from a row that has both.
    """
    names = ("mi_bound", "contrast")
    both = next((row for row in rows if all(row.get(name) is not None for name in names)), None)
    if both is None:
        note = (
            "the log of this run has no bound: it is logged for InfoNCE with negatives from the "
            "batch or from a queue"
        )
        return [], [], [note]
    constant = both["mi_bound"] + both["contrast"]
    means = per_epoch(rows, "contrast")
    return [*means], [constant - mean for mean in means.values()], []


def per_epoch(rows: list[dict[str, Any]], name: str) -> dict[float, float]:
    """Return the mean of a logged metric in each epoch, with epochs counted from 1.

    A row is weighted by the number of steps since the row before. So the first step, which is
    always logged, has the weight of one step: with a queue of random vectors its loss is not
    representative.
    """
    logged: dict[float, list[tuple[float, int]]] = {}
    before = -1
    for row in rows:
        if row.get(name) is not None:
            step = row.get("step", before + 1)
            logged.setdefault(row["epoch"] + 1, []).append((row[name], max(1, step - before)))
            before = step
    return {
        epoch: sum(number * steps for number, steps in parts) / sum(steps for _, steps in parts)
        for epoch, parts in logged.items()
    }
