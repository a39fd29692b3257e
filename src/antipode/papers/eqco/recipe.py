"""What EqCo and SiMo are trained with."""

from antipode.papers.frameworks import moco_recipe, on_batch
from antipode.papers.moco import DEMO, smaller
from antipode.papers.simclr import BY_SIMCLR, small_tau
from antipode.recipe.layer import (
    Layer,
    RecipeContext,
    method,
    optimiser,
    policy,
    stack,
    warm_up,
)
from antipode.recipe.scales import few_keys, smaller_images

BASE = "mocov2"  # what EqCo is put on unless another base is given
PAPER = "EqCo 2.3"
SIMCLR = "EqCo 2.3 (SelfSup: simclr)"
SIMO = "SiMo (SelfSup: examples/simo)"


def eqco_recipe(context: RecipeContext) -> Layer:
    """The base's own settings; on SimCLR, SGD in place of LARS (2.3)."""
    if not on_batch(context, BASE):
        own = method(PAPER, alpha=65536.0, negatives=256)
        return stack(moco_recipe(context, BASE, queue=False), own, _few_negatives(context))
    sgd = optimiser(SIMCLR, "sgd", 0.3, weight_decay=1e-6, warmup_form="times", warmup_start=0.001)
    # the paper's reference has as many negatives as images, 256, of the 510 that such a batch
    # offers
    imagenet = context.data in ("imagenet", "imagenet100")
    return stack(
        sgd,
        warm_up(context, SIMCLR),
        policy(SIMCLR, "simclr"),
        method(SIMCLR, tau=0.1) | method(PAPER, alpha=256.0),
        smaller_images(context, crops=BY_SIMCLR),
        small_tau(context),
        method("EqCo 2.3: N = K = 256", negatives=256) if imagenet else {},
    )


def _few_negatives(context: RecipeContext) -> Layer:
    """An alpha that does not outnumber the images, and fewer negatives than that."""
    keys = few_keys(context)
    if keys is None:
        return {}
    alpha = method("ours: as many as MoCo's queue", alpha=float(keys))
    return alpha | method("ours: a sixteenth of alpha", negatives=max(4, keys // 16))


def simo_recipe(context: RecipeContext) -> Layer:
    """A cosine over all epochs times a warm-up from .001; weight decay on everything."""
    sgd = optimiser(SIMO, "sgd", 0.03, weight_decay=1e-4, warmup_form="times", warmup_start=0.001)
    return stack(
        sgd,
        warm_up(context, SIMO),
        policy(SIMO, "mocov2"),
        smaller(context),
        {} if few_keys(context) is None else method(DEMO, momentum=0.99),
    )
