"""MoCo (He et al., CVPR 2020) and MoCo v2 (Chen et al. 2020)."""

from torch import nn

from antipode.core.learner import Encoder, Learner
from antipode.core.negatives import Queue
from antipode.core.objective import Contrast
from antipode.core.pairing import one_way
from antipode.core.twin import Ema, constant
from antipode.data.views.augment import Range
from antipode.data.views.operation import Crop, Jitter, Operation
from antipode.data.views.policy import View, crop_and_colour, grey
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
    stack,
    steps,
    warm_up,
)
from antipode.recipe.scales import few_keys, small_rate, smaller_images


def mocov1(
    backbone: nn.Module,
    *,
    tau: float = 0.07,
    queue: int = 65536,
    momentum: float = 0.999,
    dim: int = 128,
    groups: int = 8,
) -> Learner:
    """MoCo (He et al., CVPR 2020, arXiv 1911.05722): InfoNCE against a queue of earlier keys.

    loss = softplus(r - a), where r runs over the queue. The head is one linear layer. Batch norm is
    shuffled over the 8 groups that the authors' 8 GPUs gave. Keys come from a slow copy of the
    encoder and enter the queue after the step. No deviation is known; any batch size fits any
    queue.
    """
    memory = Queue(queue, dim)
    online = convert(Encoder(backbone, mlp([width(backbone), dim])), groups)
    return Learner(
        online=online,
        twin=Ema(online, constant(momentum), shuffle=groups > 1),
        pairing=one_way(),
        objective=Contrast(memory, tau=tau),
    )


def mocov2(
    backbone: nn.Module,
    *,
    tau: float = 0.2,
    queue: int = 65536,
    momentum: float = 0.999,
    dim: int = 128,
    hidden: int | None = None,
    groups: int = 8,
) -> Learner:
    """MoCo v2 (Chen et al. 2020, arXiv 2003.04297): MoCo with a two-layer head and stronger views.

    loss = softplus(r - a), where r runs over a queue of earlier keys; tau is .2. The head has no
    batch norm, and its hidden size is the feature width. No deviation is known.
    """
    memory = Queue(queue, dim)
    online = convert(Encoder(backbone, head(backbone, dim, hidden)), groups)
    return Learner(
        online=online,
        twin=Ema(online, constant(momentum), shuffle=groups > 1),
        pairing=one_way(),
        objective=Contrast(memory, tau=tau),
    )


def head(backbone: nn.Module, dim: int, hidden: int | None) -> nn.Module:
    """Return MoCo v2's head: two linear layers with ReLU between them and no batch norm."""
    features = width(backbone)
    return mlp([features, features if hidden is None else hidden, dim])


# Recipes

V1 = "MoCo v1 (moco: main_moco.py)"
V2 = "MoCo v2 (moco: main_moco.py)"
DEMO = "MoCo's CIFAR-10 demo"  # the notebook that the repository links to: 4,096 keys, momentum .99
BY_MOCO = "ours: chosen for MoCo v2 on training folds of CIFAR-10 (benchmarks/RESULTS.md)"
OUTNUMBERED = "ours: 65,536 keys would outnumber the images"


def imagenet_v1(context: RecipeContext) -> Layer:
    """SGD at .03 per 256 images, times .1 at epochs 120 and 160 of 200."""
    sgd = optimiser(V1, "sgd", 0.03, weight_decay=1e-4, schedule="steps", per="epoch")
    return stack(sgd, steps(context, V1, 120, 160), policy(V1, "mocov1"))


def imagenet_v2(context: RecipeContext) -> Layer:
    """MoCo v1's optimiser with a cosine per epoch, and stronger views."""
    return stack(optimiser(V2, "sgd", 0.03, weight_decay=1e-4, per="epoch"), policy(V2, "mocov2"))


def smaller(context: RecipeContext) -> Layer:
    """The optimiser and views of methods that build on MoCo, for tiny and small images.

    Four times SimCLR's learning rate needs the warm-up: at twice that rate, MoCo v2 lost 7.6
    points in 30 epochs without it.
    """
    sgd = stack(small_rate(BY_MOCO, 0.24), warm_up(context, BY_MOCO))
    return smaller_images(context, sgd, BY_MOCO)


def few_images(context: RecipeContext) -> Layer:
    """A queue that does not outnumber the images, and a key encoder that follows faster."""
    keys = few_keys(context)
    if keys is None:
        return {}
    return method(DEMO, momentum=0.99) | method(OUTNUMBERED, queue=keys)


def demo_tau(context: RecipeContext) -> Layer:
    """MoCo v1's temperature for tiny and small images; for MoCo v2, .2 was better than the demo's
    .1.
    """
    return {} if context.dataset.scale == "large" else method(DEMO, tau=0.1)


def recipe_v1(context: RecipeContext) -> Layer:
    """MoCo v1 at every scale."""
    return stack(imagenet_v1(context), smaller(context), few_images(context), demo_tau(context))


def recipe_v2(context: RecipeContext) -> Layer:
    """MoCo v2 at every scale."""
    return stack(imagenet_v2(context), smaller(context), few_images(context))


# Views [moco: main_moco.py] (facebookresearch/moco at 132aea9)


def mocov1_views(
    size: int, normal: Operation, *, views: int = 2, scale: Range = (0.2, 1.0)
) -> list[View]:
    """MoCo v1's views: greyscale comes before the jitter, which is strong in hue."""
    operations = (Crop(size, scale), grey(0.2), Jitter(0.4, 0.4, 0.4, 0.4), normal)
    return views * [View(size, operations)]


METHODS = {
    "mocov1": Method(build=mocov1, recipe=recipe_v1),
    "mocov2": Method(build=mocov2, recipe=recipe_v2),
}
POLICIES = {"mocov1": mocov1_views, "mocov2": crop_and_colour}
