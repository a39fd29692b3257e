"""The condition of embeddings in words: collapse, rank, alignment and uniformity. D dimensions."""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from antipode.json_text import number
from antipode.measures import FLAT
from antipode.runs.log import Log
from antipode.runs.run import Run
from antipode.training.health import ENOUGH, is_narrow

MEASURES = ("spread", "rank", "alignment", "uniformity", "similarity")
CLOSER = 0.95  # of the distance of different images: views that are hardly closer
HEAD = "projection head in training (other images and views than those of the scores)"
BACKBONE = "backbone"


class Finding(NamedTuple):
    """One sentence on the embeddings.

    Args:
        name: what it is about: "collapse", "rank", "alignment" or "uniformity".
        value: the number behind it.
        sentence: the sentence, with the number.
        good: False if it is a cause for concern.
    """

    name: str
    value: float
    sentence: str
    good: bool


class Condition(NamedTuple):
    """Findings on the embeddings of one network; `of` says on which of its outputs."""

    of: str
    findings: list[Finding]

    def lines(self) -> list[str]:
        """Return the findings as lines of text."""
        return [f"{finding.name}: {finding.sentence}" for finding in self.findings]


def condition(run: Run, scores: Mapping[str, Any]) -> Condition | None:
    """Return the condition of a network, or None if nothing was measured.

    The last health check of training is used, or else the score `alignment-uniformity` of the
    backbone. `scores` is the content of scores.json.
    """
    logged = {
        name: float(run.log.series[name].values[-1])
        for name in MEASURES
        if name in run.log.series and len(run.log.series[name].values)
    }
    if "spread" in logged:
        sizes = [run.value(key) for key in ("train.batch", "method.dim")]
        width = run.value("method.dim")
        limit = min((int(size) for size in (*sizes, ENOUGH) if number(size)), default=1)
        of = HEAD if run.finished else _head_so_far(run.log)
        return Condition(of, findings(logged, limit, int(width) if number(width) else None))
    score = scores.get("alignment-uniformity")
    if not isinstance(score, Mapping) or not number(score.get("value")):
        return None
    more, settings = (
        part if isinstance(part, Mapping) else {}
        for part in (score.get("more"), score.get("settings"))
    )
    values = {name: float(more[name]) for name in MEASURES if number(more.get(name))}
    values["alignment"] = float(score["value"])
    stated: Any = settings.get("dimensions")
    dimensions = int(stated) if number(stated) else None
    count = int(score.get("n") or 0) or None
    limit = min((size for size in (dimensions, count) if size), default=1)
    return Condition(BACKBONE, findings(values, limit, dimensions))


def _head_so_far(log: Log) -> str:
    """Return which output the last health check of a run that has not ended has measured."""
    step = log.column("step")[log.series["spread"].lines[-1]]
    place = "the last health check" if math.isnan(step) else f"step {step:.0f}"
    return f"projection head at {place} of a training that has not ended"


def findings(values: Mapping[str, float], limit: int, width: int | None) -> list[Finding]:
    """Return a finding for each measure that is known.

    Args:
        values: spread, rank, alignment, uniformity and mean similarity of unit vectors.
        limit: the largest possible rank.
        width: D, if it is known.
    """
    found = []
    if "spread" in values:
        found.append(_collapse(values["spread"]))
    if "rank" in values:
        found.append(_rank(values["rank"], limit, width))
    if "alignment" in values:
        found.append(_alignment(values["alignment"], values.get("similarity")))
    if "uniformity" in values:
        found.append(_uniformity(values["uniformity"], width))
    return found


def _collapse(spread: float) -> Finding:
    good = spread >= FLAT
    word = "none" if good else "the embeddings have collapsed"
    text = f"{word}, the spread is {spread:.2f} (1 is even, below {FLAT:g} is a collapse)"
    return Finding("collapse", spread, text, good)


def _rank(rank: float, limit: int, width: int | None) -> Finding:
    good = not is_narrow(rank, limit)
    few = "" if good else "only "
    text = f"the embeddings use {few}about {rank:.0f} of {limit} dimensions"
    if width is not None and limit < width:
        text += f" ({limit} images cannot use more, although their width is {width})"
    return Finding("rank", rank, text, good)


def _alignment(distance: float, similarity: float | None) -> Finding:
    if similarity is None:
        text = f"two views of an image are {distance:.2f} apart (0 is equal, 2 is unrelated)"
        return Finding("alignment", distance, text, True)
    others = 2 - 2 * similarity
    pair = f"squared distance {distance:.2f} against {others:.2f}"
    if distance >= CLOSER * others:
        closer = "no" if distance >= others else "hardly"
        text = f"two views of an image are {closer} closer than different images ({pair})"
        return Finding("alignment", distance, text, False)
    times = others / max(distance, 1e-9)
    shown = f"{times:.1f}" if times < 100 else "more than 100"
    text = f"two views of an image are {shown} times closer than different images ({pair})"
    return Finding("alignment", distance, text, True)


def _uniformity(value: float, width: int | None) -> Finding:
    best = "" if width is None else f"{even_uniformity(width):.2f} is an even spread, "
    text = f"different images are spread with {value:.2f} ({best}0 is a single point)"
    return Finding("uniformity", value, text, True)


def even_uniformity(width: int) -> float:
    """Return the uniformity of vectors that are spread evenly over the unit sphere in D dimensions.

    It is the logarithm of the mean of exp(-2 |x-y|^2), which is exp(-4) times the hypergeometric
    series 0F1(; D/2; 4).
    """
    term = 1.0
    total = 1.0
    for k in range(1, 60):
        term *= 4 / (k * (width / 2 + k - 1))
        total += term
    return math.log(total) - 4
