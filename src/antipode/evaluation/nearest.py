"""k-nearest-neighbour classification on frozen features. N images, D features, C classes."""

import torch
from torch import Tensor

from antipode.evaluation.accuracy import classification
from antipode.evaluation.score import Result
from antipode.evaluation.task import Task
from antipode.functional import knn
from antipode.types import Features


def nearest(task: Task, *, k: int, tau: float | None, of: str = "backbone") -> Result:
    """Compute the top-1 accuracy of a vote among the k nearest train images by cosine similarity.

    Each neighbour votes with weight exp(similarity/tau), or with weight 1 if `tau` is None.
    Train and test images are seen through the same deterministic view. In NPID's terms, the memory
    bank is recomputed after training.
    """
    one_each(task, "a vote of neighbours")
    bank = len(task.labels("train"))
    if bank < k:
        fitting = [f"knn{fewer} or " for fewer in (20, 10) if fewer < k and fewer <= bank]
        raise ValueError(
            f"a vote of the {k} nearest needs at least {k} train images, but {task.splits.name} "
            f"has {bank}: use {''.join(fitting[:1])}linear-fast"
        )
    train = task.features("train", of)
    test = task.features("test", of)
    correct = recognised(train, test, k=k, tau=tau, classes=task.classes, device=task.device)
    settings = {"k": k, "tau": tau, "features": of, "similarity": "cosine", "train images": bank}
    return classification(correct, test.y, settings, seed=task.seed)


def accuracy(
    train: Features,
    test: Features,
    *,
    k: int,
    tau: float | None,
    classes: int,
    device: torch.device | None = None,
) -> float:
    """Return the kNN accuracy on the test images (N,D) in percent. The arguments are as below."""
    correct = recognised(train, test, k=k, tau=tau, classes=classes, device=device)
    return 100 * correct.double().mean().item()


def recognised(
    train: Features,
    test: Features,
    *,
    k: int,
    tau: float | None,
    classes: int,
    device: torch.device | None = None,
) -> Tensor:
    """Return whether the vote gives each test image its class, bool (N,) on the CPU.

    The computation runs on `device`. The train features may stay on another device.
    """
    votes = knn(train.x, train.y, test.x.to(device or test.x.device), k=k, tau=tau, classes=classes)
    return votes.argmax(1).cpu() == test.y.cpu()


def one_each(task: Task, what: str) -> None:
    """Raise ValueError if the train or test images do not have exactly one class each.

    The check reads labels only, so it fails before any feature is computed. `what` names the
    protocol in the error message.
    """
    for part in ("train", "test"):
        if task.labels(part).ndim == 2:
            raise ValueError(
                f"{what} needs one class per image, but images of {task.splits.name} have several"
            )
