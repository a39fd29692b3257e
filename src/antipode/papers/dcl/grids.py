"""Names, scales and rows that DCL's tables and figures share."""

from collections.abc import Mapping
from typing import Any

from antipode.reproduction.item import score

PAPER = "DCL (arXiv 2110.06848)"
FEATURES = "the paper does not say which features kNN uses, so we use those of the backbone"
SIMCLR = "SimCLR"
DCL = "SimCLR w/ DCL"
KNN = (score("knn"),)
LINEAR = (score("linear"),)
FAST = (score("linear-fast"),)
SMOKE = {"train.epochs": 3, "train.batch": 64}
SMALL = {"train.epochs": 100}
DIGITS = "digits, resnet10-slim, 3 epochs, batch 64"
CIFAR = "CIFAR-10, ResNet-18, 100 epochs"
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


def simclr_and_dcl(data: str, tail: str = "") -> Rows:
    """Return the rows of the baseline and of DCL on a data set."""
    return {SIMCLR: (f"{data}.simclr{tail}", {}), DCL: (f"{data}.dcl{tail}", {})}
