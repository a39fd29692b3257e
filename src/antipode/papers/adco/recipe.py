"""What AdCo is trained with."""

from antipode.papers.moco import DEMO, OUTNUMBERED, smaller
from antipode.recipe.layer import (
    VIEWS,
    Layer,
    RecipeContext,
    method,
    optimiser,
    policy,
    stack,
    with_source,
)
from antipode.recipe.scales import HELD_OUT, QUEUE, few_keys

RELEASE = "AdCo (AdCo: ops/argparser.py)"
SMALL_BANK = "AdCo (AdCo: README, for 8,192 and fewer negatives)"

# learning rate, momentum and weight decay of the bank are arguments of the method
BANK = with_source(
    "AdCo (AdCo: training/train.py)",
    {"optim.bank.name": "sgd", "optim.bank.rule": "fixed", "optim.bank.schedule": "constant"},
)


def recipe(context: RecipeContext) -> Layer:
    """SGD with a cosine per epoch, from .03 to .0006, or from .04 for a small bank."""
    # the bank follows the number of images, unless its size was given
    usual = QUEUE if few_keys(context) is None else 8192
    small_bank = int(context.arguments.get("bank", usual)) <= 8192
    source, lr = (SMALL_BANK, 0.04) if small_bank else (RELEASE, 0.03)
    tau, tau_bank = (0.14, 0.03) if small_bank else (0.12, 0.02)
    floor = {"optim.network.floor": round(0.0006 / lr, 6)}
    return stack(
        optimiser(source, "sgd", lr, weight_decay=1e-4, per="epoch"),
        with_source(f"{RELEASE}: .0006 of {lr}", floor),
        method(source, tau=tau, tau_bank=tau_bank),
        policy("AdCo (AdCo: main_worker)", "mocov2"),
        smaller(context),
        _few_images(context),
        _bank(context),
        _local_crops(context),
        BANK,
    )


def _few_images(context: RecipeContext) -> Layer:
    """A bank that does not outnumber the images, and a key encoder that follows faster."""
    keys = few_keys(context)
    if keys is None:
        return {}
    # the authors' smallest bank is 8,192, and its temperatures are the nearest that they give
    taus = method("AdCo (AdCo: README, for 8,192)", tau=0.14, tau_bank=0.03)
    return method(DEMO, momentum=0.99) | method(OUTNUMBERED, bank=keys) | taus


def _bank(context: RecipeContext) -> Layer:
    """A lower learning rate of the bank than the authors' 3.0, which is for 65,536 negatives.

    On tiny images the bank stands still at .03, so it also has a higher temperature.
    """
    if context.dataset.scale == "large":
        return {}
    rate = method(HELD_OUT, bank_lr=0.3)
    tiny = context.dataset.scale == "tiny"
    return rate | (method("ours: shapes (benchmarks/RESULTS.md)", tau_bank=0.1) if tiny else {})


def _local_crops(context: RecipeContext) -> Layer:
    """The views of AdCo with several query crops."""
    crops = int(context.arguments.get("crops", 0) or 0)
    return policy(VIEWS, "adco-multicrop") if crops else {}
