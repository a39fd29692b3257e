"""DCL and DCLW (Yeh et al.): tables 1 to 4. `ITEMS` includes the figures."""

from collections.abc import Mapping
from functools import partial
from typing import Any

from antipode.papers.dcl import figures
from antipode.papers.dcl.grids import (
    CIFAR,
    DCL,
    DIGITS,
    FAST,
    FEATURES,
    KNN,
    LINEAR,
    PAPER,
    PLACES,
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
    cross,
    table,
    transpose,
    vary,
)

SIZES = (32, 64, 128, 256, 512)
BATCHES = vary("train.batch", SIZES)
IN100 = "ImageNet-100 (linear)"
TABLE1_PLACES = {f"{name} (kNN)": data for name, data in PLACES.items()}

TABLE1 = Item(
    title="Accuracy with and without DCL for batch sizes from 32 to 512",
    question="Does DCL keep its accuracy at small batch sizes, where SimCLR loses accuracy?",
    source=(
        f"{PAPER}, table 1 (its rows for CIFAR100 and STL10 are not legible in our copy); "
        f"{FEATURES}"
    ),
    trend=(
        "on ImageNet-100 SimCLR loses 7.1 points from batch size 512 to 32, and DCL loses 2.3 "
        "points from its best batch size (256) to 32"
    ),
    panels=tuple(Panel(name, "table", "batch size") for name in (IN100, *TABLE1_PLACES)),
    grids={
        "smoke": Grid(
            cross(
                simclr_and_dcl("digits"),
                {32: {"train.batch": 16}, 512: {"train.batch": 128}},
                KNN,
                panel="CIFAR10 (kNN)",
                common={"train.epochs": 3},
            ),
            "digits instead of CIFAR-10, 3 epochs; batch sizes 16 and 128 stand for 32 and 512",
        ),
        "small": Grid(
            cross(
                simclr_and_dcl("cifar10", "-paper"),
                BATCHES,
                KNN,
                panel="CIFAR10 (kNN)",
                common=SMALL,
            ),
            f"{CIFAR}, kNN",
            3,
        ),
        "paper": Grid(
            cross(simclr_and_dcl("imagenet100"), BATCHES, LINEAR, panel=IN100)
            + tuple(
                trial
                for panel, data in TABLE1_PLACES.items()
                for trial in cross(simclr_and_dcl(data, "-paper"), BATCHES, KNN, panel=panel)
            ),
            "ImageNet-100 with ResNet-50, CIFAR and STL-10 with ResNet-18, 200 epochs",
            5,
        ),
    },
    paper=table(
        {
            SIMCLR: dict(zip(SIZES, (74.2, 77.6, 79.3, 80.7, 81.3), strict=True)),
            DCL: dict(zip(SIZES, (80.8, 82.0, 81.9, 83.1, 82.8), strict=True)),
        },
        IN100,
    )
    | table(
        {
            SIMCLR: dict(zip(SIZES, (78.9, 80.4, 81.1, 81.4, 81.3), strict=True)),
            DCL: dict(zip(SIZES, (83.7, 84.4, 84.4, 84.2, 83.5), strict=True)),
        },
        "CIFAR10 (kNN)",
    ),
    laws=(
        Law(
            "DCL is better than SimCLR at batch size 32",
            partial(
                laws.beats, better=("CIFAR10 (kNN)", DCL, 32), worse=("CIFAR10 (kNN)", SIMCLR, 32)
            ),
            EMPIRICAL,
        ),
        Law(
            "DCL loses less accuracy than SimCLR at small batch sizes",
            partial(laws.steadier, panel="CIFAR10 (kNN)", row=DCL, than=SIMCLR),
            EMPIRICAL,
        ),
        *(
            Law(
                f"{name}: DCL loses less accuracy than SimCLR at small batch sizes",
                partial(laws.steadier, panel=name, row=DCL, than=SIMCLR),
                ("paper",),
            )
            for name in (IN100, *TABLE1_PLACES)
            if name != "CIFAR10 (kNN)"
        ),
    ),
)

# CLD's settings of MoCo for small images: a linear head, tau .07, 12,288 keys, a learning rate of
# .03 for 128 images, CLD's warm-up and its plain views.
CLD = {
    "method.tau": 0.07,
    "method.queue": 12288,
    "method.momentum": 0.999,
    "views.policy": "cld",
    "optim.network.lr": 0.06,
    "optim.network.weight_decay": 5e-4,
    "optim.network.warmup": 5,
    "optim.network.warmup_start": 0.01,
}


def _methods(data: str, tail: str, moco: Mapping[str, Any], crops: int) -> Rows:
    """Return the columns of table 2 that are trained."""
    return {
        "SimCLR": (f"{data}.simclr{tail}", {}),
        "MoCo": (f"{data}.mocov1", moco),
        "NPID": (f"{data}.npid", {}),
        "Inv. Spread": (f"{data}.invspread", {}),
        "DCL": (f"{data}.dcl{tail}", {}),
        "DCLW w/ mcrop": (f"{data}.dclw{tail}", {"method.crops": crops}),
    }


COLUMNS = (
    "SimCLR",
    "MoCo",
    "MoCo + CLD",
    "NPID",
    "NPID + CLD",
    "Inv. Spread",
    "Exemplar",
    "DCL",
    "DCLW w/ mcrop",
)
TABLE2 = Item(
    title="kNN accuracy on small images",
    question="How does DCL compare with other methods on CIFAR and STL-10?",
    source=f"{PAPER}, table 2; {FEATURES}",
    trend=(
        "DCL is above its baseline on every data set, and DCLW with multi-crop is on a par with "
        "the best method"
    ),
    panels=(Panel(y="kNN top-1 (%)"),),
    grids={
        "smoke": Grid(
            transpose(cross(_methods("digits", "", {}, 2), {"CIFAR10": {}}, KNN, common=SMOKE)),
            f"{DIGITS}, instead of CIFAR-10; two small crops",
        ),
        "small": Grid(
            transpose(
                cross(_methods("cifar10", "-paper", CLD, 6), {"CIFAR10": {}}, KNN, common=SMALL)
            ),
            f"{CIFAR}; six small crops",
            3,
        ),
        "paper": Grid(
            tuple(
                trial
                for name, data in PLACES.items()
                for trial in transpose(cross(_methods(data, "-paper", CLD, 6), {name: {}}, KNN))
            ),
            "ResNet-18, 200 epochs, batch 256; NPID and Inv. Spread as released: batch 128, and "
            "300 epochs for Inv. Spread on CIFAR-10 and STL-10; the paper does not describe the "
            "crops, so we use six small ones; CLD and Exemplar are only quoted",
            5,
        ),
    },
    paper=table(
        {
            "CIFAR10": dict(
                zip(COLUMNS, (81.4, 82.1, 87.5, 80.8, 86.7, 83.6, 76.5, 84.1, 87.8), strict=True)
            ),
            "CIFAR100": dict(
                zip(COLUMNS, (52.0, 53.1, 58.1, 51.6, 57.5, None, None, 54.9, 58.8), strict=True)
            ),
            "STL10": dict(
                zip(COLUMNS, (77.3, 80.8, 84.3, 79.1, 83.6, 81.6, 79.3, 81.2, 84.1), strict=True)
            ),
        }
    ),
    laws=(
        Law(
            "DCL is better than SimCLR",
            partial(laws.beats, better=("", "CIFAR10", "DCL"), worse=("", "CIFAR10", "SimCLR")),
            EMPIRICAL,
        ),
        *(
            Law(
                f"DCL is better than SimCLR on {name}",
                partial(laws.beats, better=("", name, "DCL"), worse=("", name, "SimCLR")),
                ("paper",),
            )
            for name in ("CIFAR100", "STL10")
        ),
    ),
)


def _three(data: str, tail: str = "", baseline: Mapping[str, Any] | None = None) -> Rows:
    """Return the columns of table 3."""
    return {
        "Baseline": (f"{data}.simclr{tail}", baseline or {}),
        "DCL": (f"{data}.dcl{tail}", {}),
        "DCLW": (f"{data}.dclw{tail}", {}),
    }


TABLE3 = Item(
    title="SimCLR, DCL and DCLW",
    question="How much do DCL and its weighted form DCLW add to SimCLR at batch size 256?",
    source=(
        f"{PAPER}, table 3 (its gains on CIFAR10 imply a baseline of 81.1, and its row for "
        f"ImageNet-100 is that of table 1 at batch size 128); {FEATURES}"
    ),
    trend="DCL adds 2.4 to 4.1 points to the baseline, and DCLW adds another .3 to 1",
    panels=(Panel(y="top-1 (%): kNN on CIFAR, linear on ImageNet"),),
    grids={
        "smoke": Grid(
            transpose(cross(_three("digits"), {"CIFAR10": {}}, KNN, common=SMOKE)),
            f"{DIGITS}, instead of CIFAR-10",
        ),
        "small": Grid(
            transpose(cross(_three("cifar10", "-paper"), {"CIFAR10": {}}, KNN, common=SMALL)),
            CIFAR,
            3,
        ),
        "paper": Grid(
            transpose(
                cross(_three("cifar10", "-paper"), {"CIFAR10": {}}, KNN)
                + cross(_three("cifar100", "-paper"), {"CIFAR100": {}}, KNN)
                + cross(_three("imagenet100"), {"ImageNet-100": {}}, LINEAR)
                + cross(_three("imagenet", baseline=SAME), {"ImageNet-1K": {}}, LINEAR)
            ),
            "ResNet-18 on CIFAR, ResNet-50 on ImageNet, 200 epochs, batch 256",
            5,
        ),
    },
    paper=table(
        {
            row: dict(zip(("Baseline", "DCL", "DCLW"), line, strict=True))
            for row, line in {
                "CIFAR10": (81.8, 84.2, 84.8),
                "CIFAR100": (51.8, 54.6, 54.9),
                "ImageNet-100": (79.3, 81.9, 82.8),
                "ImageNet-1K": (61.8, 65.9, 66.9),
            }.items()
        }
    ),
    laws=(
        Law(
            "DCL is better than the baseline",
            partial(laws.beats, better=("", "CIFAR10", "DCL"), worse=("", "CIFAR10", "Baseline")),
            EMPIRICAL,
        ),
        Law(
            "DCLW is better than DCL",
            partial(laws.beats, better=("", "CIFAR10", "DCLW"), worse=("", "CIFAR10", "DCL")),
            EMPIRICAL,
        ),
        *(
            Law(
                f"{better} is better than {worse} on {name}",
                partial(laws.beats, better=("", name, better), worse=("", name, worse)),
                ("paper",),
            )
            for name in ("CIFAR100", "ImageNet-100", "ImageNet-1K")
            for better, worse in (("DCL", "Baseline"), ("DCLW", "DCL"))
        ),
    ),
)


def _four(data: str, simclr: tuple[str, Mapping[str, Any]], dcl: str) -> Rows:
    """Return the columns of table 4."""
    return {
        "SimCLR": simclr,
        "SimCLR w/ DCL": (dcl, {}),
        "MoCo v2": (f"{data}.mocov2", {}),
        "MoCo v2 w/ DCL": (f"{data}.dcl", {"method.base": "mocov2"}),
    }


FEW = "100 epoch"
MANY = "200 epoch"
TABLE4 = Item(
    title="SimCLR and MoCo v2 with and without DCL after few epochs",
    question="Do SimCLR and MoCo v2 learn faster with DCL?",
    source=f"{PAPER}, table 4",
    trend="SimCLR with DCL after 100 epochs is above SimCLR after 200 epochs",
    panels=(Panel(y="top-1 (%)"),),
    grids={
        "smoke": Grid(
            transpose(
                cross(
                    _four("digits", ("digits.simclr", {}), "digits.dcl"),
                    {FEW: {"train.epochs": 2}, MANY: {"train.epochs": 4}},
                    FAST,
                    common={"train.batch": 64},
                )
            ),
            "digits, resnet10-slim; 2 and 4 epochs stand for 100 and 200",
        ),
        "small": Grid(
            transpose(
                cross(
                    _four("cifar10", ("cifar10.simclr-paper", {}), "cifar10.dcl-paper"),
                    {FEW: {"train.epochs": 50}, MANY: {"train.epochs": 100}},
                    FAST,
                )
            ),
            "CIFAR-10, ResNet-18, logistic regression; 50 and 100 epochs stand for 100 and 200",
            3,
        ),
        "paper": Grid(
            transpose(
                cross(
                    _four("imagenet", ("imagenet.simclr", SAME), "imagenet.dcl"),
                    {FEW: {"train.epochs": 100}, MANY: {"train.epochs": 200}},
                    LINEAR,
                )
            ),
            "ImageNet, ResNet-50, batch 256",
            5,
        ),
    },
    paper=table(
        {
            FEW: {"SimCLR": 57.5, "SimCLR w/ DCL": 64.6, "MoCo v2": 63.6, "MoCo v2 w/ DCL": 64.4},
            MANY: {"SimCLR": 61.8, "SimCLR w/ DCL": 65.9, "MoCo v2": 67.5, "MoCo v2 w/ DCL": 67.7},
        }
    ),
    laws=(
        Law(
            "SimCLR is better with DCL after few epochs",
            partial(laws.beats, better=("", FEW, "SimCLR w/ DCL"), worse=("", FEW, "SimCLR")),
            EMPIRICAL,
        ),
        Law(
            "SimCLR with DCL after few epochs is better than SimCLR after twice as many",
            partial(laws.beats, better=("", FEW, "SimCLR w/ DCL"), worse=("", MANY, "SimCLR")),
            EMPIRICAL,
        ),
        Law(
            "MoCo v2 is better with DCL after few epochs",
            partial(laws.beats, better=("", FEW, "MoCo v2 w/ DCL"), worse=("", FEW, "MoCo v2")),
            EMPIRICAL,
        ),
    ),
)

ITEMS = {
    **figures.ITEMS,
    "dcl.table1": TABLE1,
    "dcl.table2": TABLE2,
    "dcl.table3": TABLE3,
    "dcl.table4": TABLE4,
}
