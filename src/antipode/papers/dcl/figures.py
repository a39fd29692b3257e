"""DCL (Yeh et al.): figures 3 and 4. `ITEMS` includes figure 1."""

from collections.abc import Mapping
from functools import partial
from typing import Any

from antipode.papers.dcl import multiplier
from antipode.papers.dcl.grids import (
    CIFAR,
    DCL,
    FAST,
    LINEAR,
    PAPER,
    PLACES,
    RATE,
    RECORDED,
    SIMCLR,
    SIZES,
    SMALL,
    SMOKE,
    Rows,
    batches,
    simclr_and_dcl,
    untrained_votes,
)
from antipode.reproduction import laws
from antipode.reproduction.item import (
    EMPIRICAL,
    REFERENCE_PANEL,
    Cells,
    Grid,
    Item,
    Law,
    Panel,
    Scale,
    Trial,
    Verdict,
    cross,
    metric,
    table,
    untrained,
    vary,
)

WITH = "with DCL"
WITHOUT = "without DCL"
# The smallest and the largest batch or queue size by panel and scale.
ENDS: dict[str, dict[Scale, tuple[int, int]]] = {
    "SimCLR": {"small": (32, 512), "paper": (32, 1024)},
    "MoCo": {"small": (16, 4096), "paper": (256, 65536)},
}
LOST = {"SimCLR": (4.1, 8.3), "MoCo": (0.4, 5.9)}  # points lost with and without DCL


def _queues(data: str) -> Rows:
    """Return the rows of MoCo without and with DCL."""
    return {WITHOUT: (f"{data}.mocov1", {}), WITH: (f"{data}.dcl", {"method.base": "mocov1"})}


def _better_with_dcl(name: str, kind: str, size: int, scale: Scale, numbers: str) -> Law:
    """Return the law that accuracy is higher with DCL at a batch or queue size.

    `numbers` are the paper's accuracies without and with DCL.
    """
    without, with_dcl = map(float, numbers.split(" and "))
    check = partial(
        laws.gain,
        better=(name, WITH, size),
        worse=(name, WITHOUT, size),
        paper=with_dcl - without,
    )
    return Law(
        f"{name}: accuracy is higher with DCL at {kind} {size:,}",
        check,
        (scale,),
        "section 4.2",
        numbers,
    )


def _steadier_with_dcl(name: str, kind: str, scale: Scale) -> tuple[Law, Law]:
    """Return the laws on the loss from the largest to the smallest batch or queue size."""
    few, full = ENDS[name][scale]
    with_dcl, without = LOST[name]
    ends = f"from {kind} {full:,} to {few}"
    lost = partial(
        laws.gain, better=(name, WITHOUT, full), worse=(name, WITHOUT, few), paper=without
    )
    steadier = partial(
        laws.steadier, panel=name, row=WITH, than=WITHOUT, few=few, full=full, paper=LOST[name]
    )
    return (
        Law(
            f"{name}: accuracy drops {ends} without DCL",
            lost,
            (scale,),
            "figure 3",
            f"a loss of {without:g}",
        ),
        Law(
            f"{name}: accuracy falls less {ends} with DCL",
            steadier,
            (scale,),
            "section 4.2",
            f"losses of {with_dcl:g} and {without:g}",
        ),
    )


def _fig3_laws(scale: Scale) -> tuple[Law, ...]:
    largest, smallest = ENDS["SimCLR"][scale][1], ENDS["MoCo"][scale][0]
    return (
        *_steadier_with_dcl("SimCLR", "batch size", scale),
        _better_with_dcl("SimCLR", "batch size", 256, scale, "61.8 and 65.9"),
        _better_with_dcl("SimCLR", "batch size", largest, scale, "65.1 and 66.1"),
        *_steadier_with_dcl("MoCo", "queue size", scale),
        _better_with_dcl("MoCo", "queue size", smallest, scale, "54.7 and 60.8"),
    )


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
        REFERENCE_PANEL,
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
                batches(SIZES),
                FAST,
                panel="SimCLR",
                common=SMALL,
            )
            + cross(
                _queues("cifar10"),
                vary("method.queue", ENDS["MoCo"]["small"]),
                FAST,
                panel="MoCo",
                common=SMALL,
            )
            + (untrained("resnet18", "cifar10", "linear-fast"),),
            f"{CIFAR}, logistic regression; batch sizes from 32 to 512 and queues of 16 and 4,096 "
            "stand for batch sizes up to 1,024 and queues of 256 and 65,536",
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
            )
            + (untrained("resnet50", "imagenet", "linear"),),
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
    laws=tuple(law for scale in EMPIRICAL for law in _fig3_laws(scale)),
)


def _curves(rows: Rows, name: str, common: Mapping[str, Any]) -> tuple[Trial, ...]:
    """Return runs that record their kNN accuracy."""
    return cross(rows, {"": {}}, (metric("knn"),), panel=name, common=common)


def ends_higher(cells: Cells, *, panel: str, paper: float) -> Verdict:
    """Check that DCL is better than SimCLR at the last epoch by at least half of `paper`."""
    epoch = laws.lines(cells, panel)[DCL][-1][0]
    return laws.gain(cells, better=(panel, DCL, epoch), worse=(panel, SIMCLR, epoch), paper=paper)


def _fig4_laws(name: str, numbers: str) -> tuple[Law, Law]:
    """Return the laws of a data set. `numbers` are SimCLR's and DCL's accuracies in table 2."""
    simclr, dcl = map(float, numbers.split(" and "))
    scales = EMPIRICAL if name == "CIFAR10" else ("paper",)
    return (
        Law(
            f"{name}: DCL ends higher than SimCLR",
            partial(ends_higher, panel=name, paper=dcl - simclr),
            scales,
            "figure 4 and table 2",
            numbers,
        ),
        Law(
            f"{name}: DCL is ahead of SimCLR in the first half of training",
            partial(laws.ahead, panel=name, row=DCL, than=SIMCLR, part=0.5),
            scales,
            "figure 4",
        ),
    )


FIG4 = Item(
    title="kNN accuracy during pretraining",
    question="Does DCL converge faster on CIFAR and STL-10?",
    source=(
        f"{PAPER}, figure 4; the paper does not say which features kNN uses; training records kNN "
        "with the features of the backbone"
    ),
    trend="DCL converges faster and ends higher than the baseline on all three data sets",
    panels=(
        *(Panel(name, "curve", "epoch", "kNN top-1 accuracy (%)") for name in PLACES),
        REFERENCE_PANEL,
    ),
    grids={
        "smoke": Grid(
            _curves(
                simclr_and_dcl("digits"),
                "CIFAR10",
                SMOKE | {"train.epochs": 5, "monitor.knn_every": 1},
            ),
            "digits instead of CIFAR-10, 5 epochs",
        ),
        "small": Grid(
            _curves(simclr_and_dcl("cifar10", "-paper"), "CIFAR10", SMALL | RECORDED)
            + untrained_votes("CIFAR10"),
            CIFAR,
            3,
        ),
        "paper": Grid(
            tuple(
                trial
                for name, data in PLACES.items()
                for trial in _curves(simclr_and_dcl(data, "-paper"), name, RECORDED)
            )
            + untrained_votes(*PLACES),
            "ResNet-18, 200 epochs, batch 256",
            5,
        ),
    },
    laws=(
        *_fig4_laws("CIFAR10", "81.4 and 84.1"),
        *_fig4_laws("CIFAR100", "52.0 and 54.9"),
        *_fig4_laws("STL10", "77.3 and 81.2"),
    ),
)

ITEMS = {"dcl.fig1": multiplier.FIG1, "dcl.fig3": FIG3, "dcl.fig4": FIG4}
