"""Which score answers "is it any good?", and the answer in words.

One rule picks the score everywhere: at the top of a report, in a comparison, in the terminal.
"""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from antipode.evaluation.protocol import LABEL_FREE, protocols
from antipode.wording import counted

# The kinds of protocols by the beginning of their names, the first one preferred. kNN comes first:
# it has no setting to tune, and the untrained network is scored beside it.
KINDS = ("knn", "linear", "semi", "finetune", "svm", "lowshot")
# protocols of one kind that are preferred to others of it
FIRST = ("knn", "knn20", "knn10", "linear-fast", "linear")
FEW = 20  # images: a score of fewer is not reliable
LAST = ("knn-head",)  # this one is not about the backbone


def preference(name: str) -> tuple[bool, bool, int, int, str]:
    """Return the place of a score in the order of preference; the lowest is the headline.

    Scores with labels come before scores without, and the run's own data before other data
    (`protocol@data`). Then the kind of the protocol counts.
    """
    protocol, _, elsewhere = name.partition("@")
    kinds = [at for at, kind in enumerate(KINDS) if protocol.startswith(kind)]
    kind = len(KINDS) if protocol in LAST or not kinds else kinds[0]
    place = FIRST.index(protocol) if protocol in FIRST else len(FIRST)
    if protocol in LABEL_FREE:
        place = LABEL_FREE.index(protocol)
    return needs_no_labels(protocol), bool(elsewhere), kind, place, name


def needs_no_labels(protocol: str) -> bool:
    """Return True if a protocol reads no labels."""
    known = protocols().get(protocol)
    return protocol in LABEL_FREE if known is None else not known.labels


def headline(names: Iterable[str]) -> str | None:
    """Return the name of the score that counts most, or None without scores."""
    return min(names, key=preference, default=None)


class Verdict(NamedTuple):
    """The answer to "is it any good?".

    Args:
        word: the answer in a few words, such as "better than untrained".
        good: whether it is good; None if that is unknown.
        sentence: what the network does, with the numbers.
    """

    word: str
    good: bool | None
    sentence: str


def verdict(name: str, score: Mapping[str, Any], *, trained: bool = True) -> Verdict:
    """Return the verdict of a score, which is given as in scores.json.

    `trained` is False for a network with random weights, which is not compared with itself.
    """
    value = float(score["value"])
    unit = str(score.get("unit", ""))
    low, high, chance = (_number(score.get(key)) for key in ("low", "high", "chance"))
    more = score.get("more")
    untrained = _number(more.get("untrained")) if isinstance(more, Mapping) else None
    split = str(score.get("split") or "test")
    interval = "" if low is None or high is None else f" (95 % interval {_span(low, high)})"
    parts = [f"{_deed(name, unit, value, split)}{interval}"]
    word, good = "the network is untrained", None
    if trained:
        word, good = _judged(low, high, untrained, chance)
        parts += [] if untrained is None else [f"untrained {percent(untrained)}"]
    parts += [] if chance is None else [f"chance {percent(chance)}"]
    count = score.get("n")
    if isinstance(count, int) and count < FEW:
        parts.append(f"only {counted(count, 'image')}, too few to judge by")
    return Verdict(word, good, "; ".join(parts))


def _deed(name: str, unit: str, value: float, split: str) -> str:
    """Return what the network does, with its value."""
    protocol, _, data = name.partition("@")
    images = "training images" if split == "train" else f"{split} images"
    place = f"{images} of {data}" if data else images
    if protocol == "retrieval":
        return f"finds the other view of an image in {percent(value)} of cases"
    if unit == "% top-1":
        return f"{spoken(protocol)} names the class of {percent(value)} of the {place}"
    shown = percent(value) if unit.startswith("%") else f"{value:.3g}"
    rest = unit.removeprefix("%").strip()
    return f"{spoken(protocol)} reaches {shown}{f' {rest}' if rest else ''} on the {place}"


def spoken(protocol: str) -> str:
    """Return the name of a protocol as it is written in a sentence."""
    if protocol.startswith("knn"):
        return f"kNN{protocol[3:]}" if protocol != "knn" else "kNN"
    return protocol


def percent(value: float) -> str:
    """Return a percentage: one decimal, and two significant digits below 1 %."""
    return f"{value:.1f} %" if abs(value) >= 1 or value == 0 else f"{value:.2g} %"


def _span(low: float, high: float) -> str:
    return f"{percent(low).removesuffix(' %')} to {percent(high).removesuffix(' %')}"


def _judged(
    low: float | None, high: float | None, untrained: float | None, chance: float | None
) -> tuple[str, bool | None]:
    """Return the verdict in a few words, and whether it is good.

    The interval decides: a value is better than another one if that lies below the interval.
    """
    if low is None or high is None:
        return "", None
    if untrained is not None and untrained > high:  # stronger news than chance
        return "worse than untrained", False
    if chance is not None and low <= chance:
        return "not better than chance", False
    if untrained is None:
        return ("better than chance", None) if chance is not None else ("", None)
    if untrained < low:
        return "better than untrained", True
    return "no better than untrained", False


def _number(value: Any) -> float | None:
    known = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if known else None
