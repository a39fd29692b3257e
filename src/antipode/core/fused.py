"""The streamed log-sum-exp on a CUDA device: tiles that stay in registers and shared memory.

The numbers are those of core/streamed.py. The score matrix never reaches the device's memory, and
products run on tensor cores, in three passes of float16 parts (core/kernels.py). Rows are scaled by
powers of two, so vectors may have any length. The two parts of a number hold 22 bits and a sign, in
place of 24, and 2^-50 of the largest number of the row is the smallest difference.

Results do not depend on the order in which blocks run, so they are the same each time. The block
sizes are a table: nothing is measured at run time, which would fail inside a CUDA graph.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor

from antipode.core import kernels

# How products are computed: "half3", "tf32x3" or "ieee" (core/kernels.py).
PASSES = "half3"
# Rows are padded to a multiple of this, so that no tile reads behind its matrix.
PADDED = 128
LARGEST_DIM = 256
LARGEST_COUNT = (1 << 31) - PADDED  # rows have 32-bit numbers, and their offsets 64 bits


class Blocks(NamedTuple):
    """The sizes of a tile, and how many threads and buffers work on it."""

    rows: int
    columns: int
    warps: int
    stages: int


# By the padded dimension. Those of Hopper were measured on an H200 (benchmarks/streamed.py). The
# others need less than the 99 KiB of shared memory that every device since Ampere has.
BLOCKS = {
    16: Blocks(128, 64, 8, 3),
    32: Blocks(128, 64, 8, 3),
    64: Blocks(128, 64, 8, 3),
    128: Blocks(128, 64, 8, 3),
    256: Blocks(64, 64, 8, 2),
}


SMALL_BLOCKS = {
    16: Blocks(64, 32, 4, 2),
    32: Blocks(64, 32, 4, 2),
    64: Blocks(64, 32, 4, 2),
    128: Blocks(64, 32, 4, 2),
    256: Blocks(64, 16, 8, 2),
}


class Matrix(NamedTuple):
    """Rows as two float16 parts, scaled and padded with zeros; or, for other passes, as float32."""

    high: Tensor  # (rows, width)
    low: Tensor  # (rows, width), or `high` itself if there is one part
    length: Tensor  # (R,): powers of two; a row times its length is the row that was given


def usable(query: Tensor, vectors: Tensor, rule: Sequence[Tensor]) -> bool:
    """Return True if the kernels can compute this problem."""
    return (
        query.is_cuda
        and query.dtype == vectors.dtype == torch.float32
        and len(rule) <= 2
        and 0 < min(len(query), len(vectors))
        and max(len(query), len(vectors)) < LARGEST_COUNT
        and 0 < query.shape[1] <= LARGEST_DIM
        and torch.cuda.get_device_capability(query.device) >= (8, 0)
    )


def _length(x: Tensor) -> Tensor:
    """Return powers of two (R,) that bring the largest entry of a row, divided by it, to 2^13.

    More exactly, to a number in [2^13, 2^14). The power is read off the exponent, in bits. A row
    with entries below 2^-113 only gets the smallest power, 2^-126.
    """
    largest = torch.linalg.vector_norm(x, torch.inf, 1)
    exponent = (largest.view(torch.int32) >> 23).clamp(14, 254)  # 127 for numbers in [1, 2)
    bits: Tensor = (exponent - 13) << 23
    return bits.view(torch.float32)


def _matrix(x: Tensor) -> Matrix:
    """Return rows (R,D) in the form that the kernels read."""
    count, dim = x.shape
    rows = triton.cdiv(count, PADDED) * PADDED
    width = max(16, triton.next_power_of_2(dim))
    half = PASSES == "half3"
    length = _length(x) if half else x.new_ones(count)
    high = x.new_empty(rows, width, dtype=torch.float16 if half else x.dtype)
    low = torch.empty_like(high) if half else high
    some = min(PADDED, 4096 // width)
    kernels.split[(rows // some,)](
        *(x, length.reciprocal(), high, low, count, dim, *x.stride()),
        **{"ROWS": some, "WIDTH": width, "PASSES": PASSES},
    )
    return Matrix(high, low, length)


def _parts(blocks: int, tiles: int, device: torch.device) -> tuple[int, int]:
    """Return into how many parts the tiles of each block are divided, and the tiles of a part.

    With few blocks, several multiprocessors share the tiles of one.
    """
    processors = _processors(device)
    parts = min(max(1, processors // blocks), tiles)
    each = triton.cdiv(tiles, parts)
    return triton.cdiv(tiles, each), each


def _blocks(width: int, device: torch.device) -> Blocks:
    hopper = device.type != "cuda" or torch.cuda.get_device_capability(device)[0] == 9
    return (BLOCKS if hopper else SMALL_BLOCKS)[width]


def _processors(device: torch.device) -> int:
    if device.type != "cuda":
        return 4  # the interpreter, in tests
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


def _options(blocks: Blocks, width: int) -> dict[str, Any]:
    return {
        **{"ROWS": blocks.rows, "COLUMNS": blocks.columns, "WIDTH": width, "PASSES": PASSES},
        **{"num_warps": blocks.warps, "num_stages": blocks.stages},
    }


def _ids(rule: Sequence[Tensor], like: Tensor) -> list[Tensor]:
    """Return the ids of queries and vectors, or two tensors that are never read."""
    return [x.contiguous() for x in rule[:2]] if rule else [like, like]


def _factors(left: Matrix, right: Matrix) -> tuple[Tensor, Tensor, Tensor]:
    """Return the factors (N,) of queries, the lengths (K,) of vectors, and the longest length ().

    The lengths are relative to the longest, so that they neither over- nor underflow with factors.
    """
    longest = right.length.amax()
    return kernels.LOG_2_E.value * longest * left.length, right.length / longest, longest


def forward(
    query: Tensor, vectors: Tensor, rule: Sequence[Tensor], pulled: bool, summed: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Return repel (N,), its gradient (N,D) or (0,D), and the sum of the scores (N,) or (0,)."""
    n, k, dim = len(query), len(vectors), query.shape[1]
    left, right = _matrix(query), _matrix(vectors)
    factors, lengths, longest = _factors(left, right)
    width = left.high.shape[1]
    size = _blocks(width, query.device)
    blocks, tiles = triton.cdiv(n, size.rows), triton.cdiv(k, size.columns)
    parts, each = _parts(blocks, tiles, query.device)
    tops = query.new_empty(parts, n)
    weights = query.new_empty(parts, n)
    totals = query.new_empty(parts, n if summed else 0)
    peaks = query.new_empty(parts, n if pulled else 0)
    pulls = query.new_empty(parts, n if pulled else 0, width)
    flags = {"PULLED": pulled, "SUMMED": summed}
    kernels.forward[(blocks, parts)](
        *(left.high, left.low, right.high, right.low, factors, lengths, *_ids(rule, factors)),
        *(tops, weights, totals, peaks, pulls, n, k, tiles, each),
        **flags,
        **{"MASKED": bool(rule), "RAGGED": k % size.columns != 0},
        **_options(size, width),
    )
    repel = query.new_empty(n)
    total = query.new_empty(n if summed else 0)
    pull = query.new_empty(n if pulled else 0, dim)
    some = max(1, 2048 // width)
    kernels.combine[(triton.cdiv(n, some),)](
        *(tops, weights, totals, peaks, pulls, longest, repel, total, pull, n, dim, parts),
        **flags,
        **{"ROWS": some, "WIDTH": width},
    )
    return repel, pull, total


def backward(
    query: Tensor, vectors: Tensor, rule: Sequence[Tensor], grad: Tensor, repel: Tensor
) -> Tensor:
    """Return the gradient of the vectors (K,D), for the gradient (N,) of repel."""
    n, k, dim = len(query), len(vectors), query.shape[1]
    left, right = _matrix(query), _matrix(vectors)
    factors, lengths, _ = _factors(left, right)
    width = left.high.shape[1]
    size = _blocks(width, query.device)
    blocks, tiles = triton.cdiv(k, size.rows), triton.cdiv(n, size.columns)
    parts, each = _parts(blocks, tiles, query.device)
    gains, exponents = torch.frexp(grad * left.length)
    largest = exponents.amax().to(query.dtype)
    exponents = (exponents - largest).masked_fill(gains == 0, -400)  # less than any other
    found = query.new_empty(parts, k, dim)
    kernels.backward[(blocks, parts)](
        *(right.high, right.low, left.high, left.low, factors, lengths, repel),
        *(gains, exponents, largest, *_ids(rule, factors), found, n, k, dim, tiles, each),
        **{"MASKED": bool(rule)},
        **_options(size, width),
    )
    return found[0] if parts == 1 else found.sum(0)
