"""SiMo, the second half of EqCo's paper (Zhu et al. 2020): figure 3, tables 2 to 5, 7 and 8."""

from collections.abc import Mapping
from functools import partial
from typing import Any

from antipode.papers.eqco.tables import (
    ACCURACY,
    CIFAR,
    DIGITS,
    FAST,
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
    varied,
)

TOP1 = "Top-1 (%)"
SIMO = (score("linear-simo"),)
HUNDRED = "ImageNet, ResNet-50, 100 epochs, linear evaluation"

FIG3 = Item(
    title="SiMo with and without EqCo",
    question="Can SiMo do with very few negatives of its own batch?",
    source=f"{PAPER}, figure 3",
    trend="without EqCo accuracy drops when K is very small; with it (alpha = 256) it stays almost the same",
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
            f"{IMAGENET}; 256 images leave 255 negatives; its grid of K is not printed: ours",
        ),
    },
    laws=(
        Law(
            "with EqCo accuracy falls less at the fewest negatives",
            partial(laws.steadier, panel="", row=WITH, than=WITHOUT),
            EMPIRICAL,
        ),
    ),
)


def _table2(
    data: str, few: int, most: int | None, alphas: tuple[int, int], common: Mapping[str, Any]
) -> Any:
    """The rows of SiMo that table 2 has for 200 and for 800 epochs."""
    own, huge = alphas
    return {
        "few": (f"{data}.simo", {"method.negatives": few, "method.alpha": own, **common}),
        "own": (f"{data}.simo", {"method.negatives": most, "method.alpha": own, **common}),
        "huge": (f"{data}.simo", {"method.negatives": most, "method.alpha": huge, **common}),
    }


SHORT = {
    "few": "SiMo (K = 16, alpha = 256), 200 epochs",
    "own": "SiMo (K = 256, alpha = 256), 200 epochs",
    "huge": "SiMo (K = 256, alpha = 65536), 200 epochs",
}
LONG = {
    "own": "SiMo (K = 256, alpha = 256), 800 epochs",
    "huge": "SiMo (K = 256, alpha = 65536), 800 epochs",
}
MOCO, MOCO800, SIMCLR, NPID = (
    "MoCo v2, 200 epochs",
    "MoCo v2, 800 epochs",
    "SimCLR, 200 epochs",
    "InstDisc, 200 epochs",
)


def _versus(
    data: str,
    fit: tuple[int, int | None, tuple[int, int]],
    length: tuple[int, int],
    batch: Mapping[str, Any],
    *how: Any,
) -> tuple[Trial, ...]:
    """Table 2: SiMo, MoCo v2, SimCLR and NPID for a length, SiMo and MoCo v2 for a longer one."""
    ours, others, simclr = how
    short, long = ({"train.epochs": epochs, **batch} for epochs in length)
    simo = {label: _table2(data, *fit, short)[key] for key, label in SHORT.items()}
    simo |= {label: _table2(data, *fit, long)[key] for key, label in LONG.items()}
    rest = {
        MOCO: (f"{data}.mocov2", short),
        MOCO800: (f"{data}.mocov2", long),
        SIMCLR: (f"{data}.simclr", {"train.epochs": length[0]}),
        NPID: (f"{data}.npid", {"train.epochs": length[0]}),
    }
    batch_wise = {
        SIMCLR: rest.pop(SIMCLR)
    }  # its number is quoted: judged as its own paper does, the others as MoCo
    return (
        cross(simo, {TOP1: {}}, ours)
        + cross(rest, {TOP1: {}}, others)
        + cross(batch_wise, {TOP1: {}}, simclr)
    )


TABLE2 = Item(
    title="SiMo against the frameworks of its time",
    question="Does SiMo without a queue reach MoCo v2, with 16 negatives per query instead of 65,536?",
    source=f"{PAPER}, table 2",
    trend="SiMo with 16 negatives is above MoCo v2; alpha = 65,536 adds half a point, 800 epochs almost four",
    panels=(Panel(),),
    grids={
        "smoke": Grid(
            _versus("digits", (4, 63, (64, 4096)), (1, 2), {"train.batch": 64}, FAST, FAST, FAST),
            "digits; 1 and 2 epochs stand for 200 and 800, 4 and 63 negatives for 16 and 256, alpha 64 and 4,096",
        ),
        "small": Grid(
            _versus("cifar10", (16, 255, (256, 65536)), (100, 400), {}, FAST, FAST, FAST),
            f"{CIFAR}; 100 and 400 epochs stand for 200 and 800",
            3,
        ),
        "paper": Grid(
            _versus(
                "imagenet",
                (16, 255, (256, 65536)),
                (200, 800),
                {},
                SIMO,
                LINEAR,
                (score("linear-simclr"),),
            ),
            f"{IMAGENET}; 256 images leave 255 negatives; LocalAgg, CPC v2, CMC, PIRL and SimCLR for 1,000 are quoted; "
            "SimCLR's batch is its own paper's, 4096: that of its quoted number is not stated",
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
            SHORT["own"]: {TOP1: 68.0},
            SHORT["huge"]: {TOP1: 68.5},
            "PIRL, 800 epochs": {TOP1: 63.6},
            "SimCLR, 1000 epochs": {TOP1: 69.3},
            MOCO800: {TOP1: 71.1},
            LONG["own"]: {TOP1: 71.8},
            LONG["huge"]: {TOP1: 72.1},
        }
    ),
    laws=(
        Law(
            "few negatives cost SiMo less than two points",
            partial(
                laws.beats, better=("", SHORT["few"], TOP1), worse=("", SHORT["own"], TOP1), by=-2.0
            ),
            EMPIRICAL,
        ),
        Law(
            "SiMo with few negatives is above MoCo v2",
            partial(laws.beats, better=("", SHORT["few"], TOP1), worse=("", MOCO, TOP1)),
            EMPIRICAL,
        ),
        Law(
            "a longer training is better",
            partial(laws.beats, better=("", LONG["own"], TOP1), worse=("", SHORT["own"], TOP1)),
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
    """SiMo in one row."""
    return cross(
        {ACCURACY: (f"{data}.simo", {f"train.{k}": v for k, v in common.items()})},
        columns,
        measures,
    )


BETA = {"0": {"method.momentum": 0.0}, "0.999": {"method.momentum": 0.999}}
FASTER = {"0": {"method.momentum": 0.0}, "0.999": {"method.momentum": 0.99}}
TABLE3 = Item(
    title="Ablation on momentum update",
    question="Does SiMo need a slow key encoder?",
    source=f"{PAPER}, table 3",
    trend="without momentum SiMo is 2.3 points worse",
    panels=(Panel("", "table", "beta"),),
    grids={
        "smoke": Grid(
            _simo("digits", FASTER, FAST, epochs=2, batch=64), f"{DIGITS}; .99 stands for .999"
        ),
        "small": Grid(
            _simo("cifar10", FASTER, FAST, epochs=100), f"{CIFAR}; .99 stands for .999", 3
        ),
        "paper": Grid(_simo("imagenet", BETA, SIMO, epochs=100), HUNDRED),
    },
    paper=table({ACCURACY: {"0": 62.1, "0.999": 64.4}}),
    laws=(
        Law(
            "with momentum it is better",
            partial(laws.beats, better=("", ACCURACY, "0.999"), worse=("", ACCURACY, "0")),
            EMPIRICAL,
        ),
    ),
)

NORMS = {"Shuffling BN": {"method.groups": 8}, "Sync BN": {"method.groups": 1}}
TABLE4 = Item(
    title="Sync BN against shuffling BN",
    question="Which batch norm does SiMo need?",
    source=f"{PAPER}, table 4",
    trend="SiMo with shuffling BN is 5.6 points worse",
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
            "Sync BN is better",
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
    question="How does SiMo's accuracy depend on the number of negatives that it mimics?",
    source=f"{PAPER}, table 5",
    trend="accuracy rises by half a point up to alpha = 65,536 and drops slightly beyond",
    panels=(Panel("", "table", "alpha"),),
    grids={
        "smoke": Grid(
            _simo("digits", varied("method.alpha", (256, 4096, 65536)), FAST, epochs=2, batch=64),
            DIGITS,
        ),
        "small": Grid(
            _simo("cifar10", varied("method.alpha", (256, 4096, 65536)), FAST, epochs=100), CIFAR, 3
        ),
        "paper": Grid(_simo("imagenet", varied("method.alpha", ALPHAS), SIMO), IMAGENET),
    },
    paper=table({ACCURACY: dict(zip(ALPHAS, (68.0, 68.1, 68.1, 68.4, 68.5, 68.3), strict=True))}),
    laws=(
        Law(
            "alpha = 65,536 is better than 256",
            partial(laws.beats, better=("", ACCURACY, 65536), worse=("", ACCURACY, 256)),
            EMPIRICAL,
        ),
    ),
)


def _wide(
    data: str,
    names: tuple[str, str],
    alphas: Mapping[int, int],
    measures: Any,
    common: Mapping[str, Any],
) -> Any:
    """Two widths, two alphas, in the paper's own rows and columns."""
    rows = {
        f"ResNet-50 ({x}x)": (f"{data}.simo", {"backbone.name": name})
        for x, name in zip((2, 4), names, strict=True)
    }
    columns = {f"alpha = {label}": {"method.alpha": alpha} for label, alpha in alphas.items()}
    return cross(rows, columns, measures, common=common)


SAME = {256: 256, 65536: 65536}
TABLE7 = Item(
    title="SiMo with wider models",
    question="Does SiMo gain from wider networks?",
    source=f"{PAPER}, table 7",
    trend="twice the width adds 2 points, four times 3.8",
    panels=(Panel(),),
    grids={
        "smoke": Grid(
            _wide("digits", ("resnet10-slim", "resnet10-slimx2"), SAME, FAST, SMOKE),
            f"{DIGITS}; resnet10-slim and twice its width stand for ResNet-50 (2x) and (4x)",
        ),
        "small": Grid(
            _wide("cifar10", ("resnet18", "resnet18x2"), SAME, FAST, SMALL),
            f"{CIFAR}; ResNet-18 and twice its width stand for ResNet-50 (2x) and (4x)",
            3,
        ),
        "paper": Grid(_wide("imagenet", ("resnet50x2", "resnet50x4"), SAME, SIMO, {}), IMAGENET),
    },
    paper=table(
        {
            "ResNet-50 (2x)": {"alpha = 256": 70.2, "alpha = 65536": 70.5},
            "ResNet-50 (4x)": {"alpha = 256": 71.9, "alpha = 65536": 72.3},
        }
    ),
    laws=(
        Law(
            "the wider network is better",
            partial(
                laws.beats,
                better=("", "ResNet-50 (4x)", "alpha = 65536"),
                worse=("", "ResNet-50 (2x)", "alpha = 65536"),
            ),
            EMPIRICAL,
        ),
    ),
)

PRECISIONS = ("AP", "AP50", "AP75", "APs", "APm", "APl")


def _detected(kind: Any, name: str, columns: tuple[str, ...] = PRECISIONS) -> tuple[Measure, ...]:
    """COCO's figures of the boxes."""
    picks = {column: "value" if column == "AP" else f"more.{column}" for column in columns}
    return tuple(Measure(kind, name, pick, column=column) for column, pick in picks.items())


def _pretrained(
    data: str, untrained: str, common: Mapping[str, Any], measures: Any
) -> tuple[Trial, ...]:
    """The networks of table 8 that are not supervised."""
    rows: dict[str, tuple[str, Mapping[str, Any]]] = {
        "random init": (f"random:{untrained}", {"data.name": data}),
        "MoCo v2": (f"{data}.mocov2", common),
        "SiMo": (f"{data}.simo", common),
    }
    return cross(rows, {"": {}}, measures)


SCENES = (
    "drawn scenes in COCO's layout, a slim detector; all objects are small; no supervised network"
)
TABLE8 = Item(
    title="Object detection fine-tuned on COCO",
    question="Does what SiMo learns without labels carry over to object detection?",
    source=f"{PAPER}, table 8",
    trend="SiMo is on a par with MoCo v2 and with supervised pretraining, 7.6 AP above a random start",
    panels=(Panel(y="AP (%)"),),
    grids={
        "smoke": Grid(
            _pretrained(
                "shapes",
                "resnet10-slim",
                {"train.epochs": 1},
                _detected("scenes", "detect-smoke", PRECISIONS[:3]),
            ),
            f"shapes, resnet10-slim, 1 epoch; {SCENES}",
        ),
        "small": Grid(
            _pretrained(
                "cifar10", "resnet18", SMALL, _detected("scenes", "detect-small", PRECISIONS[:3])
            ),
            f"CIFAR-10, ResNet-18, 100 epochs; {SCENES}",
            3,
        ),
        "paper": Grid(
            (
                Trial(
                    "random:resnet50",
                    {"data.name": "coco"},
                    _detected("score", "detect-coco"),
                    "random init",
                ),
                Trial(
                    "torchvision:resnet50",
                    {"data.name": "coco"},
                    _detected("score", "detect-coco"),
                    "supervised",
                ),
                Trial("imagenet.mocov2", {}, _detected("score", "detect-coco"), "MoCo v2"),
                Trial("imagenet.simo", {}, _detected("score", "detect-coco"), "SiMo"),
            ),
            "ImageNet, ResNet-50, 200 epochs; COCO, Faster R-CNN with FPN, 12 epochs",
        ),
    },
    paper=table(
        {
            row: dict(zip(PRECISIONS, line, strict=True))
            for row, line in {
                "random init": (31.4, 49.4, 34.0, 17.9, 32.3, 41.6),
                "supervised": (39.0, 59.1, 42.6, 22.4, 42.2, 50.6),
                "MoCo v2": (39.1, 59.2, 42.5, 23.3, 42.1, 50.8),
                "SiMo": (39.0, 59.2, 42.3, 22.9, 41.8, 50.5),
            }.items()
        }
    ),
    laws=(
        Law(
            "a pretrained network detects better than a random one",
            partial(laws.beats, better=("", "SiMo", "AP"), worse=("", "random init", "AP")),
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
    "eqco.table7": TABLE7,
    "eqco.table8": TABLE8,
}
