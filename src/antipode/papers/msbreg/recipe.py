"""What MSBReg is trained with, and BYOL where it is MSBReg's baseline."""

from antipode.recipe.layer import (
    Layer,
    RecipeContext,
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
        lars(context, 0.15),
        policy(VIEWS_TABLE, "msbreg"),
        smaller_images(context, without_negatives(), crops=None),
        _bounded_forces(context) if context.dataset.scale == "small" else {},
        baseline_lars(context),
        _stl10() if context.data == "stl10" else {},
    )


def lars(context: RecipeContext, lr: float) -> Layer:
    """Return MSBReg's optimiser, with a learning rate per 256 images and view."""
    rate = optimiser(PAPER, "lars", lr, rule="views", weight_decay=1e-5, exclude=True)
    variant = with_source(f"{PAPER} as BYOL", {"optim.network.variant": "after"})
    return stack(rate, variant, warm_up(context, PAPER))


def baseline_lars(context: RecipeContext) -> Layer:
    """Return the optimiser of the paper's comparisons with BYOL on ImageNet-100 and STL-10."""
    rates = {"imagenet100": 0.4, "stl10": 0.5}
    return lars(context, rates[context.data]) if context.data in rates else {}


def _bounded_forces(context: RecipeContext) -> Layer:
    """Settings under SGD: the singular-value term is most of the loss at the start, and no LARS
    bounds it.
    """
    clip = with_source(HELD_OUT, {"optim.network.clip": 1.0})
    force = method("MSBReg supplement, table 4 (STL-10, ResNet-18)", brownian=0.05)
    return stack(clip, warm_up(context, PAPER), force)


def _stl10() -> Layer:
    """lambda_b is .05 with batch norm (table 4); lambda_s is unknown, so it is ImageNet-100's."""
    views = policy(VIEWS_TABLE, "msbreg")
    return stack(views, method("MSBReg supplement, table 4", brownian=0.05))
