"""Votes of the nearest train images. N images, D features, C classes."""

import torch

from antipode.evaluation.score import Result
from antipode.evaluation.task import Task
from antipode.functional import knn
from antipode.types import Features


def nearest(task: Task, *, k: int, tau: float | None, of: str = "backbone") -> Result:
    """Top-1 accuracy of a vote among the k nearest train images by cosine: exp(sim/tau) each, one each with tau None.

    The train images are seen as the test images are, without chance (NPID's memory, made anew after training).
    """
    one_each(task, "a vote of neighbours")
    bank = len(task.labels("train"))
    if bank < k:
        fits = "knn20 needs 20, linear-fast" if k > 20 else "linear-fast"
        needed = f"a vote of the {k} nearest needs as many train images, and {task.splits.name} has {bank}"
        raise ValueError(f"{needed}: {fits} does with fewer")
    train, test = task.features("train", of), task.features("test", of)
    value = accuracy(train, test, k=k, tau=tau, classes=task.classes, device=task.device)
    settings = {"k": k, "tau": tau, "features": of, "similarity": "cosine", "train images": bank}
    return Result(value, "% top-1", settings, len(test.x))


def accuracy(
    train: Features,
    test: Features,
    *,
    k: int,
    tau: float | None,
    classes: int,
    device: torch.device | None = None,
) -> float:
    """Percent of test images (N,D) that the k nearest train images vote right; `device` works, train may stay away."""
    votes = knn(train.x, train.y, test.x.to(device or test.x.device), k=k, tau=tau, classes=classes)
    return 100 * (votes.argmax(1).cpu() == test.y.cpu()).double().mean().item()


def one_each(task: Task, what: str) -> None:
    """Refuse, before anything is computed, data whose images have several classes or none."""
    for part in ("train", "test"):
        if task.labels(part).ndim == 2:
            raise ValueError(
                f"{what} needs one class per image, and those of {task.splits.name} have several"
            )
