"""Evaluation scores, with everything needed to reproduce them."""

from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

# the key of `Score.more` that counts test images that are also training images
OVERLAP = "test images in train"


class Result(NamedTuple):
    """The return value of a protocol.

    n: number of images evaluated; more: further numbers such as top-5 accuracy; epoch: the epoch of
    the classifier's training that the value belongs to, for protocols that train a classifier; low
    and high: a 95 % interval of the value; chance: the value without any information about the
    image.
    """

    value: float
    unit: str
    settings: dict[str, Any]
    n: int
    more: dict[str, Any] = {}  # noqa: RUF012 - this default is never modified
    split: str = "test"
    epoch: str = "last"
    low: float | None = None
    high: float | None = None
    chance: float | None = None


@dataclass(frozen=True, repr=False)
class Score:
    """A result together with its protocol, data set and seed.

    `low` and `high` are a 95 % bootstrap interval over the evaluated images. `chance` is the value
    without any information about the image. They are None for protocols that do not state them.
    """

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
    low: float | None = None
    high: float | None = None
    chance: float | None = None

    def json(self) -> dict[str, Any]:
        """Return the score as a dictionary for scores.json."""
        return asdict(self)

    def line(self) -> str:
        """Return the score as one line of text: protocol, value, further numbers and data."""
        further = "".join(
            f", {name} {value:.2f}" for name, value in self.more.items() if isinstance(value, float)
        )
        count = self.more.get(OVERLAP)
        overlap = f"; WARNING: {count} of {self.n} {OVERLAP}" if count else ""
        return f"{self._head()}{further} ({self.data} {self.split}, n = {self.n}){overlap}"

    def _head(self) -> str:
        """Return protocol, value, interval and chance level as text."""
        known = self.low is not None and self.high is not None
        interval = f" [{self.low:.2f}, {self.high:.2f}]" if known else ""
        chance = "" if self.chance is None else f", chance {self.chance:.2f}"
        return f"{self.protocol}: {self.value:.2f} {self.unit}{interval}{chance}"

    def __repr__(self) -> str:
        return f"Score({self._head()}, {self.data} {self.split}, n = {self.n})"

    def __str__(self) -> str:
        return self.line()
