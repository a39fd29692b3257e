"""Names, scales and rows that DCL's tables and figures share."""

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

from antipode.reproduction import laws
from antipode.reproduction.item import EMPIRICAL, Law, Measure, Trial, score, untrained

PAPER = "DCL (arXiv 2110.06848)"
FEATURES = (
    "the paper does not say which features kNN uses; it follows NPID, which uses the output of the "
    "head, so its numbers are shown beside ours with features of the backbone and of the head"
)
SIMCLR = "SimCLR"
DCL = "SimCLR w/ DCL"
LINEAR = (score("linear"),)
FAST = (score("linear-fast"),)
SMOKE = {"train.epochs": 3, "train.batch": 64}
SMALL = {"train.epochs": 50}
LONG = {"train.epochs": 200}
DIGITS = "digits, resnet10-slim, 3 epochs, batch 64"
CIFAR = "CIFAR-10, ResNet-18, 50 epochs"
SIZES = (32, 64, 128, 256, 512)
# Figure 4 needs the kNN accuracy during training. All runs of SimCLR and DCL with the paper's
# settings for small images and a batch size of 256 record it, so that all items share them.
RECORDED = {"monitor.knn_every": 10}
# The optimiser of the SimCLR baseline in DCL's own experiments (section 4.1 and the authors'
# toolbox). The recipe of SimCLR's paper has LARS and a batch size of 4,096.
RATE = {
    "optim.network.name": "sgd",
    "optim.network.lr": 0.3,
    "optim.network.weight_decay": 1e-6,
    "optim.network.exclude": True,
}
SAME = RATE | {"train.batch": 256}
PLACES = {"CIFAR10": "cifar10", "CIFAR100": "cifar100", "STL10": "stl10"}  # data sets by name
Rows = Mapping[str, tuple[str, Mapping[str, Any]]]


def simclr_and_dcl(data: str, tail: str = "", overrides: Mapping[str, Any] | None = None) -> Rows:
    """Return the rows of the baseline and of DCL on a data set."""
    return {
        SIMCLR: (f"{data}.simclr{tail}", overrides or {}),
        DCL: (f"{data}.dcl{tail}", overrides or {}),
    }


def batches(sizes: Iterable[int]) -> dict[int, dict[str, Any]]:
    """Return one column for each batch size; runs with a batch size of 256 are `RECORDED`."""
    return {
        size: {"train.batch": size, **(RECORDED if size == SAME["train.batch"] else {})}
        for size in sizes
    }


def of_head(row: str) -> str:
    """Return the name of the row with kNN on the features of the head."""
    return f"{row} (head)"


def data_set(row: str) -> str:
    """Return the data set of a row."""
    return row.removesuffix(of_head(""))


def votes(row: str) -> tuple[Measure, ...]:
    """Return kNN with the features of the backbone, and with those of the head in its own row."""
    return score("knn"), score("knn-head", row=of_head(row))


def reference(network: str, data: str, protocol: str, column: str) -> Trial:
    """Return the score of an untrained network, with the name of the data set as its column."""
    trial = untrained(network, data, protocol)
    return trial._replace(measures=tuple(m._replace(column=column) for m in trial.measures))


def untrained_votes(*names: str) -> tuple[Trial, ...]:
    """Return the kNN scores of an untrained ResNet-18 on data sets of `PLACES`.

    An untrained network has no head. Its backbone is the reference for both kinds of features.
    """
    return tuple(reference("resnet18", PLACES[name], "knn", name) for name in names)


def features(row: str) -> str:
    """Return the data set of a row and, for data sets of small images, the features of kNN."""
    name = data_set(row)
    if name not in PLACES:
        return name
    return f"{name} (kNN, {'head' if row != name else 'backbone'})"


def spelled(column: str) -> str:
    """Return the name of a column in a sentence."""
    return {"Baseline": "SimCLR", "DCLW w/ mcrop": "DCLW with multi-crop"}.get(column, column)


def better(
    row: str, one: str, other: str, numbers: str, source: str, stated: float | None = None
) -> Law:
    """Return the law that the column `one` of a row is better than the column `other`.

    `numbers` are the paper's: that of `other`, then that of `one`. `stated` is the gain that the
    paper states, if it differs from their difference. Only CIFAR-10 is checked at scale small.
    """
    low, high = map(float, numbers.split(" and "))
    gain = high - low if stated is None else stated
    differs = abs(gain - (high - low)) > 0.05
    return Law(
        f"{spelled(one)} is better than {spelled(other)} on {features(row)}",
        partial(laws.gain, better=("", row, one), worse=("", row, other), paper=gain),
        EMPIRICAL if data_set(row) == "CIFAR10" else ("paper",),
        source,
        f"{numbers}, stated as +{gain:g}" if differs else numbers,
    )
