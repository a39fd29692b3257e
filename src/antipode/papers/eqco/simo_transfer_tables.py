"""SiMo with wider networks and on COCO (Zhu et al. 2020): tables 7 and 8."""

from collections.abc import Mapping
from functools import partial
from typing import Any

from antipode.papers.eqco.eqco_tables import (
    CIFAR,
    DIGITS,
    FAST,
    FOUR_THOUSAND,
    IMAGENET,
    NOT_TRAINED,
    OURS,
    PAPER,
    SMALL,
    SMOKE,
    not_trained,
)
from antipode.papers.eqco.simo_tables import SIMO
from antipode.reproduction import laws
from antipode.reproduction.item import (
    REFERENCE_PANEL,
    Cells,
    Grid,
    Item,
    Law,
    Measure,
    Panel,
    Trial,
    Verdict,
    cross,
    parameters,
    table,
)

BASELINE = "ResNet-50"
WIDE = {2: "ResNet-50 (2x)", 4: "ResNet-50 (4x)"}
MILLIONS = "Param. (M)"
ALPHA = "alpha = 65536"


def _wide(
    data: str,
    names: Mapping[str, str],
    alphas: Mapping[str, int],
    measures: tuple[Measure, ...],
    common: Mapping[str, Any],
) -> tuple[Trial, ...]:
    """Return the networks of table 7 by row, with some values of alpha by column.

    The wider networks also have the column of their number of parameters.
    """
    rows = {row: (f"{data}.simo", {"backbone.name": name}) for row, name in names.items()}
    columns = {label: {"method.alpha": alpha} for label, alpha in alphas.items()}
    wider = {row: rows[row] for row in names if row != BASELINE}
    size = {MILLIONS: {"method.alpha": alphas[ALPHA]}}
    return cross(rows, columns, measures, common=common) + cross(
        wider, size, (parameters(),), common=common
    )


BOTH = {"alpha = 256": 256, ALPHA: 65536}
TABLE7 = Item(
    title="SiMo with wider networks",
    question="Does SiMo gain from wider networks?",
    source=f"{PAPER}, table 7",
    trend="twice the width adds 2 points, and four times the width adds 3.8",
    panels=(Panel(), REFERENCE_PANEL),
    grids={
        "smoke": Grid(
            _wide(
                "digits", {BASELINE: "resnet10-slim", WIDE[2]: "resnet10-slimx2"}, BOTH, FAST, SMOKE
            ),
            f"{DIGITS}; resnet10-slim and twice its width stand for ResNet-50 and ResNet-50 (2x)",
        ),
        "small": Grid(
            _wide(
                "cifar10", {BASELINE: "resnet18", WIDE[2]: "resnet18x2"}, {ALPHA: 4096}, FAST, OURS
            )
            + NOT_TRAINED,
            f"{CIFAR}; ResNet-18 and twice its width stand for ResNet-50 and ResNet-50 (2x); "
            f"{FOUR_THOUSAND}",
            3,
        ),
        "paper": Grid(
            _wide(
                "imagenet",
                {BASELINE: "resnet50", WIDE[2]: "resnet50x2", WIDE[4]: "resnet50x4"},
                BOTH,
                SIMO,
                {},
            )
            + not_trained("linear-simo"),
            IMAGENET,
        ),
    },
    paper=table(
        {
            BASELINE: {"alpha = 256": 68.0, ALPHA: 68.5},
            WIDE[2]: {"alpha = 256": 70.2, ALPHA: 70.5, MILLIONS: 94.0},
            WIDE[4]: {"alpha = 256": 71.9, ALPHA: 72.3, MILLIONS: 375.0},
        }
    ),
    sources=dict.fromkeys(
        (("", BASELINE, "alpha = 256"), ("", BASELINE, ALPHA)), f"{PAPER}, table 5"
    ),
    laws=(
        Law(
            "twice the width makes SiMo better",
            partial(laws.gain, better=("", WIDE[2], ALPHA), worse=("", BASELINE, ALPHA), paper=2.0),
            source="appendix B.4, table 7",
            paper="70.5 and 68.5",
        ),
        Law(
            "four times the width makes SiMo still better",
            partial(laws.gain, better=("", WIDE[4], ALPHA), worse=("", BASELINE, ALPHA), paper=3.8),
            ("paper",),
            source="appendix B.4, table 7",
            paper="72.3 and 68.5",
        ),
    ),
)

PRECISIONS = ("AP", "AP50", "AP75", "APs", "APm", "APl")
RANDOM = "random init"
GAINED = 7.6  # AP of SiMo above random initialisation


def _detected(kind: Any, name: str, columns: tuple[str, ...] = PRECISIONS) -> tuple[Measure, ...]:
    """Return the measures for COCO's average precisions of boxes."""
    picks = {column: "value" if column == "AP" else f"more.{column}" for column in columns}
    return tuple(Measure(kind, name, pick, column=column) for column, pick in picks.items())


def _pretrained(
    data: str,
    network: str,
    mocov2: Mapping[str, Any],
    simo: Mapping[str, Any],
    measures: tuple[Measure, ...],
) -> tuple[Trial, ...]:
    """Return the networks of table 8 except the supervised one.

    `network` is the untrained one. `mocov2` and `simo` are overrides of these recipes.
    """
    rows: dict[str, tuple[str, Mapping[str, Any]]] = {
        RANDOM: (f"random:{network}", {"data.name": data}),
        "MoCo v2": (f"{data}.mocov2", mocov2),
        "SiMo": (f"{data}.simo", simo),
    }
    return cross(rows, {"": {}}, measures)


def _on_a_par(cells: Cells, *, than: str, paper: float) -> Verdict:
    """Check that SiMo's AP is at most `paper` + `SLACK` below that of another row.

    Both must be above random initialisation by at least half of SiMo's gain in the paper.
    """
    simo, other, start = (("", row, "AP") for row in ("SiMo", than, RANDOM))
    gap = laws.gain(cells, better=other, worse=simo, learned=False)
    gains = [
        laws.gain(cells, better=place, worse=start, paper=GAINED, learned=False)
        for place in (simo, other)
    ]
    margin = min(paper + laws.SLACK - gap.margin, *(gain.margin for gain in gains))
    text = "; ".join([gap.text, *(gain.text for gain in gains)])
    return Verdict(margin, text, gap.interval)


SCENES = (
    "drawn scenes in COCO's layout with a slim detector; all objects are small; no supervised "
    "network"
)
COCO = _detected("score", "detect-eqco")
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
                {"train.epochs": 1},
                _detected("scenes", "detect-smoke", PRECISIONS[:3]),
            ),
            f"shapes, resnet10-slim, 1 epoch; {SCENES}",
        ),
        "small": Grid(
            _pretrained(
                "cifar10",
                "resnet18",
                SMALL,
                OURS,
                _detected("scenes", "detect-small", PRECISIONS[:3]),
            ),
            f"CIFAR-10, ResNet-18, 50 epochs; {SCENES}",
            3,
        ),
        "paper": Grid(
            (
                Trial("random:resnet50", {"data.name": "coco"}, COCO, RANDOM),
                Trial("torchvision:resnet50", {"data.name": "coco"}, COCO, "supervised"),
                Trial("imagenet.mocov2", {}, COCO, "MoCo v2"),
                Trial("imagenet.simo", {}, COCO, "SiMo"),
            ),
            "ImageNet, ResNet-50, 200 epochs; COCO, Faster R-CNN with FPN, 12 epochs, learning "
            "rate 0.2 as printed; the batch size is not stated and is 16 here",
        ),
    },
    paper=table(
        {
            row: dict(zip(PRECISIONS, line, strict=True))
            for row, line in {
                RANDOM: (31.4, 49.4, 34.0, 17.9, 32.3, 41.6),
                "supervised": (39.0, 59.1, 42.6, 22.4, 42.2, 50.6),
                "MoCo v2": (39.1, 59.2, 42.5, 23.3, 42.1, 50.8),
                "SiMo": (39.0, 59.2, 42.3, 22.9, 41.8, 50.5),
            }.items()
        }
    ),
    laws=(
        Law(
            "SiMo detects better than a randomly initialised network",
            partial(
                laws.gain,
                better=("", "SiMo", "AP"),
                worse=("", RANDOM, "AP"),
                paper=GAINED,
                learned=False,
            ),
            source="appendix B.5, table 8",
            paper="39.0 and 31.4",
        ),
        Law(
            "SiMo detects as well as MoCo v2",
            partial(_on_a_par, than="MoCo v2", paper=0.1),
            source="appendix B.5, table 8",
            paper="39.0 and 39.1",
        ),
        Law(
            "SiMo detects as well as a network that was trained with ImageNet's labels",
            partial(_on_a_par, than="supervised", paper=0.0),
            ("paper",),
            source="appendix B.5, table 8",
            paper="39.0 and 39.0",
        ),
    ),
)

ITEMS = {"eqco.table7": TABLE7, "eqco.table8": TABLE8}
