"""Time and memory of JCL's closed form and of the vanilla baseline (JCL 2, figure M.2a).

Shapes: N queries, M keys of each query, K negatives, D features.
"""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from antipode import rng
from antipode.analysis.catalog import Analysis, each
from antipode.analysis.cost import kept_bytes, seconds
from antipode.analysis.embeddings import RunEmbeddings
from antipode.analysis.result import Result, curve
from antipode.core.scores import unit
from antipode.core.traits import strength
from antipode.data.progress import bar
from antipode.functional import info_nce, jcl

KEYS = [1, 2, 3, 5, 7, 9, 11]  # M' of figure M.2a
NEGATIVES = 8192, 65536  # maximum number on a CPU and on a GPU
REPEATS = 5  # timed calls, of which the median is taken
LABELS = {
    "time": "time of forward and backward pass (ms)",
    "memory": "kept for the backward pass (MiB)",
}


def jcl_complexity(subject: RunEmbeddings) -> Result:
    """Return time and memory of JCL's loss and of the vanilla baseline against M'.

    The vectors are random, with the sizes of the run.
    """
    n = subject.recipe.train.batch
    stored = subject.stored
    cap = NEGATIVES[subject.device.type != "cpu"]
    sizes = {
        "queries": n,
        "negatives": min(len(stored.vectors) if stored else 2 * n - 2, cap),
        "dim": _dim(subject),
    }
    tau = subject.tau or 0.2
    weight = strength(subject.learner)
    weight = 4.0 if weight is None else weight
    measured: dict[str, list[float]] = {}
    with bar(len(KEYS), "numbers of keys", least=1) as done:
        for m in KEYS:
            vectors = _vectors(subject.seed, m, subject.device, **sizes)
            for name, number in _both_losses(vectors, tau, weight).items():
                measured.setdefault(name, []).append(number)
            done(1)
    curves = {
        name: curve(KEYS, numbers, "keys M'", LABELS[name.split(",")[0]])
        for name, numbers in measured.items()
    }
    values = {}
    for what in LABELS:
        for place in (KEYS.index(5), -1):
            ratio = measured[f"{what}, vanilla"][place] / measured[f"{what}, closed form"][place]
            values[f"{what} of vanilla over closed form, M' = {KEYS[place]}"] = ratio
    settings = subject.settings(
        **sizes, tau=tau, strength=weight, device=subject.device.type, repeats=REPEATS
    )
    notes = [
        "measured with random unit vectors of the run's dimensions; the passes through the "
        "networks are not included"
    ]
    return {"settings": settings, "values": values, "curves": curves, "notes": notes}


def closed_form(
    query: Tensor, keys: Tensor, negatives: Tensor, tau: float, strength: float
) -> Tensor:
    """Return JCL's loss of queries (N,D), keys (M,N,D) and negatives (K,D).

    It needs one product with the negatives, whatever M is.
    """
    return jcl(query, keys, negatives, tau=tau, strength=strength)


def vanilla(query: Tensor, keys: Tensor, negatives: Tensor, tau: float) -> Tensor:
    """Return the baseline of the supplement: the mean of M ordinary losses.

    Each loss has its own product with the negatives.
    """
    return torch.stack([info_nce(query, key, negatives, tau=tau) for key in keys]).mean()


def _both_losses(
    vectors: tuple[Tensor, Tensor, Tensor], tau: float, strength: float
) -> dict[str, float]:
    """Measure time and memory of both losses on the same vectors."""
    losses: dict[str, Callable[[], Tensor]] = {
        "closed form": partial(closed_form, *vectors, tau, strength),
        "vanilla": partial(vanilla, *vectors, tau),
    }
    device = vectors[0].device
    measured: dict[str, float] = {}
    for name, loss in losses.items():
        step = partial(_forward_backward, loss)
        measured[f"time, {name}"] = 1000 * seconds(step, device, REPEATS)
        measured[f"memory, {name}"] = kept_bytes(loss, *vectors) / 2**20
    return measured


def _forward_backward(loss: Callable[[], Tensor]) -> None:
    loss().backward()  # type: ignore[no-untyped-call]


def _dim(subject: RunEmbeddings) -> int:
    """Return the number of dimensions of the projection."""
    weights = [weight for weight in subject.learner.online.head.parameters() if weight.ndim == 2]
    return int(weights[-1].shape[0])


def _vectors(
    seed: int, m: int, device: torch.device, *, queries: int, negatives: int, dim: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Return random unit queries (N,D) that require a gradient, keys (M,N,D), negatives (K,D)."""
    generator = rng.generator(seed, "jcl-complexity", m)
    shapes = ((queries,), (m, queries), (negatives,))
    query, keys, others = (unit(torch.randn(*shape, dim, generator=generator)) for shape in shapes)
    return query.to(device).requires_grad_(), keys.to(device), others.to(device)


ANALYSES = {
    "jcl-complexity": Analysis(
        each(jcl_complexity),
        "time and memory of JCL's closed form and of the vanilla loss against M'",
    )
}
