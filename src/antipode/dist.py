"""The only file that talks to other processes.

Convention: each rank's loss is the mean over its own queries and gradients are averaged over ranks (as DDP does). Then
a collective whose backward SUMS what all ranks send back gives exactly the gradient of one process on the whole batch.
A gather without gradient loses the force a sample feels for being a negative elsewhere: a fifth of the whole gradient
on clustered embeddings, next to nothing on random ones, so random tests do not see it.
"""

import os
import warnings
from typing import Any

import torch
import torch.distributed as process
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel


def world() -> int:
    """The number of ranks; 1 without torch.distributed."""
    return process.get_world_size() if process.is_available() and process.is_initialized() else 1


def rank() -> int:
    """The number of this rank."""
    return process.get_rank() if world() > 1 else 0


def setup(device: str) -> None:
    """Join the other ranks where torchrun started this process; nothing to do without it."""
    if int(os.environ.get("WORLD_SIZE", "1")) > 1 and not process.is_initialized():
        if device == "cuda":
            torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
        process.init_process_group("nccl" if device == "cuda" else "gloo")


def leave() -> None:
    """Part from the other ranks."""
    if process.is_available() and process.is_initialized():
        process.destroy_process_group()


def any_rank(flag: bool, device: torch.device) -> bool:
    """Whether the flag is up on any rank; all ranks must ask."""
    if world() == 1:
        return flag
    raised = torch.tensor(int(flag), device=device)
    process.all_reduce(raised, process.ReduceOp.MAX)
    return bool(raised)


def parallel(net: nn.Module, unused: bool) -> nn.Module:
    """The net under DDP, which averages gradients over the ranks; the net itself with one rank.

    Buffers are not broadcast: queue, bank and noise agree on all ranks by construction. `unused`: some weights get no
    gradient in some steps (AdCo's bank while it fills).
    """
    if world() == 1:
        return net
    device = next(net.parameters()).device
    devices = [device.index] if device.type == "cuda" else None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # a newer torch renames broadcast_buffers
        return DistributedDataParallel(net, device_ids=devices, broadcast_buffers=False, find_unused_parameters=unused)


def gather(x: Tensor) -> Tensor:
    """The rows of all ranks, (W*N,...) from (N,...) each, rank 0 first; gradients return to the rank they belong to."""
    rows: Tensor = x if world() == 1 else _gather(x)
    return rows


def total(x: Tensor) -> Tensor:
    """The sum over ranks, with gradient."""
    whole: Tensor = x if world() == 1 else _total(x)
    return whole


def mean(x: Tensor) -> Tensor:
    """The mean over ranks, without gradient."""
    return x if world() == 1 else total(x.detach()) / world()


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
