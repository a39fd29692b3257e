"""Every part of a method by name: the grid in which the papers are points."""

from collections.abc import Callable
from typing import Any, Literal

from torch import nn

from antipode.core import regularise
from antipode.core.learner import Encoder, Learner
from antipode.core.loss import (
    Coupling,
    Gaussian,
    Margin,
    average,
    coupled,
    decoupled,
    no_margin,
    weighted,
)
from antipode.core.loss import eqco as eqco_margin
from antipode.core.negatives import Bank, InBatch, Negatives, Queue
from antipode.core.objective import Adversarial, Align, Contrast, Objective
from antipode.core.pairing import Pairing, crops, each_key, halves, many_keys, one_way, swap
from antipode.core.twin import Ema, Shared, Twin, constant, cosine
from antipode.nets.backbone import width
from antipode.nets.heads import Norm, mlp
from antipode.nets.norm import convert
from antipode.papers import Method
from antipode.papers.adco.method import bank_options
from antipode.papers.adco.recipe import BANK as BANK_RECIPE
from antipode.papers.moco import OUTNUMBERED
from antipode.papers.msbreg.method import weighed
from antipode.recipe.layer import Layer, RecipeContext, method, optimiser, policy, stack
from antipode.recipe.scales import few_keys, smaller_images

PAIRINGS: dict[str, Callable[[int], Pairing]] = {
    "one-way": lambda views: one_way(),
    "swap": lambda views: swap(),
    "crops": lambda views: crops(2, views),
    "many-keys": lambda views: many_keys(views - 1),
    "each-key": lambda views: each_key(views - 1),
    "halves": halves,
}


REGULARISERS = {
    "singular_value": regularise.gram,
    "brownian": regularise.brownian,
    "uniform": regularise.uniform,
}


def custom(
    backbone: nn.Module,
    *,
    pairing: Literal["one-way", "swap", "crops", "many-keys", "each-key", "halves"] = "swap",
    views: int = 2,
    twin: Literal["shared", "stop-gradient", "ema"] = "shared",
    momentum: float | None = None,
    momentum_schedule: Literal["constant", "cosine"] | None = None,
    negatives: str = "in-batch",
    queue: int | None = None,
    bank: int | None = None,
    fill: bool | None = None,
    bank_lr: float | None = None,
    bank_momentum: float | None = None,
    bank_decay: float | None = None,
    subset: int | None = None,
    tau: float | None = None,
    tau_bank: float | None = None,
    strength: float | None = None,
    ramp: int | None = None,
    coupling: Literal["coupled", "decoupled", "weighted"] = "coupled",
    sigma: float | None = None,
    alpha: float | None = None,
    singular_value: float = 0.0,
    brownian: float = 0.0,
    uniform: float = 0.0,
    predictor: bool = False,
    dim: int = 128,
    hidden: int | None = None,
    norm: Norm = "batch",
    joint: bool = False,
    groups: int = 1,
    scale: float = 1.0,
) -> Learner:
    """Any combination: EqCo's margin on AdCo's bank, DCL with a queue, JCL on the batch's own keys.

    negatives: "in-batch" (all key views), "in-batch-keys" (the pair's own), "queue" (65536) and
    "bank" (65536), joined by "+", or "none", which aligns as BYOL does. `strength` makes the
    positives JCL's Gaussian, `alpha` adds EqCo's margin, and `coupling` is InfoNCE's, DCL's or
    DCLW's (sigma .5). By default tau is .2, tau_bank .02 and momentum .999, and the bank's settings
    are AdCo's. `subset` draws one set of in-batch negatives for all queries. `joint` passes views
    of one size through both networks together. groups > 1 splits batch norm into groups and
    shuffles an EMA twin's batch among them. Raises ValueError for an argument without effect.
    """
    given = dict(locals())
    _refuse_unread(given)
    inner = width(backbone) if hidden is None else hidden
    head = mlp([width(backbone), inner, dim], norm=norm)
    online = convert(Encoder(backbone, head), groups)
    return Learner(
        online=online,
        twin=_twin(online, given),
        pairing=PAIRINGS[pairing](views),
        objective=_objective(given),
        predictor=convert(mlp([dim, inner, dim], norm=norm), groups) if predictor else None,
        regularisers=weighed({name: (given[name], term) for name, term in REGULARISERS.items()}),
        scale=scale,
        joint=joint,
        options=_options(given),
    )


def _options(given: dict[str, Any]) -> dict[str, dict[str, float]]:
    if "bank" not in given["negatives"].split("+"):
        return {}
    return {"bank": bank_options(given["bank_lr"], given["bank_momentum"], given["bank_decay"])}


def _twin(online: Encoder, given: dict[str, Any]) -> Twin:
    if given["twin"] != "ema":
        return Shared(stop=given["twin"] == "stop-gradient")
    share = 0.999 if given["momentum"] is None else given["momentum"]
    path = cosine(share) if given["momentum_schedule"] == "cosine" else constant(share)
    return Ema(online, path, shuffle=given["groups"] > 1, joint=given["joint"])


def _objective(given: dict[str, Any]) -> Objective:
    if given["negatives"] == "none":
        return Align(squared=True)
    tau = 0.2 if given["tau"] is None else given["tau"]
    couplings: dict[str, Coupling] = {"coupled": coupled, "decoupled": decoupled}
    if given["coupling"] == "weighted":
        couplings["weighted"] = weighted(tau / (0.5 if given["sigma"] is None else given["sigma"]))
    margin: Margin = no_margin if given["alpha"] is None else eqco_margin(given["alpha"])
    positives = (
        average if given["strength"] is None else Gaussian(given["strength"], given["ramp"] or 0)
    )
    parts = _negatives(given)
    contrast = Contrast(
        *parts, tau=tau, positives=positives, coupling=couplings[given["coupling"]], margin=margin
    )
    if not any(isinstance(part, Bank) for part in parts):
        return contrast
    return Adversarial(contrast, tau=0.02 if given["tau_bank"] is None else given["tau_bank"])


def _negatives(given: dict[str, Any]) -> list[Negatives]:
    subset, dim = given["subset"], given["dim"]
    kinds: dict[str, Callable[[], Negatives]] = {
        "in-batch": lambda: InBatch("all", subset),
        "in-batch-keys": lambda: InBatch("pair", subset),
        "queue": lambda: Queue(65536 if given["queue"] is None else given["queue"], dim),
        "bank": lambda: Bank(
            65536 if given["bank"] is None else given["bank"], dim, given["fill"] is not False
        ),
    }
    names = given["negatives"].split("+")
    if len(set(names)) < len(names):
        raise ValueError(
            f"negatives={given['negatives']!r} names one kind twice, and each of them would count "
            "double"
        )
    for name in names:
        if name not in kinds:
            raise ValueError(
                f"negatives are {', '.join(kinds)}, joined by '+', or none, not {name!r}"
            )
    return [kinds[name]() for name in names]


def _refuse_unread(given: dict[str, Any]) -> None:
    """Raise ValueError for an argument that has no effect with the other choices."""
    names, many = (
        given["negatives"].split("+"),
        given["pairing"] in ("crops", "many-keys", "each-key", "halves"),
    )
    if given["pairing"] not in PAIRINGS or given["twin"] not in ("shared", "stop-gradient", "ema"):
        raise ValueError(
            f"pairing is one of {', '.join(PAIRINGS)} and twin one of shared, stop-gradient, ema"
        )
    if given["momentum_schedule"] not in (None, "constant", "cosine"):
        raise ValueError(
            f"momentum_schedule is constant or cosine, not {given['momentum_schedule']!r}"
        )
    if given["coupling"] not in ("coupled", "decoupled", "weighted"):
        raise ValueError(
            f"coupling is one of coupled, decoupled, weighted, not {given['coupling']!r}"
        )
    if given["views"] != 2 and not many:
        raise ValueError(f"pairing {given['pairing']} has two views, not {given['views']}")
    contrast = given["negatives"] != "none"
    needs = {
        "momentum": given["twin"] == "ema",
        "momentum_schedule": given["twin"] == "ema",
        "queue": "queue" in names,
        "bank": "bank" in names,
        **dict.fromkeys(
            ("tau_bank", "fill", "bank_lr", "bank_momentum", "bank_decay"), "bank" in names
        ),
        "subset": "in-batch" in names or "in-batch-keys" in names,
        "tau": contrast,
        "strength": contrast and given["pairing"] == "many-keys",
        "ramp": given["strength"] is not None,
        "sigma": contrast and given["coupling"] == "weighted",
        "alpha": contrast,
    }
    for name, read in needs.items():
        if given[name] is not None and not read:
            raise ValueError(
                f"{name}={given[name]} would have no effect with the other choices made"
            )
    if not contrast and given["coupling"] != "coupled":
        raise ValueError(f"coupling {given['coupling']!r} needs negatives")


def recipe(context: RecipeContext) -> Layer:
    """MoCo v2's settings, which suit most points of the grid; no paper states any."""
    source = "ours: as MoCo v2"
    keys = few_keys(context)
    kinds = str(context.arguments.get("negatives", "")).split("+")
    sizes = {kind: keys for kind in ("queue", "bank") if kind in kinds and keys is not None}
    return stack(
        optimiser(source, "sgd", 0.03, weight_decay=1e-4),
        policy(source, "mocov2"),
        smaller_images(context, crops=None),
        method(OUTNUMBERED, **sizes),
        BANK_RECIPE,
    )


METHODS = {"custom": Method(build=custom, recipe=recipe, listed=False)}
