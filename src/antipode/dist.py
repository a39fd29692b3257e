"""The only file that talks to other processes.

Convention: each rank's loss is the mean over its own queries and gradients are averaged over ranks (as DDP does). Then
a collective whose backward SUMS what all ranks send back gives exactly the gradient of one process on the whole batch.
A gather without gradient loses the force a sample feels for being a negative elsewhere: a fifth of the whole gradient
on clustered embeddings, next to nothing on random ones, so random tests do not see it.
"""

import atexit
import os
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as process
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

PARENT = os.getppid()  # as this process was started: torchrun, where there is one
PATIENCE = timedelta(
    minutes=10
)  # a rank that has not answered by then hangs; a checkpoint may take rank 0 long


def world() -> int:
    """The number of ranks; 1 without torch.distributed."""
    return process.get_world_size() if process.is_available() and process.is_initialized() else 1


def rank() -> int:
    """The number of this rank."""
    return process.get_rank() if world() > 1 else 0


def setup(device: str) -> None:
    """Join the other ranks where torchrun started this process, until it ends; nothing to do without it."""
    if int(os.environ.get("WORLD_SIZE", "1")) > 1 and not process.is_initialized():
        if device == "cuda":
            torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
        backend = "nccl" if device == "cuda" else "gloo"
        process.init_process_group(backend, **_meeting(), timeout=PATIENCE)
        atexit.register(
            leave
        )  # not earlier: one process may train and evaluate, and a group cannot be joined twice


def _meeting() -> dict[str, Any]:
    """Where the ranks of this attempt meet.

    torchrun keeps its store from one attempt to the next, with the addresses of the dead in it: whoever is quick takes
    them for those of the living. So each attempt has a corner of its own.
    """
    from torch.distributed.distributed_c10d import PrefixStore  # noqa: PLC0415  (not in every torch)
    from torch.distributed.rendezvous import rendezvous  # noqa: PLC0415

    store, me, count = next(rendezvous("env://", timeout=PATIENCE))
    corner = f"attempt {os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')} of {count}"
    return {"store": PrefixStore(corner, store), "rank": me, "world_size": count}


def leave() -> None:
    """Part from the other ranks."""
    if process.is_available() and process.is_initialized():
        process.destroy_process_group()


def first() -> bool:
    """Whether this process is the one that writes; known before the ranks have met."""
    return int(os.environ.get("RANK", "0")) == 0


def launch() -> str | None:
    """What names all attempts of one torchrun on this machine, None without torchrun."""
    ident = os.environ.get(
        "TORCHELASTIC_RUN_ID"
    )  # "none" unless told otherwise, so the agent's own number is added
    return None if ident is None else f"{ident} {PARENT}"


def deserted() -> bool:
    """Whether torchrun itself was killed: it cannot end its ranks any more, and another one may be on its way."""
    return launch() is not None and os.getppid() != PARENT


def restarted() -> bool:
    """Whether torchrun started the ranks anew after one of them had failed."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0


@contextmanager
def together() -> Iterator[None]:
    """What all ranks do together: where one of them is gone, the others end with a sentence."""
    try:
        yield
    except RuntimeError as error:
        if world() == 1 or not _lost(error):
            raise
        reason = (
            re.sub(r"^\[\S*\] ", "", str(error)).splitlines()[0].split(". ")[0][:200]
        )  # without gloo's own files
        raise ConnectionError(
            f"rank {rank()} of {world()} ends because another one has ended or does not answer ({reason}); "
            "the same command goes on from the last checkpoint"
        ) from error


def _lost(error: RuntimeError) -> bool:
    """Whether an error is that of a collective: NCCL's have a class of their own, gloo's only the name of its files."""
    return isinstance(error, process.DistError) or "gloo" in str(error)


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
        return DistributedDataParallel(
            net, device_ids=devices, broadcast_buffers=False, find_unused_parameters=unused
        )


def gather(x: Tensor) -> Tensor:
    """The rows of all ranks, (W*N,...) from (N,...) each, rank 0 first; gradients return to the rank they belong to.

    All ranks must hold equal shapes. On a CPU that is seen to first; on a GPU it would make the host wait for the
    device, so there unequal ranks end as the backend ends them.
    """
    if world() == 1:
        return x
    if x.is_cpu and not torch.compiler.is_compiling():
        _check_equal(x)
    rows: Tensor = _gather(x)
    return rows


def _check_equal(x: Tensor) -> None:
    """Refuse, on every rank, rows of which some rank holds more than another."""
    own = torch.tensor([len(x), x.numel() // max(len(x), 1)])
    each = [torch.empty_like(own) for _ in range(world())]
    process.all_gather(each, own)
    sizes = torch.stack(each).tolist()
    if any(size != sizes[0] for size in sizes):
        held = ", ".join(f"{rows} x {numbers}" for rows, numbers in sizes)
        raise ValueError(
            f"all ranks must hold equally many vectors of one size, but ranks 0 to {world() - 1} hold {held}"
        )


def total(x: Tensor) -> Tensor:
    """The sum over ranks, with gradient."""
    whole: Tensor = x if world() == 1 else _total(x)
    return whole


def mean(x: Tensor) -> Tensor:
    """The mean over ranks, without gradient."""
    return x if world() == 1 else total(x.detach()) / world()


@torch.no_grad()
def average_running_stats(net: nn.Module) -> None:
    """Give all ranks the mean of the running statistics that each has tracked of its own groups (nets/norm.py).

    They are a sum over steps, so the mean over ranks, taken after every step, is what one process has.
    """
    if world() == 1:
        return
    grouped = [
        part
        for part in net.modules()
        if "running_mean" in part._buffers and getattr(part, "groups", 1) > 1
    ]
    kept: list[Tensor] = [
        getattr(part, name) for part in grouped for name in ("running_mean", "running_var")
    ]
    if kept:
        flat = mean(torch.cat([buffer.flatten() for buffer in kept]))  # one transfer for all layers
        for buffer, values in zip(
            kept, torch.split(flat, [buffer.numel() for buffer in kept]), strict=True
        ):
            buffer.copy_(values)


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
        grad = grad.clone(
            memory_format=torch.contiguous_format
        )  # it may belong to another branch of the graph too
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
