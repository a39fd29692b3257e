"""Barlow Twins (Zbontar et al., ICML 2021)."""

import torch
from torch import Tensor, nn

from antipode.core.learner import Encoder, Learner
from antipode.core.negatives import Noise, Pool
from antipode.core.objective import Metrics
from antipode.core.pairing import one_way
from antipode.core.scores import unit
from antipode.core.twin import Shared
from antipode.functional import barlow_twins
from antipode.nets.backbone import width, zero_residuals
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
from antipode.recipe.scales import LIGHTLY, smaller_images, without_negatives
from antipode.types import Pair


class CrossCorrelation(nn.Module):
    """The objective of Barlow Twins: the cross-correlation of two views shall be the identity."""

    pool: Pool | None = None
    unit_vectors = False

    def __init__(self, weight: float) -> None:
        super().__init__()
        self.weight = weight

    def forward(self, pair: Pair) -> tuple[Tensor, Metrics]:
        """Return the loss over the batch of all ranks."""
        key = pair.keys.mean(0)
        loss = barlow_twins(pair.query, key, weight=self.weight, gather=True)
        with torch.no_grad():
            positive = (unit(pair.query) * unit(key)).sum(-1).mean()
        return loss, {"positive": positive}

    def at(self, progress: float) -> None:
        """Nothing changes with time."""

    def push(self, keys: Tensor, image_ids: Tensor, noise: Noise) -> bool:
        """Nothing is kept."""
        return False


def barlowtwins(
    backbone: nn.Module, *, weight: float = 0.0051, dim: int = 8192, hidden: int = 8192
) -> Learner:
    """Barlow Twins (Zbontar et al., ICML 2021, arXiv 2103.03230): decorrelate the dimensions.

    loss = sum_i (1 - C_ii)^2 + weight sum_{i != j} C_ij^2, where C is the cross-correlation of the
    projections of two views over the batch of all ranks. The projector has three linear layers
    without bias, batch norm and ReLU after the first two. Batch norm runs over the whole batch, per
    view. Residual branches start at zero, as in the authors' code. Projections are not scaled to
    unit length.

    Deviation: one learning rate for all parameters, where the authors' is .2 for weights and .0048
    for biases and batch norm.
    """
    zero_residuals(backbone)
    sizes = [width(backbone), hidden, hidden, dim]
    projector = mlp(sizes, norm="batch", hidden_bias=False, last_bias=False)
    return Learner(
        online=convert(Encoder(backbone, projector), groups=1),
        twin=Shared(),
        pairing=one_way(),
        objective=CrossCorrelation(weight),
    )


# Recipes

RELEASE = "Barlow Twins (barlowtwins: main.py)"
SOLO = "solo-learn's CIFAR settings (solo: barlow.yaml)"


def recipe(context: RecipeContext) -> Layer:
    """LARS at .2 per 256 images; small images take lightly's SGD and solo-learn's projector."""
    lars = optimiser(
        RELEASE, "lars", 0.2, weight_decay=1e-6, exclude=True, variant="after", floor=0.001
    )
    return stack(
        lars,
        warm_up(context, RELEASE),
        policy(f"{RELEASE}: BYOL's views", "byol"),
        # solo-learn keeps crops from .08 on
        smaller_images(context, without_negatives(), crops=None),
        _small_head(context),
    )


def _small_head(context: RecipeContext) -> Layer:
    """A projector in proportion to the network, and what keeps SGD stable."""
    scale = context.dataset.scale
    if scale == "large":
        return {}
    head = method(SOLO, dim=2048, hidden=2048)
    if scale == "tiny":
        head = method("ours: a quarter", dim=512, hidden=512)
    # the loss is a sum over dimensions, and no LARS bounds its step here
    source = "ours: with it 73.1 % kNN on CIFAR-10 after 30 epochs, 66.9 % without"
    clip = with_source(source, {"optim.network.clip": 1.0})
    return stack(head, clip, {} if scale == "tiny" else warm_up(context, LIGHTLY))


METHODS = {
    "barlowtwins": Method(
        build=barlowtwins,
        recipe=recipe,
        lengths={"imagenet": run_length(RELEASE, batch=2048, epochs=1000)},
    )
}
