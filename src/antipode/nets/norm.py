"""Batch norm with several groups of statistics on one device, or groups that span several ranks.

SiMo, BYOL and SimSiam need the statistics of the whole batch. MoCo, AdCo and JCL need one group of
statistics per GPU of their eight. With a single group, the network could recognise the key of a
query by the statistics of their common batch. `nn.SyncBatchNorm` does not accept CPU tensors and
does not support groups on one device, so this package has its own layer. Its parameters and buffers
have torch's names.

Views with separate statistics may still pass through a network as one batch (core/passes.py). Each
view is then one or more groups of its own. Shapes: B images in the batch, C channels, G groups.
"""

from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from antipode import dist

Net = TypeVar("Net", bound=nn.Module)


class BatchNorm(nn.Module):
    """Batch norm of (B,C) or (B,C,H,W) with a chosen number of groups of statistics.

    With one group, the statistics are those of all ranks. Several groups are consecutive parts of
    the global batch: all groups on a single device, groups/W of them on each of W ranks. With fewer
    groups than ranks, W/groups consecutive ranks form a group. With one group per node, each node
    has its own statistics. A small batch is split into fewer equal groups, so that each group has
    at least two images.

    The running statistics are the mean over groups. They differ between ranks until
    `dist.average_running_stats` is called, as a learner's `after_step` does. Inputs of half
    precision are normalised with float32 statistics, as in torch.

    Args:
        channels: C.
        groups: the number of statistics groups.
        eps: the value that is added to the variance.
        momentum: the weight of the new statistics in the running statistics.
        affine: whether the layer has a learnable scale and bias.
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
        self.groups = groups
        self.eps = eps
        self.momentum = momentum
        self.views_in_batch = 1  # core.passes.SeparateStatistics sets it during a pass
        self.register_parameter("weight", nn.Parameter(torch.ones(channels)) if affine else None)
        self.register_parameter("bias", nn.Parameter(torch.zeros(channels)) if affine else None)
        self.register_buffer("running_mean", torch.zeros(channels))
        self.register_buffer("running_var", torch.ones(channels))
        self.register_buffer("num_batches_tracked", torch.zeros((), dtype=torch.int64))

    def forward(self, x: Tensor) -> Tensor:
        """Return the normalised x, which has the shape of x."""
        mean, var = self.running_mean, self.running_var
        weight, bias = self.weight, self.bias
        if not self.training:
            return F.batch_norm(x, mean, var, weight, bias, False, self.momentum, self.eps)
        views = self.views_in_batch
        ranks = ranks_of_group(self.groups)
        if x.numel() * ranks == x.shape[1] * views:
            raise ValueError(
                "batch norm needs at least two images in a batch to compute statistics, got one"
            )
        self.num_batches_tracked += views
        local = local_groups(self.groups, len(x) // views)
        if ranks > 1 or (self.groups == 1 and dist.active()):
            return self._grouped(x, local, views, ranks)
        if local * views == 1:
            return F.batch_norm(x, mean, var, weight, bias, True, self.momentum, self.eps)
        return self._grouped(x, local, views)

    def _grouped(self, x: Tensor, local: int, views: int, ranks: int = 0) -> Tensor:
        """Return x, normalised with the statistics of `local` groups of each view on this rank.

        With `ranks`, a group has the images of `ranks` consecutive ranks. 0 means this rank alone,
        without communication.
        """
        weight = torch.ones_like(self.running_mean) if self.weight is None else self.weight
        bias = torch.zeros_like(self.running_mean) if self.bias is None else self.bias
        # The cast is outside of Grouped, because torch 2.11 loses the gradient of a Function that
        # ends in a cast to the type that its input has already.
        wide = _wide(x)
        with torch.no_grad():
            parts = _parts(wide, local * views)
            var, mean = torch.var_mean(parts, _axes(parts), correction=0, keepdim=True)
            count = parts.numel() // var.numel()
            if ranks:
                mean, var = _pooled(mean, var, ranks)
                count *= ranks
            self._track(mean, var, count, views)
            scale = torch.rsqrt(var + self.eps)
        out: Tensor = Grouped.apply(
            wide, weight.to(wide.dtype), bias.to(wide.dtype), mean, scale, ranks
        )
        return out.to(x.dtype)

    @torch.no_grad()
    def _track(self, mean: Tensor, var: Tensor, count: int, views: int) -> None:
        """Update the running statistics with the mean over the groups of a view, view after view.

        `count` is the number of values in a group, for the unbiased variance.
        """
        unbiased = var * (count / max(count - 1, 1))
        for running, batch in ((self.running_mean, mean), (self.running_var, unbiased)):
            for view in batch.to(running.dtype).view(views, -1, len(running)):
                # .data: F.batch_norm saves the running statistics for its backward, but does not
                # use them
                running.data.lerp_(view.mean(0), self.momentum)

    def extra_repr(self) -> str:
        """Return the sizes that `print(net)` shows."""
        return f"{len(self.running_mean)}, groups={self.groups}"


class Grouped(torch.autograd.Function):
    """Batch norm of consecutive parts of a batch, each with its own statistics.

    The backward pass is written out, because autograd's reads the images twice as often. Here one
    pass sums dy and dy * x_hat for each group, and the gradients of input and weights both follow
    from those sums. The statistics are arguments, but the gradient treats them as functions of x. A
    second derivative raises an error. With `ranks`, the statistics are those of `ranks` consecutive
    ranks. The sums for the gradient of x are then taken over these ranks in one transfer.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor,
        mean: Tensor,
        scale: Tensor,
        ranks: int,
    ) -> Tensor:
        """Return x (B,C,...), normalised with mean and 1/deviation (G,1,C,1...) of its groups."""
        ctx.ranks = ranks
        ctx.save_for_backward(x, weight, mean, scale)
        flat = ((_parts(x, len(mean)) - mean) * scale).flatten(0, 1)
        return flat * _channels(weight, x) + _channels(bias, x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of x, weight and bias.

        dx = w/s (dy - mean(dy) - x_hat mean(dy x_hat)), with means over the group.
        """
        x, weight, mean, scale = ctx.saved_tensors
        parts, dy = _parts(x, len(mean)), _parts(dy, len(mean))
        hat = (parts - mean) * scale
        axes = _axes(parts)
        plain, along = dy.sum(axes, keepdim=True), (dy * hat).sum(axes, keepdim=True)
        count = parts.numel() // plain.numel()
        weight_gradients = along.sum(0).flatten(), plain.sum(0).flatten()
        if ctx.ranks:
            plain, along = dist.total(torch.stack([plain, along]), ctx.ranks)
            count *= ctx.ranks
        dx = (scale * (dy - plain / count - hat * (along / count))).flatten(0, 1)
        return dx * _channels(weight, x), *weight_gradients, None, None, None


def _pooled(mean: Tensor, var: Tensor, ranks: int) -> tuple[Tensor, Tensor]:
    """Return mean and variance of the images of a group of ranks, from those of each rank."""
    means, variances = dist.gather(torch.stack([mean, var])[None], ranks).unbind(1)
    pooled = means.mean(0)
    return pooled, (variances + (means - pooled) ** 2).mean(0)


def _wide(x: Tensor) -> Tensor:
    """Return x in float64 if it has that type, else in float32."""
    return x if x.dtype == torch.float64 else x.float()


def _parts(x: Tensor, groups: int) -> Tensor:
    """Return x (B,C,...) as (G,B/G,C,...), which is a view in every memory format."""
    return torch.unflatten(x, 0, (groups, len(x) // groups))


def _axes(parts: Tensor) -> list[int]:
    """Return all axes of (G,B/G,C,...) except group and channel."""
    return [1, *range(3, parts.ndim)]


def _channels(values: Tensor, x: Tensor) -> Tensor:
    """Return one value per channel (C,) in a shape that broadcasts with x (B,C,...)."""
    return values.view(1, -1, *[1] * (x.ndim - 2))


def ranks_of_group(groups: int) -> int:
    """Return the number of ranks whose images form a group: 1 if a rank has one or more groups.

    Raises ValueError if neither the groups nor the ranks are a multiple of the other.
    """
    world = dist.world()
    if groups % world and world % groups:
        raise ValueError(
            f"{groups} batch-norm groups cannot be shared among {world} ranks: use a divisor or a "
            "multiple of the number of ranks"
        )
    return max(1, world // groups)


def local_groups(groups: int, batch: int) -> int:
    """Return the number of equal groups that the `batch` images of this rank are split into.

    All ranks together have at most `groups` groups.
    """
    most = groups // dist.world()
    if most <= 1:  # the images of this rank form a group, or belong to one
        return 1
    fitting = next((g for g in range(most, 1, -1) if batch % g == 0 and batch >= 2 * g), 1)
    if fitting == 1 and batch >= 2 * most:
        raise ValueError(
            f"{batch} images cannot be split into 2 to {most} equal batch-norm groups: change the "
            "batch size"
        )
    return fitting


def convert(net: Net, groups: int, _converted: dict[int, BatchNorm] | None = None) -> Net:
    """Replace every batch norm of torch's in a network by ours, in place, and return the network.

    The new layers hold the same parameter and buffer objects. A layer that the network uses at
    several places is converted once: `_converted` has the new layers by the id of the old ones.
    """
    converted = {} if _converted is None else _converted
    for name, child in net.named_children():
        if type(child) in (nn.BatchNorm1d, nn.BatchNorm2d):
            if id(child) not in converted:
                converted[id(child)] = _ours(child, groups)  # type: ignore[arg-type]
            setattr(net, name, converted[id(child)])
        elif isinstance(child, BatchNorm):
            child.groups = groups
        elif isinstance(child, nn.modules.batchnorm._BatchNorm) and (
            groups > 1 or dist.world() > 1
        ):
            raise ValueError(
                f"a batch norm of type {type(child).__name__} cannot be given {groups} statistics "
                "groups"
            )
        else:
            convert(child, groups, converted)
    return net


def _ours(layer: nn.BatchNorm1d | nn.BatchNorm2d, groups: int) -> BatchNorm:
    """Return a layer of torch's as one of ours, with the same parameter and buffer objects."""
    if not layer.track_running_stats or layer.momentum is None:
        raise ValueError(
            "a batch norm without running statistics, or with a cumulative average of them, cannot "
            "be converted"
        )
    ours = BatchNorm(layer.num_features, groups=groups, eps=layer.eps, momentum=layer.momentum)
    ours._parameters.update(layer._parameters)
    ours._buffers.update(layer._buffers)
    return ours.train(layer.training)
