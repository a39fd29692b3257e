"""DCL (Yeh et al.): figures 1, 3 and 4."""

from collections.abc import Mapping
from functools import partial
from typing import Any

from antipode.papers.dcl.grids import (
    CIFAR,
    DCL,
    FAST,
    FEATURES,
    LINEAR,
    PAPER,
    PLACES,
    RATE,
    SAME,
    SIMCLR,
    SMALL,
    SMOKE,
    Rows,
    simclr_and_dcl,
)
from antipode.reproduction import laws
from antipode.reproduction.item import (
    EMPIRICAL,
    Grid,
    Item,
    Law,
    Panel,
    Trial,
    analysis,
    cross,
    metric,
    table,
    vary,
)

MEAN = "mean of q_B"
VARIATION = "coefficient of variation of q_B"
MULTIPLIERS = (
    analysis("npc", "curves.mean", panel="(a)", row=MEAN),
    analysis("npc", "curves.coefficient of variation", panel="(a)", row=VARIATION),
    *(
        analysis("npc", f"histograms.batch {size}", panel="(b)", row=f"batch size {size}")
        for size in (32, 64, 128, 256, 512, 1024)
    ),
)
FIG1 = Item(
    title="The negative-positive-coupling multiplier q_B",
    question="How much does a small batch weaken SimCLR's gradient?",
    source=f"{PAPER}, figure 1",
    trend=(
        "as the batch grows, q_B approaches 1 with a small coefficient of variation; small batches "
        "push q_B towards 0"
    ),
    panels=(
        Panel("(a)", "curve", "batch size", "q_B of a trained SimCLR", log=True),
        Panel("(b)", "histogram", "q_B", "share of anchors"),
    ),
    grids={
        "smoke": Grid(
            (Trial("digits.simclr", {**SMOKE, "train.epochs": 6}, MULTIPLIERS),), "digits, 6 epochs"
        ),
        "small": Grid((Trial("cifar10.simclr-paper", SMALL, MULTIPLIERS),), CIFAR, 3),
        "paper": Grid(
            (Trial("imagenet.simclr", SAME, MULTIPLIERS),),
            "ImageNet, ResNet-50, 200 epochs; the paper does not say which model it analysed",
        ),
    },
    laws=(
        Law(
            "the mean of q_B rises with the batch size",
            partial(laws.rises, panel="(a)", row=MEAN, slack=1e-3),
        ),
        Law(
            "the mean of q_B approaches 1: its distance to 1 at the largest batch size is less "
            "than half of that at the smallest",
            partial(laws.nears, panel="(a)", row=MEAN, limit=1.0, share=0.5),
        ),
        Law(
            "the coefficient of variation of q_B falls with the batch size",
            partial(laws.falls, panel="(a)", row=VARIATION, slack=1e-3),
        ),
    ),
)

WITH = "with DCL"
WITHOUT = "without DCL"


def _queues(data: str) -> Rows:
    """Return the rows of MoCo without and with DCL."""
    return {WITHOUT: (f"{data}.mocov1", {}), WITH: (f"{data}.dcl", {"method.base": "mocov1"})}


FIG3 = Item(
    title="Accuracy with and without DCL for batch sizes (SimCLR) and queue sizes (MoCo)",
    question="Does DCL keep the accuracy of SimCLR and MoCo with few negatives?",
    source=f"{PAPER}, section 4.2",
    trend=(
        "from the largest to the smallest batch size SimCLR loses 8.3 points, and 4.1 with DCL; "
        "from the largest to the smallest queue MoCo loses 5.9 points, and .4 with DCL; the paper "
        "does not state the smallest batch size"
    ),
    panels=(
        Panel("SimCLR", "curve", "batch size", "top-1 accuracy (%)", log=True),
        Panel("MoCo", "curve", "queue size", "top-1 accuracy (%)", log=True),
    ),
    grids={
        "smoke": Grid(
            cross(
                {WITHOUT: ("digits.simclr", {}), WITH: ("digits.dcl", {})},
                vary("train.batch", (16, 128)),
                FAST,
                panel="SimCLR",
                common={"train.epochs": 2},
            )
            + cross(
                _queues("digits"),
                vary("method.queue", (16, 256)),
                FAST,
                panel="MoCo",
                common=SMOKE | {"train.epochs": 2},
            ),
            "digits, resnet10-slim, 2 epochs; logistic regression on frozen features",
        ),
        "small": Grid(
            cross(
                {WITHOUT: ("cifar10.simclr-paper", {}), WITH: ("cifar10.dcl-paper", {})},
                vary("train.batch", (32, 128, 512)),
                FAST,
                panel="SimCLR",
                common=SMALL,
            )
            + cross(
                _queues("cifar10"),
                vary("method.queue", (16, 256, 4096)),
                FAST,
                panel="MoCo",
                common=SMALL,
            ),
            f"{CIFAR}, logistic regression",
            3,
        ),
        "paper": Grid(
            cross(
                {WITHOUT: ("imagenet.simclr", RATE), WITH: ("imagenet.dcl", {})},
                vary("train.batch", (32, 64, 128, 256, 512, 1024)),
                LINEAR,
                panel="SimCLR",
            )
            + cross(
                _queues("imagenet"),
                vary("method.queue", (256, 1024, 4096, 16384, 65536)),
                LINEAR,
                panel="MoCo",
            ),
            "ImageNet, ResNet-50, 200 epochs, linear evaluation; the paper does not print the "
            "sizes between the ends, so these sizes are ours",
            5,
        ),
    },
    paper=table({WITHOUT: {256: 61.8, 1024: 65.1}, WITH: {256: 65.9, 1024: 66.1}}, "SimCLR")
    | table({WITHOUT: {256: 54.7, 65536: 60.6}, WITH: {256: 60.8, 65536: 61.2}}, "MoCo"),
    sources={
        ("MoCo", WITHOUT, 65536): f"{PAPER}, section 4.2, from 54.7 and a loss of 5.9 points",
        ("MoCo", WITH, 65536): f"{PAPER}, section 4.2, from 60.8 and a loss of .4 points",
    },
    laws=tuple(
        Law(
            f"{name}: with DCL accuracy falls less at the smallest size",
            partial(laws.steadier, panel=name, row=WITH, than=WITHOUT),
            EMPIRICAL,
        )
        for name in ("SimCLR", "MoCo")
    ),
)


def _curves(rows: Rows, name: str, every: int, common: Mapping[str, Any]) -> tuple[Trial, ...]:
    """Return runs that record their kNN accuracy every `every` epochs."""
    recorded = {**common, "monitor.knn_every": every}
    return cross(rows, {"": {}}, (metric("knn"),), panel=name, common=recorded)


FIG4 = Item(
    title="kNN accuracy during pretraining",
    question="Does DCL converge faster on CIFAR and STL-10?",
    source=f"{PAPER}, figure 4; {FEATURES}",
    trend="DCL converges faster and ends higher than the baseline on all three data sets",
    panels=tuple(Panel(name, "curve", "epoch", "kNN top-1 accuracy (%)") for name in PLACES),
    grids={
        "smoke": Grid(
            _curves(simclr_and_dcl("digits"), "CIFAR10", 1, {**SMOKE, "train.epochs": 5}),
            "digits instead of CIFAR-10, 5 epochs",
        ),
        "small": Grid(_curves(simclr_and_dcl("cifar10", "-paper"), "CIFAR10", 5, SMALL), CIFAR, 3),
        "paper": Grid(
            tuple(
                t
                for name, data in PLACES.items()
                for t in _curves(simclr_and_dcl(data, "-paper"), name, 5, {})
            ),
            "ResNet-18, 200 epochs, batch 256",
            5,
        ),
    },
    laws=tuple(
        Law(
            f"{name}: DCL {text}",
            partial(check, panel=name),
            EMPIRICAL if name == "CIFAR10" else ("paper",),
        )
        for name in PLACES
        for text, check in (
            ("ends higher than SimCLR", laws.ends_rise),
            ("is ahead of SimCLR in the first half", partial(laws.ahead, row=DCL, than=SIMCLR)),
        )
    ),
)

ITEMS = {"dcl.fig1": FIG1, "dcl.fig3": FIG3, "dcl.fig4": FIG4}
