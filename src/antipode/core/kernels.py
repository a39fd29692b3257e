"""Triton kernels of the streamed log-sum-exp (core/fused.py launches them).

Every product is one of float32 numbers. `PASSES` says how it is computed:

- "half3": both factors are sums of two float16 numbers, high + low / 2048, after they are scaled
  by a power of two. Three products of tensor cores are added in float32; the fourth, low times low,
  is less than the rounding of float32.
- "tf32x3": the same with three products of TF32 numbers, which Triton makes from float32.
- "ieee": products and sums of float32 numbers, without tensor cores.

The gradients of a batch of 32,768 differ from float64 by 2.3e-7, 2.3e-7 and 5.7e-7 of the largest
entry, in this order; those of torch's IEEE products by 2.3e-7 (an H200, benchmarks/streamed.py).

Tensor cores truncate their sums, so a long sum would drift. Sums over a tile are therefore added
to the total by ordinary float32 additions, which round to nearest.

Each row of a matrix has a scale of its own. Sums of rows with weights are relative to the largest
weight so far, which includes the scale. So the digits of a result depend on the terms that matter
in it, and not on the largest number of the problem. Scores are in bits: they are multiplied by
log2(e), and exponentials are powers of two.

Letters: N queries, K vectors, WIDTH columns (D, and zeros up to a power of two), and tiles of ROWS
and COLUMNS. A column of a tile is a row of the matrix that the loop reads.
"""

import triton
import triton.language as tl

# Weights have at most 15 bits before the point, the most that float16 has room for.
LIFT = tl.constexpr(15.0)
LOG_2_E = tl.constexpr(1.4426950408889634)
LOG_E_2 = tl.constexpr(0.6931471805599453)
# Triton would compile a kernel again for numbers that 16 divides, and for 1.
COUNTS = ["n", "k", "dim", "tiles", "tiles_per_part", "parts", "count"]


@triton.jit
def _parts(x, PASSES: tl.constexpr):
    """Return numbers of at most 2^15 as high and low part."""
    if PASSES == "half3":
        high = x.to(tl.float16)
        low = ((x - high.to(tl.float32)) * 2048.0).to(tl.float16)
    else:
        high = x
        low = x
    return high, low


@triton.jit
def _product(high, low, other_high, other_low, PASSES: tl.constexpr):
    """Return the product of two tiles, each given by its parts, in float32."""
    if PASSES == "half3":
        small = tl.dot(high, other_low)
        small = tl.dot(low, other_high, small)
        total = tl.dot(high, other_high, small * (1.0 / 2048.0))
    else:
        total = tl.dot(high, other_high, input_precision=PASSES)
    return total


@triton.jit
def _tile(high, low, start, ROWS: tl.constexpr, WIDTH: tl.constexpr, PASSES: tl.constexpr):
    """Return the parts of ROWS rows of a matrix, from row `start` on."""
    row = (start + tl.arange(0, ROWS)).to(tl.int64)
    place = row[:, None] * WIDTH + tl.arange(0, WIDTH)[None, :]
    a = tl.load(high + place)
    b = a
    if PASSES == "half3":
        b = tl.load(low + place)
    return a, b


@triton.jit(do_not_specialize=["count", "dim"])
def split(
    x,
    scales,
    high,
    low,
    count,
    dim,
    row_stride,
    column_stride,
    ROWS: tl.constexpr,
    WIDTH: tl.constexpr,
    PASSES: tl.constexpr,
):
    """Write the parts of scaled rows (count,dim), and zeros where the result is larger."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, WIDTH)
    there = (row < count)[:, None] & (column < dim)[None, :]
    place = row[:, None] * row_stride + column[None, :].to(tl.int64) * column_stride
    values = tl.load(x + place, mask=there, other=0.0)
    scale = tl.load(scales + row, mask=row < count, other=0.0)
    a, b = _parts(values * scale[:, None], PASSES)
    place = row[:, None] * WIDTH + column[None, :]
    tl.store(high + place, a)
    if PASSES == "half3":
        tl.store(low + place, b)


@triton.jit
def _counted(
    score,
    own,
    owners,
    column,
    k,
    MASKED: tl.constexpr,
    SUMMED: tl.constexpr,
    RAGGED: tl.constexpr,
):
    """Return scores with -inf for those that do not count, and the sum of the others (or 0)."""
    total = tl.zeros([score.shape[0]], tl.float32)
    if MASKED:
        owner = tl.load(owners + column, mask=column < k, other=0)
        counts = own[:, None] != owner[None, :]
        if RAGGED:
            counts = counts & (column < k)[None, :]
        if SUMMED:
            total = tl.sum(tl.where(counts, score, 0.0), 1)
        score = tl.where(counts, score, float("-inf"))
    else:
        if SUMMED:  # the rows behind the last vector are zero, and so are their scores
            total = tl.sum(score, 1)
        if RAGGED:
            score = tl.where((column < k)[None, :], score, float("-inf"))
    return score, total


@triton.jit
def _finite(x):
    """Return numbers with 0 in place of -inf, because -inf - -inf is not a number."""
    return tl.where(x == float("-inf"), 0.0, x)


@triton.jit(do_not_specialize=COUNTS)
def forward(
    query_high,
    query_low,
    vector_high,
    vector_low,
    factors,
    lengths,
    image_ids,
    owners,
    tops,
    weights,
    totals,
    peaks,
    pulls,
    n,
    k,
    tiles,
    tiles_per_part,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    WIDTH: tl.constexpr,
    PASSES: tl.constexpr,
    MASKED: tl.constexpr,
    PULLED: tl.constexpr,
    SUMMED: tl.constexpr,
    RAGGED: tl.constexpr,
):
    """Write, for a block of queries and a part of the vectors, what the part sums up to.

    A score is the product of the scaled rows, times the factor (N,) of the query and the length
    (K,) of the vector, a power of two of at most 1. The results are the largest score, the sum of
    2^(score - largest), the sum of the scores, the largest 2^score times length (its logarithm,
    `peaks`), and the sum of the scaled vectors with the weights 2^(score - peak + LIFT) length.
    """
    start = tl.program_id(0) * ROWS
    part = tl.program_id(1)
    row = start + tl.arange(0, ROWS)
    real = row < n
    q_high, q_low = _tile(query_high, query_low, start, ROWS, WIDTH, PASSES)
    factor = tl.load(factors + row, mask=real, other=0.0)
    own = tl.load(image_ids + row, mask=real, other=0) if MASKED else row
    top = tl.full([ROWS], float("-inf"), tl.float32)
    weight = tl.zeros([ROWS], tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    peak = tl.full([ROWS], float("-inf"), tl.float32)
    pull = tl.zeros([ROWS, WIDTH], tl.float32)
    first = part * tiles_per_part
    for tile in range(first, tl.minimum(first + tiles_per_part, tiles)):
        v_high, v_low = _tile(vector_high, vector_low, tile * COLUMNS, COLUMNS, WIDTH, PASSES)
        score = _product(q_high, q_low, tl.trans(v_high), tl.trans(v_low), PASSES)
        column = tile * COLUMNS + tl.arange(0, COLUMNS)
        length = tl.load(lengths + column, mask=column < k, other=0.0)
        score = score * factor[:, None] * length[None, :]
        score, added = _counted(score, own, owners, column, k, MASKED, SUMMED, RAGGED)
        total += added
        before = top
        top = tl.maximum(top, tl.max(score, 1))
        shift = _finite(top)
        exponential = tl.exp2(score - shift[:, None])
        weight = weight * tl.exp2(before - shift) + tl.sum(exponential, 1)
        if PULLED:
            before = peak
            peak = tl.maximum(peak, tl.max(score + tl.log2(length)[None, :], 1))
            peak = tl.maximum(peak, top - 100.0)  # so that the next exponential is finite
            lowered = _finite(peak)
            lift = tl.exp2(shift - lowered + LIFT)
            weights_high, weights_low = _parts(
                exponential * length[None, :] * lift[:, None], PASSES
            )
            found = _product(weights_high, weights_low, v_high, v_low, PASSES)
            pull = pull * tl.exp2(before - lowered)[:, None] + found
    place = part.to(tl.int64) * n + row
    tl.store(tops + place, top, mask=real)
    tl.store(weights + place, weight, mask=real)
    if SUMMED:
        tl.store(totals + place, total * LOG_E_2, mask=real)
    if PULLED:
        tl.store(peaks + place, peak, mask=real)
        place = place[:, None] * WIDTH + tl.arange(0, WIDTH)[None, :]
        tl.store(pulls + place, pull, mask=real[:, None])


@triton.jit(do_not_specialize=COUNTS)
def combine(
    tops,
    weights,
    totals,
    peaks,
    pulls,
    longest,
    repel,
    total,
    pull,
    n,
    dim,
    parts,
    ROWS: tl.constexpr,
    WIDTH: tl.constexpr,
    PULLED: tl.constexpr,
    SUMMED: tl.constexpr,
):
    """Write the log-sum-exp, sum of scores and mean of vectors of all parts, in a fixed order."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    real = row < n
    column = tl.arange(0, WIDTH)
    top = tl.full([ROWS], float("-inf"), tl.float32)
    peak = tl.full([ROWS], float("-inf"), tl.float32)
    for part in range(parts):
        place = part * n + row
        top = tl.maximum(top, tl.load(tops + place, mask=real, other=0.0))
        if PULLED:
            peak = tl.maximum(peak, tl.load(peaks + place, mask=real, other=0.0))
    shift = _finite(top)
    lowered = _finite(peak)
    weight = tl.zeros([ROWS], tl.float32)
    sums = tl.zeros([ROWS], tl.float32)
    mean = tl.zeros([ROWS, WIDTH], tl.float32)
    for part in range(parts):
        place = part * n + row
        kept = tl.exp2(tl.load(tops + place, mask=real, other=0.0) - shift)
        weight += kept * tl.load(weights + place, mask=real, other=0.0)
        if SUMMED:
            sums += tl.load(totals + place, mask=real, other=0.0)
        if PULLED:
            kept = tl.exp2(tl.load(peaks + place, mask=real, other=0.0) - lowered)
            spot = place[:, None] * WIDTH + column[None, :]
            mean += kept[:, None] * tl.load(pulls + spot, mask=real[:, None], other=0.0)
    tl.store(repel + row, (top + tl.log2(weight)) * LOG_E_2, mask=real)
    if SUMMED:
        tl.store(total + row, sums, mask=real)
    if PULLED:
        # the weight is at least 1, unless every vector is excluded
        factor = tl.exp2(lowered - shift - LIFT) / tl.maximum(weight, 1.0) * tl.load(longest)
        spot = row[:, None] * dim + column[None, :]
        there = real[:, None] & (column < dim)[None, :]
        tl.store(pull + spot, mean * factor[:, None], mask=there)


@triton.jit(do_not_specialize=COUNTS)
def backward(
    vector_high,
    vector_low,
    query_high,
    query_low,
    factors,
    lengths,
    repel,
    gains,
    exponents,
    exponent_of_all,
    image_ids,
    owners,
    gradients,
    n,
    k,
    dim,
    tiles,
    tiles_per_part,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    WIDTH: tl.constexpr,
    PASSES: tl.constexpr,
    MASKED: tl.constexpr,
):
    """Write the gradient of a block of vectors that a part of the queries gives.

    A query adds its scaled row times exp(score - repel) times gain (N,) times 2^exponent (N,). The
    exponents are relative to the one of all.
    """
    start = tl.program_id(0) * ROWS
    part = tl.program_id(1)
    row = start + tl.arange(0, ROWS)
    real = row < k
    v_high, v_low = _tile(vector_high, vector_low, start, ROWS, WIDTH, PASSES)
    length = tl.load(lengths + row, mask=real, other=0.0)
    if MASKED:
        owner = tl.load(owners + row, mask=real, other=0)
    peak = tl.full([ROWS], float("-inf"), tl.float32)
    gradient = tl.zeros([ROWS, WIDTH], tl.float32)
    first = part * tiles_per_part
    for tile in range(first, tl.minimum(first + tiles_per_part, tiles)):
        q_high, q_low = _tile(query_high, query_low, tile * COLUMNS, COLUMNS, WIDTH, PASSES)
        score = _product(v_high, v_low, tl.trans(q_high), tl.trans(q_low), PASSES)
        column = tile * COLUMNS + tl.arange(0, COLUMNS)
        there = column < n
        factor = tl.load(factors + column, mask=there, other=0.0)
        shift = tl.load(repel + column, mask=there, other=0.0) * LOG_2_E
        gain = tl.load(gains + column, mask=there, other=0.0)
        exponent = tl.load(exponents + column, mask=there, other=-400.0)
        score = score * factor[None, :] * length[:, None] - (shift - exponent)[None, :]
        if MASKED:
            own = tl.load(image_ids + column, mask=there, other=0)
            score = tl.where(owner[:, None] == own[None, :], float("-inf"), score)
        before = peak
        peak = tl.maximum(peak, tl.max(score, 1))
        lowered = _finite(peak)
        weight = tl.exp2(score - (lowered - LIFT)[:, None]) * gain[None, :]
        weights_high, weights_low = _parts(weight, PASSES)
        found = _product(weights_high, weights_low, q_high, q_low, PASSES)
        gradient = gradient * tl.exp2(before - lowered)[:, None] + found
    gradient *= tl.exp2(_finite(peak) - LIFT)[:, None]
    gradient *= tl.exp2(tl.load(exponent_of_all))
    inner = tl.arange(0, WIDTH)
    place = (part.to(tl.int64) * k + row)[:, None] * dim + inner[None, :]
    tl.store(gradients + place, gradient, mask=real[:, None] & (inner < dim)[None, :])
