"""What changes where the images are fewer or smaller than the papers': the numbers to tune stand here, in one place."""

from antipode.recipe.datasets import DatasetDefaults
from antipode.recipe.layer import (
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
from antipode.recipe.papers import INVSPREAD, NPID, invspread

QUEUE = 65536  # the queue of MoCo, the bank of AdCo, the alpha of EqCo
DEMO = "MoCo's CIFAR-10 demo"  # the colab notebook that the MoCo repository links to: 4,096 keys, momentum .99

TINY = "ours: with it DCL reaches 63 to 72 % kNN on shapes (benchmarks/RESULTS.md)"
TINY_RATE = {"lr": 0.2, "weight_decay": 1e-4, "warmup": 4}  # warm-up: about a tenth of 50 epochs
SMALL = "ours: with it SimCLR reaches 84.3 % kNN on CIFAR-10 in 100 epochs (benchmarks/RESULTS.md)"
SMALL_RATE = {"lr": 0.06, "weight_decay": 5e-4}
FIELD = "lightly's CIFAR-10 benchmark: .06 at 128"  # methods without negatives learn slowly at half of it
WITHOUT = ("byol", "simsiam", "msbreg")
SMALL_TAU = {
    "simclr": 0.2,
    "dcl": 0.1,
    "dclw": 0.1,
    "eqco": 0.2,
}  # in-batch; SimCLR's measured on CIFAR-10
TINY_TAU = 0.2  # DCL on shapes, 40 epochs, k = 20: 70.6 % with it, 67.5 % with .1

IN_BATCH = ("simclr", "dcl", "dclw", "eqco")
KEYS = ("mocov1", "mocov2", "jcl", "adco", "simo", "eqco", "dcl", "dclw")
OF_MOCO = ("mocov1", "mocov2", "jcl", "adco", "simo")  # and EqCo and DCL on them
BY_MOCO = "ours: the best of MoCo v2 by train folds of CIFAR-10 (benchmarks/RESULTS.md)"
BY_SIMCLR = "ours: the better of SimCLR by train folds of CIFAR-10 (benchmarks/RESULTS.md)"
BY_ITSELF = "ours: its best by train folds of CIFAR-10 (benchmarks/RESULTS.md)"


def small(case: RecipeContext, known: DatasetDefaults) -> Layer:
    """The layer of a data set of scale tiny or small, for any method."""
    tiny = known.scale == "tiny"
    if case.method in ("npid", "invspread") and not tiny:
        return _memory(case)
    own = _heads(case) if tiny else stack(_crops(case, known), _forces(case))
    own = stack(own, _bank(case, tiny))
    return stack(
        _rate(case, tiny),
        known.views,
        few_images(case),
        _images(case),
        _temperature(case, tiny),
        own,
    )


def _rate(case: RecipeContext, tiny: bool) -> Layer:
    numbers = TINY_RATE if tiny else SMALL_RATE
    source, lr = (TINY if tiny else SMALL), numbers["lr"]
    warm = warm_up(case, "ours", int(TINY_RATE["warmup"])) if tiny else {}
    if case.method in WITHOUT and not tiny:
        source, lr = FIELD, 0.12
    elif (
        _of_moco(case) and not tiny
    ):  # twice the rate needs the warm-up: without, MoCo v2 lost 7.6 points in 30 epochs
        source, lr, warm = BY_MOCO, 0.12, warm_up(case, BY_MOCO)
    return stack(optimiser(source, "sgd", lr, weight_decay=numbers["weight_decay"]), warm)


def _of_moco(case: RecipeContext) -> bool:
    """Whether the keys are MoCo's: what was chosen for MoCo v2 holds for those that build on it."""
    return case.method in OF_MOCO or (case.method in KEYS and case.base in OF_MOCO)


def _temperature(case: RecipeContext, tiny: bool) -> Layer:
    """Temperatures of the methods whose negatives are the batch; MoCo v2's .2 beat its demo's .1 (RESULTS.md)."""
    if case.method not in IN_BATCH or case.base not in IN_BATCH:
        return method(DEMO, tau=0.1) if case.base == "mocov1" else {}
    if case.method in ("dcl", "dclw"):
        own = "ours: .1; the paper's .07 is in cifar10.dcl-paper"
        return method(TINY, tau=TINY_TAU) if tiny else method(own, tau=SMALL_TAU[case.method])
    return method(SMALL, tau=SMALL_TAU[case.method])


def _crops(case: RecipeContext, known: DatasetDefaults) -> Layer:
    """Crops from .2, as MoCo and SimSiam have them, for SimCLR's smaller ones, which did MSBReg better (RESULTS.md)."""
    if not known.views or case.method in ("msbreg", "custom"):
        return {}
    source = BY_MOCO if _of_moco(case) else BY_SIMCLR if case.method in IN_BATCH else BY_ITSELF
    return with_source(source, {"views.scale": (0.2, 1.0)})


def keys_for(images: int) -> int:
    """How many keys a queue holds for so many images: a power of two, at most an eighth of them (CIFAR: 4,096)."""
    return int(min(QUEUE, 2 ** max(4, (images // 8).bit_length() - 1)))


def few_images(case: RecipeContext) -> Layer:
    """Queue, bank and alpha that do not outnumber the images, and a key encoder that follows faster."""
    if case.images is None or case.images > QUEUE:
        return {}
    keys, source = keys_for(case.images), "ours: 65,536 keys would outnumber the images"
    layer = _images(case)
    if case.method in KEYS and case.base not in IN_BATCH:
        layer |= method(DEMO, momentum=0.99)
    if case.method in ("mocov1", "mocov2", "jcl") or (
        case.method in ("dcl", "dclw") and case.base != "simclr"
    ):
        layer |= method(source, queue=keys)
    if case.method == "eqco" and case.base != "simclr":
        layer |= method("ours: as many as MoCo's queue", alpha=float(keys))
        layer |= method("ours: a sixteenth of alpha", negatives=max(4, keys // 16))
    if case.method == "custom":
        kinds = str(case.arguments.get("negatives", "")).split("+")
        layer |= method(source, **{kind: keys for kind in ("queue", "bank") if kind in kinds})
    if case.method == "adco":
        # the authors' smallest bank is 8,192: its temperatures are the nearest that they give
        layer |= method(source, bank=keys) | method(
            "AdCo (AdCo: README, for 8,192)", tau=0.14, tau_bank=0.03
        )
    return layer


def _images(case: RecipeContext) -> Layer:
    """NPID's memory has one place for each image, and a full softmax over them."""
    if case.method != "npid":
        return {}
    layer = {} if case.images is None else method(IMAGES, images=case.images)
    return layer | method("NPID (npid: README, CIFAR-10)", negatives=0, tau=0.1)


def _memory(case: RecipeContext) -> Layer:
    """NPID's and Inv. Spread's own for CIFAR. Deviation: NPID flips here, which its code has commented out."""
    if case.method == "invspread":
        return stack(invspread(case), with_source(INVSPREAD, {"train.batch": 128}))
    rate = optimiser(
        f"{NPID}: .03 at 128", "sgd", 0.06, weight_decay=5e-4, schedule="steps", per="epoch"
    )
    views = policy("NPID (npid: cifar.py)", "mocov1")  # grey before the colours
    return stack(
        rate,
        steps(case, NPID, 120, 160),
        views,
        with_source(NPID, {"train.batch": 128}),
        _images(case),
    )


def _bank(case: RecipeContext, tiny: bool) -> Layer:
    """A slower bank than the authors' (3.0 for 65,536 negatives), and a warmer one where at .03 it stands still."""
    if case.method != "adco":
        return {}
    rate = method("ours: held-out CIFAR-10 images (benchmarks/RESULTS.md)", bank_lr=0.3)
    return stack(rate, method("ours: shapes (benchmarks/RESULTS.md)", tau_bank=0.1) if tiny else {})


def _forces(case: RecipeContext) -> Layer:
    """MSBReg under SGD: at the start the singular-value term is most of the loss, and no LARS bounds its step here."""
    if case.method != "msbreg":
        return {}
    clip = with_source(
        "ours: held-out CIFAR-10 images (benchmarks/RESULTS.md)", {"optim.network.clip": 1.0}
    )
    force = method("MSBReg supplement, table 4 (STL-10, ResNet-18)", brownian=0.05)
    return stack(clip, warm_up(case, "MSBReg supplement 1.1"), force)


def _heads(case: RecipeContext) -> Layer:
    """Heads in proportion to a slim network, for the methods whose heads are ImageNet's by number."""
    if case.method == "byol":
        return method("ours: MSBReg's for ResNet-18", hidden=512, dim=128)
    return method("ours: a quarter", dim=512, bottleneck=128) if case.method == "simsiam" else {}
