"""Communication between ranks; no other file calls collectives of torch.distributed.

Convention: the loss of a rank is the mean over its own queries, and gradients are averaged over the
ranks, as in DDP. A collective whose backward pass sums the gradients of all ranks then gives
exactly the gradient of a single process on the whole batch.

A gather without gradient drops the gradient that a sample receives as a negative on other ranks.
This is a fifth of the total gradient for clustered embeddings, but almost nothing for random ones.
Tests on random embeddings do not detect this error.
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

PARENT = os.getppid()  # the parent at the start of this process: torchrun, if it is used
# The timeout of collectives, after which a rank counts as hanging. It is long because rank 0 may
# spend minutes on a checkpoint.
PATIENCE = timedelta(minutes=10)


def world() -> int:
    """Return the number of ranks, which is 1 without torch.distributed."""
    return process.get_world_size() if process.is_available() and process.is_initialized() else 1


def rank() -> int:
    """Return the index of this rank."""
    return process.get_rank() if world() > 1 else 0


def setup(device: str) -> None:
    """Join the process group if torchrun started this process, and leave it at exit.

    Does nothing without torchrun.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) > 1 and not process.is_initialized():
        if device == "cuda":
            torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
        backend = "nccl" if device == "cuda" else "gloo"
        process.init_process_group(backend, **_store_arguments(), timeout=PATIENCE)
        # Leave only at exit: a process may train and then evaluate, and cannot join a group twice.
        atexit.register(leave)


def _store_arguments() -> dict[str, Any]:
    """Return the store, rank and world size of this attempt for `init_process_group`.

    torchrun keeps its store when it restarts the ranks. The store then still holds the addresses of
    the ranks that have ended, and a fast rank would connect to them. Each attempt therefore uses a
    prefix of its own in the store.
    """
    # imported here, because not every build of torch has them
    from torch.distributed.distributed_c10d import PrefixStore  # noqa: PLC0415
    from torch.distributed.rendezvous import rendezvous  # noqa: PLC0415

    store, index, count = next(rendezvous("env://", timeout=PATIENCE))
    prefix = f"attempt {os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')} of {count}"
    return {"store": PrefixStore(prefix, store), "rank": index, "world_size": count}


def leave() -> None:
    """Leave the process group."""
    if process.is_available() and process.is_initialized():
        process.destroy_process_group()


def first() -> bool:
    """Return True if this process writes files (rank 0); works before the group is initialised."""
    return int(os.environ.get("RANK", "0")) == 0


def launch() -> str | None:
    """Return a name that all attempts of one torchrun on this machine share.

    Returns None without torchrun.
    """
    # "none" by default, so the process id of torchrun is appended
    run_id = os.environ.get("TORCHELASTIC_RUN_ID")
    return None if run_id is None else f"{run_id} {PARENT}"


def deserted() -> bool:
    """Return True if torchrun itself was killed.

    It can then no longer end its ranks, and another torchrun may start soon.
    """
    return launch() is not None and os.getppid() != PARENT


def restarted() -> bool:
    """Return True if torchrun restarted the ranks after one of them failed."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0


@contextmanager
def together() -> Iterator[None]:
    """Run a block that calls collectives; raise ConnectionError if another rank has ended."""
    try:
        yield
    except RuntimeError as error:
        if world() == 1 or not _is_collective_error(error):
            raise
        # the first sentence, without the source file that gloo puts in front
        reason = re.sub(r"^\[\S*\] ", "", str(error)).splitlines()[0].split(". ")[0][:200]
        raise ConnectionError(
            f"rank {rank()} of {world()} stops because another rank has ended or does not respond "
            f"({reason}); run the same command again to resume from the last checkpoint"
        ) from error


def _is_collective_error(error: RuntimeError) -> bool:
    """Return True if a collective raised the error.

    Errors of NCCL have their own class. Errors of gloo can only be recognised by their text, which
    names gloo's source files.
    """
    return isinstance(error, process.DistError) or "gloo" in str(error)


def any_rank(flag: bool, device: torch.device) -> bool:
    """Return True if the flag is True on any rank; all ranks must call this function."""
    if world() == 1:
        return flag
    largest = torch.tensor(int(flag), device=device)
    process.all_reduce(largest, process.ReduceOp.MAX)
    return bool(largest)


def every_rank(flag: Tensor) -> Tensor:
    """Return whether a flag () bool is True on all ranks; does not synchronise with the device."""
    if world() == 1:
        return flag
    smallest = flag.to(torch.int32)
    process.all_reduce(smallest, process.ReduceOp.MIN)
    return smallest > 0


def parallel(net: nn.Module, unused: bool) -> nn.Module:
    """Wrap the network in DDP, which averages gradients over the ranks.

    With one rank, the network itself is returned. Buffers are not broadcast, because queue, bank
    and noise are equal on all ranks by construction. Set `unused` if some weights get no gradient
    in some steps (AdCo's bank while it is being filled).
    """
    if world() == 1:
        return net
    device = next(net.parameters()).device
    devices = [device.index] if device.type == "cuda" else None
    with warnings.catch_warnings():
        # newer versions of torch rename broadcast_buffers
        warnings.simplefilter("ignore", FutureWarning)
        return DistributedDataParallel(
            net, device_ids=devices, broadcast_buffers=False, find_unused_parameters=unused
        )


def gather(x: Tensor) -> Tensor:
    """Concatenate the rows (N,...) of all W ranks to (W*N,...), rank 0 first, with gradient.

    The gradient of a row returns to its rank. All ranks must have tensors of the same shape. On a
    CPU this is checked first and raises ValueError. On a GPU the check would synchronise with the
    device, so there the backend reports unequal shapes in its own way.
    """
    if world() == 1:
        return x
    if x.is_cpu and not torch.compiler.is_compiling():
        _check_equal(x)
    rows: Tensor = _gather(x)
    return rows


def _check_equal(x: Tensor) -> None:
    """Raise ValueError on every rank if the ranks have tensors of different sizes."""
    local_size = torch.tensor([len(x), x.numel() // max(len(x), 1)])
    all_sizes = [torch.empty_like(local_size) for _ in range(world())]
    process.all_gather(all_sizes, local_size)
    sizes = torch.stack(all_sizes).tolist()
    if any(size != sizes[0] for size in sizes):
        listed = ", ".join(f"{rows} x {numbers}" for rows, numbers in sizes)
        raise ValueError(
            "all ranks must have the same number of vectors of the same size, "
            f"but ranks 0 to {world() - 1} have {listed}"
        )


def total(x: Tensor) -> Tensor:
    """Return the sum over ranks, with gradient."""
    result: Tensor = x if world() == 1 else _total(x)
    return result


def mean(x: Tensor) -> Tensor:
    """Return the mean over ranks, without gradient."""
    return x if world() == 1 else total(x.detach()) / world()


@torch.no_grad()
def average_running_stats(net: nn.Module) -> None:
    """Average the running statistics of batch-norm layers with several groups over the ranks.

    Each rank tracks the statistics of its own groups (nets/norm.py). Running statistics are sums
    over steps. Averaging them over the ranks after every step therefore gives the statistics of a
    single process.
    """
    if world() == 1:
        return
    grouped = [
        part
        for part in net.modules()
        if "running_mean" in part._buffers and getattr(part, "groups", 1) > 1
    ]
    buffers: list[Tensor] = [
        getattr(part, name) for part in grouped for name in ("running_mean", "running_var")
    ]
    if buffers:
        # one transfer for all layers
        averaged = mean(torch.cat([buffer.flatten() for buffer in buffers]))
        parts = torch.split(averaged, [buffer.numel() for buffer in buffers])
        for buffer, values in zip(buffers, parts, strict=True):
            buffer.copy_(values)


def mine(x: Tensor) -> Tensor:
    """Return the rows (N,...) of this rank from the concatenated rows (W*N,...) of all ranks."""
    return x.chunk(world())[rank()]


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        rows = [torch.empty_like(x, memory_format=torch.contiguous_format) for _ in range(world())]
        process.all_gather(rows, x.contiguous())
        return torch.cat(rows)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        # a copy, because another branch of the graph may use the same gradient tensor
        grad = grad.clone(memory_format=torch.contiguous_format)
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


# Some versions of torch do not annotate `Function.apply`, so its type is declared as Any.
_gather: Any = _Gather.apply
_total: Any = _Total.apply
