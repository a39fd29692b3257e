"""A number and all it takes to repeat it."""

from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple


class Result(NamedTuple):
    """What a protocol hands back. `more`: numbers that go with the value, such as top-5; `n`: images judged."""

    value: float
    unit: str
    settings: dict[str, Any]
    n: int
    more: dict[str, Any] = {}  # noqa: RUF012 - nobody writes to it
    split: str = "test"
    epoch: str = "last"  # of the classifier's training, where it has one


@dataclass(frozen=True)
class Score:
    """A result with the protocol, the data and the seed it belongs to."""

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
        """For scores.json."""
        return asdict(self)

    def line(self) -> str:
        """For people: the value, what goes with it, and on what."""
        further = "".join(
            f", {name} {value:.2f}" for name, value in self.more.items() if isinstance(value, float)
        )
        return f"{self.protocol}: {self.value:.2f} {self.unit}{further} ({self.data} {self.split}, n = {self.n})"
