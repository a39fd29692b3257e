"""EqCo (Zhu et al. 2020): figures 1, 2 and 4, and tables 1 and 6.

The tables and figures of SiMo are in simo_tables.py and simo_transfer_tables.py.

"Without EqCo" is EqCo with alpha = K: the margin is then zero, and the loss is InfoNCE over the
same negatives. On MoCo v2 this is MoCo v2 itself if K is not below the batch size.
"""

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

from antipode.papers.eqco.claims import WITH, WITHOUT, degrades, keeps_more, steady
from antipode.reproduction import laws
from antipode.reproduction.item import (
    REFERENCE_PANEL,
    SCALES,
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
    untrained,
    vary,
)

PAPER = "EqCo (arXiv 2010.01929)"
ACCURACY = "Accuracy (%)"
SMOKE = {"train.epochs": 2, "train.batch": 64}
SMALL = {"train.epochs": 50}
# Figure 1 draws the log. All runs of EqCo and SiMo are logged alike, so that figures and tables
# share them.
LOGGED = {"monitor.log_every": 20}
OURS = SMALL | LOGGED
# With little augmentation the positives carry much information, so the laws show after few epochs.
MILD = {"train.batch": 64, "views.scale": [0.9, 1.0], "method.tau": 0.1, "method.groups": 1}
MILDLY = "digits with mild crops, resnet10-slim, tau .1"
DIGITS = "digits, resnet10-slim, 2 epochs, batch 64; logistic regression on frozen features"
CIFAR = "CIFAR-10, ResNet-18, 50 epochs; logistic regression on frozen features"
IMAGENET = "ImageNet, ResNet-50, 200 epochs, linear evaluation"
GRID_IS_OURS = "the paper does not print its grid of K, so the grid is ours"
FOUR_THOUSAND = "alpha = 4,096 stands for 65,536"
LINEAR = (score("linear"),)
FAST = (score("linear-fast"),)
BOUND = (analysis("mi-bound", "curves.over training"),)
NOT_TRAINED = (untrained("resnet18", "cifar10", "linear-fast"),)  # at scale small


def not_trained(*protocols: str) -> tuple[Trial, ...]:
    """Return an untrained network at the paper's scale, scored by the paper's protocols."""
    return (untrained("resnet50", "imagenet", *protocols),)


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


RISE = 0.5  # nats; the bounds of random and of collapsed embeddings differ by less than .1 nats
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
            _fig1("cifar10", (16, 256, 4096), 4096, OURS),
            f"CIFAR-10, ResNet-18, 50 epochs; {FOUR_THOUSAND}",
            3,
        ),
        "paper": Grid(
            _fig1("imagenet", (16, 256, 4096, 65536), 65536, {}),
            f"{IMAGENET}; {GRID_IS_OURS}",
        ),
    },
    laws=(
        Law(
            "without EqCo the bound rises with K, by at least half a nat in all",
            partial(laws.ends_rise, panel=WITHOUT, by=RISE),
            SCALES,
            source="section 2.1, figure 1",
        ),
        Law(
            "with EqCo the bounds for all K end within a third of the range without EqCo",
            partial(laws.ends_coincide, panel=WITH, against=WITHOUT, share=1 / 3, least=RISE),
            SCALES,
            source="section 2.1, figure 1",
        ),
    ),
)

MOCO, MOCO2, SIMCLR = FRAMEWORKS = ("MoCo", "MoCo v2", "SimCLR")
COUNTS = (4, 16, 64, 256, 1024, 4096, 16384, 65536)
LOST = (0.2, 6.1)  # points that MoCo loses from K = 65,536 to 256 with and without EqCo


def _fig2_laws() -> tuple[Law, ...]:
    """Return the laws of figure 2: MoCo's headline numbers, then what holds for each framework."""
    law = partial(Law, source="section 1", paper="losses of 6.1 and 0.2", headline=True)
    return (
        law(
            "MoCo: without EqCo 256 negatives cost much accuracy, with EqCo almost none",
            partial(keeps_more, panel=MOCO, few=256, paper=LOST),
            ("paper",),
        ),
        law(
            "MoCo: without EqCo 16 negatives cost much accuracy, with EqCo almost none (alpha / K "
            "is 256, as in the paper)",
            partial(keeps_more, panel=MOCO, few=16, paper=LOST),
            ("small",),
        ),
        *(
            Law(
                f"{name}: at the smallest K accuracy drops without EqCo, and drops less with it",
                partial(keeps_more, panel=name),
                source="section 2.3, figure 2",
                headline=True,
            )
            for name in FRAMEWORKS
        ),
        *(
            Law(
                f"{name}: with EqCo accuracy is the same for all K from {start} on",
                partial(steady, panel=name, start=start, paper=LOST[0]),
                source="sections 1 and 2.3, figure 2",
                paper="0.2 from 65536 to 256" if name == MOCO else "",
                headline=True,
            )
            for name, start in ((MOCO, 16), (MOCO2, 64), (SIMCLR, 16))
        ),
        Law(
            "MoCo v2 degrades at the smallest K (16 or less) even with EqCo",
            partial(degrades, panel=MOCO2),
            source="section 4, figure 2",
        ),
    )


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
    panels=(
        *(
            Panel(name, "curve", "K, negatives per query", "top-1 accuracy (%)", log=True)
            for name in FRAMEWORKS
        ),
        REFERENCE_PANEL,
    ),
    grids={
        "smoke": Grid(
            _fig2("digits", "mocov1", (4, 128), 128, FAST, SMOKE)
            + _fig2("digits", "mocov2", (4, 128), 128, FAST, SMOKE)
            + _fig2("digits", "simclr", (4, 64), 64, FAST, SMOKE),
            f"{DIGITS}; alpha = 128 and 64 stand for 65,536 and 256",
        ),
        "small": Grid(
            _fig2("cifar10", "mocov1", (16, 256, 4096), 4096, FAST, OURS)
            + _fig2("cifar10", "mocov2", (4, 16, 256, 4096), 4096, FAST, OURS)
            + _fig2("cifar10", "simclr", (4, 16, 256), 256, FAST, OURS)
            + NOT_TRAINED,
            f"{CIFAR}; {FOUR_THOUSAND}",
            3,
        ),
        "paper": Grid(
            _fig2("imagenet", "mocov1", COUNTS, 65536, LINEAR, {})
            + _fig2("imagenet", "mocov2", COUNTS, 65536, LINEAR, {})
            + _fig2(
                "imagenet", "simclr", (2, 4, 16, 64, 256), 256, (score("linear-eqco-simclr"),), {}
            )
            + not_trained("linear", "linear-eqco-simclr"),
            f"{IMAGENET}; {GRID_IS_OURS}",
        ),
    },
    paper={(MOCO, WITHOUT, 256): 54.7, (MOCO, WITHOUT, 65536): 60.6},
    sources=dict.fromkeys(
        ((MOCO, WITHOUT, 256), (MOCO, WITHOUT, 65536)),
        f"{PAPER}, section 1, quoting He et al. (2020)",
    ),
    laws=_fig2_laws(),
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
            _fig4("cifar10", 50, 10, {}),
            "CIFAR-10, ResNet-18, 50 epochs of MoCo v2 with 4,096 negatives; K beyond the number "
            "of images is made of several views of an image",
            3,
        ),
        "paper": Grid(
            _fig4("imagenet", 200, 40, {}),
            "ImageNet, ResNet-50, 200 epochs of MoCo v2; the paper prints neither K nor the epochs",
        ),
    },
    laws=(
        Law(
            "from K = 16 on, the mean gradient varies at most half as much with EqCo as without, "
            "at every epoch",
            # From K = 16 on, the mean gradient of independent vectors and of an untrained network
            # changes by .03 of its largest value. That of a collapsed network varies as much with
            # EqCo as without.
            partial(
                laws.narrower,
                panel=WITH,
                than=WITHOUT,
                rows="mean",
                start=16,
                share=laws.HALF,
                least=0.2,
            ),
            SCALES,
            source="section 2.1, figure 4",
        ),
    ),
)

SIZES = "Top-1 accuracy (%)"
BATCHES = (256, 512, 1024)
TABLE1 = Item(
    title="MoCo v2 with different numbers of queries per batch",
    question="Does the linear scaling rule make accuracy independent of the number of queries N?",
    source=f"{PAPER}, table 1",
    trend="accuracy hardly changes if the learning rate is proportional to N",
    panels=(Panel("", "table", "N"), REFERENCE_PANEL),
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
            cross({SIZES: ("cifar10.mocov2", SMALL)}, vary("train.batch", BATCHES), FAST)
            + NOT_TRAINED,
            f"{CIFAR}; 4,096 negatives",
            3,
        ),
        "paper": Grid(
            cross({SIZES: ("imagenet.mocov2", {})}, vary("train.batch", BATCHES), LINEAR)
            + not_trained("linear"),
            IMAGENET,
        ),
    },
    paper=table({SIZES: {256: 67.5, 512: 67.5, 1024: 67.4}}),
    laws=(
        Law(
            "accuracy is the same for 256, 512 and 1,024 queries per batch",
            partial(steady, row=SIZES, paper=0.1),
            source="section 2.3, table 1",
            paper="67.5, 67.5 and 67.4",
        ),
    ),
)

SIZES_OF_QUEUE = (256, 1024, 4096, 16384, 65536, 262144)
# At scale small, 16 times fewer negatives stand for the paper's largest numbers.
SMALL_QUEUES = {256: 256, 65536: 4096, 262144: 16384}
TABLE6 = Item(
    title="MoCo v2 with different K",
    question="How does the accuracy of MoCo v2 depend on the number of negatives?",
    source=f"{PAPER}, table 6",
    trend="accuracy changes by .6 points; more than 65,536 negatives do not help",
    panels=(Panel("", "table", "K"), REFERENCE_PANEL),
    grids={
        "smoke": Grid(
            cross({ACCURACY: ("digits.mocov2", SMOKE)}, vary("method.queue", (16, 64, 256)), FAST),
            DIGITS,
        ),
        "small": Grid(
            cross(
                # MoCo v2 is EqCo with alpha = K; these are runs of figure 2
                {ACCURACY: ("cifar10.eqco", {"method.base": "mocov2"})},
                {
                    label: {"method.negatives": count, "method.alpha": count}
                    for label, count in SMALL_QUEUES.items()
                },
                FAST,
                common=OURS,
            )
            + NOT_TRAINED,
            f"{CIFAR}; K = 4,096 and 16,384 stand for 65,536 and 262,144",
            3,
        ),
        "paper": Grid(
            cross({ACCURACY: ("imagenet.mocov2", {})}, vary("method.queue", SIZES_OF_QUEUE), LINEAR)
            + not_trained("linear"),
            IMAGENET,
        ),
    },
    paper=table(
        {ACCURACY: dict(zip(SIZES_OF_QUEUE, (67.0, 67.1, 67.6, 67.3, 67.5, 67.4), strict=True))}
    ),
    laws=(
        Law(
            "accuracy is almost the same from 256 to 262,144 negatives",
            partial(steady, row=ACCURACY, paper=0.6),
            source="appendix B.3, table 6",
            paper="67.0 to 67.6",
        ),
        Law(
            "more than 65,536 negatives lower accuracy",
            partial(
                laws.gain, better=("", ACCURACY, 65536), worse=("", ACCURACY, 262144), paper=0.1
            ),
            source="appendix B.3, table 6",
            paper="67.5 and 67.4",
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
