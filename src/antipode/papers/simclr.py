"""SimCLR (Chen et al., ICML 2020)."""

from functools import partial

from torch import nn

from antipode.core.learner import Encoder, Learner
from antipode.core.negatives import InBatch
from antipode.core.objective import Contrast
from antipode.core.pairing import swap
from antipode.core.twin import Shared
from antipode.data.views.augment import Range
from antipode.data.views.operation import Blur, Crop, Jitter, Operation
from antipode.data.views.policy import View, grey, tenth
from antipode.evaluation.linear import Linear, protocol
from antipode.evaluation.retrieval import retrieval
from antipode.evaluation.task import Protocol
from antipode.nets.backbone import width
from antipode.nets.heads import mlp
from antipode.nets.norm import convert
from antipode.papers import Method
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
from antipode.recipe.scales import SMALL, smaller_images


def simclr(
    backbone: nn.Module, *, tau: float = 0.1, dim: int = 128, hidden: int | None = None
) -> Learner:
    """SimCLR (Chen et al., ICML 2020, arXiv 2002.05709): InfoNCE against the batch's other views.

    loss = softplus(r - a), where r runs over the 2N-2 views of other images. The head is that of
    version 1: its hidden size is the feature width, both layers have batch norm and no bias. tau is
    .1 on ImageNet and .5 on CIFAR-10.

    Deviations from the authors' TensorFlow code: the loss is the mean over all 2N anchors, where
    theirs adds the means of the two views (under LARS, which they use, a factor on the loss changes
    nothing); the last batch norm has a shift; linear layers and residual branches start as in
    torch, where theirs start at N(0, .01^2) and at zero.
    """
    features = width(backbone)
    sizes = [features, features if hidden is None else hidden, dim]
    head = mlp(sizes, norm="batch", last_norm=True, hidden_bias=False, last_bias=False)
    return Learner(
        online=convert(Encoder(backbone, head), groups=1),
        twin=Shared(),
        pairing=swap(),
        objective=Contrast(InBatch("all"), tau=tau),
        joint=True,
    )


# Recipes

RELEASE = "SimCLR (simclr: run.py)"
TOOLBOX = "OpenSelfSup (oss: simclr/r50_bs256_ep200.py)"
BY_SIMCLR = "ours: chosen for SimCLR on training folds of CIFAR-10 (benchmarks/RESULTS.md)"
RESNET50 = with_source("DCL 4.1", {"backbone.name": "resnet50"})


def recipe(context: RecipeContext) -> Layer:
    """LARS at .3 per 256 images; small images take SGD."""
    # .075 sqrt(batch) is the paper's other rule, equal at 4096; the README's weight decay is 1e-4
    lars = optimiser(RELEASE, "lars", 0.3, weight_decay=1e-6, exclude=True, variant="inside")
    # on ImageNet-100 SimCLR is DCL's baseline, in DCL's settings (table 1)
    baseline = by_sgd(context) if context.data == "imagenet100" else {}
    return stack(
        lars,
        warm_up(context, RELEASE),
        policy(RELEASE, "simclr"),
        smaller_images(context, crops=BY_SIMCLR),
        small_tau(context),
        baseline,
    )


def small_tau(context: RecipeContext) -> Layer:
    """The temperature for tiny and small images, measured on CIFAR-10."""
    return {} if context.dataset.scale == "large" else method(SMALL, tau=0.2)


def by_sgd(context: RecipeContext) -> Layer:
    """SimCLR's framework trained by SGD, as in the toolbox that DCL uses.

    DCL's introduction names SGD, and its toolbox has LARS; the toolbox uses .3 per 256 images for
    both, and EqCo's release trains SimCLR with SGD at .3. So this is SGD at .3 with the toolbox's
    weight decay and warm-up.
    """
    source = f"SGD as DCL 1 states, the rest as {TOOLBOX}"
    sgd = optimiser(source, "sgd", 0.3, weight_decay=1e-6, exclude=True)
    views = policy("DCL 4.1 (oss)", "simclr")
    return stack(sgd, warm_up(context, "oss"), views, method("DCL 4.1", tau=0.1))


# Views [simclr: data_util.py, README] (google-research/simclr)


def simclr_views(
    size: int,
    normal: Operation,
    *,
    views: int = 2,
    scale: Range = (0.08, 1.0),
    strength: float = 1.0,
    blur: float = 0.5,
) -> list[View]:
    """SimCLR's views on ImageNet; also DCL's."""
    colour = _jitter(strength)
    operations = (Crop(size, scale), colour, grey(0.2), Blur(blur, tenth(size)), normal)
    return views * [View(size, operations)]


def simclr_cifar_views(
    size: int,
    normal: Operation,
    *,
    views: int = 2,
    scale: Range = (0.08, 1.0),
    strength: float = 0.5,
) -> list[View]:
    """SimCLR's views on CIFAR-10: half the jitter and no blur."""
    return views * [View(size, (Crop(size, scale), _jitter(strength), grey(0.2), normal))]


def _jitter(strength: float) -> Jitter:
    return Jitter(0.8 * strength, 0.8 * strength, 0.8 * strength, 0.2 * strength, p=0.8)


METHODS = {
    "simclr": Method(
        build=simclr,
        recipe=recipe,
        lengths={"imagenet": run_length(RELEASE, batch=4096), "imagenet100": RESNET50},
    )
}
POLICIES = {"simclr": simclr_views, "simclr-cifar": simclr_cifar_views}
PROTOCOLS = {
    # [simclr: README, linear head on ImageNet]; --zero_init_logits_layer starts the weights at 0
    "linear-simclr": protocol(
        Linear(
            about="SimCLR's: Nesterov momentum, batch size 4096, 90 epochs",
            rates=(0.1,),
            rule="linear",
            batch=4096,
            epochs=90,
            nesterov=True,
            weight_decay=1e-6,
            schedule="cosine",
            per="step",
            std=0.0,
        )
    ),
    # a fixed policy, whatever a run was trained with, so that runs can be compared
    "retrieval": Protocol(
        partial(retrieval, policy="simclr"),
        "how often the nearest view is the other one of the same image; needs no labels",
        labels=False,
    ),
}
