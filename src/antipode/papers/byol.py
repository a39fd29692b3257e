"""BYOL (Grill et al., NeurIPS 2020)."""

from torch import nn

from antipode.core.learner import Encoder, Learner
from antipode.core.objective import Align
from antipode.core.pairing import swap
from antipode.core.twin import Ema, cosine
from antipode.data.views import augment
from antipode.data.views.augment import Range
from antipode.data.views.operation import Blur, Chance, Crop, Jitter, Operation
from antipode.data.views.policy import View, grey, tenth
from antipode.evaluation.linear import Linear, protocol
from antipode.nets.backbone import width
from antipode.nets.heads import mlp
from antipode.nets.norm import convert
from antipode.papers import Method
from antipode.papers.msbreg.recipe import SHORT as MSBREG_LENGTH
from antipode.papers.msbreg.recipe import baseline_lars
from antipode.recipe.layer import (
    Derived,
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
from antipode.recipe.scales import smaller_images, without_negatives


def byol(
    backbone: nn.Module, *, momentum: float = 0.99, dim: int = 256, hidden: int = 4096
) -> Learner:
    """BYOL (Grill et al., NeurIPS 2020, arXiv 2006.07733): predict the projection of a slow copy.

    loss = sum over both directions of 2 - 2 cos(p, target). Projector and predictor are linear,
    batch norm, ReLU, linear without bias. Batch norm runs over the whole batch, per view. The
    target's momentum rises from .99 (100 and 300 epochs; .996 for 1000) to 1 along a cosine.

    Deviation: the target starts as a copy of the online network; the authors' starts on its own,
    with no effect on the result.
    """
    projector = mlp([width(backbone), hidden, dim], norm="batch", last_bias=False)
    online = convert(Encoder(backbone, projector), groups=1)
    return Learner(
        online=online,
        twin=Ema(online, cosine(momentum)),
        pairing=swap(),
        objective=Align(squared=True),
        predictor=mlp([dim, hidden, dim], norm="batch", last_bias=False),
        scale=2.0,
    )


# Recipes

RELEASE = "BYOL (byol: configs/byol.py)"


def recipe(context: RecipeContext) -> Layer:
    """LARS with the authors' presets for 100, 300 and 1000 epochs; small images take SGD."""
    tiny_heads = method("ours: MSBReg's for ResNet-18", hidden=512, dim=128)
    return stack(
        _preset(context),
        warm_up(context, RELEASE),
        policy("BYOL (byol: utils/augmentations.py)", "byol"),
        smaller_images(context, without_negatives()),
        tiny_heads if context.dataset.scale == "tiny" else {},
        _as_baseline(context),
    )


def _preset(context: RecipeContext) -> Layer:
    """The authors' preset for a run of this length."""
    lr, decay, momentum, length = (0.45, 1e-6, 0.99, 100)
    if context.epochs >= 1000:
        lr, decay, momentum, length = (0.2, 1.5e-6, 0.996, 1000)
    elif context.epochs >= 300:
        lr, decay, momentum, length = (0.3, 1e-6, 0.99, 300)
    chosen = {
        "optim.network.lr": lr,
        "optim.network.weight_decay": decay,
        "method.momentum": momentum,
    }
    source = Derived(f"the preset for {length} epochs; {RELEASE}", "train.epochs")
    fixed = optimiser(RELEASE, "lars", lr, exclude=True, variant="after")
    return stack(fixed, with_source(source, chosen))


def _as_baseline(context: RecipeContext) -> Layer:
    """BYOL as MSBReg's baseline on ImageNet-100 and STL-10: MSBReg's optimiser and heads."""
    rate = baseline_lars(context)
    if not rate:
        return {}
    views = policy(RELEASE, "byol") if context.data == "stl10" else {}
    heads = method("MSBReg supplement 1.2, ResNet-18", hidden=512, dim=128)
    return stack(rate, views, heads)


# Views [byol: utils/augmentations.py] (google-deepmind/deepmind-research at 4822a45)


def byol_view(size: int, normal: Operation, scale: Range, blur: float, solarise: float) -> View:
    """Return one view in BYOL's colours, with these chances of blur and solarisation."""
    operations = (
        Crop(size, scale, cubic=True),
        Jitter(0.4, 0.4, 0.2, 0.1, p=0.8),
        grey(0.2),
        Blur(blur, tenth(size)),
        Chance(augment.solarise, solarise),
        normal,
    )
    return View(size, operations)


def byol_views(
    size: int, normal: Operation, *, views: int = 2, scale: Range = (0.08, 1.0)
) -> list[View]:
    """Return BYOL's views.

    The first half of them is always blurred and never solarised. The second half is blurred with
    chance .1 and solarised with chance .2.
    """
    first = byol_view(size, normal, scale, 1.0, 0.0)
    second = byol_view(size, normal, scale, 0.1, 0.2)
    return (views - views // 2) * [first] + views // 2 * [second]


METHODS = {
    "byol": Method(
        build=byol,
        recipe=recipe,
        lengths={
            "imagenet": run_length(RELEASE, batch=4096, epochs=300),
            # BYOL is MSBReg's baseline there
            "imagenet100": MSBREG_LENGTH,
            "stl10": MSBREG_LENGTH,
        },
    )
}
POLICIES = {"byol": byol_views}
PROTOCOLS = {
    # [byol: configs/eval.py]: learning rate .2, 80 epochs, Nesterov momentum, cosine per step. From
    # memory of the paper's appendix, not from a source at hand: the batch size of 1024, the five
    # learning rates, and that they are base rates. Haiku starts the weights at 1/sqrt(D), here they
    # start at .01 as everywhere, since the loss is convex
    "linear-byol": protocol(
        Linear(
            about="BYOL's: Nesterov momentum, best of five learning rates on held-out train images",
            rates=(0.4, 0.3, 0.2, 0.1, 0.05),
            rule="linear",
            batch=1024,
            epochs=80,
            nesterov=True,
            schedule="cosine",
            per="step",
        )
    )
}
