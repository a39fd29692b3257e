"""EqCo (Zhu et al. 2020): figures 1, 2 and 4, and tables 1 and 6.

The tables and figures of SiMo are in simo_tables.py and simo_transfer_tables.py.

"Without EqCo" is EqCo with alpha = K: the margin is then zero, and the loss is InfoNCE over the
same negatives.
"""

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

from antipode.reproduction import laws
from antipode.reproduction.item import (
    EMPIRICAL,
    Grid,
    Item,
    Law,
    Measure,
    Panel,
    Trial,
    analysis,
    cross,
    score,
    table,
    vary,
)

PAPER = "EqCo (arXiv 2010.01929)"
WITH = "with EqCo"
WITHOUT = "without EqCo"
ACCURACY = "Accuracy (%)"
SMOKE = {"train.epochs": 2, "train.batch": 64}
SMALL = {"train.epochs": 100}
# With little augmentation the positives carry much information, so the laws show after few epochs.
MILD = {"train.batch": 64, "views.scale": [0.9, 1.0], "method.tau": 0.1, "method.groups": 1}
MILDLY = "digits with mild crops, resnet10-slim, tau .1"
DIGITS = "digits, resnet10-slim, 2 epochs, batch 64; logistic regression on frozen features"
CIFAR = "CIFAR-10, ResNet-18, 100 epochs; logistic regression on frozen features"
IMAGENET = "ImageNet, ResNet-50, 200 epochs, linear evaluation"
GRID_IS_OURS = "the paper does not print its grid of K, so the grid is ours"
LINEAR = (score("linear"),)
FAST = (score("linear-fast"),)
BOUND = (analysis("mi-bound", "curves.over training"),)


def negatives(counts: Iterable[int]) -> dict[int, dict[str, Any]]:
    """Return a column for each number of negatives K, without a margin (alpha = K)."""
    return {count: {"method.negatives": count, "method.alpha": count} for count in counts}


def pair(recipe: str, alpha: int, **more: Any) -> dict[str, tuple[str, Mapping[str, Any]]]:
    """Return the rows of a method without and with EqCo; `more` are arguments of the method."""
    arguments = {f"method.{key}": value for key, value in more.items()}
    return {WITHOUT: (recipe, arguments), WITH: (recipe, {**arguments, "method.alpha": alpha})}


def _fig1(
    data: str, counts: Iterable[int], alpha: int, common: Mapping[str, Any]
) -> tuple[Trial, ...]:
    """Return MoCo v2 without and with EqCo for every K."""
    return tuple(
        Trial(
            f"{data}.eqco",
            {**common, "method.base": "mocov2", **arguments, **rule},
            BOUND,
            f"K = {count}",
            panel=panel,
        )
        for panel, rule in ((WITHOUT, {}), (WITH, {"method.alpha": alpha}))
        for count, arguments in negatives(counts).items()
    )


def _fig2(
    data: str,
    base: str,
    counts: Iterable[int],
    alpha: int,
    measures: tuple[Measure, ...],
    common: Mapping[str, Any],
) -> tuple[Trial, ...]:
    """Return the trials of one framework of figure 2."""
    panel = {"mocov1": "MoCo", "mocov2": "MoCo v2", "simclr": "SimCLR"}[base]
    rows = pair(f"{data}.eqco", alpha, base=base)
    return cross(rows, negatives(counts), measures, panel=panel, common=common)


FIG1 = Item(
    title="Evolution of the empirical lower bound of mutual information",
    question=(
        "Does EqCo make the bound on mutual information independent of the number of negatives?"
    ),
    source=f"{PAPER}, figure 1",
    trend=(
        "without EqCo the bound keeps rising with K; with EqCo (alpha = 65,536) it ends at almost "
        "the same value for all K"
    ),
    panels=(
        Panel(WITHOUT, "curve", "epoch", "log(1 + K) - loss (nats)"),
        Panel(WITH, "curve", "epoch", "log(1 + alpha) - loss (nats)"),
    ),
    grids={
        "smoke": Grid(
            _fig1(
                "digits", (16, 64, 256), 1024, MILD | {"train.epochs": 8, "monitor.log_every": 1}
            ),
            f"{MILDLY}, 8 epochs; alpha = 1,024",
        ),
        "small": Grid(
            _fig1("cifar10", (16, 256, 4096), 4096, SMALL | {"monitor.log_every": 5}),
            "CIFAR-10, ResNet-18, 100 epochs; alpha = 4,096",
            3,
        ),
        "paper": Grid(
            _fig1("imagenet", (16, 256, 4096, 65536), 65536, {}),
            f"{IMAGENET}; {GRID_IS_OURS}",
        ),
    },
    laws=(
        Law("without EqCo the bound rises with K", partial(laws.ends_rise, panel=WITHOUT)),
        Law(
            "with EqCo the bounds coincide: they end within a third of the range that they have "
            "without EqCo",
            partial(laws.ends_coincide, panel=WITH, against=WITHOUT, share=1 / 3),
        ),
    ),
)

FRAMEWORKS = ("MoCo", "MoCo v2", "SimCLR")
FIG2 = Item(
    title="Accuracy against the number of negatives, with and without EqCo",
    question="Does EqCo keep the accuracy of MoCo, MoCo v2 and SimCLR with few negatives?",
    source=(
        f"{PAPER}, figure 2; for MoCo's 54.7 and 60.6 section 1, which quotes them from He et al."
    ),
    trend=(
        "without EqCo accuracy drops when K is small (below 64); with EqCo it does not, except "
        "that MoCo v2 still degrades at K <= 16; for MoCo the loss from K = 65,536 to 256 shrinks "
        "from 6.1 to 0.2 points (section 1)"
    ),
    panels=tuple(
        Panel(name, "curve", "K, negatives per query", "top-1 accuracy (%)", log=True)
        for name in FRAMEWORKS
    ),
    grids={
        "smoke": Grid(
            _fig2("digits", "mocov1", (4, 128), 128, FAST, SMOKE)
            + _fig2("digits", "mocov2", (4, 128), 128, FAST, SMOKE)
            + _fig2("digits", "simclr", (4, 64), 64, FAST, SMOKE),
            f"{DIGITS}; alpha = 128 and 64 stand for 65,536 and 256",
        ),
        "small": Grid(
            _fig2("cifar10", "mocov1", (4, 16, 256, 4096), 4096, FAST, SMALL)
            + _fig2("cifar10", "mocov2", (4, 16, 256, 4096), 4096, FAST, SMALL)
            + _fig2("cifar10", "simclr", (4, 32, 256), 256, FAST, SMALL),
            f"{CIFAR}; alpha = 4,096 stands for 65,536",
            3,
        ),
        "paper": Grid(
            _fig2(
                "imagenet", "mocov1", (4, 16, 64, 256, 1024, 4096, 16384, 65536), 65536, LINEAR, {}
            )
            + _fig2(
                "imagenet", "mocov2", (4, 16, 64, 256, 1024, 4096, 16384, 65536), 65536, LINEAR, {}
            )
            + _fig2(
                "imagenet", "simclr", (2, 4, 16, 64, 256), 256, (score("linear-eqco-simclr"),), {}
            ),
            f"{IMAGENET}; {GRID_IS_OURS}",
        ),
    },
    paper={("MoCo", WITHOUT, 256): 54.7, ("MoCo", WITHOUT, 65536): 60.6},
    sources=dict.fromkeys(
        (("MoCo", WITHOUT, 256), ("MoCo", WITHOUT, 65536)),
        f"{PAPER}, section 1, quoting He et al. (2020)",
    ),
    laws=tuple(
        Law(
            f"{name}: with EqCo accuracy falls less at the smallest K",
            partial(laws.steadier, panel=name, row=WITH, than=WITHOUT),
            EMPIRICAL,
        )
        for name in FRAMEWORKS
    ),
)


def _fig4(data: str, epochs: int, every: int, common: Mapping[str, Any]) -> tuple[Trial, ...]:
    """Return one run of MoCo v2 that is analysed every `every` epochs.

    The names of the last checkpoint's curves contain no epoch.
    """
    moments = {epoch: f", epoch {epoch}" for epoch in range(every, epochs, every)} | {epochs: ""}
    measures = tuple(
        analysis(
            "gradient-norm",
            f"curves.{what} {panel}{when}",
            panel=panel,
            row=f"{label}, epoch {epoch}",
        )
        for panel in (WITHOUT, WITH)
        for epoch, when in moments.items()
        for what, label in (("mean", "mean"), ("std", "deviation"), ("bound", "bound"))
    )
    kept = {"train.epochs": epochs, "train.checkpoint_every": every, "train.keep": epochs // every}
    return (Trial(f"{data}.mocov2", {**common, **kept}, measures),)


LENGTH = "length of the gradient of a query"
FIG4 = Item(
    title="The length of the gradient for different K",
    question="Does EqCo make the gradient of a query independent of the number of negatives?",
    source=f"{PAPER}, figure 4",
    trend="with EqCo the length of the gradient varies much less with K",
    panels=tuple(
        Panel(name, "curve", "K, negatives per query", LENGTH, log=True) for name in (WITHOUT, WITH)
    ),
    grids={
        "smoke": Grid(_fig4("digits", 8, 4, MILD), f"{MILDLY}, 8 epochs of MoCo v2"),
        "small": Grid(
            _fig4("cifar10", 100, 25, {}), "CIFAR-10, ResNet-18, 100 epochs of MoCo v2", 3
        ),
        "paper": Grid(
            _fig4("imagenet", 200, 40, {}),
            "ImageNet, ResNet-50, 200 epochs of MoCo v2; the paper prints neither K nor the epochs",
        ),
    },
    laws=(
        Law(
            "for K of 16 and more the gradient varies less with EqCo, at every epoch",
            partial(laws.narrower, panel=WITH, than=WITHOUT, rows="mean", start=16),
        ),
        *(
            Law(
                f"{name}: the mean gradient stays below the bound of theorem 2",
                partial(laws.bounded, panel=name),
            )
            for name in (WITHOUT, WITH)
        ),
    ),
)

SIZES = "Top-1 accuracy (%)"
TABLE1 = Item(
    title="MoCo v2 with different numbers of queries per batch",
    question="Does the linear scaling rule make accuracy independent of the number of queries N?",
    source=f"{PAPER}, table 1",
    trend="accuracy hardly changes if the learning rate is proportional to N",
    panels=(Panel("", "table", "N"),),
    grids={
        "smoke": Grid(
            cross(
                {SIZES: ("digits.mocov2", {"train.epochs": 2})},
                {256: {"train.batch": 32}, 512: {"train.batch": 64}, 1024: {"train.batch": 128}},
                FAST,
            ),
            "digits, 2 epochs; batch sizes 32, 64 and 128 stand for 256, 512 and 1,024",
        ),
        "small": Grid(
            cross({SIZES: ("cifar10.mocov2", SMALL)}, vary("train.batch", (256, 512, 1024)), FAST),
            CIFAR,
            3,
        ),
        "paper": Grid(
            cross({SIZES: ("imagenet.mocov2", {})}, vary("train.batch", (256, 512, 1024)), LINEAR),
            IMAGENET,
        ),
    },
    paper=table({SIZES: {256: 67.5, 512: 67.5, 1024: 67.4}}),
    laws=(
        Law(
            "accuracies differ by less than three points",
            partial(laws.alike, panel="", within=3.0),
            EMPIRICAL,
        ),
    ),
)

COUNTS = (256, 1024, 4096, 16384, 65536, 262144)
TABLE6 = Item(
    title="MoCo v2 with different K",
    question="How does the accuracy of MoCo v2 depend on the number of negatives?",
    source=f"{PAPER}, table 6",
    trend="accuracy changes by .6 points; more than 65,536 negatives do not help",
    panels=(Panel("", "table", "K"),),
    grids={
        "smoke": Grid(
            cross({ACCURACY: ("digits.mocov2", SMOKE)}, vary("method.queue", (16, 64, 256)), FAST),
            DIGITS,
        ),
        "small": Grid(
            cross(
                {ACCURACY: ("cifar10.mocov2", SMALL)},
                vary("method.queue", (256, 1024, 4096, 16384)),
                FAST,
            ),
            CIFAR,
            3,
        ),
        "paper": Grid(
            cross({ACCURACY: ("imagenet.mocov2", {})}, vary("method.queue", COUNTS), LINEAR),
            IMAGENET,
        ),
    },
    paper=table({ACCURACY: dict(zip(COUNTS, (67.0, 67.1, 67.6, 67.3, 67.5, 67.4), strict=True))}),
    laws=(
        Law(
            "accuracies differ by less than three points",
            partial(laws.alike, panel="", within=3.0),
            EMPIRICAL,
        ),
    ),
)


ITEMS = {
    "eqco.fig1": FIG1,
    "eqco.fig2": FIG2,
    "eqco.fig4": FIG4,
    "eqco.table1": TABLE1,
    "eqco.table6": TABLE6,
}
