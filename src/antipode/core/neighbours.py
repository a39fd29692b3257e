"""The nearest neighbours of vectors in a bank that may be larger than the device's memory.

N queries, B vectors in the bank, D numbers in a vector.
"""

import math

import torch
from torch import Tensor

from antipode.core.pieces import cut, free_memory, on_device
from antipode.core.scores import product, unit

# Numbers in one piece of the bank, and in one block of similarities. On a CPU this is 128 MiB in
# float32, small beside any bank that is worth cutting.
PIECE = 1 << 25
CUDA_PIECE = 1 << 28
FREE = 1 / 16  # of the free memory of a GPU: the largest share of one piece or block
GROUPED = 16  # with this many times k columns and more, groups of columns are compared first


def nearest(bank: Tensor, query: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return cosines (N,k) and indices (N,k) of the k nearest of a bank (B,D) to queries (N,D).

    The queries have unit length; the vectors of the bank have any length. The work is done on the
    device of the queries, and the bank may lie elsewhere: each of its pieces is copied once. The
    cosines have the precision of the queries, without TF32. The largest comes first. Of equal
    cosines at the k-th place, it is not defined which ones are returned. A NaN counts as the
    nearest, as topk treats NaN as the largest value.
    """
    near = query.new_full((len(query), k), -torch.inf)
    index = torch.zeros(near.shape, dtype=torch.int64, device=near.device)
    numbers = _numbers(query)
    slices = cut(len(bank), max(1, numbers // max(1, bank.shape[1])))
    for rows, piece in on_device(bank, slices, query.device):
        vectors = unit(piece.to(query.dtype))
        for some in cut(len(query), max(1, numbers // len(vectors))):
            found, place = largest(product(query[some], vectors), min(k, len(vectors)))
            near[some], order = torch.cat([near[some], found], 1).topk(k, 1)
            index[some] = torch.cat([index[some], place + rows.start], 1).gather(1, order)
    return near, index


def largest(scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return the k largest (N,k) of scores (N,B) and their columns (N,k), as topk does.

    The columns are put into groups of G. The k largest scores lie in the k groups with the largest
    maxima, so topk sees B/G + kG numbers in place of B, and most of the work is a maximum, which
    runs at the speed of the memory.
    """
    columns = scores.shape[1]
    if columns < GROUPED * k:
        top = scores.topk(k, 1)
        return top.values, top.indices
    size = 1 << round(math.log2(columns / k) / 2)  # G, near the least of B/G + kG
    groups = columns // size
    # Group g has the columns g, g + groups, g + 2 groups ...: the maximum then reads neighbouring
    # columns together.
    whole = torch.unflatten(scores[:, : groups * size], 1, (size, groups))
    chosen = whole.amax(1).topk(k, 1).indices  # (N,k)
    candidates = whole.gather(2, chosen[:, None].expand(-1, size, -1)).flatten(1)  # (N,Gk)
    offsets = groups * torch.arange(size, device=scores.device)
    places = (chosen[:, None] + offsets[:, None]).flatten(1)
    # the columns that fill no group
    rest = torch.arange(groups * size, columns, device=scores.device)
    candidates = torch.cat([candidates, scores[:, groups * size :]], 1)
    places = torch.cat([places, rest.expand(len(scores), -1)], 1)
    values, order = candidates.topk(k, 1)
    return values, places.gather(1, order)


def _numbers(query: Tensor) -> int:
    """Return the number of numbers in one piece of the bank or one block of similarities."""
    if query.device.type != "cuda":
        return PIECE
    most = int(FREE * free_memory(query.device)) // query.dtype.itemsize
    return min(CUDA_PIECE, max(PIECE, most))
