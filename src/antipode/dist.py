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
import time
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import cache
from itertools import count
from typing import Any

import torch
import torch.distributed as process
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

PARENT = os.getppid()  # the parent at the start of this process: torchrun, if it is used
# The timeout of collectives, after which a rank counts as hanging. It is long because rank 0 may
# spend minutes on a checkpoint.
PATIENCE = timedelta(minutes=10)
ALONE = 20.0  # seconds after which a rank that has failed counts as the only one
_failures = count()  # the errors of all ranks so far
BUCKET = 1 << 25  # gradients that are averaged in one transfer: 128 MB of float32
ALIGNED = 32  # numbers; 64 bytes of bfloat16


def active() -> bool:
    """Return True if this process belongs to a group of ranks.

    A group may consist of a single rank (benchmarks/ranks.py). It then uses all collectives.
    """
    return process.is_available() and process.is_initialized()


def world() -> int:
    """Return the number of ranks, which is 1 without torch.distributed."""
    return process.get_world_size() if active() else 1


def rank() -> int:
    """Return the index of this rank."""
    return process.get_rank() if active() else 0


def setup(device: str) -> None:
    """Join the process group if torchrun started this process, and leave it at exit.

    Does nothing without torchrun.
    """
    if world_size() > 1 and not process.is_initialized():
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


def alone() -> bool:
    """Leave a group of several ranks, so that rank 0 continues as a single process.

    Returns True on rank 0. The other ranks have nothing left to do.
    """
    if world_size() == 1:
        return True
    leave()
    if first():
        os.environ["WORLD_SIZE"] = "1"
        return True
    return False


def world_size() -> int:
    """Return the number of ranks that were started; works before the group is initialised."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def first() -> bool:
    """Return True if this process writes files (rank 0); works before the group is initialised."""
    return int(os.environ.get("RANK", "0")) == 0


def launch() -> str | None:
    """Return a name that all attempts of one torchrun or job of a cluster share.

    Returns None for a process that was started otherwise.
    """
    if named := os.environ.get("ANTIPODE_LAUNCH"):
        return named
    # "none" by default, so the process id of torchrun is appended
    run_id = os.environ.get("TORCHELASTIC_RUN_ID")
    return None if run_id is None else f"{run_id} {PARENT}"


def deserted() -> bool:
    """Return True if torchrun itself was killed.

    It can then no longer end its ranks, and another torchrun may start soon.
    """
    return "TORCHELASTIC_RUN_ID" in os.environ and os.getppid() != PARENT


def restarted() -> bool:
    """Return True if torchrun restarted failed ranks, or if a cluster requeued the job."""
    counts = ("TORCHELASTIC_RESTART_COUNT", "ANTIPODE_RESTARTS")
    return any(int(os.environ.get(name, "0")) > 0 for name in counts)


@contextmanager
def together(
    advice: str = "run the same command again to resume from the last checkpoint",
) -> Iterator[None]:
    """Run a block that calls collectives; raise ConnectionError if another rank has ended.

    The error ends with `advice`.
    """
    try:
        yield
    except RuntimeError as error:
        if world() == 1 or not _is_collective_error(error):
            raise
        # the first sentence, without the source file that gloo puts in front
        reason = re.sub(r"^\[\S*\] ", "", str(error)).splitlines()[0].split(". ")[0][:200]
        raise ConnectionError(
            f"rank {rank()} of {world()} stops because another rank has ended or does not respond "
            f"({reason}); {advice}"
        ) from error


def _is_collective_error(error: RuntimeError) -> bool:
    """Return True if a collective raised the error.

    Errors of NCCL have their own class. Errors of gloo can only be recognised by their text, which
    names gloo's source files.
    """
    return isinstance(error, process.DistError) or "gloo" in str(error)


def failed_together() -> bool:
    """Return True if all ranks have an error and call this function within some seconds.

    A rank that has failed alone must end, because its next collectives would meet other ones of the
    ranks that continue. These may be waiting in a collective, so the ranks communicate by the store
    of the group here.
    """
    if world() == 1:
        return True
    store = process.distributed_c10d._get_default_store()
    name = f"failed {next(_failures)}"
    failed = store.add(name, 1)
    until = time.monotonic() + ALONE
    while failed < world() and time.monotonic() < until:
        time.sleep(0.05)
        failed = store.add(name, 0)
    return failed == world()


def movable(x: Tensor) -> Tensor:
    """Return a tensor on a device whose values the ranks can exchange: NCCL needs a GPU."""
    return x.cuda() if active() and process.get_backend() == "nccl" else x


def any_rank(flag: bool, device: torch.device) -> bool:
    """Return True if the flag is True on any rank; all ranks must call this function."""
    if not active():
        return flag
    largest = torch.tensor(int(flag), device=device)
    process.all_reduce(largest, process.ReduceOp.MAX)
    return bool(largest)


def every_rank(flag: Tensor) -> Tensor:
    """Return whether a flag () bool is True on all ranks; does not synchronise with the device."""
    if not active():
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


def gather(x: Tensor, ranks: int = 0) -> Tensor:
    """Concatenate the rows (N,...) of all W ranks to (W*N,...), rank 0 first, with gradient.

    With `ranks`, only `ranks` consecutive ranks, a team, gather their rows (ranks*N,...). The ranks
    are divided into such teams. 0 means all ranks.

    The gradient of a row returns to its rank. All ranks must have tensors of the same shape. On a
    CPU this is checked first and raises ValueError. On a GPU the check would synchronise with the
    device, so there the backend reports unequal shapes in its own way.
    """
    if not active():
        return x
    if x.is_cpu and not torch.compiler.is_compiling():
        _check_equal(x)
    rows: Tensor = _gather(x, ranks or world())
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


def gather_objects(value: Any) -> list[Any]:
    """Return the values of all ranks, rank 0 first. They may be any objects that can be pickled."""
    if not active():
        return [value]
    values: list[Any] = [None] * world()
    process.all_gather_object(values, value)
    return values


def total(x: Tensor, ranks: int = 0) -> Tensor:
    """Return the sum over ranks, with gradient.

    With `ranks`, it is the sum over this rank's team, see `gather`. 0 means all ranks.
    """
    result: Tensor = _total(x, ranks or world()) if active() else x
    return result


def mean(x: Tensor) -> Tensor:
    """Return the mean over ranks, without gradient."""
    return total(x.detach()) / world() if active() else x


@torch.no_grad()
def average_running_stats(net: nn.Module) -> None:
    """Average the running statistics of batch-norm layers with several groups over the ranks.

    Each rank tracks the statistics of its own groups (nets/norm.py). Running statistics are sums
    over steps. Averaging them over the ranks after every step therefore gives the statistics of a
    single process.
    """
    if not active():
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


@torch.no_grad()
def average_gradients(weights: Iterable[Tensor]) -> None:
    """Replace the gradients of some weights by their mean over the ranks.

    They are copied into flat buckets, so that one transfer serves many weights, and become views of
    their bucket. Weights without a gradient must be the same on all ranks.
    """
    if not active():
        return
    buckets: list[list[Tensor]] = []
    size = BUCKET + 1
    for weight in weights:
        if weight.grad is not None:
            weight.grad = _dense(weight.grad)
            if size + weight.numel() > BUCKET or weight.grad.dtype != buckets[-1][0].dtype:
                buckets.append([])
                size = 0
            buckets[-1].append(weight)
            size += weight.numel()
    for bucket in buckets:
        _average_bucket(bucket)


def _average_bucket(weights: list[Tensor]) -> None:
    """Average the gradients of some weights, which have the same type, in one transfer."""
    grads = [weight.grad for weight in weights if weight.grad is not None]
    # every gradient begins at a multiple of ALIGNED, as the fast kernels of optimisers require
    sizes = [-(-grad.numel() // ALIGNED) * ALIGNED for grad in grads]
    flat = grads[0].new_empty(sum(sizes))
    parts = [
        torch.as_strided(part, grad.shape, grad.stride(), part.storage_offset())
        for part, grad in zip(torch.split(flat, sizes), grads, strict=True)
    ]
    torch._foreach_copy_(parts, grads)
    if process.get_backend() == "nccl":
        process.all_reduce(flat, process.ReduceOp.AVG)
    else:
        process.all_reduce(flat)
        flat.div_(world())
    for weight, part in zip(weights, parts, strict=True):
        weight.grad = part


def _dense(x: Tensor) -> Tensor:
    """Return a tensor whose values lie in memory without gaps, in one of two formats."""
    channels_last = x.ndim == 4 and x.is_contiguous(memory_format=torch.channels_last)
    return x if channels_last else x.contiguous()


@torch.no_grad()
def share_state(net: nn.Module) -> None:
    """Give all ranks the weights and buffers of rank 0."""
    if active():
        for value in (*net.parameters(), *net.buffers()):
            shared = value.contiguous()
            process.broadcast(shared, 0)
            value.copy_(shared)


# Collectives with a gradient are operators of their own. The compiler then keeps them as they are,
# and the same code runs in a compiled step, in a captured one, and on a CPU with gloo.


def _team(ranks: int) -> Any:
    """Return the process group of this rank's team of `ranks` consecutive ranks."""
    whole = process.group.WORLD
    return whole if ranks == world() else _part(whole, ranks)


@cache
def _part(whole: Any, ranks: int) -> Any:
    """Return the part of a process group to which this rank belongs.

    The first call for a size creates all parts, which all ranks must do at the same time.
    """
    return process.new_subgroups(ranks, timeout=PATIENCE)[0]


@torch.library.custom_op("antipode::gather", mutates_args=())
def _gather(x: Tensor, ranks: int) -> Tensor:
    rows = x.new_empty(ranks * x.shape[0], *x.shape[1:])
    process.all_gather_into_tensor(rows, x.contiguous(), group=_team(ranks))
    return rows


@_gather.register_fake
def _(x: Tensor, ranks: int) -> Tensor:
    return x.new_empty(ranks * x.shape[0], *x.shape[1:])


@torch.library.custom_op("antipode::total", mutates_args=())
def _total(x: Tensor, ranks: int) -> Tensor:
    result = x.clone(memory_format=torch.contiguous_format)
    process.all_reduce(result, group=_team(ranks))
    return result


@_total.register_fake
def _(x: Tensor, ranks: int) -> Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


def _keep_ranks(ctx: Any, inputs: tuple[Tensor, int], output: Tensor) -> None:
    ctx.ranks = inputs[1]


def _gather_backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
    whole = total(grad, ctx.ranks)
    return whole.chunk(ctx.ranks)[rank() % ctx.ranks].clone(), None


def _total_backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
    return total(grad, ctx.ranks), None


_gather.register_autograd(_gather_backward, setup_context=_keep_ranks)
_total.register_autograd(_total_backward, setup_context=_keep_ranks)
