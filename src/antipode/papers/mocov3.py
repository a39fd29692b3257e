"""MoCo v3 (Chen, Xie and He, ICCV 2021), and the settings that every vision transformer takes."""

from torch import nn

from antipode.core.learner import Encoder, Learner
from antipode.core.negatives import InBatch
from antipode.core.objective import Contrast
from antipode.core.pairing import swap
from antipode.core.twin import Ema, cosine
from antipode.nets.backbone import width
from antipode.nets.heads import mlp
from antipode.nets.norm import convert
from antipode.nets.timm_net import is_vit, patch_projection
from antipode.papers import Method
from antipode.recipe.layer import (
    Derived,
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
from antipode.recipe.scales import smaller_images


def mocov3(
    backbone: nn.Module,
    *,
    tau: float = 0.2,
    momentum: float = 0.99,
    dim: int = 256,
    hidden: int = 4096,
    layers: int | None = None,
) -> Learner:
    """MoCo v3 (Chen et al., ICCV 2021, arXiv 2104.02057): MoCo without a queue, with a predictor.

    loss = 2 tau times the sum over both directions of softplus(r - a), where r runs over the keys
    of the other images of the batch. The projector has `layers` linear layers, by default 3 for a
    vision transformer and 2 for other networks. Predictor and projector have no biases, batch norm
    after every layer, and no scale and shift in the last one. Batch norm runs over the whole batch,
    per view. The momentum of the key encoder rises from .99 to 1 along a cosine.

    Deviations: position embeddings are those of the network (learned in timm's transformers, fixed
    sines in the authors'), the patch projection starts as in timm, and tau is .2 for ResNets, too
    (the authors' is 1).
    """
    if layers is None:
        layers = 2 if patch_projection(backbone) is None else 3
    if layers < 1:
        raise ValueError(f"the projector needs at least one layer, got {layers}")
    online = convert(Encoder(backbone, _head(width(backbone), hidden, dim, layers)), groups=1)
    return Learner(
        online=online,
        twin=Ema(online, cosine(momentum)),
        pairing=swap(),
        objective=Contrast(InBatch("pair"), tau=tau),
        predictor=_head(dim, hidden, dim, 2),
        scale=4 * tau,
    )


def _head(features: int, hidden: int, dim: int, layers: int) -> nn.Sequential:
    """Return a head of MoCo v3: linear layers without bias, each followed by batch norm."""
    return mlp(
        [features, *(layers - 1) * [hidden], dim],
        norm="batch",
        last_norm=True,
        last_affine=False,
        hidden_bias=False,
        last_bias=False,
    )


# Recipes

RELEASE = "MoCo v3 (moco-v3: CONFIG.md)"
PAPER = "MoCo v3, section 4"
DINO = "DINO (dino: main_dino.py)"
SMALL_HEADS = "ours: heads in proportion to the network"
# timm's and DINO's parameter groups; MoCo v3's release decays all parameters
GROUPS = f"{DINO}: no weight decay on biases, norms, class token and positions"


def recipe(context: RecipeContext) -> Layer:
    """LARS for ResNets; a vision transformer takes `vision_transformer` on top."""
    lars = optimiser(RELEASE, "lars", 0.3, weight_decay=1e-6, exclude=True, variant="after")
    # --crop-min=.2 for ResNets; transformers keep BYOL's .08
    crops = {} if is_vit(context.backbone) else {"scale": (0.2, 1.0)}
    return stack(
        lars,
        warm_up(context, RELEASE),
        policy(f"{RELEASE}: BYOL's views", "byol", **crops),
        smaller_images(context),
        _smaller_heads(context),
    )


def _smaller_heads(context: RecipeContext) -> Layer:
    """Narrower heads for tiny and small images."""
    sizes = {"small": (2048, 256), "tiny": (512, 128)}
    if context.dataset.scale not in sizes:
        return {}
    hidden, dim = sizes[context.dataset.scale]
    return method(SMALL_HEADS, hidden=hidden, dim=dim)


def vision_transformer(context: RecipeContext) -> Layer:
    """AdamW with a long warm-up and a frozen patch projection, if the backbone is a ViT.

    Every method takes these settings. MoCo v3's section 5 trains SimCLR and BYOL with them, too.
    """
    if not is_vit(context.backbone):
        return {}
    source, lr, decay = {
        "large": (RELEASE, 1.5e-4, 0.1),
        "small": (f"{DINO}: base learning rate; decay of MoCo v3", 5e-4, 0.1),
        "tiny": ("ours: kNN on shapes is as good as with 3e-3", 1e-3, 0.1),
    }[context.dataset.scale]
    return stack(
        optimiser(source, "adamw", lr, weight_decay=decay),
        with_source(GROUPS, {"optim.network.exclude": True}),
        _long_warm_up(context),
        with_source(PAPER, {"backbone.freeze_patches": True}),
    )


def _long_warm_up(context: RecipeContext) -> Layer:
    """Forty epochs of 300, in proportion to the length of the run."""
    length = min(40, round(40 * context.epochs / 300))
    text = f"40 of 300 epochs, in proportion; {RELEASE}"
    return with_source(Derived(text, "train.epochs"), {"optim.network.warmup": length})


METHODS = {
    "mocov3": Method(
        build=mocov3,
        recipe=recipe,
        lengths={"imagenet": run_length(RELEASE, batch=4096, epochs=300)},
    )
}
NETWORKS = {"vit": vision_transformer}
