from torch import nn

from antipode.core.learner import Encoder, Learner
from antipode.core.objective import Align
from antipode.core.pairing import swap
from antipode.core.twin import Shared
from antipode.nets.backbone import width, zero_residuals
from antipode.nets.heads import mlp
from antipode.nets.norm import convert


def simsiam(
    backbone: nn.Module, *, dim: int = 2048, hidden: int | None = None, bottleneck: int = 512
) -> Learner:
    """SimSiam (Chen & He, CVPR 2021, arXiv 2011.10566): loss = mean over both directions of -cos(p, stop-gradient(z)).

    Projector of three linear layers with BN, the last BN without scale and shift; predictor dim-512-dim. Batch norm
    over the whole batch, per view; residual branches start at zero. The predictor is a parameter group of its own,
    since its learning rate stays constant. hidden: the feature width by default, as in the authors' code.
    """
    zero_residuals(backbone)
    size = width(backbone)
    inner = size if hidden is None else hidden
    sizes = [size, inner, inner, dim]
    projector = mlp(
        sizes, norm="batch", last_norm=True, last_affine=False, hidden_bias=False, last_bias=False
    )
    return Learner(
        online=convert(Encoder(backbone, projector), groups=1),
        twin=Shared(stop=True),
        pairing=swap(),
        objective=Align(squared=False),
        predictor=mlp([dim, bottleneck, dim], norm="batch", hidden_bias=False),
    )
