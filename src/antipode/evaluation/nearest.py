"""k-nearest-neighbour classification on frozen features. N images, D features, C classes."""

import torch
from torch import Tensor

from antipode.evaluation.accuracy import classification
from antipode.evaluation.score import Result
from antipode.evaluation.shares import joined, share
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


def held_out(task: Task, k: int = 20, every: int = 10) -> Result:
    """Compute the top-1 accuracy of a vote for every tenth train image among the other ones.

    It uses no test image, so it can choose between settings. The images are not held out of
    pretraining, which uses no labels.
    """
    labels = task.labels("train")
    if labels.ndim == 2:
        raise ValueError(
            f"a vote of neighbours needs one class per image, but images of {task.splits.name} "
            "have several"
        )
    chosen = torch.arange(len(labels)) % every == 0
    bank = int((~chosen).sum())
    if bank < k:
        raise ValueError(
            f"a vote of the {k} nearest needs at least {k} images beside the held-out ones, but "
            f"{task.splits.name} has {bank}"
        )
    train = task.features("train")
    chosen = chosen.to(train.x.device)
    others = Features(train.x[~chosen], train.y[~chosen])
    some = Features(train.x[chosen], train.y[chosen])
    correct = recognised(others, some, k=k, tau=None, classes=task.classes, device=task.device)
    settings = {"k": k, "tau": None, "similarity": "cosine", "train images": bank}
    result = classification(correct, some.y, settings, seed=task.seed)
    return result._replace(split="train")


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

    The computation runs on `device`. The train features may stay on another device, or in a
    memory-mapped file. With several ranks, all of them call this function with the same features,
    and each classifies its share of the test images.
    """
    mine = share(len(test.x))
    queries = test.x[mine].to(device or test.x.device)
    votes = knn(train.x, train.y, queries, k=k, tau=tau, classes=classes)
    correct = votes.argmax(1) == test.y[mine].to(votes.device)
    return joined(correct, len(test.x)).cpu()


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
