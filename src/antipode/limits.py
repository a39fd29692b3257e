"""Limits of whole numbers in recipes, overrides and arguments.

An upper limit lies far above what any paper uses. It catches a slip of the keyboard, or a file of
someone else, before the number takes the memory or the time of the machine. Learning rates and
other real numbers have no upper limit.
"""

from typing import Any, NamedTuple

from antipode.names import brief


class Limit(NamedTuple):
    """The largest value of a number and the reason for it, and the smallest if there is one."""

    most: int
    reason: str
    least: int | None = None


VIEWS = Limit(1024, "each view is a pass through the network")
WIDTH = Limit(65_536, "a linear layer of this width on both sides has 17 GB of weights", least=1)
STORE = Limit(2**24, "each of them is a vector that every query is compared with")
SIDE = Limit(8192, "a colour image of this side has 0.8 GB of pixels")

# by the last part of a recipe's key, which is also the name of the argument
LIMITS = {
    "views": VIEWS,
    "crops": VIEWS,
    "keys": VIEWS,
    "dim": WIDTH,
    "hidden": WIDTH,
    "bottleneck": WIDTH,
    "layers": Limit(64, "each of them is a linear layer", least=1),
    "queue": STORE,
    "bank": STORE,
    "negatives": STORE,
    "subset": STORE,
    "images": Limit(10**9, "each of them has a vector in memory"),
    "groups": Limit(4096, "each group of a batch needs at least two images", least=1),
    "size": SIDE,
    "crop_size": SIDE,
    "channels": Limit(1024, "each of them is a plane of pixels"),
    "batch": Limit(2**20, "all images of a step are in memory together"),
    "accumulate": Limit(2**20, "a step has no more images"),
    "epochs": Limit(10**6, "a longer run would never end"),
    "workers": Limit(256, "each of them is a process"),
    "at": Limit(10**6, "a run has no more epochs"),
}
# of the heads, queue, bank and memory of a method together
NUMBERS = 2**34
# other numbers only count steps or epochs
COUNT = Limit(10**9, "a run has no more steps")
WITHOUT = ("seed",)  # the schema gives its range


def check_limit(label: str, name: str, value: Any) -> None:
    """Raise ValueError if a whole number is outside the limits of the arguments of this name.

    `label` is what the sentence calls the argument. Each number of a list is checked, and values
    that are not numbers are not.
    """
    numbers = value if isinstance(value, list | tuple) else (value,)
    limit = LIMITS.get(name, COUNT)
    for number in numbers:
        if not isinstance(number, int | float) or name in WITHOUT:
            continue
        if limit.least is not None and number < limit.least:
            raise ValueError(f"{label} must be at least {limit.least}, not {brief(number)}")
        if number > limit.most:
            raise ValueError(
                f"{label} must be at most {limit.most:,} ({limit.reason}), not {brief(number)}"
            )
