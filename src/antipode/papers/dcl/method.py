"""DCL and DCLW (Yeh et al., ECCV 2022)."""

from torch import nn

from antipode.core.learner import Learner
from antipode.core.loss import Coupling, decoupled, weighted
from antipode.core.pairing import crops as multi_crop
from antipode.papers import Method
from antipode.papers.dcl.recipe import recipe
from antipode.papers.frameworks import Base, contrast, on_framework
from antipode.papers.simclr import RESNET50


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
    """DCL (Yeh et al., ECCV 2022, arXiv 2110.06848): no positive in InfoNCE's denominator.

    loss = r - a (eq. 5). On SimCLR (tau .1; .07 for small images) r is one log-sum-exp over both
    views of all other images; on MoCo v1 and v2 it runs over the queue. `crops` adds local crops
    after the two large views; the paper gives no details. On SimCLR each local crop is attracted by
    every large view of its image and repelled by the large views of the others; on MoCo the first
    view is the key of all others and the queue repels. The loss is the mean over anchors, where the
    paper writes a sum.
    """
    learner = on_framework(
        base,
        backbone,
        tau=tau,
        dim=dim,
        hidden=hidden,
        queue=queue,
        momentum=momentum,
        groups=groups,
    )
    return _recoupled(learner, decoupled, crops)


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
    """DCLW (Yeh et al., ECCV 2022, arXiv 2110.06848): DCL with a weight on the positive term.

    loss = r - w a with w = 2 - exp(s/sigma) / mean exp(s/sigma) (eq. 6). The mean runs over the
    images of all ranks, per pair of crops. The paper does not say whether w carries gradient: it
    does only with detach=False. Everything else is as in DCL.
    """
    if not sigma > 0:
        raise ValueError(f"DCLW's sigma must be positive, got {sigma}")
    learner = on_framework(
        base,
        backbone,
        tau=tau,
        dim=dim,
        hidden=hidden,
        queue=queue,
        momentum=momentum,
        groups=groups,
    )
    return _recoupled(learner, weighted(contrast(learner).tau / sigma, detach), crops)


def _recoupled(learner: Learner, coupling: Coupling, crops: int) -> Learner:
    """Return the framework with another coupling, and with local crops after its views."""
    learner = learner.replace(objective=contrast(learner).replace(coupling=coupling))
    if not crops:
        return learner
    answering = 2 if learner.twin.own else 1  # SimCLR's queries are keys too
    return learner.replace(pairing=multi_crop(answering, 2 + crops))


METHODS = {
    "dcl": Method(build=dcl, recipe=recipe, lengths={"imagenet100": RESNET50}, default=True),
    "dclw": Method(build=dclw, recipe=recipe, lengths={"imagenet100": RESNET50}),
}
