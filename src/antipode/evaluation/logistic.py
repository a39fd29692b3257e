"""Multinomial logistic regression on frozen features. Only train images choose the penalty.

The objective is the mean cross-entropy plus penalty/2 |W|^2; the bias is not penalised. In terms of
scikit-learn, C = 1/(N penalty). The parameters are one matrix (D+1,C) whose last row is the bias.
N images, D features, C classes.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from antipode import rng
from antipode.core.scores import product, raised
from antipode.data.progress import bar
from antipode.evaluation.accuracy import classification, top5
from antipode.evaluation.nearest import one_each
from antipode.evaluation.score import Result
from antipode.evaluation.task import Task
from antipode.types import Features

# Penalties from 1 to 1e-7. The strongest comes first: each fit starts at the solution of the
# previous penalty, which is then close to its own.
GRID = tuple(10.0 ** (-half / 2) for half in range(15))
FOLDS = 3
TOLERANCE = 1e-5  # bound on the largest entry of the scaled gradient
# The tolerance in the folds. Beyond it a few predictions in ten thousand still change, which does
# not change the choice of the penalty.
ROUGH = 1e-4
STEPS = 500  # limit on the steps of one fit, for fits that cannot reach the tolerance
# Numbers in one piece of the features or logits. A piece stays in the CPU cache for both matrix
# products of a step.
PIECE = 1 << 20
NUMBERS = "logistic regression needs finite features, but some are NaN or infinite"


def linear_fast(task: Task) -> Result:
    """Compute the top-1 accuracy of a full-batch logistic regression on standardised features.

    The optimiser is L-BFGS. The penalty is the value of `GRID` that classifies most held-out train
    images correctly in 3-fold cross-validation. The final fit uses all train images.
    """
    one_each(task, "logistic regression")
    n = len(task.labels("train"))
    if n < FOLDS:
        raise ValueError(
            f"logistic regression with {FOLDS} folds needs at least {FOLDS} train images, "
            f"but {task.splits.name} has {n}"
        )
    train = task.features("train")
    test = task.features("test")
    result = classify(train, test, device=task.device, seed=task.seed, penalties=GRID)
    settings = {
        "penalty": result.penalty,
        "penalties": list(GRID),
        "folds": FOLDS,
        "chosen by": "accuracy on held-out train images",
        "objective": "mean cross-entropy + penalty/2 |W|^2",
        "features": "backbone, standardised to mean 0 and standard deviation 1 on train",
        "optimiser": f"L-BFGS to a scaled gradient of {TOLERANCE:g} ({ROUGH:g} in the folds)",
    }
    ranks = result.ranks.cpu()
    names = (f"{penalty:.2g}" for penalty in GRID)
    held_out = {"held-out top1": dict(zip(names, result.held_out, strict=True))}
    more = top5(ranks < 5, task.classes) | held_out
    return classification(ranks == 0, test.y, settings, seed=task.seed, more=more)


class Classification(NamedTuple):
    """The result of `classify`."""

    penalty: float  # the chosen one
    held_out: list[float]  # accuracy in percent on held-out train images, for each penalty
    # (N,) rank of the true class of each test image: 0 for the predicted class, C (the last) for a
    # class without train images
    ranks: Tensor


class Frame(NamedTuple):
    """A map of features to their standardised principal components: (x - mean) @ axes.

    The rotation changes neither the objective nor its minimum, but makes the Hessian at the minimum
    almost diagonal. On correlated features L-BFGS then needs tens of steps instead of hundreds.
    """

    mean: Tensor  # (D,)
    axes: Tensor  # (D,D), includes the division by the standard deviations
    spread: Tensor  # (D,) variances of the components

    def __call__(self, x: Tensor) -> Tensor:
        """Return features (N,D) in this frame, on the frame's device."""
        return product(x.to(self.axes) - self.mean, self.axes.T)


def classify(
    train: Features,
    test: Features,
    *,
    device: torch.device | str = "cpu",
    seed: int = 0,
    penalties: Sequence[float] = GRID,
) -> Classification:
    """Choose a penalty by cross-validation on train, fit on all of it and classify test.

    train and test have features (N,D) and labels (N,).
    """
    # Only classes with train images take part: the bias of any other would go to minus infinity.
    names, y = torch.unique(train.y, return_inverse=True)
    order, folds = dealt(y, seed)
    frame = standard(raised(train.x), device)
    x = turned(train.x[order], frame)
    y = y[order].to(device)
    penalty, held_out, start = choose(x, y, folds, frame.spread, penalties, len(names))
    theta = fit(x, y, [slice(0, len(x))], frame.spread, penalty, start)
    test_x = turned(test.x, frame)
    if not test_x.sum().isfinite():
        raise ValueError(NUMBERS)
    ranks = ranked(test_x, theta)
    column = torch.searchsorted(names, test.y).clamp(max=len(names) - 1)
    true_ranks = ranks.gather(1, column[:, None]).squeeze(1)
    known = names[column] == test.y
    return Classification(penalty, held_out, torch.where(known, true_ranks, len(names)))


def dealt(y: Tensor, seed: int) -> tuple[Tensor, list[slice]]:
    """Return a random order (N,) of the images and the folds, which are slices of that order.

    Each class of y (N,) is distributed evenly over the folds.
    """
    shuffled = rng.permutation(rng.key(seed, "folds"), len(y))
    by_class = shuffled[y[shuffled].argsort(stable=True)]
    parts = [by_class[fold::FOLDS] for fold in range(FOLDS)]
    ends = [sum(map(len, parts[:fold])) for fold in range(FOLDS + 1)]
    return torch.cat(parts), [slice(*pair) for pair in pairwise(ends)]


def standard(x: Tensor, device: torch.device | str) -> Frame:
    """Return the frame of features (N,D).

    A feature that is constant up to rounding errors is not rescaled.
    """
    deviation, mean = torch.std_mean(x, 0, correction=0)
    if not deviation.isfinite().all():
        raise ValueError(NUMBERS)
    rounding = 10 * torch.finfo(x.dtype).eps * mean.abs()
    scale = torch.where(deviation > rounding, deviation, torch.ones_like(deviation)).to(device)
    mean = mean.to(device)
    covariance = torch.zeros(x.shape[1], x.shape[1], dtype=x.dtype, device=device)
    for part in torch.split(x, rows_of(x)):
        z = (part.to(device) - mean) / scale
        covariance += product(z.T, z.T)
    spread, axes = torch.linalg.eigh(covariance.cpu().double() / len(x))
    return Frame(mean, axes.to(scale) / scale[:, None], spread.clamp(min=0))


def turned(x: Tensor, frame: Frame) -> Tensor:
    """Return features (N,D) in a frame, computed in pieces."""
    out = torch.empty(x.shape, dtype=frame.axes.dtype, device=frame.axes.device)
    for start in range(0, len(x), rows_of(x)):
        out[start : start + rows_of(x)] = frame(x[start : start + rows_of(x)])
    return out


def rows_of(x: Tensor, classes: int = 1) -> int:
    """Return the number of rows in one piece of features (N,D) or of their logits (N,C)."""
    return max(1, PIECE // max(x.shape[1], classes))


def choose(
    x: Tensor,
    y: Tensor,
    folds: list[slice],
    spread: Tensor,
    penalties: Sequence[float],
    classes: int,
) -> tuple[float, list[float], Tensor]:
    """Choose the penalty by cross-validation.

    Return the chosen penalty, the held-out accuracy of every penalty in percent, and parameters
    (D+1,C) from which to start the final fit. The chosen penalty classifies most held-out images
    correctly; among equals it is the strongest. The start is the mean of the folds' solutions.
    """
    correct = [0] * len(penalties)
    solutions: list[list[Tensor]] = [[] for _ in penalties]
    with bar(len(folds) * len(penalties), "penalties", least=1) as advance:
        for fold in folds:
            others = [rows for rows in folds if rows != fold]
            theta = torch.zeros(x.shape[1] + 1, classes, dtype=torch.float64)
            for index, penalty in enumerate(penalties):
                theta = fit(x, y, others, spread, penalty, theta, ROUGH)
                solutions[index].append(theta)
                correct[index] += int((logits(x[fold], theta).argmax(1) == y[fold]).sum())
                advance(1)
    best = correct.index(max(correct))
    percents = [100 * count / len(x) for count in correct]
    return penalties[best], percents, torch.stack(solutions[best]).mean(0)


def fit(
    x: Tensor,
    y: Tensor,
    parts: list[slice],
    spread: Tensor,
    penalty: float,
    start: Tensor,
    tolerance: float = TOLERANCE,
) -> Tensor:
    """Return the parameters (D+1,C), in float64, that minimise the objective on rows of x and y.

    `parts` are the rows of x (N,D) and y (N,) to use. L-BFGS works on the parameters times the
    square root of an estimate of the Hessian's diagonal, spread / C + penalty.
    """
    classes = start.shape[1]
    curvature = torch.cat([spread / classes + penalty, spread.new_full((1,), 1 / classes)])
    scale = curvature.rsqrt()[:, None]
    scaled = (start / scale).requires_grad_()
    rows = rows_of(x, classes)
    pieces = [
        slice(first, min(first + rows, part.stop))
        for part in parts
        for first in range(part.start, part.stop, rows)
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
    """Return the objective () and its gradient (D+1,C), in float64 on the CPU.

    The matrix products run on the device of x (N,D); the rest is small.
    """
    weight = theta[:-1].T.to(x)
    bias = theta[-1].to(x)
    weight_gradient = torch.zeros_like(weight)
    bias_gradient = torch.zeros_like(bias)
    losses = []
    for rows in pieces:
        scores = product(x[rows], weight) + bias
        label = y[rows, None]
        total = scores.logsumexp(1, keepdim=True)
        losses.append(total - scores.gather(1, label))
        error = (scores - total).exp_().scatter_add_(1, label, -torch.ones_like(total))
        weight_gradient += product(error.T, x[rows].T)
        bias_gradient += error.sum(0)
    n = sum(rows.stop - rows.start for rows in pieces)
    # The losses are summed in float64: in float32 the line search could not see the small gains of
    # the last steps. If x is on a CUDA device, the sum runs there: summing 50,000 numbers per step
    # on the host would occupy all of its cores.
    single = torch.cat(losses)
    double = single.double() if single.device.type == "cuda" else single.cpu().double()
    value = double.sum().cpu() / n + penalty / 2 * theta[:-1].square().sum()
    gradient = torch.cat([weight_gradient.T, bias_gradient[None]]).cpu().double() / n
    gradient[:-1] += penalty * theta[:-1]
    return value, gradient


def logits(x: Tensor, theta: Tensor) -> Tensor:
    """Return the logits (N,C) of features (N,D) in the frame."""
    return product(x, theta[:-1].T.to(x)) + theta[-1].to(x)


def ranked(x: Tensor, theta: Tensor) -> Tensor:
    """Return the rank of every class (N,C), 0 for the largest logit, on the CPU."""
    pieces = [logits(part, theta) for part in torch.split(x, rows_of(x, theta.shape[1]))]
    orders = (torch.argsort(part, dim=1, descending=True, stable=True) for part in pieces)
    return torch.cat([order.argsort(1).cpu() for order in orders])
