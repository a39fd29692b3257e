"""MSBReg (Moon et al. 2022): tables 2 to 5 of the supplement.

In tables 3 to 5, BYOL is MSBReg with two views and without regularisers.
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
)

PAPER = "MSBReg, supplement"
SMOKE = {"train.epochs": 2, "train.batch": 64}
SMALL = {"train.epochs": 100}
DIGITS = "digits, resnet10-slim, 2 epochs, batch 64; logistic regression on frozen features"
CIFAR = "CIFAR-10, ResNet-18, 100 epochs; logistic regression on frozen features"
# For its linear evaluation the paper cites Kolesnikov et al. and states no settings. We use MoCo's.
LINEAR = score("linear")
FAST = score("linear-fast")


def _msbreg(views: int, singular: float, brownian: float, **more: Any) -> dict[str, Any]:
    """Return overrides for the arguments of MSBReg."""
    arguments = {"views": views, "singular_value": singular, "brownian": brownian, **more}
    return {f"method.{name}": value for name, value in arguments.items()}


BYOL = "BYOL"
OURS = "Ours (K = 4)"
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


def _masks(kind: Any, name: str) -> tuple[Measure, ...]:
    """Return the measures for COCO's average precision of boxes and of masks."""
    return Measure(kind, name, "more.box AP", column=BB), Measure(kind, name, "value", column=MK)


def _segmented(
    data: str, measures: tuple[Measure, ...], common: Mapping[str, Any]
) -> tuple[Trial, ...]:
    """Return the methods of table 2 that are trained here."""
    rows: dict[str, tuple[str, Mapping[str, Any]]] = {
        "SimCLR": (f"{data}.simclr", {}),
        "MoCo": (f"{data}.mocov2", {}),
        BYOL: (f"{data}.byol", {}),
        OURS: (f"{data}.msbreg", {"method.views": 4}),
    }
    return cross(rows, {"": {}}, measures, common=common)


SCENES = "drawn scenes in COCO's layout with a slim Mask R-CNN"
TABLE2 = Item(
    title="Instance segmentation on COCO",
    question="Do the features of MSBReg transfer to instance segmentation?",
    source=f"{PAPER}, table 2",
    trend="MSBReg is slightly better than BYOL and on a par with SwAV",
    panels=(Panel(y="AP (%)"),),
    grids={
        "smoke": Grid(
            _segmented("shapes", _masks("scenes", "segment-smoke"), {"train.epochs": 1}),
            f"shapes, resnet10-slim, 1 epoch; {SCENES}",
        ),
        "small": Grid(
            _segmented("cifar10", _masks("scenes", "segment-small"), SMALL),
            f"CIFAR-10, ResNet-18, 100 epochs; {SCENES}",
            3,
        ),
        "paper": Grid(
            _segmented("imagenet", _masks("score", "segment-coco"), {}),
            "ImageNet, ResNet-50, each method with its own number of epochs; COCO, Mask R-CNN with "
            "FPN, 90,000 steps; the other methods are only quoted; MoCo is MoCo v2, although the "
            "paper cites the first version",
        ),
    },
    paper=table({row: {BB: box, MK: mask} for row, (box, mask) in QUOTED.items()}),
    laws=(
        Law(
            "MSBReg is less than half a point of box AP below BYOL",
            partial(laws.beats, better=("", OURS, BB), worse=("", BYOL, BB), by=-0.5),
            ("paper",),
        ),
    ),
)

ACC = "Acc.(%)"
ALIGN = "Alignment"
UNIFORM = "Uniformity"
GEOMETRY = (
    analysis("alignment-uniformity", "values.alignment, prediction", column=ALIGN),
    analysis("alignment-uniformity", "values.uniformity, prediction", column=UNIFORM),
)
TABLE3_ROWS = {
    BYOL: _msbreg(2, 0.0, 0.0),
    "BYOL+L_uniform": _msbreg(2, 0.0, 0.0, uniform=0.5),
    "BYOL+L_b+L_s": _msbreg(2, 0.004, 0.25),
    OURS: _msbreg(4, 0.004, 0.5),
}


def _table3(data: str, accuracy: Measure, common: Mapping[str, Any]) -> tuple[Trial, ...]:
    """Return the rows of table 3 with accuracy, alignment and uniformity."""
    rows = {name: (f"{data}.msbreg", arguments) for name, arguments in TABLE3_ROWS.items()}
    return cross(rows, {"": {}}, (accuracy._replace(column=ACC), *GEOMETRY), common=common)


TABLE3 = Item(
    title="Accuracy, and the alignment and uniformity of the predictions",
    question="Do MSBReg's regularisers spread the embeddings, and does that improve accuracy?",
    source=(
        f"{PAPER}, table 3; the paper does not say which vectors are measured, so we use the "
        "predictions, on which the regularisers act"
    ),
    trend=(
        "regularised embeddings are more uniform and more accurate; evenly spread embeddings in "
        "128 dimensions have a uniformity of -3.93"
    ),
    panels=(Panel(),),
    grids={
        "smoke": Grid(
            _table3("digits", FAST, {**SMOKE, "train.epochs": 3}),
            DIGITS.replace("2 epochs", "3 epochs"),
        ),
        "small": Grid(_table3("cifar10", FAST, SMALL), CIFAR, 3),
        "paper": Grid(
            _table3("imagenet100", LINEAR, {}),
            "ImageNet-100, ResNet-18, 320 epochs, MoCo's linear protocol; the paper does not state "
            "the weight of L_uniform, so we use .5",
        ),
    },
    paper=table(
        {
            BYOL: {ACC: 71.9, ALIGN: 0.25, UNIFORM: -1.52},
            "BYOL+L_uniform": {ACC: 72.1, ALIGN: 0.27, UNIFORM: -2.95},
            "BYOL+L_b+L_s": {ACC: 72.8, ALIGN: 0.26, UNIFORM: -2.92},
            OURS: {ACC: 80.4, ALIGN: 0.36, UNIFORM: -3.8},
        }
    ),
    laws=(
        Law(
            "the uniformity term makes the predictions of BYOL more uniform",
            partial(laws.beats, better=("", BYOL, UNIFORM), worse=("", "BYOL+L_uniform", UNIFORM)),
            EMPIRICAL,
        ),
        *(
            Law(
                f"{name} is more uniform than BYOL",
                partial(laws.beats, better=("", BYOL, UNIFORM), worse=("", name, UNIFORM)),
                EMPIRICAL,
            )
            for name in ("BYOL+L_b+L_s", OURS)
        ),
        Law(
            "MSBReg is more accurate than BYOL",
            partial(laws.beats, better=("", OURS, ACC), worse=("", BYOL, ACC)),
            EMPIRICAL,
        ),
    ),
)

TOP1 = "Top-1 (%)"
# overrides, batch size of the paper, accuracy of the paper
NORMS = {
    "BYOL, BN, 256, lambda_b 0": (_msbreg(2, 0.0, 0.0), 256, 89.5),
    "Ours, BN, 256, lambda_b 5e-2": (_msbreg(4, 0.004, 5e-2), 256, 91.4),
    "BYOL, LN, 256, lambda_b 0": (_msbreg(2, 0.0, 0.0, norm="layer"), 256, 10.6),
    "BYOL + L_b, LN, 256, lambda_b 5e-3": (_msbreg(2, 0.0, 5e-3, norm="layer"), 256, 75.3),
    "BYOL, LN, 1024, lambda_b 0": (_msbreg(2, 0.0, 0.0, norm="layer"), 1024, 10.6),
    "Ours, LN, 256, lambda_b 5e-4": (_msbreg(4, 0.004, 5e-4, norm="layer"), 256, 80.7),
    "Ours, LN, 256, lambda_b 5e-3": (_msbreg(4, 0.004, 5e-3, norm="layer"), 256, 82.3),
    "Ours, LN, 256, lambda_b 5e-2": (_msbreg(4, 0.004, 5e-2, norm="layer"), 256, 78.7),
}


def _table4(
    data: str, sizes: Mapping[int, int], measure: Measure, common: Mapping[str, Any]
) -> tuple[Trial, ...]:
    """Return the rows of table 4; `sizes` are the batch sizes that stand for 256 and 1,024."""
    rows = {
        name: (f"{data}.msbreg", {**arguments, "train.batch": sizes[size]})
        for name, (arguments, size, _) in NORMS.items()
    }
    return cross(rows, {TOP1: {}}, (measure,), common=common)


TABLE4 = Item(
    title="BYOL and MSBReg without batch norm in the heads",
    question="Does the Brownian term prevent the collapse of BYOL with layer norm in the heads?",
    source=f"{PAPER}, table 4 (the text calls 5e-4 the best weight, but in the table it is 5e-3)",
    trend=(
        "with layer norm BYOL collapses (10.6 %), and with L_b it does not; MSBReg loses about "
        "nine points with layer norm"
    ),
    panels=(Panel(),),
    grids={
        "smoke": Grid(
            _table4("digits", {256: 64, 1024: 128}, FAST, {"train.epochs": 1}),
            DIGITS.replace("2 epochs", "1 epoch"),
        ),
        "small": Grid(
            _table4("cifar10", {256: 256, 1024: 1024}, FAST, SMALL),
            f"{CIFAR}; CIFAR-10 stands for STL-10",
            3,
        ),
        "paper": Grid(
            _table4("stl10", {256: 256, 1024: 1024}, LINEAR, {}),
            "STL-10, ResNet-18, 320 epochs, MoCo's linear protocol; the paper does not state K and "
            "lambda_s, so we use 4 and .004 as for ImageNet-100; nor does it state which norms are "
            "replaced, so we replace those of the heads",
        ),
    },
    paper=table({name: {TOP1: accuracy} for name, (_, _, accuracy) in NORMS.items()}),
    laws=(
        Law(
            "with batch norm MSBReg is better than BYOL",
            partial(
                laws.beats,
                better=("", "Ours, BN, 256, lambda_b 5e-2", TOP1),
                worse=("", "BYOL, BN, 256, lambda_b 0", TOP1),
            ),
            EMPIRICAL,
        ),
        Law(
            "with layer norm L_b prevents the collapse of BYOL: it adds more than ten points",
            partial(
                laws.beats,
                better=("", "BYOL + L_b, LN, 256, lambda_b 5e-3", TOP1),
                worse=("", "BYOL, LN, 256, lambda_b 0", TOP1),
                by=10.0,
            ),
            EMPIRICAL,
        ),
    ),
)

SINGULAR = (0.0, 0.002, 0.004, 0.01)
BROWNIAN = (0.0, 0.25, 0.5, 1.0, 2.0)
# accuracies of the paper: K and lambda_s by row, lambda_b by column
GRID = {
    (2, 0.0): (71.9, 72.3, 72.8, 72.3, 71.9),
    (2, 0.002): (72.2, 72.4, 72.4, 72.1, 71.9),
    (2, 0.004): (72.8, 72.8, 72.4, 72.1, 71.2),
    (2, 0.01): (71.1, 71.0, 71.0, 70.7, 70.3),
    (4, 0.0): (78.2, 79.1, 79.7, 79.2, 79.0),
    (4, 0.002): (78.9, 78.8, 79.1, 79.2, 79.2),
    (4, 0.004): (79.7, 80.2, 80.4, 80.1, 79.9),
    (4, 0.01): (79.3, 79.4, 79.2, 79.2, 79.0),
    (8, 0.0): (79.5, 80.1, 80.3, 80.3, 80.2),
    (8, 0.002): (79.8, 80.2, 80.9, 81.1, 80.8),
    (8, 0.004): (80.0, 80.9, 81.6, 81.5, 81.3),
    (8, 0.01): (79.9, 81.2, 81.4, 81.1, 79.8),
}


def _row(views: int, singular: float) -> str:
    return f"K = {views}, lambda_s = {singular:g}"


def _table5(
    data: str,
    views: Iterable[int],
    weights: tuple[Iterable[float], Iterable[float]],
    measure: Measure,
    common: Mapping[str, Any],
) -> tuple[Trial, ...]:
    """Return a grid of K and of the weights, which are lambda_s and lambda_b."""
    rows = {
        _row(k, s): (f"{data}.msbreg", {**_msbreg(k, s, 0.0), **common})
        for k in views
        for s in weights[0]
    }
    return tuple(
        trial._replace(
            overrides={**trial.overrides, "method.brownian": brownian},
            column=f"lambda_b = {brownian:g}",
        )
        for brownian in weights[1]
        for trial in cross(rows, {"": {}}, (measure,))
    )


TABLE5 = Item(
    title="The trade-off between MSBReg's losses",
    question="How do the number of views and the weights of the two regularisers interact?",
    source=f"{PAPER}, table 5",
    trend=(
        "more views help most (6 to 8 points), then both regularisers; lambda_s = .004 and "
        "lambda_b = .5 are best at K = 4 and 8"
    ),
    panels=(Panel(y="accuracy (%)"),),
    grids={
        "smoke": Grid(
            _table5(
                "digits", (2, 4), ((0.0, 0.004), (0.0, 0.5)), FAST, {**SMOKE, "train.epochs": 1}
            ),
            DIGITS.replace("2 epochs", "1 epoch"),
        ),
        "small": Grid(
            _table5("cifar10", (2, 4), ((0.0, 0.004), (0.0, 0.5)), FAST, SMALL), CIFAR, 3
        ),
        "paper": Grid(
            _table5("imagenet100", (2, 4, 8), (SINGULAR, BROWNIAN), LINEAR, {"train.epochs": 300}),
            "ImageNet-100, ResNet-18, 300 epochs, MoCo's linear protocol",
        ),
    },
    paper=table(
        {
            _row(k, s): dict(zip((f"lambda_b = {b:g}" for b in BROWNIAN), line, strict=True))
            for (k, s), line in GRID.items()
        }
    ),
    laws=(
        Law(
            "four views are better than two",
            partial(
                laws.beats,
                better=("", _row(4, 0.0), "lambda_b = 0"),
                worse=("", _row(2, 0.0), "lambda_b = 0"),
            ),
            EMPIRICAL,
        ),
    ),
)

ITEMS = {
    "msbreg.table2": TABLE2,
    "msbreg.table3": TABLE3,
    "msbreg.table4": TABLE4,
    "msbreg.table5": TABLE5,
}
