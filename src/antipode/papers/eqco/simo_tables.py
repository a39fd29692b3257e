"""SiMo, the second half of EqCo's paper (Zhu et al. 2020): figure 3 and tables 2 to 5."""

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

from antipode.papers.eqco.claims import WITH, costs_little, keeps_more
from antipode.papers.eqco.eqco_tables import (
    ACCURACY,
    CIFAR,
    DIGITS,
    FAST,
    FOUR_THOUSAND,
    GRID_IS_OURS,
    IMAGENET,
    LINEAR,
    LOGGED,
    NOT_TRAINED,
    OURS,
    PAPER,
    SMOKE,
    negatives,
    not_trained,
    pair,
)
from antipode.reproduction import laws
from antipode.reproduction.item import (
    REFERENCE_PANEL,
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
BATCH_IS_256 = "K = 256 is the 255 other images of a batch of 256"
HUNDRED = "ImageNet, ResNet-50, 100 epochs, linear evaluation"


def _fig3(
    data: str,
    counts: Iterable[int],
    batch: int,
    measures: tuple[Measure, ...],
    common: Mapping[str, Any],
) -> tuple[Trial, ...]:
    """Return SiMo without and with EqCo (alpha = N) for some K below the batch size N, and K = N.

    K = N stands for the N-1 other images of the batch. Both curves end there, in one run.
    """
    columns = negatives(counts) | {batch: {"method.negatives": None, "method.alpha": batch}}
    return cross(pair(f"{data}.simo", batch), columns, measures, common=common)


FIG3 = Item(
    title="SiMo with and without EqCo",
    question="Does SiMo work with very few negatives from its own batch?",
    source=f"{PAPER}, figure 3",
    trend=(
        "without EqCo accuracy drops when K is very small; with EqCo (alpha = 256) it stays almost "
        "the same"
    ),
    panels=(
        Panel("", "curve", "K, negatives per query", "top-1 accuracy (%)", log=True),
        REFERENCE_PANEL,
    ),
    grids={
        "smoke": Grid(_fig3("digits", (2, 8), 64, FAST, SMOKE), f"{DIGITS}; alpha = 64"),
        "small": Grid(
            _fig3("cifar10", (4, 16), 256, FAST, OURS) + NOT_TRAINED, f"{CIFAR}; {BATCH_IS_256}", 3
        ),
        "paper": Grid(
            _fig3("imagenet", (2, 4, 16, 64), 256, SIMO, {}) + not_trained("linear-simo"),
            f"{IMAGENET}; {BATCH_IS_256}; {GRID_IS_OURS}",
        ),
    },
    laws=(
        Law(
            "at the smallest K accuracy drops without EqCo, and drops less with it",
            keeps_more,
            source="section 3, figure 3",
            headline=True,
        ),
        Law(
            "with EqCo 16 negatives are as good as 256",
            partial(laws.cost, few=("", WITH, 16), full=("", WITH, 256), paper=-0.1),
            source="section 3, table 2",
            paper="68.1 and 68.0",
            headline=True,
        ),
        Law(
            "with EqCo accuracy stays almost the same even at the smallest K",
            costs_little,
            source="section 3, figure 3",
            headline=True,
        ),
    ),
)


def _table2(data: str, few: int, alphas: tuple[int, int], common: Mapping[str, Any]) -> Any:
    """Return the rows of SiMo in table 2 for one number of epochs.

    `few` is the small number of negatives; the large one is all other images of the batch. `alphas`
    are the two values of alpha.
    """
    small, large = alphas
    return {
        "few": (f"{data}.simo", {"method.negatives": few, "method.alpha": small, **common}),
        "most": (f"{data}.simo", {"method.alpha": small, **common}),
        "large": (f"{data}.simo", {"method.alpha": large, **common}),
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
    few: int,
    alphas: tuple[int, int],
    epochs: tuple[int, int],
    *,
    batch: Mapping[str, Any],
    more: Mapping[str, Any],
    simo: tuple[Measure, ...],
    simclr: tuple[Measure, ...],
    others: tuple[Measure, ...],
) -> tuple[Trial, ...]:
    """Return the trials of table 2.

    SiMo and MoCo v2 are trained for both numbers of epochs, SimCLR and NPID for the smaller one.
    `few` and `alphas` are those of SiMo, `batch` is for SiMo and MoCo v2, and `more` for SiMo only.
    SimCLR's number is quoted from its paper, so SimCLR has its own measures (`simclr`).
    """
    short, long = ({"train.epochs": count, **batch} for count in epochs)
    ours = {label: _table2(data, few, alphas, {**short, **more})[k] for k, label in SHORT.items()}
    ours |= {label: _table2(data, few, alphas, {**long, **more})[k] for k, label in LONG.items()}
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


def _at(row: str) -> tuple[str, str, str]:
    """Return the place of a row of table 2."""
    return "", row, TOP1


TABLE2_LAWS = (
    Law(
        "SiMo with 16 negatives is better than MoCo v2 with 65,536",
        partial(laws.gain, better=_at(SHORT["few"]), worse=_at(MOCO), paper=0.6),
        source="section 3, table 2",
        paper="68.1 and 67.5",
        headline=True,
    ),
    Law(
        "SiMo with 16 negatives is as good as SiMo with 256",
        partial(laws.cost, few=_at(SHORT["few"]), full=_at(SHORT["most"]), paper=-0.1),
        source="section 3, table 2",
        paper="68.1 and 68.0",
        headline=True,
    ),
    Law(
        "a larger alpha makes SiMo better",
        partial(laws.gain, better=_at(SHORT["large"]), worse=_at(SHORT["most"]), paper=0.5),
        source="sections 3 and 4, table 2",
        paper="68.5 and 68.0",
    ),
    Law(
        "SiMo is the best method at 200 epochs",
        partial(
            laws.best,
            at=_at(SHORT["large"]),
            others=[_at(MOCO), _at(SIMCLR), _at(NPID)],
            paper=1.0,
        ),
        source="section 3, table 2",
        paper="68.5; 67.5 for MoCo v2, the next",
    ),
    Law(
        "four times the epochs make SiMo better",
        partial(laws.gain, better=_at(LONG["most"]), worse=_at(SHORT["most"]), paper=3.8),
        source="section 3, table 2",
        paper="71.8 and 68.0",
    ),
    Law(
        "SiMo is better than MoCo v2 after 800 epochs, too",
        partial(laws.gain, better=_at(LONG["large"]), worse=_at(MOCO800), paper=1.0),
        source="section 3, table 2",
        paper="72.1 and 71.1",
    ),
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
    panels=(Panel(), REFERENCE_PANEL),
    grids={
        "smoke": Grid(
            _versus(
                "digits",
                4,
                (64, 4096),
                (1, 2),
                batch={"train.batch": 64},
                more={},
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
                16,
                (256, 4096),
                (50, 200),
                batch={},
                more=LOGGED,
                simo=FAST,
                simclr=FAST,
                others=FAST,
            )
            + NOT_TRAINED,
            f"{CIFAR}; 50 and 200 epochs stand for 200 and 800; {FOUR_THOUSAND}, and so does "
            "MoCo v2's queue",
            3,
        ),
        "paper": Grid(
            _versus(
                "imagenet",
                16,
                (256, 65536),
                (200, 800),
                batch={},
                more={},
                simo=SIMO,
                simclr=(score("linear-simclr"),),
                others=LINEAR,
            )
            + not_trained("linear-simo", "linear-simclr", "linear"),
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
    laws=TABLE2_LAWS,
)


def _simo(
    data: str,
    columns: Mapping[Any, Mapping[str, Any]],
    measures: tuple[Measure, ...],
    common: Mapping[str, Any],
) -> tuple[Trial, ...]:
    """Return SiMo in one row."""
    return cross({ACCURACY: (f"{data}.simo", {})}, columns, measures, common=common)


BETA = {"0": {"method.momentum": 0.0}, "0.999": {"method.momentum": 0.999}}
FASTER = {"0": {"method.momentum": 0.0}, "0.999": {"method.momentum": 0.99}}
TABLE3 = Item(
    title="SiMo with and without momentum update",
    question="Does SiMo need a momentum encoder for its keys?",
    source=f"{PAPER}, table 3",
    trend="without momentum SiMo is 2.3 points worse",
    panels=(Panel("", "table", "beta"), REFERENCE_PANEL),
    grids={
        "smoke": Grid(
            _simo("digits", FASTER, FAST, SMOKE), f"{DIGITS}; beta = .99 stands for .999"
        ),
        "small": Grid(
            _simo("cifar10", FASTER, FAST, OURS) + NOT_TRAINED,
            f"{CIFAR}; beta = .99 stands for .999",
            3,
        ),
        "paper": Grid(
            _simo("imagenet", BETA, SIMO, {"train.epochs": 100}) + not_trained("linear-simo"),
            HUNDRED,
        ),
    },
    paper=table({ACCURACY: {"0": 62.1, "0.999": 64.4}}),
    laws=(
        Law(
            "SiMo is better with momentum than without",
            partial(
                laws.gain, better=("", ACCURACY, "0.999"), worse=("", ACCURACY, "0"), paper=2.3
            ),
            source="appendix B.1, table 3",
            paper="64.4 and 62.1",
        ),
    ),
)

NORMS = {"Shuffling BN": {"method.groups": 8}, "Sync BN": {"method.groups": 1}}
TABLE4 = Item(
    title="SiMo with Sync BN and with shuffling BN",
    question="Does SiMo need synchronised or shuffled batch norm?",
    source=f"{PAPER}, table 4",
    trend="SiMo is 5.6 points worse with shuffling BN than with Sync BN",
    panels=(Panel(), REFERENCE_PANEL),
    grids={
        "smoke": Grid(_simo("digits", NORMS, FAST, SMOKE), f"{DIGITS}; eight groups of 8 images"),
        "small": Grid(
            _simo("cifar10", NORMS, FAST, OURS) + NOT_TRAINED,
            f"{CIFAR}; eight groups of 32 images",
            3,
        ),
        "paper": Grid(
            _simo("imagenet", NORMS, SIMO, {"train.epochs": 100}) + not_trained("linear-simo"),
            HUNDRED,
        ),
    },
    paper=table({ACCURACY: {"Shuffling BN": 58.8, "Sync BN": 64.4}}),
    laws=(
        Law(
            "SiMo is better with Sync BN than with shuffling BN",
            partial(
                laws.gain,
                better=("", ACCURACY, "Sync BN"),
                worse=("", ACCURACY, "Shuffling BN"),
                paper=5.6,
            ),
            source="appendix B.2, table 4",
            paper="64.4 and 58.8",
        ),
    ),
)

ALPHAS = (256, 1024, 4096, 16384, 65536, 262144)
# At scale small, 16 times smaller values stand for the paper's largest ones.
SMALL_ALPHAS = {
    label: {"method.alpha": alpha}
    for label, alpha in {256: 256, 65536: 4096, 262144: 16384}.items()
}
TABLE5 = Item(
    title="SiMo with different alpha",
    question=(
        "How does the accuracy of SiMo depend on alpha, the number of negatives that EqCo imitates?"
    ),
    source=f"{PAPER}, table 5",
    trend="accuracy rises by half a point up to alpha = 65,536 and drops slightly above",
    panels=(Panel("", "table", "alpha"), REFERENCE_PANEL),
    grids={
        "smoke": Grid(
            _simo("digits", vary("method.alpha", (256, 4096, 65536)), FAST, SMOKE), DIGITS
        ),
        "small": Grid(
            _simo("cifar10", SMALL_ALPHAS, FAST, OURS) + NOT_TRAINED,
            f"{CIFAR}; {FOUR_THOUSAND}, and 16,384 for 262,144",
            3,
        ),
        "paper": Grid(
            _simo("imagenet", vary("method.alpha", ALPHAS), SIMO, {}) + not_trained("linear-simo"),
            IMAGENET,
        ),
    },
    paper=table({ACCURACY: dict(zip(ALPHAS, (68.0, 68.1, 68.1, 68.4, 68.5, 68.3), strict=True))}),
    laws=(
        Law(
            "accuracy rises with alpha up to 65,536",
            partial(laws.gain, better=("", ACCURACY, 65536), worse=("", ACCURACY, 256), paper=0.5),
            source="appendix B.3, table 5",
            paper="68.5 and 68.0",
        ),
        Law(
            "a still larger alpha (262,144) lowers accuracy",
            partial(
                laws.gain, better=("", ACCURACY, 65536), worse=("", ACCURACY, 262144), paper=0.2
            ),
            source="appendix B.3, table 5",
            paper="68.5 and 68.3",
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
