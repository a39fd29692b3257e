"""Worker processes that read images, and the memory through which their crops reach the device.

Workers write crops into memory that they share with the main process (`Ring`). On a GPU this memory
is pinned, and a stream of its own copies the crops to one of two sets of buffers (`Staging`) while
the device computes the step before. No other copy is made.
"""

import math
import mmap
import multiprocessing
import warnings
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from importlib import import_module
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from antipode.data.sources.decode import fast_jpeg

AHEAD = 2  # chunks that each worker may prepare before they are needed


class Ring:
    """Memory for the crops of several chunks, one slot for each; slots are used in turn.

    Forked workers inherit the memory. It is not in /dev/shm, which is small in many containers.

    Args:
        shapes: the shape (n,C,S,S) of the uint8 crops of each view in a chunk.
        slots: number of chunks.
    """

    def __init__(self, shapes: Sequence[tuple[int, ...]], slots: int) -> None:
        self.slots = slots
        sizes = [slots * math.prod(shape) for shape in shapes]
        self.flat = torch.frombuffer(mmap.mmap(-1, sum(sizes)), dtype=torch.uint8)
        parts = zip(torch.split(self.flat, sizes), shapes, strict=True)
        self.views = [part.view(slots, *shape) for part, shape in parts]

    def slot(self, number: int, count: int) -> list[Tensor]:
        """Return the memory (count,C,S,S) of each view in a slot."""
        return [view[number, :count] for view in self.views]


@contextmanager
def pinned(memory: Tensor, device: torch.device) -> Iterator[None]:
    """Pin memory, so that a GPU copies from it while the host continues; do nothing on a CPU.

    It must be pinned after the workers were started, which inherit the memory but not the pins.
    """
    if device.type != "cuda":
        yield
        return
    runtime: Any = torch.cuda.cudart()  # type: ignore[no-untyped-call]
    size = memory.numel()
    code = int(runtime.cudaHostRegister(memory.data_ptr(), size, 0))
    if code:
        text = f"{size >> 20} MB of memory for the loader could not be pinned (CUDA error {code})"
        warnings.warn(f"{text}; copies to the GPU take longer", stacklevel=2)
        with suppress(RuntimeError):  # torch's next kernel would report this error
            torch.zeros(1, device=device)
    try:
        yield
    finally:
        if not code:
            runtime.cudaHostUnregister(memory.data_ptr())


class Staging:
    """Two sets of buffers on a GPU. While a step reads one, the next batch is copied to the other.

    For each batch call `wait`, then `copy`, and `release` after the work that reads it was queued.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self.buffers: list[list[Tensor]] = [[], []]
        self.copied = [torch.cuda.Event() for _ in range(2)]  # type: ignore[no-untyped-call]
        self.used = [torch.cuda.Event() for _ in range(2)]  # type: ignore[no-untyped-call]
        self.turn = 0

    def wait(self) -> None:
        """Wait until the last but one batch was copied, so that its host memory is free."""
        self.copied[self.turn].synchronize()

    def copy(self, columns: Sequence[Sequence[Tensor]]) -> list[Tensor]:
        """Return one tensor on the device for each column: its tensors, concatenated."""
        if not self.buffers[self.turn]:
            self.buffers[self.turn] = [
                torch.empty(sum(map(len, column)), *column[0].shape[1:], dtype=column[0].dtype).to(
                    self.device
                )
                for column in columns
            ]
        buffers = self.buffers[self.turn]
        self.stream.wait_event(self.used[self.turn])
        with torch.cuda.stream(self.stream):
            for buffer, column in zip(buffers, columns, strict=True):
                targets = torch.split(buffer, [len(part) for part in column])
                for target, part in zip(targets, column, strict=True):
                    pinned = part if part.is_pinned() else part.pin_memory()
                    target.copy_(pinned, non_blocking=True)
            self.copied[self.turn].record(self.stream)
        torch.cuda.current_stream(self.device).wait_event(self.copied[self.turn])
        return buffers

    def release(self) -> None:
        """Allow the buffers of this batch to be overwritten once the queued work has read them."""
        self.used[self.turn].record(torch.cuda.current_stream(self.device))
        self.turn = 1 - self.turn


def sent(values: Tensor, device: torch.device) -> Tensor:
    """Return values on a device, without waiting for the work that is queued there."""
    return values.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else values


def can_share(workers: int) -> bool:
    """Return True if workers inherit the memory of this process, which forked ones do."""
    # asking for the method without allow_none would fix it for the whole process
    chosen = multiprocessing.get_start_method(allow_none=True)
    return workers > 0 and (chosen or multiprocessing.get_all_start_methods()[0]) == "fork"


def read(
    dataset: Dataset[Any], plan: Any, workers: int, device: torch.device, ring: Ring | None = None
) -> Generator[Any, None, None]:
    """Yield `dataset[item]` for every item of `plan`, in order for any number of workers."""
    # Images are scaled with torchvision. It is slow to import, so it is imported once here and not
    # in every worker, and so is the decoder.
    import_module("torchvision.transforms.v2")
    fast_jpeg()
    on_gpu = device.type == "cuda"
    loader: DataLoader[Any] = DataLoader(
        dataset,
        sampler=plan,
        batch_size=None,
        num_workers=workers,
        prefetch_factor=AHEAD if workers else None,
        pin_memory=on_gpu and ring is None,
        collate_fn=_same,
        # The DataLoader draws a seed for its workers. From the global generator, that draw would
        # change the numbers that other code draws.
        generator=torch.Generator(),
    )
    iterator = iter(loader)
    try:
        with nullcontext() if ring is None else pinned(ring.flat, device):
            yield from iterator
    except ValueError as error:
        # the DataLoader puts the worker's traceback before its message: keep the message only
        _, separator, message = str(error).strip().rpartition("\nValueError: ")
        if not separator:
            raise
        raise ValueError(message) from error
    finally:
        # if this is left to the garbage collector after an error, it waits 5 s for each worker
        stop_workers = getattr(iterator, "_shutdown_workers", None)
        if stop_workers is not None:
            stop_workers()


def _same(item: Any) -> Any:
    return item
