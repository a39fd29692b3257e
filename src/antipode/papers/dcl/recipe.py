"""What DCL and DCLW are trained with."""

from antipode.papers.frameworks import moco_recipe, on_batch
from antipode.papers.simclr import BY_SIMCLR, by_sgd
from antipode.recipe.layer import (
    VIEWS,
    Layer,
    RecipeContext,
    Variant,
    method,
    optimiser,
    policy,
    stack,
    warm_up,
    with_source,
)
from antipode.recipe.scales import TINY, smaller_images

BASE = "simclr"  # what DCL is put on unless another base is given
PAPER = "DCL 4.1"
CLD = "CLD, DCL's small-scale protocol (cld)"


def recipe(context: RecipeContext) -> Layer:
    """DCL's own settings on SimCLR; on MoCo, what MoCo is trained with."""
    if on_batch(context, BASE):
        layer = stack(by_sgd(context), smaller_images(context, crops=BY_SIMCLR), _tau(context))
    else:
        layer = moco_recipe(context, BASE, queue=True)
    return stack(layer, local_crops(context))


def _tau(context: RecipeContext) -> Layer:
    """The temperature for tiny and small images."""
    if context.dataset.scale == "large":
        return {}
    if context.dataset.scale == "tiny":
        # DCL on shapes, 40 epochs, k = 20: 70.6 % with .2, 67.5 % with .1
        return method(TINY, tau=0.2)
    return method("ours: .1; the paper's .07 is in cifar10.dcl-paper", tau=0.1)


def local_crops(context: RecipeContext) -> Layer:
    """The views of a method with local crops."""
    crops = int(context.arguments.get("crops", 0) or 0)
    return policy(VIEWS, "dclw-multicrop") if crops else {}


def small_paper(context: RecipeContext) -> Layer:
    """DCL's small-scale experiments: SGD at .03 per 256 images, tau .07, CLD's views.

    The text does not state weight decay, schedule, warm-up and head. CLD, whose protocol it
    follows, has 5e-4, a cosine, 5 epochs from a hundredth of the learning rate, and one linear
    layer of 128, which SimCLR's two-layer head here is not.
    """
    cld_settings = {
        "optim.network.momentum": 0.9,
        "optim.network.weight_decay": 5e-4,
        "optim.network.schedule": "cosine",
        "optim.network.warmup_start": 0.01,
    }
    head = "DCL's small-scale head is unknown; CLD's is one linear layer, this is SimCLR's"
    return stack(
        optimiser(PAPER, "sgd", 0.03, rule="linear"),
        with_source(CLD, cld_settings),
        warm_up(context, CLD, 5),
        policy(CLD, "cld"),
        method(PAPER, tau=0.07),
        method(head, hidden=None),
        local_crops(context),
    )


RECIPES = {
    f"{data}.{name}-paper": Variant(data, name, small_paper)
    for data in ("cifar10", "cifar100", "stl10")
    for name in ("simclr", "dcl", "dclw")
}
