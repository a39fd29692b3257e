"""Batched image operations on float images (N,C,H,W) in [0,1].

Every operation is a pure function of the images and of one set of parameters per image. The code
has no loops over images, no shapes that depend on values, and branches only on shapes.
torch.compile can therefore compile a whole policy as one graph, and CUDA graphs can capture it. An
operation with a mask of chosen images also computes its result for the other images, but returns
those unchanged.

The results equal those of torchvision on tensors (float, antialiased).

`unit` denotes uniform random numbers in [0,1). All random parameters are computed from them, so the
same numbers give the same views on every device.
"""

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

ATTEMPTS = 10  # torchvision draws ten boxes before it uses its fallback
LUMA = (0.2989, 0.587, 0.114)  # ITU-R 601-2, rounded as in torchvision
BRIGHTNESS, CONTRAST, SATURATION, HUE = range(4)
Range = tuple[float, float]


def pixelwise(values: Tensor) -> Tensor:
    """Reshape one value per image (N,) to (N,1,1,1), which broadcasts over channels and pixels."""
    return values.view(-1, 1, 1, 1)


def between(unit: Tensor, low: float, high: float) -> Tensor:
    """Map uniform numbers in [0,1) to uniform numbers in [low,high)."""
    return low + (high - low) * unit


# Boxes (N,4) hold integral values: top, left, height, width.


def candidate_sizes(
    unit: Tensor, area: int | Tensor, scale: Range, ratio: Range
) -> tuple[Tensor, Tensor]:
    """Return ten candidate heights and ten candidate widths, both (N,10), from `unit` (N,20).

    The share of the area is uniform in `scale`. The ratio of width to height is log-uniform in
    `ratio`.
    """
    share, shape = unit.chunk(2, 1)
    target = area * between(share, *scale)
    aspect = torch.exp(between(shape, math.log(ratio[0]), math.log(ratio[1])))
    return torch.round(torch.sqrt(target / aspect)), torch.round(torch.sqrt(target * aspect))


def first_valid(values: Tensor, valid: Tensor, default: float | Tensor) -> Tensor:
    """Return the first valid value (N,) of each row (N,10), or `default` if no value is valid."""
    leading = valid & (valid.cumsum(1) == 1)
    return torch.where(valid.any(1), (values * leading).sum(1), default)


def crop_boxes(
    unit: Tensor, height: int | Tensor, width: int | Tensor, scale: Range, ratio: Range
) -> Tensor:
    """Return boxes (N,4), distributed as in torchvision's RandomResizedCrop, from `unit` (N,22).

    `height` and `width` are the size of all images, or int64 (N,) the size of each. If all ten
    candidates are invalid, the box is the largest central one whose aspect ratio lies in `ratio`.
    """
    rows, columns = (
        side[:, None] if isinstance(side, Tensor) else side for side in (height, width)
    )
    heights, widths = candidate_sizes(unit[:, : 2 * ATTEMPTS], rows * columns, scale, ratio)
    valid = (heights > 0) & (heights <= rows) & (widths > 0) & (widths <= columns)
    h = first_valid(heights, valid, _at_most(height, width / ratio[0]))
    w = first_valid(widths, valid, _at_most(width, height * ratio[1]))
    margin = torch.stack([height - h, width - w], 1)
    corner = torch.floor(unit[:, 2 * ATTEMPTS :] * (margin + 1))
    corner = torch.where(valid.any(1, keepdim=True), corner, torch.floor(margin / 2))
    return torch.cat([corner, torch.stack([h, w], 1)], 1)


def _at_most(side: int | Tensor, length: float | Tensor) -> float | Tensor:
    """Return a rounded length, or the side of the image if that is smaller."""
    if isinstance(side, Tensor) and isinstance(length, Tensor):
        return torch.minimum(side, length.round()).float()
    return min(side, round(float(length)))


def erase_boxes(unit: Tensor, height: int, width: int, scale: Range, ratio: Range) -> Tensor:
    """Return boxes (N,4), distributed as in torchvision's RandomErasing, from `unit` (N,22).

    If all ten candidates are invalid, the box is empty.
    """
    # RandomErasing draws the ratio of height to width, so heights and widths are swapped here
    widths, heights = candidate_sizes(unit[:, : 2 * ATTEMPTS], height * width, scale, ratio)
    valid = (heights < height) & (widths < width)
    h = first_valid(heights, valid, 0)
    w = first_valid(widths, valid, 0)
    size = torch.stack([h, w], 1)
    positions = torch.stack([height - h, width - w], 1) + 1
    return torch.cat([torch.floor(unit[:, 2 * ATTEMPTS :] * positions), size], 1)


# Geometry


class Interval(NamedTuple):
    """An interval of pixel rows (or columns) to resample, one per image; all fields are (N,)."""

    start: Tensor  # in pixels
    extent: Tensor  # length in pixels
    low: Tensor  # the pixels that may be read are low <= index < high
    high: Tensor
    mirror: Tensor  # bool: reverse the order of the samples

    def points(self, size: int) -> Tensor:
        """Return the centres (N,size) of `size` equal parts, in reverse order where mirrored."""
        index = torch.arange(size, device=self.start.device)
        index = torch.where(self.mirror[:, None], size - 1 - index, index)
        return self.start[:, None] + (self.extent / size)[:, None] * (index + 0.5)

    def widening(self, size: int) -> Tensor:
        """Return the factor (N,1) by which the kernel is widened for antialiasing.

        It exceeds 1 when the interval has more pixels than samples.
        """
        return (self.extent / size).clamp_min(1)[:, None]

    def weights(self, size: int, pixel: Tensor, cubic: bool) -> Tensor:
        """Return the weights (N,size,P) with which each sample reads its pixels (N,size,P)."""
        x = ((pixel + 0.5 - self.points(size)[:, :, None]) / self.widening(size)[:, :, None]).abs()
        weight = cubic_kernel(x) if cubic else (1 - x).clamp_min(0)
        weight = weight * ((pixel >= self.low[:, None, None]) & (pixel < self.high[:, None, None]))
        return weight / weight.sum(2, keepdim=True)


def cubic_kernel(x: Tensor) -> Tensor:
    """Return the cubic convolution kernel of Keys (1981) with a = -1/2 at distances x.

    torch's antialiased bicubic interpolation uses the same kernel.
    """
    near = (1.5 * x - 2.5) * x * x + 1
    far = ((-0.5 * x + 2.5) * x - 4) * x + 2
    return torch.where(x < 1, near, torch.where(x < 2, far, 0.0))


def resample(images: Tensor, rows: Interval, columns: Interval, size: int, cubic: bool) -> Tensor:
    """Resample an interval of rows and an interval of columns to images (N,C,size,size).

    Rows are contiguous in memory. Both axes are therefore resampled as rows, with a transposition
    in between. When compiled for a CPU, this takes a third of the time of two matrix products with
    dense weights. It also avoids the loss of precision of a matrix product.
    """
    lines = resample_rows(images, rows, size, cubic).mT.contiguous()
    return resample_rows(lines, columns, size, cubic).mT.contiguous()


def resample_rows(images: Tensor, rows: Interval, size: int, cubic: bool) -> Tensor:
    """Resample an interval of rows to images (N,C,size,W).

    Each sample reads only the few rows that its kernel covers.
    """
    height = images.shape[2]
    reach = 2 if cubic else 1
    taps = math.ceil(2 * reach * max(1, height / size))  # the most pixels that a kernel covers
    start = torch.floor(rows.points(size) - reach * rows.widening(size) + 0.5)
    pixel = start[:, :, None] + torch.arange(taps, device=images.device)
    weight = stored(rows.weights(size, pixel, cubic))
    index = pixel.long().clamp(0, height - 1)
    result = images.new_zeros(())
    for tap in range(taps):
        line = _rows_at(images, index[:, :, tap])
        result = torch.addcmul(result, line, weight[:, None, :, tap, None])
    return result


def _rows_at(images: Tensor, index: Tensor) -> Tensor:
    """Return the rows (N,C,size,W) of images (N,C,H,W) at `index` (N,size).

    On a CPU without compilation, whole rows are copied. This takes a third of the time of `gather`,
    which reads an index for every pixel.
    """
    n, c, height, width = images.shape
    size = index.shape[1]
    if images.is_cpu and not torch.compiler.is_compiling():
        first = height * torch.arange(n * c).view(n, c, 1)
        flat = (first + index[:, None]).flatten()
        return images.reshape(-1, width).index_select(0, flat).view(n, c, size, width)
    return torch.gather(images, 2, index[:, None, :, None].expand(n, c, size, width))


def crop(
    images: Tensor, boxes: Tensor, size: int, *, mirror: Tensor, upend: Tensor, cubic: bool = False
) -> Tensor:
    """Crop each image to its box (N,4), resize to (N,C,size,size), and flip.

    `mirror` (N,) selects the images to flip horizontally, `upend` (N,) those to flip vertically.
    """
    top, left, height, width = boxes.unbind(1)
    rows = Interval(top, height, top, top + height, upend)
    columns = Interval(left, width, left, left + width, mirror)
    result = resample(images, rows, columns, size, cubic)
    return result.clamp(0, 1) if cubic else result  # the cubic kernel overshoots


def centre(images: Tensor, size: int, edge: int) -> Tensor:
    """Resize the shorter side to `edge` and return the central square (N,C,size,size).

    Equals torchvision's Resize followed by CenterCrop.
    """
    ones = images.new_ones(1)
    axes = []
    for pixels in images.shape[2:]:
        length = edge * pixels // min(images.shape[2:])
        step = pixels / length
        start = round((length - size) / 2) * step
        axes.append(Interval(start * ones, size * step * ones, 0 * ones, pixels * ones, ones < 0))
    return resample(images, axes[0], axes[1], size, cubic=False)


def rotate(images: Tensor, degrees: Tensor, padding: str = "zeros") -> Tensor:
    """Rotate the images counter-clockwise about their centre by `degrees` (N,).

    The interpolation is bilinear. `padding` is the `padding_mode` of `grid_sample`.
    """
    height, width = images.shape[2:]
    angle = torch.deg2rad(degrees)[:, None, None]
    x = torch.arange(width, device=images.device) - (width - 1) / 2
    y = (torch.arange(height, device=images.device) - (height - 1) / 2)[:, None]
    across = (torch.cos(angle) * x - torch.sin(angle) * y) * (2 / width)
    down = (torch.sin(angle) * x + torch.cos(angle) * y) * (2 / height)
    grid = torch.stack([across, down], 3)
    return F.grid_sample(images, grid, mode="bilinear", padding_mode=padding, align_corners=False)


def blur(images: Tensor, sigma: Tensor, taps: int) -> Tensor:
    """Apply a Gaussian blur of standard deviation `sigma` (N,) with reflected borders.

    `taps` is the odd number of kernel values. A sigma of 0 leaves an image unchanged.

    The blur is a sum of shifted images, which torch.compile fuses. A convolution with one kernel
    per image takes 3 times as long and makes torch.compile choose a memory layout that slows down
    the preceding operations. Banded matrices take 4 times as long.
    """
    reach = taps // 2
    offset = torch.arange(-reach, reach + 1, device=images.device)
    # a sigma of 1e-3 gives the unit impulse, and avoids a division by 0
    kernel = stored(torch.softmax(-0.5 * (offset / sigma.clamp_min(1e-3)[:, None]) ** 2, 1))
    padded_by = pad_by_index if images.is_cuda else pad_by_copies
    for axis in (2, 3):
        size = images.shape[axis]
        padded = padded_by(images, reach, axis)
        images = images * pixelwise(kernel[:, reach])
        for tap in range(reach):
            pair = padded.narrow(axis, tap, size) + padded.narrow(axis, taps - 1 - tap, size)
            images = torch.addcmul(images, pair, pixelwise(kernel[:, tap]))
    return images


def pad_by_copies(images: Tensor, reach: int, axis: int) -> Tensor:
    """Extend an axis by `reach` reflected pixels on both sides, as a concatenation of parts.

    This is the faster of the two ways on a CPU.
    """
    size = images.shape[axis]
    before = images.narrow(axis, 1, reach).flip(axis)
    after = images.narrow(axis, size - 1 - reach, reach).flip(axis)
    return torch.cat([before, images, after], axis)


def pad_by_index(images: Tensor, reach: int, axis: int) -> Tensor:
    """Extend an axis by `reach` reflected pixels on both sides, by the index of every pixel.

    A compiled kernel then loads one value for every tap. Of a concatenation it loads the values of
    all three parts and chooses among them.
    """
    sides = (0, 0, reach, reach) if axis == 2 else (reach, reach, 0, 0)
    return F.pad(images, sides, mode="reflect")


def stored(values: Tensor) -> Tensor:
    """Return the values, which a compiled kernel for a GPU then reads from memory.

    The compiler would otherwise compute a few values per image, such as the exponentials of a blur
    kernel, again for every pixel. It does not look into the operation that is called here.
    """
    if values.is_cuda and torch.compiler.is_compiling():
        copy: Tensor = _stored(values)
        return copy
    return values


@torch.library.custom_op("antipode::stored", mutates_args=())
def _stored(values: Tensor) -> Tensor:
    return values.clone()


@_stored.register_fake
def _(values: Tensor) -> Tensor:
    return torch.empty_like(values)


def erase(images: Tensor, boxes: Tensor) -> Tensor:
    """Set the pixels inside the boxes (N,4) to zero."""
    top, left, height, width = (pixelwise(side) for side in boxes.unbind(1))
    row = torch.arange(images.shape[2], device=images.device)[:, None]
    column = torch.arange(images.shape[3], device=images.device)
    inside = (row >= top) & (row < top + height) & (column >= left) & (column < left + width)
    return images.masked_fill(inside, 0.0)


# Colour


def luma(images: Tensor) -> Tensor:
    """Return the luma of every pixel (N,1,H,W).

    Images that do not have 3 channels (red, green, blue) get the mean over their channels.
    """
    if images.shape[1] != 3:
        return images.mean(1, keepdim=True)
    return LUMA[0] * images[:, 0:1] + LUMA[1] * images[:, 1:2] + LUMA[2] * images[:, 2:3]


def blend(images: Tensor, target: Tensor, factor: Tensor) -> Tensor:
    """Interpolate between `target` (factor 0) and `images` (factor 1), clamped to [0,1].

    A factor (N,) above 1 extrapolates beyond the images.
    """
    share = pixelwise(factor)
    return torch.addcmul(target * (1 - share), images, share).clamp(0, 1)


def hue(images: Tensor, shift: Tensor) -> Tensor:
    """Shift the HSV hue by `shift` (N,), as a fraction of a full turn.

    Grey pixels do not change, nor do images that do not have 3 channels (red, green, blue).

    Value and chroma stay the same. Each channel is therefore the smallest channel plus the chroma
    times a trapezoidal function of the new hue.
    """
    if images.shape[1] != 3:
        return images
    red, green, blue = images.unbind(1)
    low = torch.minimum(torch.minimum(red, green), blue)
    high = torch.maximum(torch.maximum(red, green), blue)
    chroma = high - low
    rise = torch.where(
        high == red, green - blue, torch.where(high == green, blue - red, red - green)
    )
    sector = torch.where(high == red, 0.0, torch.where(high == green, 2.0, 4.0))
    # `angle` counts sixths of a turn; clamping to 1e-20 is exact, because chroma 0 implies rise 0
    angle = rise / chroma.clamp_min(1e-20) + sector + 6 * shift[:, None, None]
    angle = angle - 6 * torch.floor(angle / 6)
    shape = torch.stack([(angle - 3).abs() - 1, 2 - (angle - 2).abs(), 2 - (angle - 4).abs()], 1)
    return low[:, None] + chroma[:, None] * shape.clamp(0, 1)


def orders(unit: Tensor) -> Tensor:
    """Return the positions (N,4) of brightness, contrast, saturation and hue in a random order.

    `unit` (N,) selects one of the 24 orders; all are equally likely.
    """
    code = torch.floor(unit * 24).long()[:, None]
    hue_place = code % 4
    start = code // 4 % 3
    swap = code // 12
    place = (torch.arange(3, device=unit.device) - start) % 3  # among the three others
    place = torch.where((place > 0) & (swap == 1), 3 - place, place)
    return torch.cat([place + (place >= hue_place), hue_place], 1)


def jitter(images: Tensor, factors: Tensor, places: Tensor) -> Tensor:
    """Adjust brightness, contrast, saturation and hue by `factors` (N,4).

    `places` (N,4) gives the position of each adjustment in the order of that image.

    Brightness, contrast and saturation are the same blend with different targets: black, the mean
    grey level, and the grey image. To support every order, there are three blends before the hue
    shift and three after it. An image uses the blends of its order; the others have factor 1.
    """
    hue_place = places[:, HUE]
    for place in (0, 1, 2):
        images = _blend_at(images, factors, places == place, place < hue_place)
    images = hue(images, factors[:, HUE])
    for place in (1, 2, 3):
        images = _blend_at(images, factors, places == place, place > hue_place)
    return images


def _blend_at(images: Tensor, factors: Tensor, chosen: Tensor, active: Tensor) -> Tensor:
    """Apply the blend that `chosen` (N,4) selects to the images that are `active` (N,)."""
    grey = luma(images)
    level = grey.mean((1, 2, 3), keepdim=True)
    target = grey * pixelwise(chosen[:, SATURATION]) + level * pixelwise(chosen[:, CONTRAST])
    return blend(images, target, torch.where(active, (factors * chosen).sum(1), 1.0))


def greyscale(images: Tensor, chosen: Tensor) -> Tensor:
    """Convert the chosen images (N,) to greyscale, repeated in all channels.

    Images that do not have 3 channels (red, green, blue) do not change.
    """
    if images.shape[1] != 3:
        return images
    return torch.where(pixelwise(chosen), luma(images), images)


def mix(images: Tensor, weights: Tensor) -> Tensor:
    """Return the sum over the channels (N,1,H,W) with weights (N,C)."""
    return (images * weights[:, :, None, None]).sum(1, keepdim=True)


def solarise(images: Tensor, chosen: Tensor, threshold: float = 0.5) -> Tensor:
    """Invert the values at or above the threshold in the chosen images (N,)."""
    return torch.where(pixelwise(chosen) & (images >= threshold), 1 - images, images)


def invert(images: Tensor, chosen: Tensor) -> Tensor:
    """Invert the chosen images (N,)."""
    return torch.where(pixelwise(chosen), 1 - images, images)


def standardise(images: Tensor) -> Tensor:
    """Scale each image to mean 0 and standard deviation 1 over all its values."""
    centred = images - images.mean((1, 2, 3), keepdim=True)
    # 1e-3 is a quarter of a grey level; it maps an image of one colour to 0 instead of amplified
    # rounding errors
    return centred / centred.square().mean((1, 2, 3), keepdim=True).sqrt().clamp_min(1e-3)
