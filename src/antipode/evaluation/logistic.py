"""Multinomial logistic regression on frozen features, its penalty chosen on train images alone.

N images, D features, C classes. What is minimised is the mean cross-entropy plus penalty/2 |W|^2; the bias is free.
scikit-learn's C is 1/(N penalty). The parameters are (D+1,C), the bias last.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from antipode import rng
from antipode.core.scores import product, raised
from antipode.data.progress import bar
from antipode.evaluation.nearest import one_each
from antipode.evaluation.score import Result
from antipode.evaluation.task import Task
from antipode.types import Features

GRID = tuple(
    10.0 ** (-half / 2) for half in range(15)
)  # 1 to 1e-7; strong first, so that each fit starts near its end
FOLDS = 3
TOLERANCE = 1e-5  # of the largest entry of the scaled gradient
ROUGH = 1e-4  # in the folds: a few images in ten thousand still change sides, which chooses no other penalty
STEPS = 500  # of one fit, where the tolerance is out of reach
PIECE = (
    1 << 20
)  # numbers of one piece of features or logits: both products of a piece find it in the cache
NUMBERS = (
    "logistic regression needs features that are numbers, and some are infinite or not a number"
)


def linear_fast(task: Task) -> Result:
    """Top-1 accuracy of a full-batch logistic regression, by L-BFGS, on standardised features.

    The penalty is the one of `GRID` with most held-out train images right in 3 folds; the fit is repeated on all.
    """
    one_each(task, "logistic regression")
    n = len(task.labels("train"))
    if n < FOLDS:
        raise ValueError(f"{FOLDS} folds need as many train images, and {task.splits.name} has {n}")
    parts = task.features("train"), task.features("test")
    found = classify(*parts, device=task.device, seed=task.seed, penalties=GRID)
    settings = {
        "penalty": found.penalty,
        "penalties": list(GRID),
        "folds": FOLDS,
        "chosen by": "held-out train images right",
        "objective": "mean cross-entropy + penalty/2 |W|^2",
        "features": "backbone, each at mean 0 and deviation 1 on train",
        "optimiser": f"L-BFGS to a scaled gradient of {TOLERANCE:g}, in the folds {ROUGH:g}",
    }
    right = found.ranks == 0
    top5 = {"top5": 100 * (found.ranks < 5).double().mean().item()} if task.classes > 5 else {}
    more = top5 | {
        "held-out top1": dict(
            zip((f"{penalty:.2g}" for penalty in GRID), found.held_out, strict=True)
        )
    }
    return Result(100 * right.double().mean().item(), "% top-1", settings, len(right), more)


class Found(NamedTuple):
    """The chosen penalty, percent right of each penalty on held-out images, ranks (N,) of the true classes on test."""

    penalty: float
    held_out: list[float]
    ranks: Tensor


class Frame(NamedTuple):
    """Standardised features along their principal axes: (x - mean) @ axes, of variances `spread`.

    A turn changes neither the objective nor its minimum, and makes the Hessian almost diagonal there: on correlated
    features L-BFGS needs tens of steps where it would need hundreds.
    """

    mean: Tensor  # (D,)
    axes: Tensor  # (D,D)
    spread: Tensor  # (D,)

    def __call__(self, x: Tensor) -> Tensor:
        """Features (N,D) in this frame, on its device."""
        return product(x.to(self.axes) - self.mean, self.axes.T)


def classify(
    train: Features,
    test: Features,
    *,
    device: torch.device | str = "cpu",
    seed: int = 0,
    penalties: Sequence[float] = GRID,
) -> Found:
    """Choose a penalty by folds of train (N,D), fit on all of it, rank the true class of every test image."""
    names, y = torch.unique(
        train.y, return_inverse=True
    )  # a class without train images would send its bias to infinity
    order, folds = dealt(y, seed)
    frame = standard(raised(train.x), device)
    x, y = turned(train.x[order], frame), y[order].to(device)
    penalty, held_out, start = choose(x, y, folds, frame.spread, penalties, len(names))
    theta = fit(x, y, [slice(0, len(x))], frame.spread, penalty, start)
    probe = turned(test.x, frame)
    if not probe.sum().isfinite():
        raise ValueError(NUMBERS)
    ranks = ranked(probe, theta)
    place = torch.searchsorted(names, test.y).clamp(max=len(names) - 1)
    mine = ranks.gather(1, place[:, None]).squeeze(1)
    return Found(penalty, held_out, torch.where(names[place] == test.y, mine, len(names)))


def dealt(y: Tensor, seed: int) -> tuple[Tensor, list[slice]]:
    """An order of the images (N,) whose slices are folds; each class is dealt out evenly and by chance."""
    chance = rng.permutation(rng.key(seed, "folds"), len(y))
    by_class = chance[y[chance].argsort(stable=True)]
    parts = [by_class[fold::FOLDS] for fold in range(FOLDS)]
    ends = [sum(map(len, parts[:fold])) for fold in range(FOLDS + 1)]
    return torch.cat(parts), [slice(*pair) for pair in pairwise(ends)]


def standard(x: Tensor, device: torch.device | str) -> Frame:
    """The frame of features (N,D); one that does not vary beyond rounding keeps its scale."""
    deviation, mean = torch.std_mean(x, 0, correction=0)
    if not deviation.isfinite().all():
        raise ValueError(NUMBERS)
    rounding = 10 * torch.finfo(x.dtype).eps * mean.abs()
    scale = torch.where(deviation > rounding, deviation, torch.ones_like(deviation)).to(device)
    mean, covariance = (
        mean.to(device),
        torch.zeros(x.shape[1], x.shape[1], dtype=x.dtype, device=device),
    )
    for part in torch.split(x, rows_of(x)):
        z = (part.to(device) - mean) / scale
        covariance += product(z.T, z.T)
    spread, axes = torch.linalg.eigh(covariance.cpu().double() / len(x))
    return Frame(mean, axes.to(scale) / scale[:, None], spread.clamp(min=0))


def turned(x: Tensor, frame: Frame) -> Tensor:
    """Features (N,D) in a frame, piece by piece."""
    out = torch.empty(x.shape, dtype=frame.axes.dtype, device=frame.axes.device)
    for start in range(0, len(x), rows_of(x)):
        out[start : start + rows_of(x)] = frame(x[start : start + rows_of(x)])
    return out


def rows_of(x: Tensor, classes: int = 1) -> int:
    """Rows of one piece."""
    return max(1, PIECE // max(x.shape[1], classes))


def choose(
    x: Tensor,
    y: Tensor,
    folds: list[slice],
    spread: Tensor,
    penalties: Sequence[float],
    classes: int,
) -> tuple[float, list[float], Tensor]:
    """The penalty with most held-out images right (the stronger of two equals), percents, and a start for the rest."""
    right = [0] * len(penalties)
    paths: list[list[Tensor]] = [[] for _ in penalties]
    with bar(len(folds) * len(penalties), "penalties", least=1) as done:
        for fold in folds:
            others = [rows for rows in folds if rows != fold]
            theta = torch.zeros(x.shape[1] + 1, classes, dtype=torch.float64)
            for place, penalty in enumerate(penalties):
                theta = fit(x, y, others, spread, penalty, theta, ROUGH)
                paths[place].append(theta)
                right[place] += int((logits(x[fold], theta).argmax(1) == y[fold]).sum())
                done(1)
    best = right.index(max(right))
    return (
        penalties[best],
        [100 * each / len(x) for each in right],
        torch.stack(paths[best]).mean(0),
    )


def fit(
    x: Tensor,
    y: Tensor,
    parts: list[slice],
    spread: Tensor,
    penalty: float,
    start: Tensor,
    tolerance: float = TOLERANCE,
) -> Tensor:
    """Parameters (D+1,C) in float64 that minimise the objective on the rows `parts` of x (N,D) and y (N,).

    L-BFGS works on parameters scaled by the root of a guess of the Hessian's diagonal, spread / C + penalty.
    """
    curvature = torch.cat(
        [spread / start.shape[1] + penalty, spread.new_full((1,), 1 / start.shape[1])]
    )
    scale = curvature.rsqrt()[:, None]
    scaled = (start / scale).requires_grad_()
    rows = rows_of(x, start.shape[1])
    pieces = [
        slice(at, min(at + rows, part.stop))
        for part in parts
        for at in range(part.start, part.stop, rows)
    ]
    optimiser = torch.optim.LBFGS(
        [scaled],
        max_iter=STEPS,
        max_eval=2 * STEPS,
        tolerance_grad=tolerance,
        tolerance_change=1e-9,
        history_size=20,
        line_search_fn="strong_wolfe",
    )

    def closure() -> Tensor:
        value, gradient = objective(x, y, pieces, scaled.detach() * scale, penalty)
        scaled.grad = gradient * scale
        return value

    optimiser.step(closure)  # type: ignore[no-untyped-call]
    return scaled.detach() * scale


def objective(
    x: Tensor, y: Tensor, pieces: list[slice], theta: Tensor, penalty: float
) -> tuple[Tensor, Tensor]:
    """Value () and gradient (D+1,C), float64 on the CPU: a GPU does the products, what is left is small."""
    weight, bias = theta[:-1].T.to(x), theta[-1].to(x)
    slope, pull, losses = torch.zeros_like(weight), torch.zeros_like(bias), []
    for rows in pieces:
        scores, own = product(x[rows], weight) + bias, y[rows, None]
        total = scores.logsumexp(1, keepdim=True)
        losses.append(total - scores.gather(1, own))
        error = (scores - total).exp_().scatter_add_(1, own, -torch.ones_like(total))
        slope += product(error.T, x[rows].T)
        pull += error.sum(0)
    n = sum(rows.stop - rows.start for rows in pieces)
    # summed in float64: float32 would hide the last steps' gain from the line search. On a GPU itself, where it can:
    # 50,000 numbers a step on the host keep as many of its cores busy as there are
    single = torch.cat(losses)
    double = single.double() if single.device.type == "cuda" else single.cpu().double()
    value = double.sum().cpu() / n + penalty / 2 * theta[:-1].square().sum()
    gradient = torch.cat([slope.T, pull[None]]).cpu().double() / n
    gradient[:-1] += penalty * theta[:-1]
    return value, gradient


def logits(x: Tensor, theta: Tensor) -> Tensor:
    """Scores (N,C) of features (N,D) in the frame."""
    return product(x, theta[:-1].T.to(x)) + theta[-1].to(x)


def ranked(x: Tensor, theta: Tensor) -> Tensor:
    """Ranks (N,C) of the classes, 0 the best, on the CPU."""
    pieces = [logits(part, theta) for part in torch.split(x, rows_of(x, theta.shape[1]))]
    return torch.cat(
        [
            torch.argsort(part, dim=1, descending=True, stable=True).argsort(1).cpu()
            for part in pieces
        ]
    )
