"""Batch norm as a number of statistics groups: one over all ranks, or several on one device.

SiMo, BYOL and SimSiam need statistics of the whole batch; MoCo, AdCo and JCL need them broken into the groups that
their eight GPUs gave, or queries and keys of an image can tell each other by their batch. `nn.SyncBatchNorm` refuses
CPU tensors and knows nothing of groups on one device, so the layer is ours. Parameter and buffer names are torch's.

Views with statistics of their own may still pass as one batch (core/passes.py): they are groups, too.
"""

from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from antipode import dist
from antipode.core.passes import views_apart

Net = TypeVar("Net", bound=nn.Module)


class BatchNorm(nn.Module):
    """Batch norm of (B,C) or (B,C,H,W) with `groups` sets of statistics over the batch of all ranks.

    groups=1 spans all ranks. More are consecutive parts of the global batch: g on one device, g/W on each of W ranks.
    A small batch has as many equal groups, up to `groups`, as leave two images in each. The running statistics are the
    mean over groups, and over those of all ranks once `dist.average_running_stats` was called, as a learner's `after_step` does. Half
    precision is normalised with float32 statistics, as torch does.
    """

    weight: nn.Parameter | None
    bias: nn.Parameter | None
    running_mean: Tensor
    running_var: Tensor
    num_batches_tracked: Tensor

    def __init__(
        self,
        channels: int,
        *,
        groups: int = 1,
        eps: float = 1e-5,
        momentum: float = 0.1,
        affine: bool = True,
    ) -> None:
        super().__init__()
        if groups < 1:
            raise ValueError(f"batch norm needs at least one statistics group, got {groups}")
        self.groups, self.eps, self.momentum = groups, eps, momentum
        self.register_parameter("weight", nn.Parameter(torch.ones(channels)) if affine else None)
        self.register_parameter("bias", nn.Parameter(torch.zeros(channels)) if affine else None)
        self.register_buffer("running_mean", torch.zeros(channels))
        self.register_buffer("running_var", torch.ones(channels))
        self.register_buffer("num_batches_tracked", torch.zeros((), dtype=torch.int64))

    def forward(self, x: Tensor) -> Tensor:
        """Normalised x, same shape."""
        mean, var, weight, bias = self.running_mean, self.running_var, self.weight, self.bias
        if not self.training:
            return F.batch_norm(x, mean, var, weight, bias, False, self.momentum, self.eps)
        views = views_apart()
        if x.numel() * dist.world() == x.shape[1] * views:
            raise ValueError(
                "batch norm needs at least two images in a batch to take statistics of, got one"
            )
        self.num_batches_tracked += views
        local = local_groups(self.groups, len(x) // views)
        if self.groups == 1 and dist.world() > 1:
            return self._over_ranks(x, views)
        if local * views == 1:
            return F.batch_norm(x, mean, var, weight, bias, True, self.momentum, self.eps)
        return self._grouped(x, local, views)

    def _grouped(self, x: Tensor, local: int, views: int) -> Tensor:
        weight = torch.ones_like(self.running_mean) if self.weight is None else self.weight
        bias = torch.zeros_like(self.running_mean) if self.bias is None else self.bias
        wide = _wide(
            x
        )  # outside of Grouped: torch 2.11 loses the gradient of one that ends in a cast to its own type
        with torch.no_grad():
            parts = _parts(wide, local * views)
            square, mean = torch.var_mean(parts, _axes(parts), correction=0, keepdim=True)
            self._track(mean, square, parts.numel() // square.numel(), views)
            scale = torch.rsqrt(square + self.eps)
        out: Tensor = Grouped.apply(wide, weight.to(wide.dtype), bias.to(wide.dtype), mean, scale)
        return out.to(x.dtype)

    def _over_ranks(self, x: Tensor, views: int) -> Tensor:
        parts = _parts(_wide(x), views)
        mean = dist.total(parts.mean(_axes(parts), keepdim=True)) / dist.world()
        square = dist.total(((parts - mean) ** 2).mean(_axes(parts), keepdim=True)) / dist.world()
        self._track(mean, square, x.numel() // (views * x.shape[1]) * dist.world(), views)
        out = ((parts - mean) * torch.rsqrt(square + self.eps)).flatten(0, 1)
        if self.weight is not None and self.bias is not None:
            out = out * _channels(self.weight, x) + _channels(self.bias, x)
        return out.to(x.dtype)

    @torch.no_grad()
    def _track(self, mean: Tensor, square: Tensor, count: int, views: int) -> None:
        """Move the running statistics, view after view, towards the mean over its groups of `count` numbers each."""
        for running, now in (
            (self.running_mean, mean),
            (self.running_var, square * (count / max(count - 1, 1))),
        ):
            for view in now.to(running.dtype).view(views, -1, len(running)):
                running.data.lerp_(
                    view.mean(0), self.momentum
                )  # F.batch_norm saves them, but does not use them

    def extra_repr(self) -> str:
        """Sizes for print(net)."""
        return f"{len(self.running_mean)}, groups={self.groups}"


class Grouped(torch.autograd.Function):
    """Batch norm of consecutive parts of a batch, each with statistics of its own.

    Written out because autograd's own backward reads the images twice as often: here one pass sums dy and dy x_hat for
    each group, and both the input's and the weights' gradients come from those sums. The statistics come in ready, and
    the gradient takes them for the functions of x that they are; a second derivative is refused.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, mean: Tensor, scale: Tensor
    ) -> Tensor:
        """Normalised x (B,C,...), given mean and 1/deviation (G,1,C,1...) of its groups."""
        ctx.save_for_backward(x, weight, mean, scale)
        flat = ((_parts(x, len(mean)) - mean) * scale).flatten(0, 1)
        return flat * _channels(weight, x) + _channels(bias, x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        """dx = w/s (dy - mean(dy) - x_hat mean(dy x_hat)), means over the group."""
        x, weight, mean, scale = ctx.saved_tensors
        parts, dy = _parts(x, len(mean)), _parts(dy, len(mean))
        hat, axes = (parts - mean) * scale, _axes(parts)
        plain, along = dy.sum(axes, keepdim=True), (dy * hat).sum(axes, keepdim=True)
        count = parts.numel() // plain.numel()
        dx = (scale * (dy - plain / count - hat * (along / count))).flatten(0, 1) * _channels(
            weight, x
        )
        return dx, along.sum(0).flatten(), plain.sum(0).flatten(), None, None


def _wide(x: Tensor) -> Tensor:
    """x with at least float32's precision."""
    return x if x.dtype == torch.float64 else x.float()


def _parts(x: Tensor, groups: int) -> Tensor:
    """(B,C,...) as (G,B/G,C,...), a view in every memory format."""
    return torch.unflatten(x, 0, (groups, len(x) // groups))


def _axes(parts: Tensor) -> list[int]:
    """All axes but group and channel."""
    return [1, *range(3, parts.ndim)]


def _channels(values: Tensor, x: Tensor) -> Tensor:
    """One number per channel (C), to be multiplied with x (B,C,...)."""
    return values.view(1, -1, *[1] * (x.ndim - 2))


def local_groups(groups: int, batch: int) -> int:
    """How many equal groups the `batch` images of this rank form, so that all ranks have at most `groups`."""
    world = dist.world()
    if groups == 1:
        return 1
    if groups % world:
        raise ValueError(
            f"{groups} batch-norm groups cannot be shared among {world} ranks: use 1 or a multiple"
        )
    most = groups // world
    fitting = next((g for g in range(most, 1, -1) if batch % g == 0 and batch >= 2 * g), 1)
    if fitting == 1 and most > 1 and batch >= 2 * most:
        raise ValueError(
            f"{batch} images cannot be split into 2 to {most} equal batch-norm groups: change the batch"
        )
    return fitting


def convert(net: Net, groups: int, _seen: dict[int, BatchNorm] | None = None) -> Net:
    """The net with every batch norm of its own replaced by ours, in place; the tensors are the same ones."""
    seen = {} if _seen is None else _seen
    for name, child in net.named_children():
        if type(child) in (nn.BatchNorm1d, nn.BatchNorm2d):
            if id(child) not in seen:
                seen[id(child)] = _ours(child, groups)  # type: ignore[arg-type]
            setattr(net, name, seen[id(child)])
        elif isinstance(child, BatchNorm):
            child.groups = groups
        elif isinstance(child, nn.modules.batchnorm._BatchNorm) and (
            groups > 1 or dist.world() > 1
        ):
            raise ValueError(
                f"a batch norm of type {type(child).__name__} cannot be given {groups} statistics groups"
            )
        else:
            convert(child, groups, seen)
    return net


def _ours(layer: nn.BatchNorm1d | nn.BatchNorm2d, groups: int) -> BatchNorm:
    if not layer.track_running_stats or layer.momentum is None:
        raise ValueError(
            "batch norm without running statistics or with cumulative ones cannot be converted"
        )
    ours = BatchNorm(layer.num_features, groups=groups, eps=layer.eps, momentum=layer.momentum)
    ours._parameters.update(layer._parameters)
    ours._buffers.update(layer._buffers)
    return ours.train(layer.training)
