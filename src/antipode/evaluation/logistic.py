"""Multinomial logistic regression on frozen features. Only train images choose the penalty.

The objective is the mean cross-entropy plus penalty/2 |W|^2; the bias is not penalised. In terms of
scikit-learn, C = 1/(N penalty). The parameters are one matrix (D+1,C) whose last row is the bias.
N images, D features, C classes.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from antipode import dist, rng
from antipode.core.pieces import cut, on_device
from antipode.core.scores import ieee, product, raised
from antipode.data.progress import bar
from antipode.evaluation.accuracy import classification, top5
from antipode.evaluation.frame import NUMBERS, Frame, rows_of, standard, turned, wide
from antipode.evaluation.lbfgs import minimise
from antipode.evaluation.nearest import one_each
from antipode.evaluation.score import Result
from antipode.evaluation.storage import empty
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


def classify(
    train: Features,
    test: Features,
    *,
    device: torch.device | str = "cpu",
    seed: int = 0,
    penalties: Sequence[float] = GRID,
) -> Classification:
    """Choose a penalty by cross-validation on train, fit on all of it and classify test.

    train and test have features (N,D) and labels (N,). With several ranks, all of them call this
    function with the same features, and each works with its share of the train images. The train
    features are copied once: to the device, or to host memory if they do not fit there.
    """
    device = torch.device(device)
    # Only classes with train images take part: the bias of any other would go to minus infinity.
    names, y = torch.unique(train.y, return_inverse=True)
    order, folds = shared(*dealt(y, seed))
    x = loaded(train.x, order, device)
    frame = standard(x, device)
    x = turned(x, frame, out=x)
    rows = Rows(x, y[order].to(device), device)
    penalty, held_out, start = choose(rows, folds, frame.spread, penalties, len(names))
    theta = fit(rows, [slice(0, len(x))], frame.spread, penalty, start)
    column = torch.searchsorted(names, test.y.cpu()).clamp(max=len(names) - 1)
    ranks = ranked(test.x, column, frame, theta)
    known = names[column] == test.y.cpu()
    return Classification(penalty, held_out, torch.where(known, ranks, len(names)))


def dealt(y: Tensor, seed: int) -> tuple[Tensor, list[slice]]:
    """Return a random order (N,) of the images and the folds, which are slices of that order.

    Each class of y (N,) is distributed evenly over the folds.
    """
    shuffled = rng.permutation(rng.key(seed, "folds"), len(y))
    by_class = shuffled[y[shuffled].argsort(stable=True)]
    return joined([by_class[fold::FOLDS] for fold in range(FOLDS)])


def shared(order: Tensor, folds: list[slice]) -> tuple[Tensor, list[slice]]:
    """Return the images of this rank in the order, and the folds as slices of them."""
    return joined([order[fold][dist.rank() :: dist.world()] for fold in folds])


def joined(parts: list[Tensor]) -> tuple[Tensor, list[slice]]:
    """Return the concatenated parts and the slice of each of them."""
    ends = [sum(map(len, parts[:number])) for number in range(len(parts) + 1)]
    return torch.cat(parts), [slice(*pair) for pair in pairwise(ends)]


def loaded(x: Tensor, order: Tensor, device: torch.device) -> Tensor:
    """Return the rows `order` of features (N,D), in the fastest memory that has room for them.

    x is read from its beginning to its end, because it may be a memory-mapped file.
    """
    place = torch.full((len(x),), -1)
    place[order] = torch.arange(len(order))
    out = empty((len(order), x.shape[1]), raised(x[:0]).dtype, device=device)
    for rows, piece in on_device(x, cut(len(x), rows_of(x, device=device)), out.device):
        mine = (place[rows] >= 0).nonzero().flatten()
        chosen = piece if len(mine) == len(piece) else piece[mine.to(out.device)]
        out[place[rows][mine].to(out.device)] = chosen.to(out.dtype)
    return out


class Rows(NamedTuple):
    """Features (N,D) in their frame, their classes (N,), and the device to compute on.

    The features may be on the host if they do not fit on the device.
    """

    x: Tensor
    y: Tensor  # on the device
    device: torch.device

    def pieces(self, parts: list[slice], classes: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield features (n,D) and classes (n,) of parts of the rows, on the device."""
        most = rows_of(self.x, classes, device=self.device)
        slices = [rows for part in parts for rows in cut(part.stop, most, part.start)]
        for rows, piece in on_device(self.x, slices, self.device):
            yield piece, self.y[rows]


def choose(
    rows: Rows,
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
    correct = torch.zeros(len(penalties), dtype=torch.int64, device=rows.device)
    means = [torch.zeros(())] * len(penalties)
    with bar(len(folds) * len(penalties), "penalties", least=1) as advance:
        for fold in folds:
            others = [part for part in folds if part != fold]
            theta = torch.zeros(rows.x.shape[1] + 1, classes, dtype=torch.float64)
            for index, penalty in enumerate(penalties):
                theta = fit(rows, others, spread, penalty, theta, ROUGH)
                means[index] = means[index] + theta / len(folds)
                for x, y in rows.pieces([fold], classes):
                    correct[index] += (logits(x, theta).argmax(1) == y).sum()
                advance(1)
    counts = dist.total(correct).tolist()
    best = counts.index(max(counts))
    count = int(dist.total(torch.tensor(len(rows.x), device=rows.device)))
    return penalties[best], [100 * right / count for right in counts], means[best]


def fit(
    rows: Rows,
    parts: list[slice],
    spread: Tensor,
    penalty: float,
    start: Tensor,
    tolerance: float = TOLERANCE,
) -> Tensor:
    """Return the parameters (D+1,C), in float64, that minimise the objective on parts of the rows.

    L-BFGS works on the parameters times the square root of an estimate of the Hessian's diagonal,
    spread / C + penalty. Parameters and gradients stay on the device.
    """
    classes = start.shape[1]
    curvature = torch.cat([spread / classes + penalty, spread.new_full((1,), 1 / classes)])
    scale = curvature.rsqrt()[:, None].to(wide(rows.device))
    count = sum(part.stop - part.start for part in parts)
    total = dist.total(torch.tensor(float(count), device=wide(rows.device)))

    def function(scaled: Tensor) -> tuple[Tensor, Tensor]:
        theta = scaled.view(start.shape) * scale
        value, gradient = objective(rows, parts, theta, penalty, float(total))
        return value, (gradient * scale).flatten()

    first = (start.to(scale) / scale).flatten()
    return minimise(function, first, tolerance=tolerance, steps=STEPS).view(start.shape) * scale


def objective(
    rows: Rows, parts: list[slice], theta: Tensor, penalty: float, count: float
) -> tuple[Tensor, Tensor]:
    """Return the objective () and its gradient (D+1,C), in float64, over all ranks.

    `count` is the number of rows in the parts of all ranks. The matrix products run in the
    precision of the features, without TF32. The logits of a piece are overwritten by the error of
    its probabilities, so that a piece takes no more memory than its logits.
    """
    weight = theta[:-1].to(rows.device, rows.x.dtype)
    bias = theta[-1].to(weight)
    # the last row is the gradient of the bias
    gradient = torch.zeros_like(theta, device=rows.device, dtype=weight.dtype)
    loss = torch.zeros((), dtype=torch.float64, device=theta.device)
    with ieee(rows.device):
        for x, y in rows.pieces(parts, theta.shape[1]):
            error = torch.addmm(bias, x, weight)
            error -= error.amax(1, keepdim=True)
            own = error.gather(1, y[:, None])
            normaliser = error.exp_().sum(1, keepdim=True)
            # The losses are summed in float64: in float32 the line search could not see the small
            # gains of the last steps.
            loss += (normaliser.log() - own).to(loss).sum()
            error /= normaliser
            error.scatter_add_(1, y[:, None], -torch.ones_like(own))
            gradient[:-1].addmm_(x.T, error)
            gradient[-1] += error.sum(0)
    sums = dist.total(torch.cat([gradient.to(loss).flatten(), loss[None]]))
    value = sums[-1] / count + penalty / 2 * theta[:-1].square().sum()
    slope = sums[:-1].view(theta.shape) / count
    slope[:-1] += penalty * theta[:-1]
    return value, slope


def logits(x: Tensor, theta: Tensor) -> Tensor:
    """Return the logits (N,C) of features (N,D) in the frame."""
    return product(x, theta[:-1].T.to(x)) + theta[-1].to(x)


def ranked(x: Tensor, column: Tensor, frame: Frame, theta: Tensor) -> Tensor:
    """Return the rank (N,) of the class `column` (N,) of each image of features (N,D), on the CPU.

    The rank is 0 for the class with the largest logit. Of equal logits, the first class is better.
    """
    device = frame.axes.device
    classes = torch.arange(theta.shape[1], device=device)
    ranks = []
    for rows, piece in on_device(x, cut(len(x), rows_of(x, theta.shape[1], device=device)), device):
        scores = logits(frame(piece), theta)
        if not scores.isfinite().all():
            raise ValueError(NUMBERS)
        index = column[rows, None].to(device)
        own = scores.gather(1, index)
        better = (scores > own) | ((scores == own) & (classes < index))
        ranks.append(better.sum(1).cpu())
    return torch.cat(ranks)
