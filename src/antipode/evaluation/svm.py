"""One-vs-rest linear SVMs on frozen features: the protocol of Goyal et al. (ICCV 2019) for VOC07.

It works on any data set. Labels (N,K) are 1 for a class that is present, 0 for one that is absent
and -1 for one whose objects are all difficult. Data with one class per image have one 1 per row.
N images, D features, K classes.

The details are from fair_self_supervision_benchmark at 275d104 (tools/svm, extra_scripts,
GETTING_STARTED).
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

# The published commands pass 1e-7 to 100. The authors' tool adds 2^-4 to 2^-19 to the list it gets.
COSTS = tuple(
    sorted([10.0**power for power in range(-7, 3)] + [2.0**-power for power in range(4, 20)])
)
FOLDS = 3
STEPS = 2000  # limit on the iterations of one fit
SHOTS = (1, 2, 4, 8, 16, 32, 64, 96)
SAMPLES = 5
SMALL = 1e9  # with fewer feature values to fit on, worker processes do not pay off


def svm_voc07(task: Task, *, costs: tuple[float, ...] = COSTS) -> Result:
    """Compute the mean average precision (mAP) of one linear SVM per class.

    3-fold cross-validation on the train images chooses the cost of each class.
    """
    train, test = (present(task, part) for part in ("train", "test"))
    kept = [
        label
        for label in range(task.classes)
        if min(_count(train, label)) >= FOLDS and (test[:, label] == 1).any()
    ]
    if not kept:
        raise ValueError(
            f"no class of {task.splits.name} has {FOLDS} train images with it, {FOLDS} train "
            "images without it and a test image with it"
        )
    train_x, test_x = (normal(task.features(part).x) for part in ("train", "test"))
    jobs = ((train_x, np.where(train[:, label] == 1, 1, -1), costs, task.seed) for label in kept)
    size = train_x.size * len(kept) * len(costs) * FOLDS
    svms = list(spread_out(choose, jobs, len(kept), size, "classes"))
    names = task.splits.classes or [str(label) for label in range(task.classes)]
    precisions = {}
    for label, svm in zip(kept, svms, strict=True):
        judged = test[:, label] >= 0
        scores = test_x[judged] @ svm.weight + svm.bias
        precisions[names[label]] = 100 * average_precision(scores, test[judged, label])
    settings = _settings(costs) | {
        "folds": FOLDS,
        "chosen by": "average precision on held-out train images, per class",
    }
    more = {
        "average precision": precisions,
        "cost": {names[label]: svm.cost for label, svm in zip(kept, svms, strict=True)},
        "unfinished fits": sum(svm.unfinished for svm in svms),
        "left out": [names[label] for label in range(task.classes) if label not in kept],
    }
    return Result(float(np.mean(list(precisions.values()))), "% mAP", settings, len(test_x), more)


def lowshot_svm(
    task: Task, *, costs: tuple[float, ...] = COSTS, shots: tuple[int, ...] = SHOTS
) -> Result:
    """Compute the mAP of linear SVMs trained on k images per class.

    The value is the mean over 5 samples and over k = 1, 2, 4 to 96. In a sample, every class has
    its own k images with the class and k (K-1) images without it. One cost is chosen for each k:
    the best on the train images outside the samples. (The authors' scripts choose the best on the
    test images.)
    """
    train, test = (present(task, part) for part in ("train", "test"))
    usable = [k for k in shots if _enough(train, k)]
    if not usable:
        k = shots[0]
        raise ValueError(
            f"{task.splits.name} has too few train images for samples with k = {k}: each class "
            f"needs {k} images with it and {k * (task.classes - 1)} without it, and at least one "
            f"class more of both; the smallest class has {int(min((train == 1).sum(0)))} images"
        )
    train_x, test_x = (normal(task.features(part).x) for part in ("train", "test"))
    plan = [(k, sample) for k in reversed(usable) for sample in range(SAMPLES)]  # slowest first
    jobs = ((train_x, train, test_x, test, k, costs, (task.seed, sample)) for k, sample in plan)
    size = sum(usable) * SAMPLES * task.classes**2 * train_x.shape[1] * len(costs)
    results = dict(zip(plan, spread_out(sampled, jobs, len(plan), size, "samples"), strict=True))
    by_k = {}
    chosen_on_test = []
    for k in usable:
        # mAP (SAMPLES,costs) on the rest of train and on test
        rest, tested = (
            np.stack([results[k, sample][i] for sample in range(SAMPLES)]) for i in (0, 1)
        )
        best = int(np.argmax(rest.mean(0)))
        percents = 100 * tested[:, best]
        by_k[f"k={k}"] = {
            "mean": float(percents.mean()),
            "std": float(percents.std()),
            "cost": costs[best],
        }
        chosen_on_test.append(100 * float(tested.mean(0).max()))
    settings = _settings(costs) | {
        "k": usable,
        "samples": SAMPLES,
        "negatives": "k (K-1)",
        "chosen by": "mean average precision on train images outside the samples, per k",
    }
    more = by_k | {
        "cost chosen on test": float(np.mean(chosen_on_test)),  # comparable with published numbers
        "unfinished fits": sum(unfinished for _, _, unfinished in results.values()),
        "left out": [k for k in shots if k not in usable],
    }
    value = float(np.mean([entry["mean"] for entry in by_k.values()]))
    return Result(value, "% mAP", settings, len(test_x), more)


def _settings(costs: tuple[float, ...]) -> dict[str, Any]:
    """Return the settings that both protocols share."""
    return {
        "costs": list(costs),
        "class weights": "2 for present, 1 for absent",
        "loss": "squared hinge, L2 penalty, dual",
        "tolerance": 1e-4,
        "steps": STEPS,
        "features": "backbone, normalised to length 1",
        "average precision": "area under the whole curve, with monotone precision",
    }


# Labels and features


def present(task: Task, part: str) -> Array:
    """Return the labels (N,K) of the train or test images: 1, 0 or -1."""
    labels = task.labels(part)
    if labels.ndim == 1:
        count = max(task.classes, int(labels.max()) + 1)
        labels = torch.nn.functional.one_hot(labels, count)[:, : task.classes]
    array: Array = labels.numpy()
    return array


def normal(x: Tensor) -> Array:
    """Return features (N,D) divided by their length, in float64.

    1e-5 is added to the length, as in the authors' code.
    """
    double: Array = x.double().numpy()
    if not np.isfinite(double).all():
        raise ValueError("an SVM needs finite features, but some are NaN or infinite")
    unit: Array = double / (np.linalg.norm(double, axis=1, keepdims=True) + 1e-5)
    return unit


def _count(labels: Array, label: int) -> tuple[int, int]:
    """Return the number of train images with a class and without it.

    Difficult images count as images without it: they are negatives in training.
    """
    positive = int((labels[:, label] == 1).sum())
    return positive, len(labels) - positive


def _enough(labels: Array, k: int) -> bool:
    """Return whether there are enough train images for samples with k images per class.

    Every class needs k images with it and k (K-1) images without it. At least one class needs more
    of both, so that images are left to choose a cost on.
    """
    positive = (labels == 1).sum(0)
    negative = (labels == 0).sum(0)
    negatives = k * (labels.shape[1] - 1)
    enough = (positive >= k).all() and (negative >= max(1, negatives)).all()
    return bool(enough and ((positive > k) & (negative > negatives)).any())


# SVMs


class Svm(NamedTuple):
    """A linear SVM with the chosen cost."""

    weight: Array  # (D,)
    bias: float
    cost: float
    scores: list[float]  # average precision of each cost on held-out images
    unfinished: int  # the number of fits, including those in the folds, that ran out of steps


def fitted(x: Array, sign: Array, cost: float, seed: int) -> tuple[Array, float, int]:
    """Fit an SVM on features x (N,D) with signs +1 and -1 (N,).

    Return the weight (D,), the bias, and 1 if the fit ran out of steps, else 0.
    """
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
        random_state=seed % 2**32,  # the range that scikit-learn accepts
    )
    with warnings.catch_warnings():
        # Fits that do not converge are counted instead: hundreds of them may warn.
        warnings.simplefilter("ignore", ConvergenceWarning)
        svm.fit(x, sign)
    return svm.coef_[0], float(svm.intercept_[0]), int(svm.n_iter_ >= STEPS)


def choose(x: Array, sign: Array, costs: tuple[float, ...], seed: int) -> Svm:
    """Choose the cost by cross-validation and return the SVM fitted with it on all of x (N,D).

    The chosen cost has the highest mean of the average precision over 3 stratified folds, which are
    not shuffled.
    """
    from sklearn.metrics import average_precision_score  # noqa: PLC0415
    from sklearn.model_selection import StratifiedKFold  # noqa: PLC0415

    folds = list(StratifiedKFold(FOLDS).split(x, sign))
    scores = []
    unfinished = 0
    for cost in costs:
        precisions = []
        for train, test in folds:
            weight, bias, ran_out = fitted(x[train], sign[train], cost, seed)
            # scikit-learn's average precision, in which precision is not made monotone, as in the
            # authors' cross-validation
            precision = average_precision_score(sign[test] == 1, x[test] @ weight + bias)
            precisions.append(float(precision))
            unfinished += ran_out
        scores.append(float(np.mean(precisions)))
    cost = costs[int(np.argmax(scores))]
    weight, bias, ran_out = fitted(x, sign, cost, seed)
    return Svm(weight, bias, cost, scores, unfinished + ran_out)


def sampled(
    x: Array,
    labels: Array,
    probe: Array,
    truth: Array,
    k: int,
    costs: tuple[float, ...],
    seeds: tuple[int, int],
) -> tuple[Array, Array, int]:
    """Fit SVMs on one sample of k images per class.

    Return the mAP (costs,) on the rest of train, the mAP (costs,) on test, and the number of fits
    that ran out of steps.

    Args:
        x: the features of the train images (N,D).
        labels: the labels of the train images (N,K).
        probe: the features of the test images.
        truth: the labels of the test images.
        k: the number of images per class.
        costs: the costs to try.
        seeds: the seed and the number of the sample.
    """
    rest = []
    tested = []
    unfinished = 0
    classes = labels.shape[1]
    for label in range(classes):
        positive, negative = drawn(labels[:, label], k, classes, (*seeds, label))
        sample = np.concatenate([positive, negative])
        sign = np.where(labels[sample, label] == 1, 1, -1)
        fits = [fitted(x[sample], sign, cost, seeds[0]) for cost in costs]
        weight = np.stack([fit[0] for fit in fits], 1)  # (D,costs)
        bias = np.array([fit[1] for fit in fits])
        unfinished += sum(fit[2] for fit in fits)
        left = np.setdiff1d(np.flatnonzero(labels[:, label] >= 0), sample)
        judged = np.flatnonzero(truth[:, label] >= 0)
        rest.append(_precisions(x[left] @ weight + bias, labels[left, label]))
        tested.append(_precisions(probe[judged] @ weight + bias, truth[judged, label]))
    return np.nanmean(rest, 0), np.nanmean(tested, 0), unfinished


def drawn(label: Array, k: int, classes: int, seeds: tuple[int, ...]) -> tuple[Array, Array]:
    """Draw k images with a class and k (K-1) images without it from its labels (N,).

    Return the indices of both.
    """
    samples = []
    for value, count in ((1, k), (0, k * (classes - 1))):
        indices = np.flatnonzero(label == value)
        order = rng.permutation(rng.key(*seeds, "low shot", k, value), len(indices))
        samples.append(indices[order[:count].numpy()])
    return samples[0], samples[1]


def _precisions(scores: Array, truth: Array) -> list[float]:
    """Return the average precision of every column of scores (N,costs)."""
    return [average_precision(column, truth) for column in scores.T]


def average_precision(scores: Array, truth: Array) -> float:
    """Return the area under the precision-recall curve, or NaN if no image is positive.

    The precision at a recall is the best precision at that recall or a higher one. Images with
    equal scores enter the curve together.

    Args:
        scores: the scores of the images (N,).
        truth: the labels of the images (N,), above 0 for positive images.
    """
    order = np.argsort(-scores, kind="stable")
    hits = np.cumsum(truth[order] > 0)
    if not len(hits) or not hits[-1]:
        return float("nan")
    # the last image of every group of equal scores
    last = np.append(np.flatnonzero(np.diff(scores[order])), len(scores) - 1)
    precision = hits[last] / (last + 1)
    envelope = np.maximum.accumulate(precision[::-1])[::-1]
    steps = np.diff(hits[last], prepend=0) / hits[-1]
    return float((steps * envelope).sum())


def spread_out(
    work: Callable[..., Any], jobs: Iterable[tuple[Any, ...]], count: int, size: float, what: str
) -> Iterator[Any]:
    """Yield the results of `work` on each of `count` jobs, in order, with a progress bar.

    Jobs of a total `size` above `SMALL` run in one process per core. They do not run in threads,
    because liblinear has one random number stream per process, which threads would share.
    """
    from sklearn.utils.parallel import Parallel, delayed  # noqa: PLC0415

    processes = cores(1) if size > SMALL else 1
    results = Parallel(n_jobs=processes, return_as="generator")(delayed(work)(*job) for job in jobs)
    return track(results, count, what, least=1)
