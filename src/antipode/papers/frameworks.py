"""The frameworks that a loss of another paper can be put on, by the name of their method."""

import inspect
from collections.abc import Callable
from typing import Any, Literal

from torch import nn

from antipode.core.learner import Learner
from antipode.core.objective import Contrast
from antipode.papers.moco import DEMO, V1, V2, demo_tau, few_images, imagenet_v1, imagenet_v2
from antipode.papers.moco import mocov1 as moco_v1
from antipode.papers.moco import mocov2 as moco_v2
from antipode.papers.moco import smaller as smaller_moco
from antipode.papers.simclr import simclr
from antipode.recipe.layer import Layer, RecipeContext, method, stack
from antipode.recipe.scales import few_keys

Base = Literal["simclr", "mocov1", "mocov2"]
FRAMEWORKS: dict[str, Callable[..., Learner]] = {
    "simclr": simclr,
    "mocov1": moco_v1,
    "mocov2": moco_v2,
}


def takes(base: str, argument: str) -> bool:
    """Return True if a framework has an argument of this name."""
    if base not in FRAMEWORKS:
        raise ValueError(f"the base is one of {', '.join(FRAMEWORKS)}, not {base!r}")
    return argument in inspect.signature(FRAMEWORKS[base]).parameters


def on_framework(base: str, backbone: nn.Module, **arguments: Any) -> Learner:
    """Build a framework with the arguments that are not None; its own defaults hold for the others.

    Raises ValueError for an argument that the framework does not have.
    """
    given = {name: value for name, value in arguments.items() if value is not None}
    for name, value in given.items():
        if not takes(base, name):
            raise ValueError(f"{name}={value} means nothing on base {base}")
    return FRAMEWORKS[base](backbone, **given)


def contrast(learner: Learner) -> Contrast:
    """Return the objective of a framework, which every framework here has as a `Contrast`."""
    assert isinstance(learner.objective, Contrast)
    return learner.objective


def on_batch(context: RecipeContext, default: str) -> bool:
    """Return True if the base is SimCLR, whose negatives are the other images of the batch."""
    return str(context.arguments.get("base", default)) == "simclr"


def moco_recipe(context: RecipeContext, default: str, *, queue: bool) -> Layer:
    """Return what MoCo v1 or v2 is trained with, as the base of another loss.

    A method on MoCo leaves temperature, momentum and groups to its base, so they are named here;
    `queue` says whether the queue's size is left to it too.
    """
    v1 = str(context.arguments.get("base", default)) == "mocov1"
    imagenet, tau, source = (imagenet_v1, 0.07, V1) if v1 else (imagenet_v2, 0.2, V2)
    own = method(source, tau=tau, momentum=0.999, groups=8)
    few = few_images(context) if queue else _faster_twin(context)
    return stack(
        imagenet(context),
        own,
        method(source, queue=65536) if queue else {},
        smaller_moco(context),
        few,
        demo_tau(context) if v1 else {},
    )


def _faster_twin(context: RecipeContext) -> Layer:
    return {} if few_keys(context) is None else method(DEMO, momentum=0.99)
