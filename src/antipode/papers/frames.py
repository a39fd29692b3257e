"""The two frameworks that other papers build on: SimCLR's batch and MoCo's queue, with the loss left open."""

from collections.abc import Callable
from typing import Literal

from torch import nn

from antipode.core.learner import Encoder, Learner
from antipode.core.loss import Coupling, Margin, coupled, no_margin
from antipode.core.negatives import InBatch, Queue
from antipode.core.objective import Contrast, Objective
from antipode.core.pairing import Pairing, crops, one_way, swap
from antipode.core.twin import Ema, Shared, constant
from antipode.nets.backbone import width
from antipode.nets.heads import mlp
from antipode.nets.norm import convert

Base = Literal["simclr", "mocov1", "mocov2"]
TAU = {"simclr": 0.1, "mocov1": 0.07, "mocov2": 0.2}


def simclr_frame(
    backbone: nn.Module, objective: Objective, *, dim: int, hidden: int | None, local_crops: int = 0
) -> Learner:
    """One network, keys are queries, batch norm over both views and all ranks, a two-layer head with BN on both."""
    size = width(backbone)
    head = mlp(
        [size, size if hidden is None else hidden, dim],
        norm="batch",
        last_norm=True,
        hidden_bias=False,
        last_bias=False,
    )
    return Learner(
        online=convert(Encoder(backbone, head), groups=1),
        twin=Shared(),
        pairing=crops(2, 2 + local_crops) if local_crops else swap(),
        objective=objective,
        joint=True,
    )


def moco_frame(
    backbone: nn.Module,
    head: nn.Module,
    objective: Objective,
    *,
    momentum: float,
    groups: int,
    pairing: Pairing | None = None,
    joint_keys: bool = False,
) -> Learner:
    """A slow key encoder; batch norm in `groups` groups, the keys' batch shuffled among them."""
    online = convert(Encoder(backbone, head), groups)
    return Learner(
        online=online,
        twin=Ema(online, constant(momentum), shuffle=groups > 1, joint=joint_keys),
        pairing=pairing or one_way(),
        objective=objective,
    )


def moco_head(backbone: nn.Module, dim: int, hidden: int | None) -> nn.Module:
    """MoCo v2's head: two layers with ReLU between and no batch norm."""
    return mlp([width(backbone), width(backbone) if hidden is None else hidden, dim])


def on_base(
    backbone: nn.Module,
    base: Base,
    *,
    coupling: Callable[[float], Coupling] = lambda tau: coupled,
    margin: Margin = no_margin,
    tau: float | None,
    dim: int,
    hidden: int | None,
    negatives: int | None = None,
    queue: int | None = None,
    draw: bool = False,
    local_crops: int = 0,
    momentum: float | None,
    groups: int | None,
) -> Learner:
    """A loss on SimCLR, MoCo v1 or MoCo v2, each with its own tau, head and negatives where none are given."""
    _check(base, negatives=negatives, hidden=hidden, queue=queue, momentum=momentum, groups=groups)
    tau = TAU[base] if tau is None else tau
    if base == "simclr":
        pool = InBatch("all", subset=negatives, shared=False)
        contrast = Contrast(pool, tau=tau, coupling=coupling(tau), margin=margin)
        return simclr_frame(backbone, contrast, dim=dim, hidden=hidden, local_crops=local_crops)
    memory = Queue(65536 if queue is None else queue, dim, draw=draw)
    return moco_frame(
        backbone,
        mlp([width(backbone), dim]) if base == "mocov1" else moco_head(backbone, dim, hidden),
        Contrast(memory, tau=tau, coupling=coupling(tau), margin=margin),
        momentum=0.999 if momentum is None else momentum,
        groups=8 if groups is None else groups,
        pairing=crops(1, 2 + local_crops) if local_crops else None,
    )


def _check(base: str, **given: int | float | None) -> None:
    """Refuse arguments that the chosen base would ignore."""
    if base not in TAU:
        raise ValueError(f"the base is one of {', '.join(TAU)}, not {base!r}")
    foreign = {
        "simclr": ("queue", "momentum", "groups"),
        "mocov1": ("negatives", "hidden"),
        "mocov2": ("negatives",),
    }[base]
    for name in foreign:
        if given[name] is not None:
            raise ValueError(f"{name}={given[name]} means nothing on base {base}")
