"""Twins: the source of keys. The network itself, with or without gradient, or a slow copy."""

import copy
import math
from collections.abc import Callable
from functools import partial
from typing import Protocol

import torch
from torch import Tensor, nn

from antipode import dist, rng
from antipode.core.passes import SeparateStatistics, has_only_grouped_norm, passes, view_norms

Momentum = Callable[[float], float]  # progress in [0,1] -> weight of the old value


class Twin(Protocol):
    """What the learner needs of a twin."""

    own: bool  # keys are the outputs of the online network

    def __call__(
        self, images: list[Tensor], z: list[Tensor], image_ids: Tensor, noise: Tensor
    ) -> list[Tensor]:
        """Return keys (N,D) for each view.

        They come from its images, or from the online network's outputs `z`, which are empty if
        `own` is False.
        """

    def at(self, progress: float) -> None:
        """Set what changes over training, for a step at `progress` in [0,1]."""

    def follow(self, online: nn.Module, restart: bool = False) -> None:
        """Follow the online network after its step; `restart` copies its weights."""


def constant(momentum: float) -> Momentum:
    """Return MoCo's momentum, which is constant."""
    _share(momentum)
    return partial(_constant, momentum=momentum)


def cosine(momentum: float) -> Momentum:
    """Return BYOL's momentum, which rises to 1 along half a cosine: 1 - (1-m)(cos(pi t)+1)/2."""
    _share(momentum)
    return partial(_cosine, momentum=momentum)


def _constant(progress: float, momentum: float) -> float:
    return momentum


def _cosine(progress: float, momentum: float) -> float:
    return 1 - (1 - momentum) * (math.cos(math.pi * progress) + 1) / 2


class Shared(nn.Module):
    """Keys are the network's own outputs, with gradient (SimCLR) or, with stop=True, without
    (SimSiam).
    """

    own = True

    def __init__(self, *, stop: bool = False) -> None:
        super().__init__()
        self.stop = stop

    def forward(
        self, images: list[Tensor], z: list[Tensor], image_ids: Tensor, noise: Tensor
    ) -> list[Tensor]:
        """Return the online outputs (N,D) of each view."""
        return [x.detach() for x in z] if self.stop else z

    def at(self, progress: float) -> None:
        """Do nothing: nothing changes over training."""

    def follow(self, online: nn.Module, restart: bool = False) -> None:
        """Do nothing: the twin is the online network."""


class Ema(nn.Module):
    """An exponential moving average of the online network: MoCo's key encoder, BYOL's target.

    The whole encoder is copied, with its head, and updated after the optimiser's step; MoCo's own
    order (before the next step's keys) gives the same result. Weights are averaged and batch-norm
    buffers are not: the copy takes statistics of its own batches, as in the papers' code.

    `shuffle` is MoCo's shuffled batch norm. The batch passes through in an order that mixes the
    statistics groups over all ranks. The order is drawn by image id, so one device with g groups
    and g ranks compute the same. `joint` passes all views of one size through in one batch (JCL);
    otherwise each view passes alone.
    """

    own = False
    pace: Tensor

    def __init__(
        self, online: nn.Module, momentum: Momentum, *, shuffle: bool = False, joint: bool = False
    ) -> None:
        super().__init__()
        self.net = copy.deepcopy(online).requires_grad_(False)
        self.momentum = momentum
        self.shuffle = shuffle
        self.joint = joint
        self.finite_step: Tensor | None = None  # () bool; if False, `follow` changes nothing
        self.separable = has_only_grouped_norm(self.net)
        self.norms = view_norms(self.net)
        # both numbers are stored, since 1 - float32(0.999) is not float32(0.001);
        # as a buffer, since a captured CUDA graph reads them from the device
        self.register_buffer("pace", torch.tensor([momentum(0.0), 1 - momentum(0.0)]))

    @torch.no_grad()
    def forward(
        self, images: list[Tensor], z: list[Tensor], image_ids: Tensor, noise: Tensor
    ) -> list[Tensor]:
        """Return keys (N,D) of each view, without gradient."""
        keys: list[Tensor] = []
        for x, views, separate in passes(images, self.joint, self.separable):
            with SeparateStatistics(self.norms, separate):
                if self.shuffle:
                    out = self._shuffled(x, image_ids, noise, len(keys), separate)
                else:
                    out = self.net(x)
            keys += out.chunk(views)
        return keys

    def _shuffled(
        self, x: Tensor, image_ids: Tensor, noise: Tensor, first: int, apart: int
    ) -> Tensor:
        """Return the outputs (B,D) of images (B,C,H,W) that pass through the network in random
        order.

        The batch holds `apart` views that keep separate statistics. Each has an order of its own,
        drawn by its number, counted from `first`.
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
        """Set the momentum for a step at `progress` in [0,1]."""
        momentum = self.momentum(progress)
        self.pace[0].fill_(momentum)  # a copy from the host would synchronise with a GPU
        self.pace[1].fill_(1 - momentum)

    @torch.no_grad()
    def follow(self, online: nn.Module, restart: bool = False) -> None:
        """Set w <- m w + (1-m) w_online, or copy the weights if `restart`."""
        mine: list[Tensor] = [p.detach() for p in self.net.parameters()]
        theirs: list[Tensor] = [p.detach() for p in online.parameters()]
        if restart:
            torch._foreach_copy_(mine, theirs)
            return
        kept, taken = self.pace
        if self.finite_step is not None:
            kept = torch.where(self.finite_step, kept, 1.0)
            taken = torch.where(self.finite_step, taken, 0.0)
        torch._foreach_mul_(mine, kept)
        torch._foreach_add_(mine, list(torch._foreach_mul(theirs, taken)))


def _share(momentum: float) -> None:
    if not 0 <= momentum <= 1:
        raise ValueError(f"the momentum of the twin must lie in [0,1], got {momentum}")
