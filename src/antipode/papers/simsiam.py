"""SimSiam (Chen & He, CVPR 2021)."""

from torch import nn

from antipode.core.learner import Encoder, Learner
from antipode.core.objective import Align
from antipode.core.pairing import swap
from antipode.core.twin import Shared
from antipode.evaluation.linear import Linear, protocol
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
    with_source,
)
from antipode.recipe.scales import smaller_images, without_negatives


def simsiam(
    backbone: nn.Module, *, dim: int = 2048, hidden: int | None = None, bottleneck: int = 512
) -> Learner:
    """SimSiam (Chen & He, CVPR 2021, arXiv 2011.10566): predict the other view, stop-gradient.

    loss = mean over both directions of -cos(p, stop-gradient(z)). The projector has three linear
    layers with batch norm, the last without scale and shift; the predictor is dim-512-dim. Batch
    norm runs over the whole batch, per view. Residual branches start at zero. The predictor is a
    parameter group of its own, since its learning rate stays constant. `hidden` is the feature
    width by default, as in the authors' code.
    """
    zero_residuals(backbone)
    features = width(backbone)
    inner = features if hidden is None else hidden
    projector = mlp(
        [features, inner, inner, dim],
        norm="batch",
        last_norm=True,
        last_affine=False,
        hidden_bias=False,
        last_bias=False,
    )
    return Learner(
        online=convert(Encoder(backbone, projector), groups=1),
        twin=Shared(stop=True),
        pairing=swap(),
        objective=Align(squared=False),
        predictor=mlp([dim, bottleneck, dim], norm="batch", hidden_bias=False),
    )


RELEASE = "SimSiam (simsiam: main_simsiam.py)"


def recipe(context: RecipeContext) -> Layer:
    """SGD at .05 per 256 images, cosine per epoch; the predictor's learning rate stays constant."""
    tiny_heads = method("ours: a quarter", dim=512, bottleneck=128)
    return stack(
        optimiser(RELEASE, "sgd", 0.05, weight_decay=1e-4, per="epoch"),
        policy(RELEASE, "mocov2"),
        with_source(RELEASE, {"optim.predictor.schedule": "constant"}),
        smaller_images(context, without_negatives()),
        tiny_heads if context.dataset.scale == "tiny" else {},
    )


METHODS = {
    "simsiam": Method(
        build=simsiam,
        recipe=recipe,
        lengths={"imagenet": run_length(RELEASE, batch=512, epochs=100)},
    )
}
PROTOCOLS = {
    # [simsiam: main_lincls.py --lars]: apex LARC without clip on weights and bias
    "linear-simsiam": protocol(
        Linear(
            about="SimSiam's: LARS, batch size 4096, 90 epochs",
            rates=(0.1,),
            rule="linear",
            batch=4096,
            epochs=90,
            optimiser="lars",
            schedule="cosine",
        )
    )
}
