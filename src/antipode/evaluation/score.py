"""Evaluation scores, with everything needed to reproduce them."""

from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple


class Result(NamedTuple):
    """The return value of a protocol.

    n: number of images evaluated; more: further numbers such as top-5 accuracy; epoch: the epoch of
    the classifier's training that the value belongs to, for protocols that train a classifier.
    """

    value: float
    unit: str
    settings: dict[str, Any]
    n: int
    more: dict[str, Any] = {}  # noqa: RUF012 - this default is never modified
    split: str = "test"
    epoch: str = "last"


@dataclass(frozen=True)
class Score:
    """A result together with its protocol, data set and seed."""

    value: float
    unit: str
    protocol: str
    settings: dict[str, Any] = field(default_factory=dict)
    data: str = ""
    split: str = "test"
    n: int = 0
    seed: int = 0
    epoch: str = "last"
    more: dict[str, Any] = field(default_factory=dict)

    def json(self) -> dict[str, Any]:
        """Return the score as a dictionary for scores.json."""
        return asdict(self)

    def line(self) -> str:
        """Return the score as one line of text: protocol, value, further numbers and data."""
        further = "".join(
            f", {name} {value:.2f}" for name, value in self.more.items() if isinstance(value, float)
        )
        value = f"{self.value:.2f} {self.unit}"
        return f"{self.protocol}: {value}{further} ({self.data} {self.split}, n = {self.n})"
