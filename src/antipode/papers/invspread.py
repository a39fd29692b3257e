"""Inv. Spread (Ye et al., CVPR 2019): a softmax over the batch."""

import torch
from torch import Tensor, nn

from antipode.core.learner import Encoder, Learner
from antipode.core.negatives import InBatch, Noise, Pool
from antipode.core.objective import Contrast, Metrics, mean_score
from antipode.core.pairing import swap
from antipode.core.twin import Shared
from antipode.nets.backbone import width
from antipode.nets.heads import mlp
from antipode.nets.norm import convert
from antipode.papers import Method
from antipode.recipe.layer import Layer, RecipeContext, optimiser, policy, run_length, stack, steps
from antipode.recipe.scales import smaller_images
from antipode.types import Pair


class Spread(nn.Module):
    """The objective: -log P(own view) - sum over other images' views of log(1 - P(view)).

    P is the softmax of the anchor's scores.
    """

    unit_vectors = True

    def __init__(self, tau: float) -> None:
        super().__init__()
        self.contrast = Contrast(InBatch("all"), tau=tau)
        self.pool: Pool | None = "all"

    def forward(self, pair: Pair) -> tuple[Tensor, Metrics]:
        """Return the mean loss over the queries."""
        scores = self.contrast.negatives[0](pair)  # (N,P), the image's own views at -inf
        terms = self.contrast.weigh(pair, [scores])
        whole = torch.logaddexp(terms.attract, terms.repel)
        log_p = scores / self.contrast.tau - whole[:, None]
        loss = (whole - terms.attract - _log_other(log_p).sum(1)).mean()
        negative = mean_score(self.contrast.negatives, [scores])
        return loss, self.contrast.metrics(loss, terms) | {"negative": negative}

    def at(self, progress: float) -> None:
        """Do nothing: nothing changes over training."""

    def push(self, keys: Tensor, image_ids: Tensor, noise: Noise) -> bool:
        """Keep nothing."""
        return False


def _log_other(log_p: Tensor) -> Tensor:
    """Return log(1 - p) of log p; it stays finite if p rounds to 1."""
    log_p = log_p.clamp(max=-torch.finfo(log_p.dtype).eps)
    return torch.where(log_p > -0.7, torch.log(-torch.expm1(log_p)), torch.log1p(-log_p.exp()))


def invspread(backbone: nn.Module, *, tau: float = 0.1, dim: int = 128) -> Learner:
    """Inv. Spread (Ye et al., CVPR 2019, arXiv 1904.03436): a softmax over the batch.

    loss = -(1/2B) sum over anchors of [log P(own other view) + sum_j log(1 - P(j))], where j runs
    over all other images. The other side of each product is detached. The head is one linear layer.
    Both views pass through the network in one batch, as in the authors' code.
    """
    return Learner(
        online=convert(Encoder(backbone, mlp([width(backbone), dim])), groups=1),
        twin=Shared(stop=True),
        pairing=swap(),
        objective=Spread(tau),
        joint=True,
    )


# Recipes

RELEASE = "Inv. Spread (inv: demo_seen.py)"
LONG = run_length(RELEASE, epochs=300)  # the loop runs to 301


def recipe(context: RecipeContext) -> Layer:
    """SGD at .03 for 128 images, which is .06 for 256; the rate drops three times.

    It is .1, .05 and .01 of its start from epochs 120, 160 and 200 of 300 on.
    """
    sgd = optimiser(
        RELEASE,
        "sgd",
        0.06,
        weight_decay=5e-4,
        schedule="steps",
        per="epoch",
        factor=(0.1, 0.05, 0.01),
    )
    own = stack(sgd, steps(context, RELEASE, 120, 160, 200, of=300), policy(RELEASE, "cld"))
    if context.dataset.scale == "small":
        return stack(own, run_length(RELEASE, batch=128))
    return stack(own, smaller_images(context))


METHODS = {
    "invspread": Method(build=invspread, recipe=recipe, lengths={"cifar10": LONG, "stl10": LONG})
}
