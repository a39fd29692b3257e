"""DCL and DCLW (Yeh et al.): tables 1 to 4 and figures 1, 3 and 4."""

from collections.abc import Mapping
from functools import partial
from typing import Any

from antipode.reproduction import laws
from antipode.reproduction.item import (
    EMPIRICAL,
    Grid,
    Item,
    Law,
    Panel,
    Trial,
    analysis,
    cross,
    metric,
    score,
    table,
    turned,
    varied,
)

PAPER = "DCL (arXiv 2110.06848)"
VOTE = "whose features vote in kNN is not stated: the backbone's"
SIMCLR, DCL, DCLW = "SimCLR", "SimCLR w/ DCL", "DCLW"
KNN, LINEAR, FAST = (score("knn"),), (score("linear"),), (score("linear-fast"),)
SMOKE = {"train.epochs": 3, "train.batch": 64}
SMALL = {"train.epochs": 100}
DIGITS = "digits, resnet10-slim, 3 epochs, batch 64"
CIFAR = "CIFAR-10, ResNet-18, 100 epochs"
# the baseline in DCL's own settings (section 4.1 and its toolbox), where SimCLR's recipe has LARS and a batch of 4,096
RATE = {
    "optim.network.name": "sgd",
    "optim.network.lr": 0.3,
    "optim.network.weight_decay": 1e-6,
    "optim.network.exclude": True,
}
SAME = RATE | {"train.batch": 256}
Rows = Mapping[str, tuple[str, Mapping[str, Any]]]


def _two(data: str, tail: str = "") -> Rows:
    """The baseline and DCL on a data set."""
    return {SIMCLR: (f"{data}.simclr{tail}", {}), DCL: (f"{data}.dcl{tail}", {})}


SIZES = (32, 64, 128, 256, 512)
BATCHES = varied("train.batch", SIZES)
PLACES = {"CIFAR10": "cifar10", "CIFAR100": "cifar100", "STL10": "stl10"}
IN100, TABLE1_PLACES = (
    "ImageNet-100 (linear)",
    {f"{name} (kNN)": data for name, data in PLACES.items()},
)

TABLE1 = Item(
    title="With and without DCL under batch sizes from 32 to 512",
    question="Does DCL keep accuracy where SimCLR loses it to a small batch?",
    source=f"{PAPER}, table 1; its rows for CIFAR100 and STL10 are not legible in our copy; {VOTE}",
    trend="SimCLR loses 7.1 points from batch 512 to 32 on ImageNet-100, DCL 2.3 from its best (256) to 32",
    panels=tuple(Panel(name, "table", "batch size") for name in (IN100, *TABLE1_PLACES)),
    grids={
        "smoke": Grid(
            cross(
                _two("digits"),
                {32: {"train.batch": 16}, 512: {"train.batch": 128}},
                KNN,
                panel="CIFAR10 (kNN)",
                common={"train.epochs": 3},
            ),
            "digits, 3 epochs, in place of CIFAR-10; batches of 16 and 128 stand for 32 and 512",
        ),
        "small": Grid(
            cross(_two("cifar10", "-paper"), BATCHES, KNN, panel="CIFAR10 (kNN)", common=SMALL),
            f"{CIFAR}, kNN",
            3,
        ),
        "paper": Grid(
            cross(_two("imagenet100"), BATCHES, LINEAR, panel=IN100)
            + tuple(
                trial
                for panel, data in TABLE1_PLACES.items()
                for trial in cross(_two(data, "-paper"), BATCHES, KNN, panel=panel)
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
            "DCL is better at a batch of 32",
            partial(
                laws.beats, better=("CIFAR10 (kNN)", DCL, 32), worse=("CIFAR10 (kNN)", SIMCLR, 32)
            ),
            EMPIRICAL,
        ),
        Law(
            "DCL loses less to a small batch",
            partial(laws.steadier, panel="CIFAR10 (kNN)", row=DCL, than=SIMCLR),
            EMPIRICAL,
        ),
        *(
            Law(
                f"{name}: DCL loses less to a small batch",
                partial(laws.steadier, panel=name, row=DCL, than=SIMCLR),
                ("paper",),
            )
            for name in (IN100, *TABLE1_PLACES)
            if name != "CIFAR10 (kNN)"
        ),
    ),
)

# CLD's MoCo for small images: a linear head, tau .07, 12,288 keys, .03 for 128 images, its warm-up, its plain views
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
    """The columns of table 2 that are trained."""
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
    question="How does DCL compare with others on CIFAR and STL-10?",
    source=f"{PAPER}, table 2; {VOTE}",
    trend="DCL is above its baseline everywhere, DCLW with multi-crop on a par with the best",
    panels=(Panel(y="kNN top-1 (%)"),),
    grids={
        "smoke": Grid(
            turned(cross(_methods("digits", "", {}, 2), {"CIFAR10": {}}, KNN, common=SMOKE)),
            f"{DIGITS}, in place of CIFAR-10; two small crops",
        ),
        "small": Grid(
            turned(
                cross(_methods("cifar10", "-paper", CLD, 6), {"CIFAR10": {}}, KNN, common=SMALL)
            ),
            f"{CIFAR}; six small crops",
            3,
        ),
        "paper": Grid(
            tuple(
                trial
                for name, data in PLACES.items()
                for trial in turned(cross(_methods(data, "-paper", CLD, 6), {name: {}}, KNN))
            ),
            "ResNet-18, 200 epochs, batch 256; NPID and Inv. Spread as released, at batch 128, Inv. Spread on CIFAR-10 "
            "and STL-10 for 300; crops are not described: six small ones; CLD and Exemplar are quoted only",
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
            "DCL is above SimCLR",
            partial(laws.beats, better=("", "CIFAR10", "DCL"), worse=("", "CIFAR10", "SimCLR")),
            EMPIRICAL,
        ),
        *(
            Law(
                f"DCL is above SimCLR on {name}",
                partial(laws.beats, better=("", name, "DCL"), worse=("", name, "SimCLR")),
                ("paper",),
            )
            for name in ("CIFAR100", "STL10")
        ),
    ),
)


def _three(data: str, tail: str = "", baseline: Mapping[str, Any] | None = None) -> Rows:
    """The columns of table 3."""
    return {
        "Baseline": (f"{data}.simclr{tail}", baseline or {}),
        "DCL": (f"{data}.dcl{tail}", {}),
        "DCLW": (f"{data}.dclw{tail}", {}),
    }


TABLE3 = Item(
    title="SimCLR, DCL and DCLW",
    question="What do DCL and its weighted form add to SimCLR at batch 256?",
    source=(
        f"{PAPER}, table 3; its CIFAR10 gains imply a baseline of 81.1, its ImageNet-100 row is table 1's at batch "
        f"128; {VOTE}"
    ),
    trend="DCL adds 2.4 to 4.1 points, DCLW another .3 to 1",
    panels=(Panel(y="top-1 (%): kNN on CIFAR, linear on ImageNet"),),
    grids={
        "smoke": Grid(
            turned(cross(_three("digits"), {"CIFAR10": {}}, KNN, common=SMOKE)),
            f"{DIGITS}, for CIFAR-10",
        ),
        "small": Grid(
            turned(cross(_three("cifar10", "-paper"), {"CIFAR10": {}}, KNN, common=SMALL)), CIFAR, 3
        ),
        "paper": Grid(
            turned(
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
            "DCL is above the baseline",
            partial(laws.beats, better=("", "CIFAR10", "DCL"), worse=("", "CIFAR10", "Baseline")),
            EMPIRICAL,
        ),
        Law(
            "DCLW is above DCL",
            partial(laws.beats, better=("", "CIFAR10", "DCLW"), worse=("", "CIFAR10", "DCL")),
            EMPIRICAL,
        ),
        *(
            Law(
                f"{better} is above {worse} on {name}",
                partial(laws.beats, better=("", name, better), worse=("", name, worse)),
                ("paper",),
            )
            for name in ("CIFAR100", "ImageNet-100", "ImageNet-1K")
            for better, worse in (("DCL", "Baseline"), ("DCLW", "DCL"))
        ),
    ),
)


def _four(data: str, simclr: tuple[str, Mapping[str, Any]], dcl: str) -> Rows:
    """The columns of table 4."""
    return {
        "SimCLR": simclr,
        "SimCLR w/ DCL": (dcl, {}),
        "MoCo v2": (f"{data}.mocov2", {}),
        "MoCo v2 w/ DCL": (f"{data}.dcl", {"method.base": "mocov2"}),
    }


FEW, MANY = "100 epoch", "200 epoch"
TABLE4 = Item(
    title="SimCLR and MoCo v2 with and without DCL under few epochs",
    question="Does DCL learn faster?",
    source=f"{PAPER}, table 4",
    trend="with DCL SimCLR after 100 epochs is above SimCLR after 200",
    panels=(Panel(y="top-1 (%)"),),
    grids={
        "smoke": Grid(
            turned(
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
            turned(
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
            turned(
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
            "DCL is better after few epochs",
            partial(laws.beats, better=("", FEW, "SimCLR w/ DCL"), worse=("", FEW, "SimCLR")),
            EMPIRICAL,
        ),
        Law(
            "SimCLR with DCL after few epochs is above SimCLR after twice as many",
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

MEAN, VARIATION = "mean of q_B", "coefficient of variation of q_B"
MULTIPLIERS = (
    analysis("npc", "curves.mean", panel="(a)", row=MEAN),
    analysis("npc", "curves.coefficient of variation", panel="(a)", row=VARIATION),
    *(
        analysis("npc", f"histograms.batch {size}", panel="(b)", row=f"batch size {size}")
        for size in (32, 64, 128, 256, 512, 1024)
    ),
)
FIG1 = Item(
    title="The negative-positive-coupling multiplier q_B",
    question="How much does a small batch weaken SimCLR's gradient?",
    source=f"{PAPER}, figure 1",
    trend="q_B approaches 1 with a small coefficient of variation as the batch grows; small batches push it towards 0",
    panels=(
        Panel("(a)", "curve", "batch size", "q_B of a trained SimCLR", log=True),
        Panel("(b)", "histogram", "q_B", "share of anchors"),
    ),
    grids={
        "smoke": Grid(
            (Trial("digits.simclr", {**SMOKE, "train.epochs": 6}, MULTIPLIERS),), "digits, 6 epochs"
        ),
        "small": Grid((Trial("cifar10.simclr-paper", SMALL, MULTIPLIERS),), CIFAR, 3),
        "paper": Grid(
            (Trial("imagenet.simclr", SAME, MULTIPLIERS),),
            "ImageNet, ResNet-50, 200 epochs; which model is not stated",
        ),
    },
    laws=(
        Law(
            "the mean of q_B rises with the batch",
            partial(laws.rises, panel="(a)", row=MEAN, slack=1e-3),
        ),
        Law(
            "the mean of q_B goes to 1: the largest batch is at most half as far from it as the smallest",
            partial(laws.nears, panel="(a)", row=MEAN, limit=1.0, share=0.5),
        ),
        Law(
            "its coefficient of variation falls",
            partial(laws.falls, panel="(a)", row=VARIATION, slack=1e-3),
        ),
    ),
)

WITH, WITHOUT = "with DCL", "without DCL"


def _queues(data: str) -> Rows:
    """MoCo without and with DCL."""
    return {WITHOUT: (f"{data}.mocov1", {}), WITH: (f"{data}.dcl", {"method.base": "mocov1"})}


FIG3 = Item(
    title="With and without DCL under batch sizes (SimCLR) and queue sizes (MoCo)",
    question="Does DCL hold accuracy when negatives are few?",
    source=f"{PAPER}, section 4.2",
    trend=(
        "from the largest to the smallest SimCLR loses 8.3 points, with DCL 4.1; MoCo loses 5.9, with DCL .4; the "
        "smallest batch is not stated"
    ),
    panels=(
        Panel("SimCLR", "curve", "batch size", "top-1 accuracy (%)", log=True),
        Panel("MoCo", "curve", "queue size", "top-1 accuracy (%)", log=True),
    ),
    grids={
        "smoke": Grid(
            cross(
                {WITHOUT: ("digits.simclr", {}), WITH: ("digits.dcl", {})},
                varied("train.batch", (16, 128)),
                FAST,
                panel="SimCLR",
                common={"train.epochs": 2},
            )
            + cross(
                _queues("digits"),
                varied("method.queue", (16, 256)),
                FAST,
                panel="MoCo",
                common=SMOKE | {"train.epochs": 2},
            ),
            "digits, resnet10-slim, 2 epochs; logistic regression on frozen features",
        ),
        "small": Grid(
            cross(
                {WITHOUT: ("cifar10.simclr-paper", {}), WITH: ("cifar10.dcl-paper", {})},
                varied("train.batch", (32, 128, 512)),
                FAST,
                panel="SimCLR",
                common=SMALL,
            )
            + cross(
                _queues("cifar10"),
                varied("method.queue", (16, 256, 4096)),
                FAST,
                panel="MoCo",
                common=SMALL,
            ),
            f"{CIFAR}, logistic regression",
            3,
        ),
        "paper": Grid(
            cross(
                {WITHOUT: ("imagenet.simclr", RATE), WITH: ("imagenet.dcl", {})},
                varied("train.batch", (32, 64, 128, 256, 512, 1024)),
                LINEAR,
                panel="SimCLR",
            )
            + cross(
                _queues("imagenet"),
                varied("method.queue", (256, 1024, 4096, 16384, 65536)),
                LINEAR,
                panel="MoCo",
            ),
            "ImageNet, ResNet-50, 200 epochs, linear evaluation; sizes between the ends are not printed: ours",
            5,
        ),
    },
    paper=table({WITHOUT: {256: 61.8, 1024: 65.1}, WITH: {256: 65.9, 1024: 66.1}}, "SimCLR")
    | table({WITHOUT: {256: 54.7, 65536: 60.6}, WITH: {256: 60.8, 65536: 61.2}}, "MoCo"),
    sources={
        ("MoCo", WITHOUT, 65536): f"{PAPER}, section 4.2: 54.7 and a loss of 5.9",
        ("MoCo", WITH, 65536): f"{PAPER}, section 4.2: 60.8 and a loss of .4",
    },
    laws=tuple(
        Law(
            f"{name}: with DCL accuracy falls less",
            partial(laws.steadier, panel=name, row=WITH, than=WITHOUT),
            EMPIRICAL,
        )
        for name in ("SimCLR", "MoCo")
    ),
)


def _curves(rows: Rows, name: str, every: int, common: Mapping[str, Any]) -> tuple[Trial, ...]:
    """kNN accuracy as training goes."""
    watched = {**common, "monitor.knn_every": every}
    return cross(rows, {"": {}}, (metric("knn"),), panel=name, common=watched)


FIG4 = Item(
    title="kNN accuracy during pretraining",
    question="Does DCL converge faster on CIFAR and STL-10?",
    source=f"{PAPER}, figure 4; {VOTE}",
    trend="DCL converges faster and ends higher than the baseline on all three",
    panels=tuple(Panel(name, "curve", "epoch", "kNN top-1 accuracy (%)") for name in PLACES),
    grids={
        "smoke": Grid(
            _curves(_two("digits"), "CIFAR10", 1, {**SMOKE, "train.epochs": 5}),
            "digits for CIFAR-10, 5 epochs",
        ),
        "small": Grid(_curves(_two("cifar10", "-paper"), "CIFAR10", 5, SMALL), CIFAR, 3),
        "paper": Grid(
            tuple(
                t
                for name, data in PLACES.items()
                for t in _curves(_two(data, "-paper"), name, 5, {})
            ),
            "ResNet-18, 200 epochs, batch 256",
            5,
        ),
    },
    laws=tuple(
        Law(
            f"{name}: DCL {text}",
            partial(check, panel=name),
            EMPIRICAL if name == "CIFAR10" else ("paper",),
        )
        for name in PLACES
        for text, check in (
            ("ends higher", laws.ends_rise),
            ("is ahead", partial(laws.ahead, row=DCL, than=SIMCLR)),
        )
    ),
)

ITEMS = {
    "dcl.fig1": FIG1,
    "dcl.fig3": FIG3,
    "dcl.fig4": FIG4,
    "dcl.table1": TABLE1,
    "dcl.table2": TABLE2,
    "dcl.table3": TABLE3,
    "dcl.table4": TABLE4,
}
