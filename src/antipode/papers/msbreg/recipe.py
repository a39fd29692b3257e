"""What MSBReg is trained with, and BYOL where it is MSBReg's baseline."""

from antipode.recipe.layer import (
    Layer,
    RecipeContext,
    Variant,
    method,
    optimiser,
    policy,
    run_length,
    stack,
    warm_up,
    with_source,
)
from antipode.recipe.scales import HELD_OUT, smaller_images, without_negatives

PAPER = "MSBReg supplement 1.1"
VIEWS_TABLE = "MSBReg supplement, table 1"
STL10 = "MSBReg supplement, table 4"
# base learning rates per 256 images and view (supplement 1.1)
RATES = {"imagenet": 0.15, "imagenet100": 0.4, "stl10": 0.5}
# 320 epochs: supplement 1.1; the ablation (section 5) says 300
SHORT = run_length(PAPER, batch=512, epochs=320)
LENGTHS = {
    "imagenet": run_length(PAPER, batch=512, epochs=300),
    "imagenet100": SHORT,
    "stl10": SHORT,
}


def recipe(context: RecipeContext) -> Layer:
    """LARS at .15 per 256 images, times the number of views; small images take SGD."""
    return stack(
        lars(context, RATES["imagenet"]),
        policy(VIEWS_TABLE, "msbreg"),
        smaller_images(context, without_negatives(), crops=None),
        _bounded_forces(context) if context.dataset.scale == "small" else {},
        baseline_lars(context),
        _stl10() if context.data == "stl10" else {},
    )


def lars(context: RecipeContext, lr: float, source: str = PAPER) -> Layer:
    """Return MSBReg's optimiser, with a learning rate per 256 images and view."""
    rate = optimiser(source, "lars", lr, rule="views", weight_decay=1e-5, exclude=True)
    variant = with_source(f"{PAPER} as BYOL", {"optim.network.variant": "after"})
    return stack(rate, variant, warm_up(context, PAPER))


def baseline_lars(context: RecipeContext) -> Layer:
    """Return the optimiser of the paper's comparisons with BYOL on ImageNet-100 and STL-10."""
    return lars(context, RATES[context.data]) if context.data in ("imagenet100", "stl10") else {}


def _bounded_forces(context: RecipeContext) -> Layer:
    """Settings under SGD: the singular-value term is most of the loss at the start, and no LARS
    bounds it.
    """
    clip = with_source(HELD_OUT, {"optim.network.clip": 1.0})
    force = method("MSBReg supplement, table 4 (STL-10, ResNet-18)", brownian=0.05)
    return stack(clip, warm_up(context, PAPER), force)


def _stl10() -> Layer:
    """lambda_b is .05 with batch norm (table 4); lambda_s is unknown, so it is ImageNet-100's."""
    return stack(policy(VIEWS_TABLE, "msbreg"), method(STL10, brownian=0.05))


def small_paper(context: RecipeContext) -> Layer:
    """MSBReg's own settings on images of 32 px, which the paper does not use.

    Optimiser, learning rate and weights are those of STL-10, the paper's smallest images. The views
    are the paper's. Their blur kernel is a tenth of a view: 23 taps at 224 px, 9 at 96 px and 3 at
    32 px. Three taps with a sigma of 2 have a standard deviation of .8 px. That is 2.5 % of a view
    of 32 px, where a sigma of 2 is 2.1 % of 96 px and .9 % of 224 px.
    """
    source = f"{PAPER}: STL-10's, the paper's smallest images"
    return stack(lars(context, RATES["stl10"], source), _stl10())


RECIPES = {"cifar10.msbreg-paper": Variant("cifar10", "msbreg", small_paper)}
