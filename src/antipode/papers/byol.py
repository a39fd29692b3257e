from torch import nn

from antipode.core.learner import Encoder, Learner
from antipode.core.objective import Align
from antipode.core.pairing import swap
from antipode.core.twin import Ema, cosine
from antipode.nets.backbone import width
from antipode.nets.heads import mlp
from antipode.nets.norm import convert


def byol(
    backbone: nn.Module, *, momentum: float = 0.99, dim: int = 256, hidden: int = 4096
) -> Learner:
    """BYOL (Grill et al., NeurIPS 2020, arXiv 2006.07733): loss = sum over both directions of 2 - 2 cos(p, target).

    Projector and predictor: linear, BN, ReLU, linear without bias. Batch norm over the whole batch, per view. The
    target's momentum rises from .99 (100 and 300 epochs; .996 for 1000) to 1 along a cosine.
    Deviation: the target starts as a copy of the online network; the authors' starts on its own, with no effect.
    """
    projector = mlp([width(backbone), hidden, dim], norm="batch", last_bias=False)
    online = convert(Encoder(backbone, projector), groups=1)
    return Learner(
        online=online,
        twin=Ema(online, cosine(momentum)),
        pairing=swap(),
        objective=Align(squared=True),
        predictor=mlp([dim, hidden, dim], norm="batch", last_bias=False),
        scale=2.0,
    )
