"""The Triton kernel of `flat.crop_flat`: crops of images of different sizes, all at once."""

import triton
import triton.language as tl


@triton.jit
def crop(flat, places, boxes, out, SIZE: tl.constexpr, CUBIC: tl.constexpr, BLOCK: tl.constexpr):
    """Compute BLOCK pixels of one channel of one crop.

    Each pixel is the weighted mean of the pixels of the box within reach of its centre. The kernel
    is widened if the box is larger than the crop, as in `augment.Interval`.
    """
    image = tl.program_id(0)
    channel = tl.program_id(1)
    pixel = tl.program_id(2) * BLOCK + tl.arange(0, BLOCK)
    inside = pixel < SIZE * SIZE
    y = pixel // SIZE
    x = pixel % SIZE
    first = tl.load(places + 3 * image)
    rows = tl.load(places + 3 * image + 1)
    columns = tl.load(places + 3 * image + 2)
    top = tl.load(boxes + 6 * image)
    left = tl.load(boxes + 6 * image + 1)
    height = tl.load(boxes + 6 * image + 2)
    width = tl.load(boxes + 6 * image + 3)
    x = tl.where(tl.load(boxes + 6 * image + 4) > 0, SIZE - 1 - x, x)
    y = tl.where(tl.load(boxes + 6 * image + 5) > 0, SIZE - 1 - y, y)
    reach: tl.constexpr = 2 if CUBIC else 1
    step_y = height.to(tl.float32) / SIZE
    step_x = width.to(tl.float32) / SIZE
    wide_y = tl.maximum(step_y, 1.0)
    wide_x = tl.maximum(step_x, 1.0)
    # relative to the corner of the box, where float32 has more digits
    centre_y = step_y * (y + 0.5)
    centre_x = step_x * (x + 0.5)
    start_y = tl.floor(centre_y - reach * wide_y + 0.5)
    start_x = tl.floor(centre_x - reach * wide_x + 0.5)
    taps_y = tl.ceil(2 * reach * wide_y).to(tl.int32)
    taps_x = tl.ceil(2 * reach * wide_x).to(tl.int32)
    plane = flat + first + channel * rows * columns + top * columns + left
    total = tl.zeros([BLOCK], tl.float32)
    weights = tl.zeros([BLOCK], tl.float32)
    for tap_y in range(taps_y):
        at_y = start_y + tap_y
        far_y = tl.abs(at_y + 0.5 - centre_y) / wide_y
        weight_y = _weight(far_y, CUBIC)
        weight_y = tl.where((at_y >= 0) & (at_y < height), weight_y, 0.0)
        line = plane + at_y.to(tl.int64) * columns
        for tap_x in range(taps_x):
            at_x = start_x + tap_x
            far_x = tl.abs(at_x + 0.5 - centre_x) / wide_x
            valid = (at_x >= 0) & (at_x < width) & (at_y >= 0) & (at_y < height) & inside
            weight = tl.where(valid, weight_y * _weight(far_x, CUBIC), 0.0)
            value = tl.load(line + at_x.to(tl.int64), mask=valid, other=0)
            total += weight * value.to(tl.float32)
            weights += weight
    mean = total / weights
    # the cubic kernel overshoots; adding a half and truncating rounds
    mean = tl.minimum(tl.maximum(mean, 0.0), 255.0) + 0.5
    target = out + (image.to(tl.int64) * tl.num_programs(1) + channel) * (SIZE * SIZE)
    tl.store(target + pixel, mean.to(tl.uint8), mask=inside)


@triton.jit
def _weight(x, CUBIC: tl.constexpr):
    """Return the weight at a distance: a triangle, or Keys' cubic kernel with a = -1/2."""
    if CUBIC:
        near = (1.5 * x - 2.5) * x * x + 1
        far = ((-0.5 * x + 2.5) * x - 4) * x + 2
        return tl.where(x < 1, near, tl.where(x < 2, far, 0.0))
    return tl.maximum(1 - x, 0.0)
