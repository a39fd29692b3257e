"""SiMo, the second half of EqCo's paper (Zhu et al. 2020): figure 3 and tables 2 to 5."""

from collections.abc import Mapping
from functools import partial
from typing import Any

from antipode.papers.eqco.eqco_tables import (
    ACCURACY,
    CIFAR,
    DIGITS,
    FAST,
    GRID_IS_OURS,
    IMAGENET,
    LINEAR,
    PAPER,
    SMALL,
    SMOKE,
    WITH,
    WITHOUT,
    negatives,
    pair,
)
from antipode.reproduction import laws
from antipode.reproduction.item import (
    EMPIRICAL,
    Grid,
    Item,
    Law,
    Measure,
    Panel,
    Trial,
    cross,
    score,
    table,
    vary,
)

TOP1 = "Top-1 (%)"
SIMO = (score("linear-simo"),)
BATCH_IS_256 = "a batch of 256 images has 255 negatives"
HUNDRED = "ImageNet, ResNet-50, 100 epochs, linear evaluation"

FIG3 = Item(
    title="SiMo with and without EqCo",
    question="Does SiMo work with very few negatives from its own batch?",
    source=f"{PAPER}, figure 3",
    trend=(
        "without EqCo accuracy drops when K is very small; with EqCo (alpha = 256) it stays almost "
        "the same"
    ),
    panels=(Panel("", "curve", "K, negatives per query", "top-1 accuracy (%)", log=True),),
    grids={
        "smoke": Grid(
            cross(pair("digits.simo", 63), negatives((2, 8, 63)), FAST, common=SMOKE), DIGITS
        ),
        "small": Grid(
            cross(pair("cifar10.simo", 256), negatives((2, 16, 255)), FAST, common=SMALL), CIFAR, 3
        ),
        "paper": Grid(
            cross(pair("imagenet.simo", 256), negatives((2, 4, 16, 64, 255)), SIMO),
            f"{IMAGENET}; {BATCH_IS_256}; {GRID_IS_OURS}",
        ),
    },
    laws=(
        Law(
            "with EqCo accuracy falls less at the smallest K",
            partial(laws.steadier, panel="", row=WITH, than=WITHOUT),
            EMPIRICAL,
        ),
    ),
)


def _table2(
    data: str, few: int, most: int | None, alphas: tuple[int, int], common: Mapping[str, Any]
) -> Any:
    """Return the rows of SiMo in table 2 for one number of epochs.

    `few` and `most` are the two numbers of negatives, and `alphas` are the two values of alpha.
    """
    small, large = alphas
    return {
        "few": (f"{data}.simo", {"method.negatives": few, "method.alpha": small, **common}),
        "most": (f"{data}.simo", {"method.negatives": most, "method.alpha": small, **common}),
        "large": (f"{data}.simo", {"method.negatives": most, "method.alpha": large, **common}),
    }


SHORT = {
    "few": "SiMo (K = 16, alpha = 256), 200 epochs",
    "most": "SiMo (K = 256, alpha = 256), 200 epochs",
    "large": "SiMo (K = 256, alpha = 65536), 200 epochs",
}
LONG = {
    "most": "SiMo (K = 256, alpha = 256), 800 epochs",
    "large": "SiMo (K = 256, alpha = 65536), 800 epochs",
}
MOCO = "MoCo v2, 200 epochs"
MOCO800 = "MoCo v2, 800 epochs"
SIMCLR = "SimCLR, 200 epochs"
NPID = "InstDisc, 200 epochs"


def _versus(
    data: str,
    sizes: tuple[int, int | None, tuple[int, int]],
    epochs: tuple[int, int],
    batch: Mapping[str, Any],
    *,
    simo: tuple[Measure, ...],
    simclr: tuple[Measure, ...],
    others: tuple[Measure, ...],
) -> tuple[Trial, ...]:
    """Return the trials of table 2.

    SiMo and MoCo v2 are trained for both numbers of epochs, SimCLR and NPID for the smaller one.
    `sizes` are the two numbers of negatives and the two values of alpha of SiMo. SimCLR's number is
    quoted from its paper, so SimCLR has its own measures (`simclr`).
    """
    short, long = ({"train.epochs": count, **batch} for count in epochs)
    ours = {label: _table2(data, *sizes, short)[key] for key, label in SHORT.items()}
    ours |= {label: _table2(data, *sizes, long)[key] for key, label in LONG.items()}
    rest = {
        MOCO: (f"{data}.mocov2", short),
        MOCO800: (f"{data}.mocov2", long),
        NPID: (f"{data}.npid", {"train.epochs": epochs[0]}),
    }
    quoted = {SIMCLR: (f"{data}.simclr", {"train.epochs": epochs[0]})}
    return (
        cross(ours, {TOP1: {}}, simo)
        + cross(rest, {TOP1: {}}, others)
        + cross(quoted, {TOP1: {}}, simclr)
    )


TABLE2 = Item(
    title="SiMo compared with other frameworks",
    question=(
        "Does SiMo without a queue reach MoCo v2 with 16 negatives per query instead of 65,536?"
    ),
    source=f"{PAPER}, table 2",
    trend=(
        "SiMo with 16 negatives is above MoCo v2; alpha = 65,536 adds half a point, and 800 epochs "
        "add almost four points"
    ),
    panels=(Panel(),),
    grids={
        "smoke": Grid(
            _versus(
                "digits",
                (4, 63, (64, 4096)),
                (1, 2),
                {"train.batch": 64},
                simo=FAST,
                simclr=FAST,
                others=FAST,
            ),
            "digits; 1 and 2 epochs stand for 200 and 800, 4 and 63 negatives for 16 and 256, and "
            "alpha = 64 and 4,096 for 256 and 65,536",
        ),
        "small": Grid(
            _versus(
                "cifar10",
                (16, 255, (256, 65536)),
                (100, 400),
                {},
                simo=FAST,
                simclr=FAST,
                others=FAST,
            ),
            f"{CIFAR}; 100 and 400 epochs stand for 200 and 800",
            3,
        ),
        "paper": Grid(
            _versus(
                "imagenet",
                (16, 255, (256, 65536)),
                (200, 800),
                {},
                simo=SIMO,
                simclr=(score("linear-simclr"),),
                others=LINEAR,
            ),
            f"{IMAGENET}; {BATCH_IS_256}; LocalAgg, CPC v2, CMC, PIRL and SimCLR with 1,000 epochs "
            "are only quoted; the batch size of SimCLR's quoted number is not stated, so we use "
            "4,096 as in SimCLR's own paper",
        ),
    },
    paper=table(
        {
            NPID: {TOP1: 54.0},
            "LocalAgg, 200 epochs": {TOP1: 60.2},
            "CPC v2, 200 epochs": {TOP1: 63.8},
            "CMC, 240 epochs": {TOP1: 66.2},
            SIMCLR: {TOP1: 66.6},
            MOCO: {TOP1: 67.5},
            SHORT["few"]: {TOP1: 68.1},
            SHORT["most"]: {TOP1: 68.0},
            SHORT["large"]: {TOP1: 68.5},
            "PIRL, 800 epochs": {TOP1: 63.6},
            "SimCLR, 1000 epochs": {TOP1: 69.3},
            MOCO800: {TOP1: 71.1},
            LONG["most"]: {TOP1: 71.8},
            LONG["large"]: {TOP1: 72.1},
        }
    ),
    laws=(
        Law(
            "few negatives cost SiMo less than two points",
            partial(
                laws.beats,
                better=("", SHORT["few"], TOP1),
                worse=("", SHORT["most"], TOP1),
                by=-2.0,
            ),
            EMPIRICAL,
        ),
        Law(
            "SiMo with few negatives is better than MoCo v2",
            partial(laws.beats, better=("", SHORT["few"], TOP1), worse=("", MOCO, TOP1)),
            EMPIRICAL,
        ),
        Law(
            "longer training is better",
            partial(laws.beats, better=("", LONG["most"], TOP1), worse=("", SHORT["most"], TOP1)),
            EMPIRICAL,
        ),
    ),
)


def _simo(
    data: str,
    columns: Mapping[Any, Mapping[str, Any]],
    measures: tuple[Measure, ...],
    **common: Any,
) -> Any:
    """Return SiMo in one row; `common` are values of the recipe's section train."""
    return cross(
        {ACCURACY: (f"{data}.simo", {f"train.{k}": v for k, v in common.items()})},
        columns,
        measures,
    )


BETA = {"0": {"method.momentum": 0.0}, "0.999": {"method.momentum": 0.999}}
FASTER = {"0": {"method.momentum": 0.0}, "0.999": {"method.momentum": 0.99}}
TABLE3 = Item(
    title="SiMo with and without momentum update",
    question="Does SiMo need a momentum encoder for its keys?",
    source=f"{PAPER}, table 3",
    trend="without momentum SiMo is 2.3 points worse",
    panels=(Panel("", "table", "beta"),),
    grids={
        "smoke": Grid(
            _simo("digits", FASTER, FAST, epochs=2, batch=64),
            f"{DIGITS}; beta = .99 stands for .999",
        ),
        "small": Grid(
            _simo("cifar10", FASTER, FAST, epochs=100), f"{CIFAR}; beta = .99 stands for .999", 3
        ),
        "paper": Grid(_simo("imagenet", BETA, SIMO, epochs=100), HUNDRED),
    },
    paper=table({ACCURACY: {"0": 62.1, "0.999": 64.4}}),
    laws=(
        Law(
            "SiMo is better with momentum",
            partial(laws.beats, better=("", ACCURACY, "0.999"), worse=("", ACCURACY, "0")),
            EMPIRICAL,
        ),
    ),
)

NORMS = {"Shuffling BN": {"method.groups": 8}, "Sync BN": {"method.groups": 1}}
TABLE4 = Item(
    title="SiMo with Sync BN and with shuffling BN",
    question="Does SiMo need synchronised or shuffled batch norm?",
    source=f"{PAPER}, table 4",
    trend="SiMo is 5.6 points worse with shuffling BN than with Sync BN",
    panels=(Panel(),),
    grids={
        "smoke": Grid(
            _simo("digits", NORMS, FAST, epochs=2, batch=64), f"{DIGITS}; eight groups of 8 images"
        ),
        "small": Grid(
            _simo("cifar10", NORMS, FAST, epochs=100), f"{CIFAR}; eight groups of 32 images", 3
        ),
        "paper": Grid(_simo("imagenet", NORMS, SIMO, epochs=100), HUNDRED),
    },
    paper=table({ACCURACY: {"Shuffling BN": 58.8, "Sync BN": 64.4}}),
    laws=(
        Law(
            "Sync BN is better than shuffling BN",
            partial(
                laws.beats, better=("", ACCURACY, "Sync BN"), worse=("", ACCURACY, "Shuffling BN")
            ),
            EMPIRICAL,
        ),
    ),
)

ALPHAS = (256, 1024, 4096, 16384, 65536, 262144)
TABLE5 = Item(
    title="SiMo with different alpha",
    question=(
        "How does the accuracy of SiMo depend on alpha, the number of negatives that EqCo imitates?"
    ),
    source=f"{PAPER}, table 5",
    trend="accuracy rises by half a point up to alpha = 65,536 and drops slightly above",
    panels=(Panel("", "table", "alpha"),),
    grids={
        "smoke": Grid(
            _simo("digits", vary("method.alpha", (256, 4096, 65536)), FAST, epochs=2, batch=64),
            DIGITS,
        ),
        "small": Grid(
            _simo("cifar10", vary("method.alpha", (256, 4096, 65536)), FAST, epochs=100), CIFAR, 3
        ),
        "paper": Grid(_simo("imagenet", vary("method.alpha", ALPHAS), SIMO), IMAGENET),
    },
    paper=table({ACCURACY: dict(zip(ALPHAS, (68.0, 68.1, 68.1, 68.4, 68.5, 68.3), strict=True))}),
    laws=(
        Law(
            "alpha = 65,536 is better than alpha = 256",
            partial(laws.beats, better=("", ACCURACY, 65536), worse=("", ACCURACY, 256)),
            EMPIRICAL,
        ),
    ),
)


ITEMS = {
    "eqco.fig3": FIG3,
    "eqco.table2": TABLE2,
    "eqco.table3": TABLE3,
    "eqco.table4": TABLE4,
    "eqco.table5": TABLE5,
}
