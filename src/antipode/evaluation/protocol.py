"""Named evaluations with fixed numbers: two scores with one name mean the same."""

import difflib
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

from antipode.functional import knn
from antipode.types import Features


@dataclass(frozen=True)
class Score:
    """A number and all it takes to repeat it."""

    value: float
    unit: str
    protocol: str
    settings: dict[str, Any] = field(default_factory=dict)
    data: str = ""
    split: str = "test"
    n: int = 0
    seed: int = 0
    epoch: str = "last"

    def json(self) -> dict[str, Any]:
        """For scores.json."""
        return asdict(self)


Protocol = Callable[[Features, Features], tuple[float, str, dict[str, Any]]]  # train, test -> value, unit, settings


def nearest(train: Features, test: Features, *, k: int, tau: float | None) -> tuple[float, str, dict[str, Any]]:
    """Top-1 accuracy of a vote among the k nearest train images by cosine."""
    classes = int(train.y.max()) + 1
    if classes < 2:
        raise ValueError("kNN needs labels of at least two classes")
    votes = knn(train.x, train.y, test.x, k=k, tau=tau, classes=classes)
    accuracy = 100 * (votes.argmax(1) == test.y).double().mean().item()
    return accuracy, "% top-1", {"k": k, "tau": tau, "features": "backbone"}


PROTOCOLS: dict[str, Protocol] = {
    "knn": partial(nearest, k=200, tau=0.07),  # NPID's, weighted
    "knn20": partial(nearest, k=20, tau=None),  # MSBReg 2.3
    "knn200": partial(nearest, k=200, tau=None),
}


def known(protocol: str) -> None:
    """Refuse a name that is none."""
    if protocol not in PROTOCOLS:
        near = difflib.get_close_matches(protocol, PROTOCOLS, 1)
        hint = f" (did you mean {near[0]!r}?)" if near else ""
        raise ValueError(f"there is no protocol {protocol!r}{hint}: choose from {', '.join(PROTOCOLS)}")


def run(protocol: str, train: Features, test: Features) -> tuple[float, str, dict[str, Any]]:
    """The value, unit and settings of a protocol."""
    known(protocol)
    if int(train.y.min()) < 0 or int(test.y.min()) < 0:
        raise ValueError(f"{protocol} needs labels, and this data set has none")
    return PROTOCOLS[protocol](train, test)
