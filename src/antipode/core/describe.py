"""A method as a row of choices, read from the built learner so that no table can drift from the
code.
"""

from functools import partial
from typing import Any

from torch import nn

from antipode.core.learner import Learner
from antipode.core.loss import Gaussian, no_margin
from antipode.core.negatives import InBatch
from antipode.core.objective import Adversarial, Align, Contrast
from antipode.core.twin import Ema, Shared

COLUMNS = [
    "views",
    "pairing",
    "twin",
    "positives",
    "negatives",
    "coupling",
    "margin",
    "BN groups",
    "extra",
]


def describe(learner: Learner) -> dict[str, str]:
    """Return a few words for each of COLUMNS."""
    objective = learner.objective
    contrast = objective.contrast if isinstance(objective, Adversarial) else objective
    return {
        "views": str(learner.views),
        "pairing": _pairing(learner),
        "twin": _twin(learner.twin),
        "BN groups": _norm(learner),
        "extra": ", ".join(_extras(learner)) or "-",
        **_contrast(contrast),
    }


def _contrast(objective: Any) -> dict[str, str]:
    names = dict.fromkeys(("positives", "negatives", "coupling", "margin"), "-")
    if isinstance(objective, Align):
        return names | {"coupling": "squared distance" if objective.squared else "negative cosine"}
    if not isinstance(objective, Contrast):  # an objective of the method's own
        return names | {"coupling": type(objective).__name__}
    gaussian = isinstance(objective.positives, Gaussian)
    return {
        "positives": "gaussian" if gaussian else "average",
        "negatives": " + ".join(_negatives(part) for part in objective.negatives),
        "coupling": _name(objective.coupling),
        "margin": "-"
        if objective.margin is no_margin
        else f"eqco({objective.margin.keywords['alpha']:g})",  # type: ignore[attr-defined]
    }


def _negatives(part: nn.Module) -> str:
    match part:
        case InBatch():
            drawn = (
                ""
                if part.subset is None
                else f", {part.subset} drawn{'' if part.shared else ' for each query'}"
            )
            return ("in-batch keys" if part.pool == "pair" else "in-batch") + drawn
    if hasattr(part, "stored"):
        return f"{part.kind} {len(part.stored())}"  # type: ignore[operator]
    return type(part).__name__


def _pairing(learner: Learner) -> str:
    pairs = learner.pairing
    if any(len(queries) > 1 for queries, _ in pairs):
        return "centroids"
    if any(len(keys) > 1 for _, keys in pairs):
        return f"1 query, {len(pairs[0][1])} keys" if len(pairs) == 1 else "one against the rest"
    if len(pairs) == 1:
        return "own memory" if pairs[0][0] == pairs[0][1] else "one way"
    return "swap" if learner.views == 2 else f"{len(pairs)} pairs"


def _twin(twin: Any) -> str:
    if isinstance(twin, Shared):
        return "stop-gradient" if twin.stop else "shared"
    if not isinstance(twin, Ema):
        return "memory"
    return f"EMA {twin.momentum(0.0):g}" + (
        " to 1" if twin.momentum(1.0) > twin.momentum(0.0) else ""
    )


def _norm(learner: Learner) -> str:
    norms = [layer for layer in learner.modules() if hasattr(layer, "views_in_batch")]
    groups = max((int(layer.groups) for layer in norms), default=1)  # type: ignore[arg-type]
    text = str(groups) if groups > 1 else "1 (all ranks)"
    if learner.joint:
        text += ", views joint"
    if isinstance(learner.twin, Ema) and learner.twin.shuffle:
        text += ", keys shuffled"
    return text


def _extras(learner: Learner) -> list[str]:
    found = ["predictor"] if learner.predictor is not None else []
    if isinstance(learner.objective, Adversarial):
        found.append(f"bank climbs at tau {learner.objective.tau:g}")
    found += [f"{weight:g} {name}" for name, weight, _ in learner.regularisers]
    return found + ([f"times {learner.scale:g}"] if learner.scale != 1 else [])


def _name(function: Any) -> str:
    inner = function.func if isinstance(function, partial) else function
    return str(inner.__name__).removeprefix("_")
