"""SiMo with wider networks and on COCO (Zhu et al. 2020): tables 7 and 8."""

from collections.abc import Mapping
from functools import partial
from typing import Any

from antipode.papers.eqco.eqco_tables import CIFAR, DIGITS, FAST, IMAGENET, PAPER, SMALL, SMOKE
from antipode.papers.eqco.simo_tables import SIMO
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
    table,
)


def _wide(
    data: str,
    names: tuple[str, str],
    alphas: Mapping[int, int],
    measures: Any,
    common: Mapping[str, Any],
) -> Any:
    """Return two widths and two values of alpha in the paper's rows and columns."""
    rows = {
        f"ResNet-50 ({x}x)": (f"{data}.simo", {"backbone.name": name})
        for x, name in zip((2, 4), names, strict=True)
    }
    columns = {f"alpha = {label}": {"method.alpha": alpha} for label, alpha in alphas.items()}
    return cross(rows, columns, measures, common=common)


SAME = {256: 256, 65536: 65536}
TABLE7 = Item(
    title="SiMo with wider networks",
    question="Does SiMo gain from wider networks?",
    source=f"{PAPER}, table 7",
    trend="twice the width adds 2 points, and four times the width adds 3.8",
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
    """Return the measures for COCO's average precisions of boxes."""
    picks = {column: "value" if column == "AP" else f"more.{column}" for column in columns}
    return tuple(Measure(kind, name, pick, column=column) for column, pick in picks.items())


def _pretrained(
    data: str, untrained: str, common: Mapping[str, Any], measures: Any
) -> tuple[Trial, ...]:
    """Return the networks of table 8 except the supervised one."""
    rows: dict[str, tuple[str, Mapping[str, Any]]] = {
        "random init": (f"random:{untrained}", {"data.name": data}),
        "MoCo v2": (f"{data}.mocov2", common),
        "SiMo": (f"{data}.simo", common),
    }
    return cross(rows, {"": {}}, measures)


SCENES = (
    "drawn scenes in COCO's layout with a slim detector; all objects are small; no supervised "
    "network"
)
TABLE8 = Item(
    title="Object detection, fine-tuned on COCO",
    question="Do the features that SiMo learns without labels transfer to object detection?",
    source=f"{PAPER}, table 8",
    trend=(
        "SiMo is on a par with MoCo v2 and with supervised pretraining, and 7.6 AP above random "
        "initialisation"
    ),
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
            "SiMo detects better than a randomly initialised network",
            partial(laws.beats, better=("", "SiMo", "AP"), worse=("", "random init", "AP")),
            EMPIRICAL,
        ),
    ),
)

ITEMS = {"eqco.table7": TABLE7, "eqco.table8": TABLE8}
