from torch import nn

from antipode.core.learner import Learner
from antipode.core.loss import decoupled, weighted
from antipode.papers.frames import Base, on_base


def dcl(
    backbone: nn.Module,
    *,
    base: Base = "simclr",
    tau: float | None = None,
    dim: int = 128,
    hidden: int | None = None,
    crops: int = 0,
    queue: int | None = None,
    momentum: float | None = None,
    groups: int | None = None,
) -> Learner:
    """DCL (Yeh et al., ECCV 2022, arXiv 2110.06848): loss = r - a, the positive struck out of the denominator (eq. 5).

    On SimCLR (tau .1; .07 for small images) r is one log-sum-exp over both views of all other images; on MoCo v1 and v2
    over the queue. `crops` adds local crops after the two large views (derived; the paper gives no details). On SimCLR
    each meets every large view of its image and is repelled by the large views of the others; on MoCo the first view
    answers all others and the queue repels. The mean over anchors, where the paper writes a sum.
    """
    return on_base(
        backbone,
        base,
        coupling=lambda tau: decoupled,
        tau=tau,
        dim=dim,
        hidden=hidden,
        local_crops=crops,
        queue=queue,
        momentum=momentum,
        groups=groups,
    )


def dclw(
    backbone: nn.Module,
    *,
    base: Base = "simclr",
    tau: float | None = None,
    sigma: float = 0.5,
    detach: bool = True,
    dim: int = 128,
    hidden: int | None = None,
    crops: int = 0,
    queue: int | None = None,
    momentum: float | None = None,
    groups: int | None = None,
) -> Learner:
    """DCLW (Yeh et al., ECCV 2022, arXiv 2110.06848): loss = r - w a, w = 2 - exp(s/sigma) / mean exp(s/sigma) (eq. 6).

    The mean runs over the images of all ranks, per pair of crops. Whether w carries gradient is not stated: it does not
    unless detach=False. Everything else as DCL.
    """
    if not sigma > 0:
        raise ValueError(f"DCLW's sigma must be positive, got {sigma}")
    return on_base(
        backbone,
        base,
        coupling=lambda tau: weighted(tau / sigma, detach),
        tau=tau,
        dim=dim,
        hidden=hidden,
        local_crops=crops,
        queue=queue,
        momentum=momentum,
        groups=groups,
    )
