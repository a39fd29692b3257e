"""Linear SVMs on frozen features, one class against the rest: Goyal et al. (ICCV 2019) on VOC07, and any other data.

N images, D features, K classes. Labels (N,K): 1 present, 0 absent, -1 difficult; one class per image counts as a row
with a single 1. Facts are from fair_self_supervision_benchmark at 275d104 (tools/svm, extra_scripts, GETTING_STARTED).
"""

import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from antipode import rng
from antipode.data.loader import cores
from antipode.data.progress import track
from antipode.evaluation.score import Result
from antipode.evaluation.task import Task

Array = NDArray[Any]

# the tool adds 2^-4 to 2^-19 to the list it is given, which in the published commands is 1e-7 to 100
COSTS = tuple(
    sorted([10.0**power for power in range(-7, 3)] + [2.0**-power for power in range(4, 20)])
)
FOLDS = 3
STEPS = 2000
SHOTS = (1, 2, 4, 8, 16, 32, 64, 96)
SAMPLES = 5
SMALL = 1e9  # numbers to fit on below which starting other processes takes longer


def svm_voc07(task: Task, *, costs: tuple[float, ...] = COSTS) -> Result:
    """Mean average precision over classes of one linear SVM each; 3 folds of train choose the cost of each class."""
    train, test = (present(task, part) for part in ("train", "test"))
    kept = [
        one
        for one in range(task.classes)
        if min(_count(train, one)) >= FOLDS and (test[:, one] == 1).any()
    ]
    if not kept:
        raise ValueError(
            f"no class of {task.splits.name} has {FOLDS} train images with it, {FOLDS} without it and one in test"
        )
    x, probe = (normal(task.features(part).x) for part in ("train", "test"))
    jobs = ((x, np.where(train[:, one] == 1, 1, -1), costs, task.seed) for one in kept)
    size = x.size * len(kept) * len(costs) * FOLDS
    chosen = list(spread_out(choose, jobs, len(kept), size, "classes"))
    names = task.splits.classes or [str(one) for one in range(task.classes)]
    found = {}
    for one, svm in zip(kept, chosen, strict=True):
        judged = test[:, one] >= 0
        found[names[one]] = 100 * average_precision(
            probe[judged] @ svm.weight + svm.bias, test[judged, one]
        )
    settings = _settings(costs) | {
        "folds": FOLDS,
        "chosen by": "average precision on held-out train images, per class",
    }
    more = {
        "average precision": found,
        "cost": {names[one]: svm.cost for one, svm in zip(kept, chosen, strict=True)},
        "unfinished fits": sum(svm.unfinished for svm in chosen),
        "left out": [names[one] for one in range(task.classes) if one not in kept],
    }
    return Result(float(np.mean(list(found.values()))), "% mAP", settings, len(probe), more)


def lowshot_svm(
    task: Task, *, costs: tuple[float, ...] = COSTS, shots: tuple[int, ...] = SHOTS
) -> Result:
    """Mean average precision of SVMs on k images per class, the mean over 5 samples and over k = 1, 2, 4 to 96.

    A sample has, for every class anew, k images with it and k (K-1) without. The cost is one number for each k: the
    best on the train images outside the samples. (The authors' scripts take the best on test.)
    """
    train, test = (present(task, part) for part in ("train", "test"))
    usable = [k for k in shots if _enough(train, k)]
    if not usable:
        least = int(min((train == 1).sum(0)))
        raise ValueError(
            f"{task.splits.name} has classes of {least} train images, too few for a sample of {shots[0]}"
        )
    x, probe = (normal(task.features(part).x) for part in ("train", "test"))
    plan = [
        (k, sample) for k in reversed(usable) for sample in range(SAMPLES)
    ]  # the long ones first
    jobs = ((x, train, probe, test, k, costs, (task.seed, sample)) for k, sample in plan)
    size = sum(usable) * SAMPLES * task.classes**2 * x.shape[1] * len(costs)
    shot = dict(zip(plan, spread_out(sampled, jobs, len(plan), size, "samples"), strict=True))
    found, peeked = {}, []
    for k in usable:
        rest, tested = (
            np.stack([shot[k, sample][i] for sample in range(SAMPLES)]) for i in (0, 1)
        )  # (5,costs)
        best = int(np.argmax(rest.mean(0)))
        mine = 100 * tested[:, best]
        found[f"k={k}"] = {
            "mean": float(mine.mean()),
            "std": float(mine.std()),
            "cost": costs[best],
        }
        peeked.append(100 * float(tested.mean(0).max()))
    settings = _settings(costs) | {
        "k": usable,
        "samples": SAMPLES,
        "negatives": "k (K-1)",
        "chosen by": "mean average precision on train images outside the samples, per k",
    }
    more = found | {
        "cost chosen on test": float(np.mean(peeked)),  # as published figures are
        "unfinished fits": sum(each[2] for each in shot.values()),
        "left out": [k for k in shots if k not in usable],
    }
    return Result(
        float(np.mean([each["mean"] for each in found.values()])),
        "% mAP",
        settings,
        len(probe),
        more,
    )


def _settings(costs: tuple[float, ...]) -> dict[str, Any]:
    return {
        "costs": list(costs),
        "class weights": "2 present, 1 absent",
        "loss": "squared hinge, L2 penalty, dual",
        "tolerance": 1e-4,
        "steps": STEPS,
        "features": "backbone, of length one",
        "average precision": "all points, monotone envelope",
    }


# Labels and features


def present(task: Task, part: str) -> Array:
    """Labels (N,K) of a part: 1, 0 or -1."""
    labels = task.labels(part)
    if labels.ndim == 1:
        labels = torch.nn.functional.one_hot(labels, max(task.classes, int(labels.max()) + 1))[
            :, : task.classes
        ]
    found: Array = labels.numpy()
    return found


def normal(x: Tensor) -> Array:
    """Features (N,D) over their lengths, in float64; 1e-5 is added to the length as the authors do."""
    wide: Array = x.double().numpy()
    if not np.isfinite(wide).all():
        raise ValueError(
            "an SVM needs features that are numbers, and some are infinite or not a number"
        )
    unit: Array = wide / (np.linalg.norm(wide, axis=1, keepdims=True) + 1e-5)
    return unit


def _count(labels: Array, one: int) -> tuple[int, int]:
    """Train images with a class, and without (difficult ones are negatives in training)."""
    positive = int((labels[:, one] == 1).sum())
    return positive, len(labels) - positive


def _enough(labels: Array, k: int) -> bool:
    """Whether every class has k images with it and k (K-1) without, and one of them more, to choose a cost by."""
    positive, negative = (labels == 1).sum(0), (labels == 0).sum(0)
    enough = (positive >= k).all() and (negative >= max(1, k * (labels.shape[1] - 1))).all()
    return bool(enough and ((positive > k) & (negative > k * (labels.shape[1] - 1))).any())


# SVMs


class Svm(NamedTuple):
    """A linear SVM of the chosen cost; `unfinished` counts the fits on the way that ran out of steps."""

    weight: Array  # (D,)
    bias: float
    cost: float
    scores: list[float]  # of each cost on held-out images
    unfinished: int


def fitted(x: Array, sign: Array, cost: float, seed: int) -> tuple[Array, float, int]:
    """Weight (D,), bias and 1 where it ran out of steps, else 0, of an SVM on x (N,D) with signs +1 and -1 (N,)."""
    from sklearn.exceptions import ConvergenceWarning  # noqa: PLC0415
    from sklearn.svm import LinearSVC  # noqa: PLC0415

    svm = LinearSVC(
        C=cost,
        class_weight={1: 2, -1: 1},
        intercept_scaling=1.0,
        penalty="l2",
        loss="squared_hinge",
        dual=True,
        tol=1e-4,
        max_iter=STEPS,
        random_state=seed % 2**32,  # all that scikit-learn takes
    )
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore", ConvergenceWarning
        )  # counted instead: hundreds of fits may say it
        svm.fit(x, sign)
    return svm.coef_[0], float(svm.intercept_[0]), int(svm.n_iter_ >= STEPS)


def choose(x: Array, sign: Array, costs: tuple[float, ...], seed: int) -> Svm:
    """The SVM whose cost has the highest mean average precision over 3 folds in order, fitted on all of x (N,D)."""
    from sklearn.metrics import average_precision_score  # noqa: PLC0415
    from sklearn.model_selection import StratifiedKFold  # noqa: PLC0415

    folds = list(StratifiedKFold(FOLDS).split(x, sign))
    scores, unfinished = [], 0
    for cost in costs:
        precisions = []
        for fit, held in folds:
            weight, bias, short = fitted(x[fit], sign[fit], cost, seed)
            # scikit-learn's average precision, without the envelope, as in the authors' cross-validation
            precisions.append(
                float(average_precision_score(sign[held] == 1, x[held] @ weight + bias))
            )
            unfinished += short
        scores.append(float(np.mean(precisions)))
    cost = costs[int(np.argmax(scores))]
    weight, bias, short = fitted(x, sign, cost, seed)
    return Svm(weight, bias, cost, scores, unfinished + short)


def sampled(
    x: Array,
    labels: Array,
    probe: Array,
    truth: Array,
    k: int,
    costs: tuple[float, ...],
    seeds: tuple[int, int],
) -> tuple[Array, Array, int]:
    """One sample of k images per class: mAP (costs,) on the rest of train and on test, and fits out of steps."""
    rest, tested, unfinished = [], [], 0
    for one in range(labels.shape[1]):
        yes, no = drawn(labels[:, one], k, labels.shape[1], (*seeds, one))
        mine = np.concatenate([yes, no])
        sign = np.where(labels[mine, one] == 1, 1, -1)
        fits = [fitted(x[mine], sign, cost, seeds[0]) for cost in costs]
        weight, bias = np.stack([fit[0] for fit in fits], 1), np.array([fit[1] for fit in fits])
        unfinished += sum(fit[2] for fit in fits)
        left = np.setdiff1d(np.flatnonzero(labels[:, one] >= 0), mine)
        judged = np.flatnonzero(truth[:, one] >= 0)
        rest.append(_each(x[left] @ weight + bias, labels[left, one]))
        tested.append(_each(probe[judged] @ weight + bias, truth[judged, one]))
    return np.nanmean(rest, 0), np.nanmean(tested, 0), unfinished


def drawn(label: Array, k: int, classes: int, seeds: tuple[int, ...]) -> tuple[Array, Array]:
    """Places of k images with a class and of k (K-1) without it, of labels (N,)."""
    picks = []
    for value, count in ((1, k), (0, k * (classes - 1))):
        there = np.flatnonzero(label == value)
        chance = rng.permutation(rng.key(*seeds, "low shot", k, value), len(there))
        picks.append(there[chance[:count].numpy()])
    return picks[0], picks[1]


def _each(scores: Array, truth: Array) -> list[float]:
    return [average_precision(column, truth) for column in scores.T]


def average_precision(scores: Array, truth: Array) -> float:
    """The area under precision over recall, precision made monotone from the right; NaN where no image is positive.

    scores (N,); truth (N,), positive where above 0. Images of equal score come in together.
    """
    order = np.argsort(-scores, kind="stable")
    hits = np.cumsum(truth[order] > 0)
    if not len(hits) or not hits[-1]:
        return float("nan")
    last = np.append(
        np.flatnonzero(np.diff(scores[order])), len(scores) - 1
    )  # of every group of equals
    precision = hits[last] / (last + 1)
    envelope = np.maximum.accumulate(precision[::-1])[::-1]
    steps = np.diff(hits[last], prepend=0) / hits[-1]
    return float((steps * envelope).sum())


def spread_out(
    work: Callable[..., Any], jobs: Iterable[tuple[Any, ...]], count: int, size: float, what: str
) -> Iterator[Any]:
    """The results in order, from one process per core where that pays.

    Processes, not threads: liblinear's random numbers are one stream per process, and threads would mix their draws.
    """
    from sklearn.utils.parallel import Parallel, delayed  # noqa: PLC0415

    processes = cores(1) if size > SMALL else 1
    done = Parallel(n_jobs=processes, return_as="generator")(delayed(work)(*job) for job in jobs)
    return track(done, count, what, least=1)
