"""The method layer: what each paper trains with on ImageNet. Arguments that are not named here are the preset's own.

Sources in brackets are repositories, named in docs/recipes.md. The preset holds the paper's numbers of the method
itself; here stand the optimiser, the views and what depends on other choices.
"""

from collections.abc import Callable

from antipode.recipe.layer import (
    EPOCHS,
    IMAGES,
    Layer,
    RecipeContext,
    method,
    optimiser,
    policy,
    stack,
    steps,
    warm_up,
    with_source,
)

MOCO1 = "MoCo v1 (moco: main_moco.py)"
MOCO2 = "MoCo v2 (moco: main_moco.py)"
SIMCLR = "SimCLR (simclr: run.py)"
EQCO_SIMCLR = "EqCo 2.3 (SelfSup: simclr)"
SIMO = "SiMo (SelfSup: examples/simo)"
ADCO = "AdCo (AdCo: ops/argparser.py)"
ADCO_8192 = "AdCo (AdCo: README, for 8,192 and fewer negatives)"
JCL = "JCL (JCL: main_moco.py)"
BYOL = "BYOL (byol: configs/byol.py)"
SIMSIAM = "SimSiam (simsiam: main_simsiam.py)"
NPID = "NPID (npid: main.py)"
INVSPREAD = "Inv. Spread (inv: demo_seen.py)"
MSBREG = "MSBReg supplement 1.1"
DCL = "DCL 4.1"


def mocov1(case: RecipeContext) -> Layer:
    """SGD .03 at 256, times .1 at 120 and 160 of 200."""
    rate = optimiser(MOCO1, "sgd", 0.03, weight_decay=1e-4, schedule="steps", per="epoch")
    return stack(rate, steps(case, MOCO1, 120, 160), policy(MOCO1, "mocov1"))


def mocov2(case: RecipeContext) -> Layer:
    """MoCo v1's with a cosine per epoch and stronger views."""
    rate = optimiser(MOCO2, "sgd", 0.03, weight_decay=1e-4, per="epoch")
    return stack(rate, policy(MOCO2, "mocov2"))


def simclr(case: RecipeContext) -> Layer:
    """LARS .3 at 256; .075 sqrt(B) is the paper's other rule, equal at 4096. Decay: the README's is 1e-4."""
    rate = optimiser(SIMCLR, "lars", 0.3, weight_decay=1e-6, exclude=True, variant="inside")
    return stack(rate, warm_up(case, SIMCLR), policy(SIMCLR, "simclr"))


def dcl(case: RecipeContext) -> Layer:
    """DCL's own on SimCLR; on MoCo what MoCo trains with.

    The paper's introduction says SGD, the toolbox it follows has LARS; both with a rate of .3 at 256 in the toolbox,
    and SGD at .3 is what EqCo's release trains SimCLR with: so SGD .3, and the toolbox's decay and warm-up.
    """
    if case.base != "simclr":
        return _on_moco(case)
    source = "DCL 1 says SGD; the rest as its toolbox (oss: simclr/r50_bs256_ep200.py)"
    rate = optimiser(source, "sgd", 0.3, weight_decay=1e-6, exclude=True)
    return stack(
        rate, warm_up(case, "oss"), policy("DCL 4.1 (oss)", "simclr"), method(DCL, tau=0.1)
    )


def eqco(case: RecipeContext) -> Layer:
    """The base's own; on SimCLR SGD in place of LARS (2.3)."""
    if case.base != "simclr":
        return stack(_on_moco(case), method("EqCo 2.3", alpha=65536.0, negatives=256))
    rate = optimiser(
        EQCO_SIMCLR, "sgd", 0.3, weight_decay=1e-6, warmup_form="times", warmup_start=0.001
    )
    own = method(EQCO_SIMCLR, tau=0.1) | method("EqCo 2.3", alpha=256.0)
    return stack(rate, warm_up(case, EQCO_SIMCLR), policy(EQCO_SIMCLR, "simclr"), own)


def _on_moco(case: RecipeContext) -> Layer:
    """What the base trains with, and its temperature, which the preset leaves to it."""
    layer, tau, source = (mocov1, 0.07, MOCO1) if case.base == "mocov1" else (mocov2, 0.2, MOCO2)
    queue = method(source, queue=65536) if case.method != "eqco" else {}
    return stack(layer(case), method(source, tau=tau, momentum=0.999, groups=8), queue)


def simo(case: RecipeContext) -> Layer:
    """A cosine over all epochs times a warm-up from .001; decay on everything."""
    rate = optimiser(SIMO, "sgd", 0.03, weight_decay=1e-4, warmup_form="times", warmup_start=0.001)
    return stack(rate, warm_up(case, SIMO), policy(SIMO, "mocov2"))


def adco(case: RecipeContext) -> Layer:
    """Cosine per epoch from .03 to .0006, for small banks from .04 to .0006."""
    small = (
        65536 if case.images is None or case.images > 65536 else 8192
    )  # the bank follows the images (small.py)
    few = int(case.arguments.get("bank", small)) <= 8192
    source, lr = (ADCO_8192, 0.04) if few else (ADCO, 0.03)
    floor = with_source(f"{ADCO}: .0006 of {lr}", {"optim.network.floor": round(0.0006 / lr, 6)})
    taus = (
        method(ADCO_8192, tau=0.14, tau_bank=0.03) if few else method(ADCO, tau=0.12, tau_bank=0.02)
    )
    rate = optimiser(source, "sgd", lr, weight_decay=1e-4, per="epoch")
    return stack(rate, floor, taus, policy("AdCo (AdCo: main_worker)", "mocov2"))


def jcl(case: RecipeContext) -> Layer:
    """MoCo v2's; lambda reaches its full value in the last epoch. The script makes 4 keys, the paper says 5."""
    layer = stack(
        mocov2(case),
        optimiser(JCL, "sgd", 0.03, weight_decay=1e-4, per="epoch"),
        method(JCL, keys=4),
    )
    if case.arguments.get("form", "gaussian") == "gaussian":
        layer |= method(JCL, strength=2.0) | method(
            f"{EPOCHS}lambda is full in the last; {JCL}", ramp=case.epochs
        )
    return layer


def byol(case: RecipeContext) -> Layer:
    """The authors' presets for 100, 300 and 1000 epochs."""
    lr, decay, momentum, length = (0.45, 1e-6, 0.99, 100)
    if case.epochs >= 300:
        lr, decay, momentum, length = (
            (0.3, 1e-6, 0.99, 300) if case.epochs < 1000 else (0.2, 1.5e-6, 0.996, 1000)
        )
    source = f"{EPOCHS}the preset for {length}; {BYOL}"
    fixed = optimiser(BYOL, "lars", lr, exclude=True, variant="after")
    chosen = with_source(
        source,
        {"optim.network.lr": lr, "optim.network.weight_decay": decay, "method.momentum": momentum},
    )
    return stack(
        fixed, chosen, warm_up(case, BYOL), policy("BYOL (byol: utils/augmentations.py)", "byol")
    )


def simsiam(case: RecipeContext) -> Layer:
    """SGD .05 at 256, cosine per epoch; the predictor's rate stays."""
    rate = optimiser(SIMSIAM, "sgd", 0.05, weight_decay=1e-4, per="epoch")
    return stack(
        rate,
        policy(SIMSIAM, "mocov2"),
        with_source(SIMSIAM, {"optim.predictor.schedule": "constant"}),
    )


def npid(case: RecipeContext) -> Layer:
    """SGD .03 at 256; 4,096 noise-contrastive negatives, tau .07."""
    rate = optimiser(NPID, "sgd", 0.03, weight_decay=1e-4, schedule="steps", per="epoch")
    images = {} if case.images is None else method(IMAGES, images=case.images)
    return stack(
        rate,
        steps(case, NPID, 120, 160),
        policy(NPID, "mocov1"),
        images,
        method(NPID, negatives=4096, tau=0.07),
    )


def invspread(case: RecipeContext) -> Layer:
    """SGD .03 at 128, that is .06 at 256; .1, .05 and .01 of it from 120, 160 and 200 of 300 on."""
    rate = optimiser(
        INVSPREAD,
        "sgd",
        0.06,
        weight_decay=5e-4,
        schedule="steps",
        per="epoch",
        factor=(0.1, 0.05, 0.01),
    )
    return stack(rate, steps(case, INVSPREAD, 120, 160, 200, of=300), policy(INVSPREAD, "cld"))


def msbreg(case: RecipeContext) -> Layer:
    """LARS .15 at 256, times the number of views."""
    return stack(msbreg_rate(case, 0.15), policy("MSBReg supplement, table 1", "msbreg"))


def msbreg_rate(case: RecipeContext, lr: float) -> Layer:
    """MSBReg's optimiser; also that of its baseline BYOL, which is MSBReg with two views and no regulariser."""
    rate = optimiser(MSBREG, "lars", lr, rule="views", weight_decay=1e-5, exclude=True)
    return stack(
        rate,
        with_source(f"{MSBREG} as BYOL", {"optim.network.variant": "after"}),
        warm_up(case, MSBREG),
    )


def custom(case: RecipeContext) -> Layer:
    """No paper: MoCo v2's, which suits most points of the grid."""
    rate = optimiser("ours: as MoCo v2", "sgd", 0.03, weight_decay=1e-4)
    return stack(rate, policy("ours: as MoCo v2", "mocov2"))


PAPERS: dict[str, Callable[[RecipeContext], Layer]] = {
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
    "dclw": dcl,
    "jcl": jcl,
    "msbreg": msbreg,
    "custom": custom,
}

# AdCo's own, for every method with a bank; rate, momentum and decay are those of the method's arguments
BANK = with_source(
    "AdCo (AdCo: training/train.py)",
    {"optim.bank.name": "sgd", "optim.bank.rule": "fixed", "optim.bank.schedule": "constant"},
)
BANK_OWN = {
    "lr": ("bank_lr", 3.0),
    "momentum": ("bank_momentum", 0.9),
    "weight_decay": ("bank_decay", 1e-4),
}
