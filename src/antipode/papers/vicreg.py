"""VICReg (Bardes et al., ICLR 2022)."""

import torch
from torch import Tensor, nn

from antipode.core.learner import Encoder, Learner
from antipode.core.negatives import Noise, Pool
from antipode.core.objective import Metrics
from antipode.core.pairing import one_way
from antipode.core.scores import unit
from antipode.core.twin import Shared
from antipode.functional import vicreg as vicreg_loss
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
)
from antipode.recipe.scales import LIGHTLY, smaller_images, without_negatives
from antipode.types import Pair


class VarianceCovariance(nn.Module):
    """The objective of VICReg: invariance, variance and covariance of two views."""

    pool: Pool | None = None
    unit_vectors = False

    def __init__(self, invariance: float, variance: float, covariance: float) -> None:
        super().__init__()
        self.invariance = invariance
        self.variance = variance
        self.covariance = covariance

    def forward(self, pair: Pair) -> tuple[Tensor, Metrics]:
        """Return the loss over the batch of all ranks."""
        key = pair.keys.mean(0)
        loss = vicreg_loss(
            pair.query,
            key,
            invariance=self.invariance,
            variance=self.variance,
            covariance=self.covariance,
            gather=True,
        )
        with torch.no_grad():
            positive = (unit(pair.query) * unit(key)).sum(-1).mean()
        return loss, {"positive": positive}

    def at(self, progress: float) -> None:
        """Nothing changes with time."""

    def push(self, keys: Tensor, image_ids: Tensor, noise: Noise) -> bool:
        """Nothing is kept."""
        return False


def vicreg(
    backbone: nn.Module,
    *,
    invariance: float = 25.0,
    variance: float = 25.0,
    covariance: float = 1.0,
    dim: int = 8192,
    hidden: int = 8192,
) -> Learner:
    """VICReg (Bardes et al., ICLR 2022, arXiv 2105.04906): keep variance, remove covariance.

    loss = invariance * mean squared distance of the views + variance * hinge on the standard
    deviation of each dimension + covariance * squared off-diagonal covariances, in the form of the
    authors' release (antipode.functional.vicreg). The projector has three linear layers, batch norm
    and ReLU after the first two, and no bias in the last. Batch norm runs over the whole batch, per
    view. Residual branches start at zero, as in the authors' code. Projections are not scaled to
    unit length. No deviation is known.
    """
    zero_residuals(backbone)
    projector = mlp([width(backbone), hidden, hidden, dim], norm="batch", last_bias=False)
    return Learner(
        online=convert(Encoder(backbone, projector), groups=1),
        twin=Shared(),
        pairing=one_way(),
        objective=VarianceCovariance(invariance, variance, covariance),
    )


# Recipes

RELEASE = "VICReg (vicreg: main_vicreg.py)"
SOLO = "solo-learn's CIFAR settings (solo: vicreg.yaml)"


def recipe(context: RecipeContext) -> Layer:
    """LARS at .2 per 256 images; small images take lightly's SGD and solo-learn's projector and
    crops.
    """
    lars = optimiser(
        RELEASE, "lars", 0.2, weight_decay=1e-6, exclude=True, variant="after", floor=0.001
    )
    return stack(
        lars,
        warm_up(context, RELEASE),
        policy(f"{RELEASE}: BYOL's views", "byol"),
        smaller_images(context, without_negatives(), crops=SOLO),
        _small_head(context),
    )


def _small_head(context: RecipeContext) -> Layer:
    """A projector in proportion to the network, and a warm-up.

    Clipping the gradient is no help: on CIFAR-10 kNN is 76.4 % after 30 epochs, with a clip of 1
    it is 74.7 %.
    """
    scale = context.dataset.scale
    if scale == "large":
        return {}
    if scale == "tiny":
        return method("ours: a quarter", dim=512, hidden=512)
    return stack(method(SOLO, dim=2048, hidden=2048), warm_up(context, LIGHTLY))


METHODS = {
    "vicreg": Method(
        build=vicreg,
        recipe=recipe,
        lengths={"imagenet": run_length(RELEASE, batch=2048, epochs=100)},
    )
}
