"""MSBReg (Moon et al. 2022): table 2 of the supplement, instance segmentation on COCO."""

from collections.abc import Mapping
from functools import partial
from typing import Any

from antipode.papers.msbreg.grids import BYOL, OURS, PAPER, SMALL, arguments, guarded
from antipode.reproduction import laws
from antipode.reproduction.item import (
    Cells,
    Grid,
    Item,
    Law,
    Measure,
    Panel,
    Trial,
    Verdict,
    cross,
    table,
)

RANDOM = "random init"
BB = "AP^bb"
MK = "AP^mk"
QUOTED = {
    "SimCLR": (39.7, 35.8),
    "MoCo": (40.4, 36.4),
    BYOL: (41.6, 37.2),
    "VICReg": (39.4, 36.4),
    "SwAV": (41.6, 37.8),
    "BarlowTwins": (40.0, 36.7),
    "OBoW": (40.8, 36.4),
    OURS: (41.8, 37.8),
}
NUMBERS = table({row: {BB: box, MK: mask} for row, (box, mask) in QUOTED.items()})
SCENES = "drawn scenes in COCO's layout with a slim Mask R-CNN"
MOCO = (
    "MoCo is MoCo v2: the paper cites MoCo's first version, but 40.4 and 36.4 are the numbers of "
    "MoCo v2 after 800 epochs (README of InsLoc)"
)
Row = tuple[str, Mapping[str, Any]]


def _masks(kind: Any, name: str) -> tuple[Measure, ...]:
    """Return the measures for COCO's average precision of boxes and of masks."""
    return Measure(kind, name, "more.box AP", column=BB), Measure(kind, name, "value", column=MK)


def _segmented(
    measures: tuple[Measure, ...], common: Mapping[str, Any], **rows: Row
) -> tuple[Trial, ...]:
    """Return the methods of table 2 that are trained here."""
    names = {"simclr": "SimCLR", "moco": "MoCo", "byol": BYOL, "ours": OURS}
    return cross({names[key]: row for key, row in rows.items()}, {"": {}}, measures, common=common)


def _untrained(network: str, data: str, measures: tuple[Measure, ...]) -> Trial:
    return Trial(f"random:{network}", {"data.name": data}, measures, RANDOM)


def transfers(cells: Cells, *, row: str, than: str, column: str) -> Verdict:
    """Check that a network detects better than another one, by half of the paper's difference.

    It must also be better than a randomly initialised network, by more than chance.
    """
    paper = NUMBERS["", row, column] - NUMBERS["", than, column]
    better, worse = ("", row, column), ("", than, column)
    verdict = laws.gain(cells, better=better, worse=worse, paper=paper, learned=False)
    start = laws.gain(
        cells,
        better=better,
        worse=("", RANDOM, column),
        paper=laws.SLACK / laws.HALF,
        learned=False,
    )
    words = f"{start.text}, not more than the {laws.SLACK:g} that chance may give"
    return guarded(verdict, start.margin, words)


def _law(than: str, column: str) -> Law:
    """Return the law that MSBReg transfers better than another method."""
    numbers = [NUMBERS["", row, column] for row in (OURS, than)]
    what = {BB: "boxes", MK: "masks"}[column]
    return Law(
        f"MSBReg with four views finds {what} better than {than}",
        partial(transfers, row=OURS, than=than, column=column),
        source="section 3, table 2",
        paper=f"{numbers[0]} and {numbers[1]}",
    )


SMOKE = _masks("scenes", "segment-smoke")
SLIM = _masks("scenes", "segment-small")
COCO = _masks("score", "segment-coco")
TABLE2 = Item(
    title="Instance segmentation on COCO",
    question="Do the features of MSBReg transfer to instance segmentation?",
    source=f"{PAPER}, table 2",
    trend="MSBReg is slightly better than BYOL and on a par with SwAV",
    panels=(Panel(y="AP (%)"),),
    grids={
        "smoke": Grid(
            _segmented(
                SMOKE,
                {"train.epochs": 1},
                simclr=("shapes.simclr", {}),
                moco=("shapes.mocov2", {}),
                byol=("shapes.byol", {}),
                ours=("shapes.msbreg", {"method.views": 4}),
            ),
            f"shapes, resnet10-slim, 1 epoch; {SCENES}",
        ),
        "small": Grid(
            (
                _untrained("resnet18", "cifar10", SLIM),
                *_segmented(
                    SLIM,
                    SMALL,
                    simclr=("cifar10.simclr", {}),
                    moco=("cifar10.mocov2", {}),
                    byol=("cifar10.byol", {}),
                    ours=("cifar10.msbreg", arguments(4, 0.004, 0.5)),
                ),
            ),
            f"CIFAR-10, ResNet-18, 50 epochs, each method with its own recipe; {SCENES}; {MOCO}",
            3,
        ),
        "paper": Grid(
            (
                _untrained("resnet50", "coco", COCO),
                *_segmented(
                    COCO,
                    {},
                    simclr=("imagenet.simclr", {}),
                    moco=("imagenet.mocov2", {"train.epochs": 800}),
                    byol=("imagenet.byol", {}),
                    ours=("imagenet.msbreg", {"method.views": 4}),
                ),
            ),
            "ImageNet, ResNet-50, each method with its own number of epochs; COCO, Mask R-CNN with "
            f"FPN, 90,000 steps; the other methods are only quoted; {MOCO}",
        ),
    },
    paper=NUMBERS,
    laws=tuple(_law(than, column) for than in (BYOL, "SimCLR", "MoCo") for column in (BB, MK)),
)
