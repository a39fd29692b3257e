"""The only file that talks to other processes.

Convention: each rank's loss is the mean over its own queries and gradients are averaged over ranks (as DDP does). Then
a collective whose backward SUMS what all ranks send back gives exactly the gradient of one process on the whole batch.
A gather without gradient loses the force a sample feels for being a negative elsewhere: a fifth of the whole gradient
on clustered embeddings, next to nothing on random ones, so random tests do not see it.
"""

from typing import Any

import torch
import torch.distributed as process
from torch import Tensor


def world() -> int:
    """The number of ranks; 1 without torch.distributed."""
    return process.get_world_size() if process.is_available() and process.is_initialized() else 1


def rank() -> int:
    """The number of this rank."""
    return process.get_rank() if world() > 1 else 0


def gather(x: Tensor) -> Tensor:
    """The rows of all ranks, (W*N,...) from (N,...) each, rank 0 first; gradients return to the rank they belong to."""
    rows: Tensor = x if world() == 1 else _gather(x)
    return rows


def total(x: Tensor) -> Tensor:
    """The sum over ranks, with gradient."""
    whole: Tensor = x if world() == 1 else _total(x)
    return whole


def mine(x: Tensor) -> Tensor:
    """This rank's rows (N,...) of what all ranks hold together (W*N,...)."""
    return x.chunk(world())[rank()]


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        rows = [torch.empty_like(x, memory_format=torch.contiguous_format) for _ in range(world())]
        process.all_gather(rows, x.contiguous())
        return torch.cat(rows)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        grad = grad.contiguous()
        process.all_reduce(grad)
        return mine(grad)


class _Total(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        x = x.clone(memory_format=torch.contiguous_format)
        process.all_reduce(x)
        return x

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        grad = grad.clone(memory_format=torch.contiguous_format)
        process.all_reduce(grad)
        return grad


# autograd's `apply` is untyped, and not in every version of torch
_gather: Any = _Gather.apply
_total: Any = _Total.apply
