"""A paper is a preset: a function from a backbone and the paper's own choices to a Learner."""

import difflib
import inspect
from collections.abc import Callable
from typing import Any

from torch import nn

from antipode.core.learner import Learner
from antipode.nets.backbone import Stem
from antipode.nets.backbone import backbone as make_backbone
from antipode.papers.adco.method import adco
from antipode.papers.byol import byol
from antipode.papers.custom import custom
from antipode.papers.dcl.method import dcl, dclw
from antipode.papers.eqco.method import eqco, simo
from antipode.papers.invspread import invspread
from antipode.papers.jcl.method import jcl
from antipode.papers.moco import mocov1, mocov2
from antipode.papers.msbreg.method import msbreg
from antipode.papers.npid import npid
from antipode.papers.simclr import simclr
from antipode.papers.simsiam import simsiam
from antipode.types import fitted

PRESETS: dict[str, Callable[..., Learner]] = {
    "simclr": simclr,
    "mocov1": mocov1,
    "mocov2": mocov2,
    "byol": byol,
    "simsiam": simsiam,
    "npid": npid,
    "invspread": invspread,
    "adco": adco,
    "eqco": eqco,
    "simo": simo,
    "dcl": dcl,
    "dclw": dclw,
    "jcl": jcl,
    "msbreg": msbreg,
    "custom": custom,
}


def list_methods() -> list[str]:
    """The names that `build` knows."""
    return list(PRESETS)


def arguments(method: str) -> dict[str, inspect.Parameter]:
    """The keyword arguments of a method: the preset's signature is the schema."""
    if method not in PRESETS:
        raise ValueError(f"there is no method {method!r}{_nearest(method, PRESETS)}")
    signature = inspect.signature(PRESETS[method], eval_str=True)
    return {
        name: p
        for name, p in signature.parameters.items()
        if p.kind is inspect.Parameter.KEYWORD_ONLY
    }


def build(
    method: str,
    backbone: str | nn.Module = "resnet50",
    *,
    stem: Stem | None = None,
    channels: int = 3,
    seed: int = 0,
    **choices: Any,
) -> Learner:
    """The bare learner of a method, for a loop of one's own; `choices` are the preset's keyword arguments.

    `seed` is for what a learner draws while it trains (kicks, subsets, shuffles); weights start from torch's own.

    for batch in batches:                                     # antipode.types.Batch(views, image_ids)
        learner.before_step(progress)                         # in [0,1]
        out = learner(batch)
        out.loss.backward()
        optimiser.step(); optimiser.zero_grad()               # over learner.param_groups()
        learner.after_step(out)
    """
    known = arguments(method)
    for name in choices:
        if name not in known:
            raise ValueError(f"method {method} has no argument {name!r}{_nearest(name, known)}")
    choices = {
        name: fitted(f"{method}'s {name}", value, known[name].annotation)
        for name, value in choices.items()
    }
    learner = PRESETS[method](
        make_backbone(backbone, stem=stem, channels=channels), **choices
    ).reseed(seed)
    return (
        learner.train()
    )  # a backbone that was in eval mode would keep its running statistics, and the twin too


def _nearest(name: str, known: Any) -> str:
    near = difflib.get_close_matches(name, known, 1)
    names = ", ".join(known)
    return f", did you mean {near[0]!r}? (known are {names})" if near else f": choose from {names}"
