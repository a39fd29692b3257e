"""AdCo (Hu et al., CVPR 2021): table 5 of the appendix, and what its sections A and C compare."""

from collections.abc import Iterable, Mapping
from functools import partial
from statistics import fmean
from typing import Any

from antipode.reproduction import laws
from antipode.reproduction.intervals import interval
from antipode.reproduction.item import (
    REFERENCE_PANEL,
    Cells,
    Grid,
    Item,
    Law,
    Measure,
    Panel,
    Place,
    Trial,
    Verdict,
    analysis,
    cross,
    metric,
    score,
    table,
    untrained,
)

ACC = "Top-1 Acc."
BATCH = "Batch Size"
TIME = "(GPU x Time)/epoch"
PARAMETERS = "extra parameters"
SIMCLR = "SimCLR"
MOCO = "MoCo v2"
BYOL = "BYOL"
SIMSIAM = "SimSiam"
METHODS = {SIMCLR: "simclr", MOCO: "mocov2", BYOL: "byol", SIMSIAM: "simsiam"}
BANKS = (65536, 16384, 8192)
ONE_WAY = {count: f"AdCo, {count:,} negatives" for count in BANKS}
SYMMETRIC = {count: f"AdCo, symmetric, {count:,} negatives" for count in BANKS}

SMOKE = {"train.epochs": 1, "train.batch": 64}
SMALL = {"train.epochs": 50}
SMOKE_BANKS = (256, 64, 32)
SMALL_BANKS = (4096, 1024, 512)
# On CIFAR-10 the bank stands still at the recipe's bank temperature of .03, and AdCo is as accurate
# as with one that moves (benchmarks/RESULTS.md). The claims are about a bank that moves.
MOVING = {"method.tau_bank": 0.1}
STILL = "AdCo, 65,536 negatives that stand still"
# steps between two checks of the bank, so that its drift is that of 100 steps
CHECKS = {"monitor.health_every": 100}
SMOKE_CHECKS = {"monitor.health_every": 5}

BATCHES = analysis("cost", "settings.batch", column=BATCH)
# hours of the log, which are comparable if each run had its devices alone
HOURS = analysis("cost", "values.device-hours per epoch", column=TIME)
# hours of training steps that are taken for this purpose
HOURS_HERE = analysis("cost", "values.device-hours per epoch here", column=TIME)
PREDICTOR = analysis("cost", "values.parameters, predictor", column=PARAMETERS)
NEGATIVES = analysis("cost", "values.scalars, bank", column=PARAMETERS)

DRIFT = "drift of the bank"
HARDNESS = "repulsion of a query"
BANK = (
    metric("bank_drift", panel=DRIFT),
    analysis("bank", "values.repulsion, bank", panel=HARDNESS, column="bank"),
    analysis("bank", "values.repulsion, fresh keys", panel=HARDNESS, column="fresh keys"),
)
# A bank moves if it turns by this much (mean 1 - cosine) in 100 steps. Training reports a bank that
# turns by less than a tenth of it as standing still.
MOVES = 1e-3
# A bank that is replaced by unrelated vectors turns by 1.
REPLACED = 0.5
# Repulsion is a logarithm: the bank repels a query by a tenth more than fresh keys. As many random
# or equal vectors differ by less than a hundredth.
HARDER = 0.1


# Table 5


def _adco(
    data: str, banks: tuple[int, ...], measures: tuple[Measure, ...], common: Mapping[str, Any]
) -> tuple[Trial, ...]:
    """Return AdCo with three bank sizes, in the rows of the paper's three sizes."""
    rows: dict[str, tuple[str, Mapping[str, Any]]] = {
        labels[count]: (f"{data}.adco", {"method.bank": bank, "method.symmetric": both})
        for labels, both in ((ONE_WAY, False), (SYMMETRIC, True))
        for count, bank in zip(BANKS, banks, strict=True)
    }
    return cross(rows, {"": {}}, (*measures, *BANK), common=common)


def _others(
    data: str, measures: tuple[Measure, ...], common: Mapping[str, Any]
) -> tuple[Trial, ...]:
    """Return the other methods at a smaller scale."""
    rows: dict[str, tuple[str, Mapping[str, Any]]] = {
        name: (f"{data}.{method}", {}) for name, method in METHODS.items()
    }
    return cross(rows, {"": {}}, measures, common=common)


FAST = score("linear-fast", column=ACC)
LINEAR = score("linear-adco", column=ACC)
PAPERS = tuple(
    Trial(
        f"imagenet.{METHODS[row]}",
        {"train.batch": batch, "train.epochs": 200},
        (score(protocol, column=ACC), BATCHES, HOURS),
        row,
    )
    for row, protocol, batch in (
        (SIMCLR, "linear-simclr", 8192),
        (MOCO, "linear", 256),
        (BYOL, "linear-byol", 4096),
        (SIMSIAM, "linear-simsiam", 256),
    )
)


def _moves(cells: Cells) -> Verdict:
    """Check that the banks of networks that have learned turn in the second half of training."""
    curves = {row: line for row, line in laws.lines(cells, DRIFT).items() if row != STILL}
    late = {row: fmean(y for _, y in line[len(line) // 2 :]) for row, line in curves.items()}
    margin = min(min(drift - MOVES, REPLACED - drift) for drift in late.values())
    text = ", ".join(f"{row} {drift:.2g}" for row, drift in late.items())
    verdict = Verdict(margin, f"mean 1 - cosine over 100 steps: {text}")
    return laws.if_learned(cells, verdict, [("", row, ACC) for row in late])


def _harder(cells: Cells) -> Verdict:
    """Check that banks of networks that have learned repel more than fresh keys."""
    rows = (*ONE_WAY.values(), *SYMMETRIC.values())
    more = {
        row: fmean(cells[HARDNESS, row, "bank"]) - fmean(cells[HARDNESS, row, "fresh keys"])
        for row in rows
    }
    text = ", ".join(f"{row} {difference:.3g}" for row, difference in more.items())
    verdict = Verdict(min(more.values()) - HARDER, f"bank minus fresh keys: {text}")
    return laws.if_learned(cells, verdict, [("", row, ACC) for row in rows])


def _place(row: str, column: str = ACC) -> Place:
    return "", row, column


def _symmetric_law(count: int, paper: tuple[float, float]) -> Law:
    """Return the law that a symmetric loss helps with one bank size."""
    return Law(
        f"with {count:,} negatives a symmetric loss improves AdCo",
        partial(
            laws.gain,
            better=_place(SYMMETRIC[count]),
            worse=_place(ONE_WAY[count]),
            paper=paper[1] - paper[0],
        ),
        source="table 5, appendix A",
        paper=f"{paper[0]} to {paper[1]}",
    )


def _fewer_law(rows: Mapping[int, str], count: int, paper: tuple[float, float]) -> Law:
    """Return the law that fewer negatives cost little."""
    return Law(
        f"{rows[count]}, cost little accuracy compared with 65,536",
        partial(
            laws.cost, few=_place(rows[count]), full=_place(rows[65536]), paper=paper[0] - paper[1]
        ),
        source="table 5, appendix B",
        paper=f"{paper[0]} and {paper[1]}",
    )


TABLE5 = Item(
    title="Accuracy and GPU time of AdCo, BYOL and other methods after 200 epochs",
    question="Does AdCo reach the accuracy of BYOL, and does it need many negatives?",
    source="AdCo, appendix, table 5 (16348 in the table is a misprint of 16384)",
    trend=(
        "a symmetric loss adds 1.5 to 2 points; an eighth of the negatives costs .2 to .4 points; "
        "AdCo with the symmetric loss has the accuracy of BYOL, which takes almost 20 % more GPU "
        "time and a larger batch (adco.cost); the negatives are adversaries that follow the network"
    ),
    panels=(
        Panel(y="%, images and GPU-hours"),
        Panel(DRIFT, "curve", "epoch", "mean 1 - cosine of a vector over 100 steps"),
        Panel(HARDNESS, y="log of the mean exp(cosine / tau)"),
        REFERENCE_PANEL,
    ),
    grids={
        "smoke": Grid(
            _others("digits", (FAST, BATCHES, HOURS), SMOKE)
            + _adco("digits", SMOKE_BANKS, (FAST, BATCHES, HOURS), SMOKE | SMOKE_CHECKS),
            "digits, resnet10-slim, 1 epoch, CPU hours; banks of 256, 64 and 32 stand for 65,536, "
            "16,384 and 8,192; the drift is that of 5 steps",
        ),
        "small": Grid(
            _others("cifar10", (FAST,), SMALL)
            + _adco("cifar10", SMALL_BANKS, (FAST,), SMALL | CHECKS | MOVING)
            + (
                Trial(
                    "cifar10.adco",
                    SMALL | CHECKS | {"method.bank": SMALL_BANKS[0], "method.symmetric": False},
                    (FAST, *BANK),
                    STILL,
                ),
                untrained("resnet18", "cifar10", "linear-fast"),
            ),
            "CIFAR-10, ResNet-18, 50 epochs, batch 256, logistic regression; banks of 4,096, 1,024 "
            "and 512 stand for 65,536, 16,384 and 8,192; a bank temperature of .1, at which the "
            "bank moves, and .03 in the row of a bank that stands still; adco.cost has the times",
            3,
        ),
        "paper": Grid(
            PAPERS
            + _adco("imagenet", BANKS, (LINEAR, BATCHES, HOURS), CHECKS)
            + (untrained("resnet50", "imagenet", "linear-adco"),),
            "ImageNet, ResNet-50, 200 epochs, linear evaluation",
        ),
    },
    paper=table(
        {
            SIMCLR: {BATCH: 8192, ACC: 67.0, TIME: 1.92},
            MOCO: {BATCH: 256, ACC: 67.5, TIME: 2.12},
            BYOL: {BATCH: 4096, ACC: 70.6, TIME: 4.10},
            SIMSIAM: {BATCH: 256, ACC: 70.0, TIME: None},
            ONE_WAY[65536]: {BATCH: 256, ACC: 68.6, TIME: 2.26},
            ONE_WAY[16384]: {BATCH: 256, ACC: 68.6, TIME: 2.24},
            ONE_WAY[8192]: {BATCH: 256, ACC: 68.4, TIME: 2.24},
            SYMMETRIC[65536]: {BATCH: 256, ACC: 70.6, TIME: 3.50},
            SYMMETRIC[16384]: {BATCH: 256, ACC: 70.2, TIME: 3.46},
            SYMMETRIC[8192]: {BATCH: 256, ACC: 70.2, TIME: 3.45},
        }
    ),
    laws=(
        Law(
            "AdCo is better than MoCo v2 with as many negatives",
            partial(laws.gain, better=_place(ONE_WAY[65536]), worse=_place(MOCO), paper=1.1),
            source="table 5",
            paper="68.6 and 67.5",
            headline=True,
        ),
        Law(
            "AdCo with a symmetric loss reaches the accuracy of BYOL",
            partial(laws.cost, few=_place(SYMMETRIC[65536]), full=_place(BYOL), paper=0.0),
            source="table 5, appendix C",
            paper="70.6 and 70.6",
            headline=True,
        ),
        Law(
            "AdCo with a symmetric loss is better than SimCLR, MoCo v2 and SimSiam",
            partial(
                laws.best,
                at=_place(SYMMETRIC[65536]),
                others=[_place(SIMCLR), _place(MOCO), _place(SIMSIAM)],
                paper=0.6,
            ),
            source="table 5, appendix C",
            paper="70.6; 67.0, 67.5 and 70.0",
        ),
        _symmetric_law(65536, (68.6, 70.6)),
        _symmetric_law(16384, (68.6, 70.2)),
        _symmetric_law(8192, (68.4, 70.2)),
        _fewer_law(ONE_WAY, 16384, (68.6, 68.6)),
        _fewer_law(ONE_WAY, 8192, (68.6, 68.4)),
        _fewer_law(SYMMETRIC, 16384, (70.6, 70.2)),
        _fewer_law(SYMMETRIC, 8192, (70.6, 70.2)),
        Law("the negatives keep moving as the network trains", _moves, source="abstract"),
        Law(
            "the trained negatives are harder for the queries than as many keys of the network",
            _harder,
            source="abstract, appendix B",
        ),
    ),
)


# Section C: what BYOL and AdCo cost

# The appendix counts "about 1M" parameters in BYOL's predictor. The predictor of BYOL's authors has
# twice as many (256 to 4,096 to 256). One with half of its hidden width fits the text.
HALVED = "BYOL, hidden width 2,048"
HEADS: Mapping[str, Any] = {"method.dim": 256, "method.hidden": 4096}
PREDICTORS = {BYOL: HEADS, HALVED: {**HEADS, "method.hidden": 2048}}
COMPARED = (65536, 8192)


def _costs(data: str, counts: Iterable[int], common: Mapping[str, Any]) -> tuple[Trial, ...]:
    """Return BYOL with two predictors and AdCo with banks of some sizes."""
    byol: dict[str, tuple[str, Mapping[str, Any]]] = {
        row: (f"{data}.byol", heads) for row, heads in PREDICTORS.items()
    }
    banks: dict[str, tuple[str, Mapping[str, Any]]] = {
        SYMMETRIC[count]: (f"{data}.adco", {"method.bank": count, "method.symmetric": True})
        for count in counts
    }
    columns: dict[Any, Mapping[str, Any]] = {"": {}}
    return cross(byol, columns, (BATCHES, HOURS_HERE, PREDICTOR), common=common) + cross(
        banks, columns, (BATCHES, HOURS_HERE, NEGATIVES), common=common
    )


def _paper_costs() -> tuple[Trial, ...]:
    """Return the runs of table 5, and one epoch of BYOL with the smaller predictor."""
    common = {"train.batch": 4096}
    byol = Trial("imagenet.byol", common | {"train.epochs": 200}, (BATCHES, HOURS, PREDICTOR), BYOL)
    smaller = common | {"train.epochs": 1, "method.hidden": 2048}
    banks = tuple(
        Trial(
            "imagenet.adco",
            {"method.bank": count, "method.symmetric": True, **CHECKS},
            (BATCHES, HOURS, NEGATIVES),
            SYMMETRIC[count],
        )
        for count in COMPARED
    )
    halved = Trial("imagenet.byol", smaller, (BATCHES, HOURS, PREDICTOR), HALVED)
    return (byol, halved, *banks)


COST = Item(
    title="What AdCo's bank and BYOL's predictor cost: batch size, GPU time and parameters",
    question="Does AdCo take less GPU time than BYOL, with as many extra parameters?",
    source="AdCo, appendix, table 5",
    trend=(
        "BYOL takes almost 20 % more GPU time than AdCo, at a batch size of 4,096 instead of 256; "
        "its predictor has about as many parameters as 8,192 negatives of 128 dimensions"
    ),
    panels=(Panel(y="images, GPU-hours and parameters"),),
    grids={
        # the bank is not filled: it would take more steps than one epoch has
        "smoke": Grid(
            tuple(
                trial._replace(overrides={**trial.overrides, "method.fill": False})
                if trial.recipe == "digits.adco"
                else trial
                for trial in _costs("digits", (8192,), SMOKE)
            ),
            "digits, resnet10-slim, 1 epoch, CPU hours of 3 training steps; heads and bank have "
            "the paper's sizes",
        ),
        "small": Grid(
            _costs("cifar10", COMPARED, {"train.epochs": 1}),
            "CIFAR-10, ResNet-18, 1 epoch, batch 256; GPU hours of 100 training steps, compiled "
            "and captured, on a GPU that no other process uses; heads and banks have the paper's "
            "sizes",
            3,
        ),
        "paper": Grid(
            _paper_costs(),
            "ImageNet, ResNet-50; GPU hours of the log; one epoch of BYOL with the smaller "
            "predictor, 200 of the others",
        ),
    },
    paper=table(
        {
            BYOL: {BATCH: 4096, TIME: 4.10, PARAMETERS: 1e6},
            SYMMETRIC[65536]: {BATCH: 256, TIME: 3.50},
            SYMMETRIC[8192]: {BATCH: 256, TIME: 3.45, PARAMETERS: 1e6},
        }
    ),
    sources={
        _place(row, PARAMETERS): "AdCo, appendix C: about 1M, the same amount"
        for row in (BYOL, SYMMETRIC[8192])
    },
    laws=tuple(
        Law(
            f"BYOL takes more GPU time than AdCo with a symmetric loss and {count:,} negatives",
            partial(
                laws.ratio,
                larger=_place(BYOL, TIME),
                smaller=_place(SYMMETRIC[count], TIME),
                paper=4.10 / hours,
            ),
            source="table 5, appendix C",
            paper=f"4.10 and {hours:.2f} GPU-hours per epoch",
            headline=count == 65536,
        )
        for count, hours in ((65536, 3.50), (8192, 3.45))
    ),
)


# Section A: several crops

SINGLE = "single crop"
MULTI = "multi-crop"
PLAIN = "one way"
BOTH = "symmetric"
CROPS = {"method.crops": 5}
CIFAR_CROPS = {**CROPS, "views.policy": "adco-multicrop-cifar"}


def _crops(
    data: str, bank: int, protocol: str, crops: Mapping[str, Any], common: Mapping[str, Any]
) -> tuple[Trial, ...]:
    """Return AdCo with one and with five query crops, each with both losses."""
    columns: dict[Any, Mapping[str, Any]] = {
        PLAIN: {"method.symmetric": False},
        BOTH: {"method.symmetric": True},
    }
    rows: dict[str, tuple[str, Mapping[str, Any]]] = {
        SINGLE: (f"{data}.adco", {"method.bank": bank}),
        MULTI: (f"{data}.adco", {"method.bank": bank, **crops}),
    }
    return cross(rows, columns, (score(protocol),), common=common)


def _adds_less(cells: Cells, *, paper: tuple[float, float]) -> Verdict:
    """Check that a symmetric loss adds less to several crops than to one.

    `paper` has what it adds to one crop and to several. At least half of their difference must be
    found.
    """
    added = {
        row: laws.gain(cells, better=("", row, BOTH), worse=("", row, PLAIN), learned=False)
        for row in (SINGLE, MULTI)
    }
    one, several = added[SINGLE], added[MULTI]
    margin = one.margin - several.margin - laws.HALF * (paper[0] - paper[1])
    text = f"{one.text}; {several.text}"
    places = [("", row, column) for row in (SINGLE, MULTI) for column in (PLAIN, BOTH)]
    verdict = Verdict(margin, text, interval(cells, places))
    return laws.if_learned(cells, verdict, places)


MULTICROP = Item(
    title="Accuracy of AdCo with one and with several crops, with both losses",
    question="Does a symmetric loss still help AdCo with several crops of an image?",
    source="AdCo, appendix A, and table 5 for one crop",
    trend=(
        "a symmetric loss adds 2 points to one crop, and only .4 to several crops, which are "
        "several positive pairs already"
    ),
    panels=(Panel(x="loss", y="top-1 accuracy (%)"), REFERENCE_PANEL),
    grids={
        "smoke": Grid(
            _crops("digits", 256, "linear-fast", CIFAR_CROPS, SMOKE | SMOKE_CHECKS),
            "digits, resnet10-slim, 1 epoch; crops in proportion to images of 8 px; a bank of 256",
        ),
        "small": Grid(
            (
                *_crops(
                    "cifar10",
                    SMALL_BANKS[0],
                    "linear-fast",
                    CIFAR_CROPS,
                    SMALL | CHECKS | MOVING,
                ),
                untrained("resnet18", "cifar10", "linear-fast"),
            ),
            "CIFAR-10, ResNet-18, 50 epochs, logistic regression; a bank of 4,096 with a "
            "temperature of .1, at which it moves; crops in "
            "proportion to images of 32 px, in the colours of the single crop; the authors have "
            "not released a symmetric loss for several crops, so the pairing is ours",
            3,
        ),
        "paper": Grid(
            (
                *_crops("imagenet", BANKS[0], "linear-adco", CROPS, CHECKS),
                untrained("resnet50", "imagenet", "linear-adco"),
            ),
            "ImageNet, ResNet-50, 200 epochs, linear evaluation; the authors have not released a "
            "symmetric loss for several crops, so the pairing is ours",
        ),
    },
    paper=table({SINGLE: {PLAIN: 68.6, BOTH: 70.6}, MULTI: {PLAIN: 73.2, BOTH: 73.6}}),
    laws=(
        Law(
            "AdCo is better with several query crops than with one",
            partial(laws.gain, better=("", MULTI, PLAIN), worse=("", SINGLE, PLAIN), paper=4.6),
            source="appendix A, table 5",
            paper="73.2 and 68.6",
        ),
        Law(
            "with several crops a symmetric loss improves AdCo",
            partial(laws.gain, better=("", MULTI, BOTH), worse=("", MULTI, PLAIN), paper=0.4),
            source="appendix A",
            paper="73.2 to 73.6",
        ),
        Law(
            "a symmetric loss adds less to several crops than to one crop",
            partial(_adds_less, paper=(2.0, 0.4)),
            source="appendix A",
            paper="73.2 to 73.6, and 68.6 to 70.6",
        ),
    ),
)

ITEMS = {"adco.table5": TABLE5, "adco.cost": COST, "adco.multicrop": MULTICROP}
