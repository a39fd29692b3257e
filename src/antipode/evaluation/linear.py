"""Linear evaluation: a classifier on a frozen backbone, trained on random crops, judged on centres.

Sources in brackets are repositories: moco is facebookresearch/moco at 132aea9, simclr is google-research/simclr, byol
is google-deepmind/deepmind-research at 4822a45, simsiam is facebookresearch/simsiam, adco is maple-research-lab/AdCo,
selfsup is poodarchu/SelfSup, the release of EqCo and SiMo. In all of them a crop covers .08 to 1 of the image and half
of the crops are flipped; weights start at N(0,.01^2) and biases at 0 unless said otherwise.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, Literal

import torch
from torch.optim import Optimizer

from antipode import optim, rng
from antipode.data.sources.source import Source, subset
from antipode.evaluation.classifier import CROP, Heads, embed, fit, judge, width
from antipode.evaluation.score import Result
from antipode.evaluation.task import Task
from antipode.schedule import Per, Rule, Schedule, cosine, scaled

FALL = 0.1  # of the rate, at each of the epochs `at`
TRUST = 0.001  # of LARS [simsiam: main_lincls.py, apex LARC]
HELD = 10_000  # images of ImageNet's train split on which BYOL chooses [byol: utils/dataset.py]


@dataclass(frozen=True, kw_only=True)
class Linear:
    """The settings of a protocol. Several rates are tried on held-out train images, and the best is used on all.

    `rates` are base rates: `rule` scales them with the batch. `at`: epochs, counted from 0, at which the rate falls
    tenfold. `floor`: where a cosine ends, as a share of the rate. `period`: epochs after which a cosine turns up again.
    `std`: of the weights at the start.
    """

    about: str
    data: str | None = None  # the data set it belongs to, if it is not for all
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
            raise ValueError(f"linear evaluation needs rates above 0, got {self.rates}")
        if self.batch < 1 or (self.period is not None and self.period < 1):
            raise ValueError(
                f"a batch and a period are 1 at least, got {self.batch} and {self.period}"
            )
        if self.period is not None and (self.schedule, self.per, self.floor) != (
            "cosine",
            "step",
            0.0,
        ):
            raise ValueError(
                f"a period of {self.period} epochs belongs to a cosine per step that ends at 0"
            )
        self.factors()

    def factors(self) -> Callable[[int, int], float]:
        """The share of the rate at a step, counted from 0, of a run with so many steps in an epoch."""
        fall = Schedule(
            name=self.schedule,
            epochs=self.epochs,
            at=self.at,
            factors=FALL,
            floor=self.floor,
            per=self.per,
        )
        period = self.period
        return (
            fall.factor
            if period is None
            else lambda step, per_epoch: cosine(step / (per_epoch * period))
        )


LINEAR: dict[str, Linear] = {
    # [moco: main_lincls.py]; it keeps the best epoch by test accuracy, which is never done here
    "linear": Linear(about="MoCo's: SGD, rate 30, 100 epochs", rates=(30.0,), at=(60, 80)),
    # [selfsup: examples/simo, lin_cls config]: MoCo's with 90 epochs
    "linear-simo": Linear(
        about="SiMo's: MoCo's with 90 epochs", rates=(30.0,), epochs=90, at=(60, 80)
    ),
    # [selfsup: examples/simclr, lin_cls config]: no cosine, no Nesterov, unlike SimCLR's own
    "linear-eqco-simclr": Linear(
        about="EqCo's for SimCLR: SGD, rate .1, 90 epochs",
        rates=(0.1,),
        weight_decay=1e-6,
        epochs=90,
        at=(60, 80),
    ),
    # JCL, supplement, section 4 (ImageNet-100); weight decay is not stated: MoCo's, on which it builds.
    # On ImageNet its script has MoCo's rate of 30, so that `linear` is the protocol there
    "linear-jcl": Linear(
        about="JCL's ablations: SGD, rate 10, 100 epochs", rates=(10.0,), at=(60, 80)
    ),
    # [adco: lincls.py at 79b9292]: per epoch from 10 to .01
    "linear-adco": Linear(
        about="AdCo's: SGD, rate 10, cosine", rates=(10.0,), schedule="cosine", floor=0.001
    ),
    # [simclr: README, linear head on ImageNet], whose --zero_init_logits_layer starts the weights at 0
    "linear-simclr": Linear(
        about="SimCLR's: Nesterov, batch 4096, 90 epochs",
        rates=(0.1,),
        rule="linear",
        batch=4096,
        epochs=90,
        nesterov=True,
        weight_decay=1e-6,
        schedule="cosine",
        per="step",
        std=0.0,
    ),
    # [byol: configs/eval.py]: rate .2, 80 epochs, Nesterov, cosine per step. From memory of the paper's appendix, not
    # from a source at hand: the batch of 1024, the five rates, and that they are base rates. Haiku starts the weights
    # at 1/sqrt(D); .01 here, as everywhere: the loss is convex
    "linear-byol": Linear(
        about="BYOL's: Nesterov, best of five rates on held-out train images",
        rates=(0.4, 0.3, 0.2, 0.1, 0.05),
        rule="linear",
        batch=1024,
        epochs=80,
        nesterov=True,
        schedule="cosine",
        per="step",
    ),
    # [simsiam: main_lincls.py --lars]: apex LARC without clip on weights and bias
    "linear-simsiam": Linear(
        about="SimSiam's: LARS, batch 4096, 90 epochs",
        rates=(0.1,),
        rule="linear",
        batch=4096,
        epochs=90,
        optimiser="lars",
        schedule="cosine",
    ),
    # MSBReg, supplement, section 2.4: two falls at equal intervals, of 28 and 84 epochs
    "linear-places205": Linear(
        about="MSBReg's on Places205: SGD, rate .2, 28 epochs",
        data="places205",
        rates=(0.2,),
        weight_decay=1e-4,
        epochs=28,
        at=(9, 19),
    ),
    "linear-inat18": Linear(
        about="MSBReg's on iNaturalist 2018: SGD, rate .2, 84 epochs",
        data="inat18",
        rates=(0.2,),
        weight_decay=1e-4,
        epochs=84,
        at=(28, 56),
    ),
    # [adco: README --sgdr=1 --lr=5; lincls.py]: CosineAnnealingLR with T_max 12 is called with epoch + i/len for all of
    # the 100 epochs, so it goes up and down, and ends at 3/4 of the rate. There it lags by one step, which is left out
    "linear-adco-places205": Linear(
        about="AdCo's on Places205: SGD, rate 5, a cosine that turns every 12 epochs",
        data="places205",
        rates=(5.0,),
        schedule="cosine",
        period=12,
        per="step",
    ),
}


def run(task: Task, settings: Linear) -> Result:
    """Top-1 accuracy on the test images after the last epoch, with top-5 where there are more than five classes."""
    train, test = one_label(task, "train"), one_label(task, "test")
    rates, notes = (
        chosen(task, settings, train) if len(settings.rates) > 1 else (settings.rates, {})
    )
    heads = trained(task, settings, train, rates)
    top1, top5 = judge(task, heads, test, partial(embed, task.backbone))
    batch = fitting(settings, train)
    values = {
        name: value for name, value in asdict(settings).items() if name not in ("about", "data")
    }
    values |= {"factor": FALL} if settings.schedule == "steps" else {}
    values |= {"trust": TRUST} if settings.optimiser == "lars" else {}
    values |= {
        "crop": CROP,
        "flip": 0.5,
        "batch": batch,
        "rate": scaled(rates[0], settings.rule, batch),
        "images": len(train),
    }
    return Result(
        top1[0], "% top-1", values | precision(task) | notes, len(test), further(task, top5[0])
    )


def one_label(task: Task, part: str) -> Source:
    """The train or test images, refused where an image may have several classes."""
    source = task.labelled(part)
    assert source.labels is not None
    if source.labels.ndim > 1:
        count = source.labels.shape[1]
        raise ValueError(
            f"{task.splits.name} has {count} labels for each image, but a softmax classifier needs one"
        )
    return source


def chosen(task: Task, settings: Linear, train: Source) -> tuple[tuple[float, ...], dict[str, Any]]:
    """The rate that does best on train images that were held out: a tenth, but no more than BYOL's 10,000."""
    held = min(HELD, len(train) // 10)
    if not held:
        raise ValueError(
            f"{task.splits.name} has {len(train)} train images, too few to hold out a tenth of them"
        )
    order = rng.permutation(rng.key(task.seed, "validation"), len(train))
    rest, aside = (
        subset(train, order[held:].sort().values),
        subset(train, order[:held].sort().values),
    )
    heads = trained(task, settings, rest, settings.rates)
    top1, _ = judge(task, heads, aside, partial(embed, task.backbone))
    found = {
        rate: score
        for rate, score, whole in zip(settings.rates, top1, heads.finite(), strict=True)
        if whole
    }
    best = max(found, key=found.__getitem__)
    return (best,), {
        "validation": held,
        "validation_top1": {str(rate): score for rate, score in found.items()},
    }


def trained(task: Task, settings: Linear, source: Source, rates: tuple[float, ...]) -> Heads:
    """A classifier for each base rate, trained side by side: the backbone sees every crop once."""
    batch, features = fitting(settings, source), partial(embed, task.backbone)
    heads = Heads(len(rates), task.classes, width(task), std=settings.std, seed=task.seed).to(
        task.device
    )
    moves = [
        (_optimiser(settings, [weight, bias]), scaled(rate, settings.rule, batch))
        for weight, bias, rate in zip(heads.weights, heads.biases, rates, strict=True)
    ]
    fit(
        task,
        heads,
        source,
        features,
        moves,
        settings.factors(),
        batch=batch,
        epochs=settings.epochs,
    )
    if not any(heads.finite()):
        tried = ", ".join(f"{rate:g}" for _, rate in moves)
        raise ValueError(
            f"the weights of the classifier are not finite: a rate of {tried} is too high for its features"
        )
    return heads


def fitting(settings: Linear, source: Source) -> int:
    """The batch, or all images where there are fewer; the rate then follows by the protocol's rule."""
    return min(settings.batch, len(source))


def precision(task: Task) -> dict[str, str]:
    """What the frozen backbone computes in."""
    half = task.device.type == "cuda" and torch.cuda.is_bf16_supported()
    return {"backbone": "frozen", "precision": "bf16" if half else "fp32"}


def further(task: Task, top5: float) -> dict[str, Any]:
    """Top-5 accuracy, where it says something."""
    return {"top5": top5} if task.classes > 5 else {}


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
