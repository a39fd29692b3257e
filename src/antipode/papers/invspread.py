import torch
from torch import Tensor, nn

from antipode.core.learner import Encoder, Learner
from antipode.core.negatives import InBatch, Pool
from antipode.core.objective import Contrast, Metrics, mean_score
from antipode.core.pairing import swap
from antipode.core.twin import Shared
from antipode.nets.backbone import width
from antipode.nets.heads import mlp
from antipode.nets.norm import convert
from antipode.types import Pair


class Spread(nn.Module):
    """-log P(own view) - sum over other images' views of log(1 - P(view)), P the softmax of the anchor's scores."""

    def __init__(self, tau: float) -> None:
        super().__init__()
        self.contrast = Contrast(InBatch("all"), tau=tau)
        self.pool: Pool | None = "all"

    def forward(self, pair: Pair) -> tuple[Tensor, Metrics]:
        """Mean over the queries."""
        scores = self.contrast.negatives[0](pair)  # (N,P), own views at -inf
        terms = self.contrast.weigh(pair, [scores])
        whole = torch.logaddexp(terms.attract, terms.repel)
        log_p = scores / self.contrast.tau - whole[:, None]
        loss = (whole - terms.attract - _log_other(log_p).sum(1)).mean()
        negative = mean_score(self.contrast.negatives, [scores])
        return loss, self.contrast.metrics(loss, terms) | {"negative": negative}

    def at(self, progress: float) -> None:
        """Nothing changes with time."""

    def push(self, keys: Tensor, image_ids: Tensor, noise: Tensor) -> bool:
        """Nothing to keep."""
        return False


def _log_other(log_p: Tensor) -> Tensor:
    """log(1 - p) of log p; finite where rounding says that p is 1."""
    log_p = log_p.clamp(max=-torch.finfo(log_p.dtype).eps)
    return torch.where(log_p > -0.7, torch.log(-torch.expm1(log_p)), torch.log1p(-log_p.exp()))


def invspread(backbone: nn.Module, *, tau: float = 0.1, dim: int = 128) -> Learner:
    """Inv. Spread (Ye et al., CVPR 2019, arXiv 1904.03436): a softmax over the batch, and 1 - P for every other image.

    loss = -(1/2B) sum over anchors of [log P(own other view) + sum_j log(1 - P(j))]; the other side of each product is
    detached. One linear layer as head; both views in one pass, as in the authors' code.
    """
    return Learner(
        online=convert(Encoder(backbone, mlp([width(backbone), dim])), groups=1),
        twin=Shared(stop=True),
        pairing=swap(),
        objective=Spread(tau),
        joint=True,
    )
