"""Where keys come from: the network itself, itself without gradient, or a slow copy of it."""

import copy
import math
from collections.abc import Callable
from functools import partial
from typing import Protocol

import torch
from torch import Tensor, nn

from antipode import dist, rng
from antipode.core.passes import Apart, ours, passes

Momentum = Callable[[float], float]  # progress in [0,1] -> share of the old weights


class Twin(Protocol):
    """What the learner needs of a twin."""

    own: bool  # keys are the online network's own outputs

    def __call__(
        self, images: list[Tensor], z: list[Tensor], image_ids: Tensor, noise: Tensor
    ) -> list[Tensor]:
        """Keys (N,D) for each view, from its images or from the online network's own z (empty where it saw none)."""

    def at(self, progress: float) -> None:
        """Set what changes with time."""

    def follow(self, online: nn.Module, restart: bool = False) -> None:
        """Move after the online network's step; restart copies it."""


def constant(momentum: float) -> Momentum:
    """MoCo: the same momentum always."""
    _share(momentum)
    return partial(_constant, momentum=momentum)


def cosine(momentum: float) -> Momentum:
    """BYOL: from `momentum` to 1 along half a cosine, 1 - (1-m)(cos(pi t)+1)/2."""
    _share(momentum)
    return partial(_cosine, momentum=momentum)


def _constant(progress: float, momentum: float) -> float:
    return momentum


def _cosine(progress: float, momentum: float) -> float:
    return 1 - (1 - momentum) * (math.cos(math.pi * progress) + 1) / 2


class Shared(nn.Module):
    """SimCLR: keys are the network's own outputs, with gradient; with stop=True (SimSiam) without."""

    own = True

    def __init__(self, *, stop: bool = False) -> None:
        super().__init__()
        self.stop = stop

    def forward(
        self, images: list[Tensor], z: list[Tensor], image_ids: Tensor, noise: Tensor
    ) -> list[Tensor]:
        """The online outputs (N,D) of each view."""
        return [x.detach() for x in z] if self.stop else z

    def at(self, progress: float) -> None:
        """Nothing changes with time."""

    def follow(self, online: nn.Module, restart: bool = False) -> None:
        """It is the online network."""


class Ema(nn.Module):
    """A copy that follows the online weights slowly: MoCo's key encoder, BYOL's target.

    Copied whole, head and all, and moved after the optimiser's step; MoCo's own order (before the next step's keys) is
    the same thing. Weights are averaged, batch-norm buffers are not: the copy sees its own batches, as in the papers'
    code. `shuffle` is MoCo's shuffle-BN: the batch goes through in an order that mixes the statistics groups, over all
    ranks, drawn by image id, so that one device with g groups and g ranks compute the same. `joint` sends all views of
    one size through in a single pass (JCL), otherwise each view has its own.
    """

    own = False
    pace: Tensor

    def __init__(
        self, online: nn.Module, momentum: Momentum, *, shuffle: bool = False, joint: bool = False
    ) -> None:
        super().__init__()
        self.net = copy.deepcopy(online).requires_grad_(False)
        self.momentum, self.shuffle, self.joint, self.together = (
            momentum,
            shuffle,
            joint,
            ours(self.net),
        )
        # two buffers' worth, since 1 - float32(0.999) is not float32(0.001); on the device for CUDA graphs
        self.register_buffer("pace", torch.tensor([momentum(0.0), 1 - momentum(0.0)]))

    @torch.no_grad()
    def forward(
        self, images: list[Tensor], z: list[Tensor], image_ids: Tensor, noise: Tensor
    ) -> list[Tensor]:
        """Keys (N,D) of each view, without gradient."""
        keys: list[Tensor] = []
        for x, views, apart in passes(images, self.joint, self.together):
            with Apart(apart):
                out = (
                    self._shuffled(x, image_ids, noise, len(keys), apart)
                    if self.shuffle
                    else self.net(x)
                )
            keys += out.chunk(views)
        return keys

    def _shuffled(
        self, x: Tensor, image_ids: Tensor, noise: Tensor, first: int, apart: int
    ) -> Tensor:
        """The net's output (B,D) of images (B,C,H,W), view after view, that pass through it in a random order.

        Views that are kept `apart` have an order each, drawn by their place from `first` on.
        """
        views = torch.arange(len(x) // apart // len(image_ids), device=x.device)
        lots = [
            rng.fold(rng.fold(rng.fold(noise, first + n), views[:, None]), image_ids).flatten()
            for n in range(apart)
        ]
        orders = [torch.argsort(dist.gather(lot), stable=True) for lot in lots]
        mixed = [
            dist.mine(dist.gather(part)[order])
            for part, order in zip(x.chunk(apart), orders, strict=True)
        ]
        outs = self.net(torch.cat(mixed)).chunk(apart)
        back = [
            dist.mine(dist.gather(o)[torch.argsort(order)])
            for o, order in zip(outs, orders, strict=True)
        ]
        return torch.cat(back)

    def at(self, progress: float) -> None:
        """Set the momentum for a step at `progress`."""
        momentum = self.momentum(progress)
        self.pace[0].fill_(momentum)  # a copy from the host would make a GPU wait
        self.pace[1].fill_(1 - momentum)

    @torch.no_grad()
    def follow(self, online: nn.Module, restart: bool = False) -> None:
        """w <- m w + (1-m) w_online, or a plain copy."""
        mine: list[Tensor] = [p.detach() for p in self.net.parameters()]
        theirs: list[Tensor] = [p.detach() for p in online.parameters()]
        if restart:
            torch._foreach_copy_(mine, theirs)
            return
        torch._foreach_mul_(mine, self.pace[0])
        torch._foreach_add_(mine, list(torch._foreach_mul(theirs, self.pace[1])))


def _share(momentum: float) -> None:
    if not 0 <= momentum <= 1:
        raise ValueError(f"the momentum of the twin must lie in [0,1], got {momentum}")
