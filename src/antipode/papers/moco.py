from torch import nn

from antipode.core.learner import Learner
from antipode.papers.frames import on_base


def mocov1(
    backbone: nn.Module,
    *,
    tau: float = 0.07,
    queue: int = 65536,
    momentum: float = 0.999,
    dim: int = 128,
    groups: int = 8,
) -> Learner:
    """MoCo (He et al., CVPR 2020, arXiv 1911.05722): loss = softplus(r - a), r over a queue of earlier keys.

    One linear layer as head; shuffle-BN over the 8 groups that the authors' 8 GPUs gave. Keys come from a slow copy of
    the encoder and enter the queue after the step. Deviation: none known; any batch fits any queue.
    """
    return on_base(
        backbone,
        "mocov1",
        tau=tau,
        dim=dim,
        hidden=None,
        queue=queue,
        momentum=momentum,
        groups=groups,
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
    """MoCo v2 (Chen et al. 2020, arXiv 2003.04297): MoCo with a two-layer head, tau .2 and stronger augmentation.

    loss = softplus(r - a), r over a queue of earlier keys. The head has no batch norm; its hidden size is the feature
    width. Deviation: none known.
    """
    return on_base(
        backbone,
        "mocov2",
        tau=tau,
        dim=dim,
        hidden=hidden,
        queue=queue,
        momentum=momentum,
        groups=groups,
    )
