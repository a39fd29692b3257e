"""Where a paper has its own numbers for one data set: the length of a run, the network, the rate."""

from collections.abc import Callable
from typing import NamedTuple

from antipode.recipe.layer import (
    VIEWS,
    Layer,
    RecipeContext,
    method,
    optimiser,
    policy,
    stack,
    warm_up,
    with_source,
)
from antipode.recipe.papers import BYOL, DCL, INVSPREAD, MSBREG, SIMCLR, SIMSIAM, dcl, msbreg_rate


def _run(source: str, **values: int) -> Layer:
    return with_source(source, {f"train.{key}": value for key, value in values.items()})


R50 = with_source(DCL, {"backbone.name": "resnet50"})

# known before all else, since other numbers depend on the epochs
LENGTHS: dict[tuple[str, str], Layer] = {
    ("imagenet", "simclr"): _run(SIMCLR, batch=4096),
    ("imagenet", "byol"): _run(BYOL, batch=4096, epochs=300),
    ("imagenet", "simsiam"): _run(SIMSIAM, batch=512, epochs=100),
    ("imagenet", "msbreg"): _run(MSBREG, batch=512, epochs=300),
    # MSBReg 1.1: 320 epochs; its ablation (5) says 300. BYOL is its baseline there
    ("imagenet100", "msbreg"): _run(MSBREG, batch=512, epochs=320),
    ("imagenet100", "byol"): _run(MSBREG, batch=512, epochs=320),
    ("stl10", "msbreg"): _run(MSBREG, batch=512, epochs=320),
    ("stl10", "byol"): _run(MSBREG, batch=512, epochs=320),
    ("cifar10", "invspread"): _run(INVSPREAD, epochs=300),  # the loop runs to 301
    ("stl10", "invspread"): _run(INVSPREAD, epochs=300),
    ("imagenet100", "jcl"): _run("JCL supplement 4", batch=128, epochs=100),
    ("imagenet100", "simclr"): R50,
    ("imagenet100", "dcl"): R50,
    ("imagenet100", "dclw"): R50,
}


def _jcl100(case: RecipeContext) -> Layer:
    """.1 at 128, that is .2 at 256; five keys and lambda 4."""
    layer = optimiser("JCL supplement 4: .1 at 128", "sgd", 0.2, weight_decay=1e-4, per="epoch")
    layer |= method("JCL supplement, table 1", keys=5)
    gaussian = case.arguments.get("form", "gaussian") == "gaussian"
    return layer | (method("JCL supplement, table 1", strength=4.0) if gaussian else {})


def _eqco(case: RecipeContext) -> Layer:
    """On SimCLR the paper's reference has as many negatives as images, 256, of the 510 that a batch of them has."""
    return method("EqCo 2.3: N = K = 256", negatives=256) if case.base == "simclr" else {}


def _msbreg100(case: RecipeContext) -> Layer:
    """ImageNet-100: base .4."""
    return stack(msbreg_rate(case, 0.4), _byol_heads(case))


def _msbreg_stl(case: RecipeContext) -> Layer:
    """STL-10: base .5; lambda_b .05 with batch norm (table 4), lambda_s unknown, so ImageNet-100's."""
    layer = msbreg_rate(case, 0.5)
    views = (
        policy("MSBReg supplement, table 1", "msbreg")
        if case.method == "msbreg"
        else policy(BYOL, "byol")
    )
    brownian = (
        method("MSBReg supplement, table 4", brownian=0.05) if case.method == "msbreg" else {}
    )
    return stack(layer, views, brownian, _byol_heads(case))


def _byol_heads(case: RecipeContext) -> Layer:
    """BYOL as MSBReg's baseline has MSBReg's heads."""
    return (
        method("MSBReg supplement 1.2, ResNet-18", hidden=512, dim=128)
        if case.method == "byol"
        else {}
    )


PAIRS: dict[tuple[str, str], Callable[[RecipeContext], Layer]] = {
    ("imagenet100", "jcl"): _jcl100,
    ("imagenet", "eqco"): _eqco,
    ("imagenet100", "eqco"): _eqco,
    ("imagenet100", "simclr"): dcl,  # DCL's baseline: SimCLR in its own settings (table 1)
    ("imagenet100", "msbreg"): _msbreg100,
    ("imagenet100", "byol"): _msbreg100,
    ("stl10", "msbreg"): _msbreg_stl,
    ("stl10", "byol"): _msbreg_stl,
}


def multi_crop(case: RecipeContext) -> Layer:
    """The policies whose views are those of a method with crops."""
    crops = int(case.arguments.get("crops", 0) or 0)
    if not crops or case.method not in ("adco", "dcl", "dclw"):
        return {}
    return policy(VIEWS, "adco-multicrop" if case.method == "adco" else "dclw-multicrop")


class Variant(NamedTuple):
    """A recipe beside the plain one of a data set and a method, with a layer of its own on top."""

    data: str
    method: str
    layer: Callable[[RecipeContext], Layer]


def _small_paper(case: RecipeContext) -> Layer:
    """DCL's small-scale experiments: SGD .03 at 256, tau .07, CLD's views.

    The text is silent on decay, schedule, warm-up and head; CLD, whose protocol it follows, has 5e-4, a cosine, 5
    epochs from a hundredth of the rate, and one linear layer of 128, which SimCLR's head here (two layers) is not.
    """
    cld = "CLD, DCL's small-scale protocol (cld)"
    return stack(
        optimiser(DCL, "sgd", 0.03, rule="linear"),
        with_source(
            cld,
            {
                "optim.network.momentum": 0.9,
                "optim.network.weight_decay": 5e-4,
                "optim.network.schedule": "cosine",
                "optim.network.warmup_start": 0.01,
            },
        ),
        warm_up(case, cld, 5),
        policy(cld, "cld"),
        method(DCL, tau=0.07),
        method(
            "DCL's small-scale head is unknown; CLD's is one linear layer, this is SimCLR's",
            hidden=None,
        ),
    )


VARIANTS: dict[str, Variant] = {
    f"{data}.{name}-paper": Variant(data, name, _small_paper)
    for data in ("cifar10", "cifar100", "stl10")
    for name in ("simclr", "dcl", "dclw")
}
