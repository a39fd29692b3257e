"""Linear evaluation: a classifier on a frozen backbone.

The classifier is trained on random crops and tested on centre crops. The protocols of the papers
are in their rooms (`antipode.papers`) and use the settings and functions of this module. In all of
their releases a crop covers 0.08 to 1 of the image area, and half of the crops are flipped. The
weights start at N(0, 0.01^2) and the biases at 0, unless a protocol says otherwise.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, Literal

import torch
from torch.optim import Optimizer

from antipode import optim, rng
from antipode.data.sources.source import Source, subset
from antipode.evaluation.accuracy import classification, top5
from antipode.evaluation.classifier import (
    CROP,
    Heads,
    decoding,
    embed,
    fit,
    graded,
    judge,
    width,
)
from antipode.evaluation.score import Result
from antipode.evaluation.task import Protocol, Task
from antipode.schedule import Per, Rule, Schedule, cosine, scaled

FALL = 0.1  # the factor of the learning rate at each of the epochs `at`
# The trust coefficient of LARS: that of apex's LARC in main_lincls.py of facebookresearch/simsiam.
TRUST = 0.001
# The maximum number of held-out train images. BYOL selects its learning rate on as many images of
# ImageNet (utils/dataset.py of google-deepmind/deepmind-research at 4822a45).
HELD_OUT = 10_000


@dataclass(frozen=True, kw_only=True)
class Linear:
    """The settings of a linear evaluation.

    If there are several learning rates, each is tried on held-out train images. The best one is
    then used to train on all train images.

    Args:
        about: a description in one line.
        data: the data set that the protocol belongs to, or None if it is for all data sets.
        rates: base learning rates, which `rule` scales with the batch size.
        rule: how the learning rate scales with the batch size.
        at: the epochs, counted from 0, at which the learning rate falls to a tenth.
        floor: the value at which a cosine schedule ends, as a share of the learning rate.
        period: the number of epochs after which a cosine schedule rises again.
        per: whether the learning rate changes every step or every epoch.
        std: the standard deviation of the initial weights.
    """

    about: str
    data: str | None = None
    rates: tuple[float, ...]
    rule: Rule = "fixed"
    batch: int = 256
    epochs: int = 100
    optimiser: Literal["sgd", "lars"] = "sgd"
    momentum: float = 0.9
    nesterov: bool = False
    weight_decay: float = 0.0
    schedule: Literal["steps", "cosine"] = "steps"
    at: tuple[int, ...] = ()
    floor: float = 0.0
    period: int | None = None
    per: Per = "epoch"
    std: float = 0.01

    def __post_init__(self) -> None:
        if not self.rates or min(self.rates) <= 0:
            raise ValueError(f"linear evaluation needs learning rates above 0, got {self.rates}")
        if self.batch < 1 or (self.period is not None and self.period < 1):
            raise ValueError(
                "the batch size and the period must be at least 1, "
                f"got {self.batch} and {self.period}"
            )
        to_zero = (self.schedule, self.per, self.floor) == ("cosine", "step", 0.0)
        if self.period is not None and not to_zero:
            raise ValueError(
                f"a period of {self.period} epochs needs a cosine schedule per step with floor 0"
            )
        self.factors()

    def factors(self) -> Callable[[int, int], float]:
        """Return the function from a step and the steps per epoch to a factor of the learning rate.

        Steps are counted from 0.
        """
        schedule = Schedule(  # built in every case, because it checks its arguments
            name=self.schedule,
            epochs=self.epochs,
            at=self.at,
            factors=FALL,
            floor=self.floor,
            per=self.per,
        )
        period = self.period
        if period is None:
            return schedule.factor
        return lambda step, per_epoch: cosine(step / (per_epoch * period))


# main_lincls.py of facebookresearch/moco at 132aea9. It reports the epoch with the best test
# accuracy; every protocol here reports the last epoch.
MOCO = Linear(about="MoCo's: SGD, learning rate 30, 100 epochs", rates=(30.0,), at=(60, 80))


def protocol(settings: Linear) -> Protocol:
    """Return the protocol of these settings."""
    return Protocol(partial(run, settings=settings), settings.about, settings.data)


def run(task: Task, settings: Linear) -> Result:
    """Compute the top-1 test accuracy after the last epoch.

    The top-5 accuracy is added if there are at least ten classes.
    """
    train, test = one_label(task, "train"), one_label(task, "test")
    rates = settings.rates
    notes: dict[str, Any] = {}
    if len(rates) > 1:
        rates, notes = chosen(task, settings, train)
    heads = trained(task, settings, train, rates)
    right, labels = graded(task, heads, test, partial(embed, task.backbone))
    batch = fitting(settings, train)
    values = asdict(settings)
    del values["about"], values["data"]
    values |= {"factor": FALL} if settings.schedule == "steps" else {}
    values |= {"trust": TRUST} if settings.optimiser == "lars" else {}
    values |= {
        "crop": CROP,
        "flip": 0.5,
        "batch": batch,
        "rate": scaled(rates[0], settings.rule, batch),
        "images": len(train),
    }
    values |= precision(task) | decoding(heads) | notes
    more = top5(right[0].any(1), task.classes)
    return classification(right[0, :, 0], labels, values, seed=task.seed, more=more)


def one_label(task: Task, part: str) -> Source:
    """Return the train or test images.

    Raises ValueError if an image can have several classes.
    """
    source = task.labelled(part)
    assert source.labels is not None
    if source.labels.ndim > 1:
        raise ValueError(
            f"{task.splits.name} has {source.labels.shape[1]} labels for each image, but a softmax "
            "classifier needs one"
        )
    return source


def chosen(task: Task, settings: Linear, train: Source) -> tuple[tuple[float, ...], dict[str, Any]]:
    """Select the learning rate with the best accuracy on held-out train images.

    A tenth of the train images is held out, but at most `HELD_OUT` images.

    Returns:
        The learning rate in a tuple of its own, and the values to record with the score.
    """
    count = min(HELD_OUT, len(train) // 10)
    if not count:
        raise ValueError(
            f"{task.splits.name} has {len(train)} train images, too few to hold out a tenth of them"
        )
    order = rng.permutation(rng.key(task.seed, "validation"), len(train))
    kept = subset(train, order[count:].sort().values)
    held_out = subset(train, order[:count].sort().values)
    heads = trained(task, settings, kept, settings.rates)
    top1, _ = judge(task, heads, held_out, partial(embed, task.backbone))
    accuracies = {
        rate: accuracy
        for rate, accuracy, finite in zip(settings.rates, top1, heads.finite(), strict=True)
        if finite
    }
    best = max(accuracies, key=accuracies.__getitem__)
    return (best,), {
        "validation": count,
        "validation_top1": {str(rate): accuracy for rate, accuracy in accuracies.items()},
    }


def trained(task: Task, settings: Linear, source: Source, rates: tuple[float, ...]) -> Heads:
    """Train one classifier for each base learning rate and return them.

    They are trained side by side, so that the backbone processes every crop once.
    """
    batch = fitting(settings, source)
    features = partial(embed, task.backbone)
    heads = Heads(len(rates), task.classes, width(task), std=settings.std, seed=task.seed)
    heads = heads.to(task.device)
    moves = [
        (_optimiser(settings, [weight, bias]), scaled(rate, settings.rule, batch))
        for weight, bias, rate in zip(heads.weights, heads.biases, rates, strict=True)
    ]
    factor = settings.factors()
    fit(task, heads, source, features, moves, factor, batch=batch, epochs=settings.epochs)
    if not any(heads.finite()):
        tried = ", ".join(f"{rate:g}" for _, rate in moves)
        raise ValueError(
            f"the weights of the classifier are not finite: a learning rate of {tried} is too high "
            "for these features"
        )
    return heads


def fitting(settings: Linear, source: Source) -> int:
    """Return the batch size: that of the settings, or all images if there are fewer.

    The learning rate is scaled with this batch size by the rule of the protocol.
    """
    return min(settings.batch, len(source))


def precision(task: Task) -> dict[str, str]:
    """Return the state and the precision of the frozen backbone, to record with a score."""
    half = task.device.type == "cuda" and torch.cuda.is_bf16_supported()
    return {"backbone": "frozen", "precision": "bf16" if half else "fp32"}


def _optimiser(settings: Linear, parameters: list[torch.Tensor]) -> Optimizer:
    return optim.make(
        parameters,
        name=settings.optimiser,
        lr=0.0,  # set at every step
        momentum=settings.momentum,
        nesterov=settings.nesterov,
        weight_decay=settings.weight_decay,
        variant="larc" if settings.optimiser == "lars" else "after",
        trust=TRUST,
        capturable=parameters[0].is_cuda,
    )
