"""Rows of a large matrix, piece by piece, on the device that computes with them.

The matrix may lie in host memory or in a memory-mapped file. N rows, D numbers in a row.
"""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor


def cut(length: int, rows: int, first: int = 0) -> list[slice]:
    """Return slices of at most `rows` rows that cover the rows from `first` to `length`."""
    return [slice(start, min(start + rows, length)) for start in range(first, length, rows)]


def free_memory(device: torch.device) -> int:
    """Return the bytes of a CUDA device that this process can still use.

    They include what torch's allocator holds and does not use.
    """
    unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return int(torch.cuda.mem_get_info(device)[0]) + unused


def on_device(
    x: Tensor, slices: Sequence[slice], device: torch.device
) -> Iterator[tuple[slice, Tensor]]:
    """Yield each slice and the rows of x (N,D) in it, on a device.

    Rows that are on the device already are not copied. The transfer of a piece to a CUDA device
    overlaps with the work on the piece before it, as long as that work does not synchronise with
    the device. At most three pieces are on the device at a time.
    """
    if x.device == device or device.type != "cuda":
        for rows in slices:
            yield rows, x[rows].to(device)
        return
    yield from _uploaded(x, slices, device)


def _uploaded(
    x: Tensor, slices: Sequence[slice], device: torch.device
) -> Iterator[tuple[slice, Tensor]]:
    """Yield pieces of a matrix on the host, through two buffers in pinned memory."""
    most = max((rows.stop - rows.start for rows in slices), default=0)
    buffers = [torch.empty(most, *x.shape[1:], dtype=x.dtype, pin_memory=True) for _ in range(2)]
    used: list[torch.cuda.Event | None] = [None, None]
    transfers = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    compute = torch.cuda.current_stream(device)
    for number, rows in enumerate(slices):
        slot = number % 2
        event = used[slot]
        if event is not None:
            event.synchronize()
        host = buffers[slot][: rows.stop - rows.start]
        host.copy_(x[rows])
        with torch.cuda.stream(transfers):
            piece = host.to(device, non_blocking=True)
        compute.wait_stream(transfers)
        piece.record_stream(compute)
        yield rows, piece
        used[slot] = compute.record_event()
