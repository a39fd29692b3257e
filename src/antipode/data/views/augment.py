"""Batched image operations: pure functions of images (N,C,H,W), floats in [0,1], and of parameters for each image.

There are no loops over images, no shapes that depend on values and no branches but on shapes, so that torch.compile
takes a whole policy as one graph and CUDA graphs can capture it. An image that an operation does not choose is computed
all the same and comes out as it was. Results equal torchvision's on tensors (antialiased, float). `unit` below means
uniform numbers in [0,1): everything random is computed from them, so the same numbers give the same views anywhere.
"""

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

ATTEMPTS = 10  # torchvision tries ten boxes before it falls back
LUMA = (0.2989, 0.587, 0.114)  # ITU-R 601-2, with torchvision's digits
BRIGHTNESS, CONTRAST, SATURATION, HUE = range(4)
Range = tuple[float, float]


def pixelwise(values: Tensor) -> Tensor:
    """One value per image (N,) in the shape (N,1,1,1) that broadcasts over pixels."""
    return values.view(-1, 1, 1, 1)


def between(unit: Tensor, low: float, high: float) -> Tensor:
    """Uniform numbers in [low,high) from uniform numbers in [0,1)."""
    return low + (high - low) * unit


# Boxes: (N,4) whole numbers, top, left, height, width


def candidates(unit: Tensor, area: int, scale: Range, ratio: Range) -> tuple[Tensor, Tensor]:
    """Ten heights and widths (N,10) from (N,20): uniform share of the area, log-uniform ratio of width to height."""
    share, shape = unit.chunk(2, 1)
    target = area * between(share, *scale)
    aspect = torch.exp(between(shape, math.log(ratio[0]), math.log(ratio[1])))
    return torch.round(torch.sqrt(target / aspect)), torch.round(torch.sqrt(target * aspect))


def first(values: Tensor, valid: Tensor, otherwise: float) -> Tensor:
    """The first valid value (N,) of each row (N,10), or `otherwise` where none is."""
    leading = valid & (valid.cumsum(1) == 1)
    return torch.where(valid.any(1), (values * leading).sum(1), otherwise)


def crop_boxes(unit: Tensor, height: int, width: int, scale: Range, ratio: Range) -> Tensor:
    """Boxes (N,4) of torchvision's RandomResizedCrop from (N,22); the largest central one of fair ratio if all fail."""
    tall, wide = candidates(unit[:, : 2 * ATTEMPTS], height * width, scale, ratio)
    valid = (tall > 0) & (tall <= height) & (wide > 0) & (wide <= width)
    fair_height = min(height, round(width / ratio[0]))
    fair_width = min(width, round(height * ratio[1]))
    h, w = first(tall, valid, fair_height), first(wide, valid, fair_width)
    free = torch.stack([height - h, width - w], 1)
    corner = torch.floor(unit[:, 2 * ATTEMPTS :] * (free + 1))
    corner = torch.where(valid.any(1, keepdim=True), corner, torch.floor(free / 2))
    return torch.cat([corner, torch.stack([h, w], 1)], 1)


def erase_boxes(unit: Tensor, height: int, width: int, scale: Range, ratio: Range) -> Tensor:
    """Boxes (N,4) of torchvision's RandomErasing from (N,22); an empty box where all attempts fail."""
    # there the ratio is of height to width, so the two change places
    wide, tall = candidates(unit[:, : 2 * ATTEMPTS], height * width, scale, ratio)
    valid = (tall < height) & (wide < width)
    h, w = first(tall, valid, 0), first(wide, valid, 0)
    size = torch.stack([h, w], 1)
    room = torch.stack([height - h, width - w], 1) + 1
    return torch.cat([torch.floor(unit[:, 2 * ATTEMPTS :] * room), size], 1)


# Geometry


class Stretch(NamedTuple):
    """A stretch of a line of pixels, all (N,): its start, its length, what may be read, whether it is turned."""

    start: Tensor
    extent: Tensor
    low: Tensor
    high: Tensor
    mirror: Tensor

    def points(self, size: int) -> Tensor:
        """The centres (N,size) of `size` even parts, last first where it is turned."""
        index = torch.arange(size, device=self.start.device)
        index = torch.where(self.mirror[:, None], size - 1 - index, index)
        return self.start[:, None] + (self.extent / size)[:, None] * (index + 0.5)

    def widening(self, size: int) -> Tensor:
        """How far (N,1) the kernel widens where pixels outnumber points: that is the antialiasing."""
        return (self.extent / size).clamp_min(1)[:, None]

    def weights(self, size: int, pixel: Tensor, cubic: bool) -> Tensor:
        """Weights (N,size,P) of the pixels (N,size,P) for every point."""
        x = ((pixel + 0.5 - self.points(size)[:, :, None]) / self.widening(size)[:, :, None]).abs()
        weight = keys(x) if cubic else (1 - x).clamp_min(0)
        weight = weight * ((pixel >= self.low[:, None, None]) & (pixel < self.high[:, None, None]))
        return weight / weight.sum(2, keepdim=True)


def keys(x: Tensor) -> Tensor:
    """Keys' cubic kernel with a = -1/2 of distances x, as torch's antialiased bicubic has it."""
    near = (1.5 * x - 2.5) * x * x + 1
    far = ((-0.5 * x + 2.5) * x - 4) * x + 2
    return torch.where(x < 1, near, torch.where(x < 2, far, 0.0))


def resample(images: Tensor, rows: Stretch, columns: Stretch, size: int, cubic: bool) -> Tensor:
    """Images (N,C,size,size) of a stretch of the rows and one of the columns.

    Rows are contiguous memory, so both are done on rows, with the image turned over in between. Compiled for a CPU this
    takes a third of the time of two matrix products with dense weights; there is no product to lose precision either.
    """
    lines = resample_rows(images, rows, size, cubic).mT.contiguous()
    return resample_rows(lines, columns, size, cubic).mT.contiguous()


def resample_rows(images: Tensor, rows: Stretch, size: int, cubic: bool) -> Tensor:
    """Images (N,C,size,W) of a stretch of the rows: for each point the few rows that the kernel covers."""
    n, c, height, width = images.shape
    reach = 2 if cubic else 1
    taps = math.ceil(2 * reach * max(1, height / size))  # no kernel covers more pixels than this
    first = torch.floor(rows.points(size) - reach * rows.widening(size) + 0.5)
    pixel = first[:, :, None] + torch.arange(taps, device=images.device)
    weight, index = rows.weights(size, pixel, cubic), pixel.long().clamp(0, height - 1)
    result = images.new_zeros(())
    for tap in range(taps):
        line = torch.gather(images, 2, index[:, None, :, tap, None].expand(n, c, size, width))
        result = torch.addcmul(result, line, weight[:, None, :, tap, None])
    return result


def crop(
    images: Tensor, boxes: Tensor, size: int, *, mirror: Tensor, upend: Tensor, cubic: bool = False
) -> Tensor:
    """Boxes (N,4) cut out, resized to (N,C,size,size) and flipped sideways or upside down where chosen (N,)."""
    top, left, height, width = boxes.unbind(1)
    rows, columns = (
        Stretch(top, height, top, top + height, upend),
        Stretch(left, width, left, left + width, mirror),
    )
    result = resample(images, rows, columns, size, cubic)
    return result.clamp(0, 1) if cubic else result  # the cubic kernel overshoots


def centre(images: Tensor, size: int, edge: int) -> Tensor:
    """The shorter side resized to `edge`, then the central (N,C,size,size): torchvision's Resize and CenterCrop."""
    one, lines = images.new_ones(1), []
    for pixels in images.shape[2:]:
        length = edge * pixels // min(images.shape[2:])
        step = pixels / length
        start = round((length - size) / 2) * step
        lines.append(Stretch(start * one, size * step * one, 0 * one, pixels * one, one < 0))
    return resample(images, lines[0], lines[1], size, cubic=False)


def rotate(images: Tensor, degrees: Tensor, padding: str = "zeros") -> Tensor:
    """Turned counter-clockwise about the centre by degrees (N,), bilinear; `padding` is grid_sample's."""
    height, width = images.shape[2:]
    angle = torch.deg2rad(degrees)[:, None, None]
    x = torch.arange(width, device=images.device) - (width - 1) / 2
    y = (torch.arange(height, device=images.device) - (height - 1) / 2)[:, None]
    across = (torch.cos(angle) * x - torch.sin(angle) * y) * (2 / width)
    down = (torch.sin(angle) * x + torch.cos(angle) * y) * (2 / height)
    grid = torch.stack([across, down], 3)
    return F.grid_sample(images, grid, mode="bilinear", padding_mode=padding, align_corners=False)


def blur(images: Tensor, sigma: Tensor, taps: int) -> Tensor:
    """Gaussian blur with reflected borders and an odd number of taps; sigma (N,) of 0 leaves an image as it is.

    Sums of shifted images, which fuse. A convolution with a kernel per image takes 3 times as long and makes
    torch.compile choose a layout of pixels that slows down all that comes before it; banded matrices take 4 times.
    """
    reach = taps // 2
    offset = torch.arange(-reach, reach + 1, device=images.device)
    kernel = torch.softmax(
        -0.5 * (offset / sigma.clamp_min(1e-3)[:, None]) ** 2, 1
    )  # 1e-3 is the unit impulse
    for axis in (2, 3):
        size = images.shape[axis]
        before, after = (
            images.narrow(axis, 1, reach).flip(axis),
            images.narrow(axis, size - 1 - reach, reach).flip(axis),
        )
        padded = torch.cat([before, images, after], axis)
        images = images * pixelwise(kernel[:, reach])
        for tap in range(reach):
            pair = padded.narrow(axis, tap, size) + padded.narrow(axis, taps - 1 - tap, size)
            images = torch.addcmul(images, pair, pixelwise(kernel[:, tap]))
    return images


def erase(images: Tensor, boxes: Tensor) -> Tensor:
    """Zero inside boxes (N,4)."""
    top, left, height, width = (pixelwise(side) for side in boxes.unbind(1))
    row = torch.arange(images.shape[2], device=images.device)[:, None]
    column = torch.arange(images.shape[3], device=images.device)
    inside = (row >= top) & (row < top + height) & (column >= left) & (column < left + width)
    return images.masked_fill(inside, 0.0)


# Colour


def luma(images: Tensor) -> Tensor:
    """Brightness of every pixel (N,1,H,W); the plain mean where the channels are not red, green and blue."""
    if images.shape[1] != 3:
        return images.mean(1, keepdim=True)
    return LUMA[0] * images[:, 0:1] + LUMA[1] * images[:, 1:2] + LUMA[2] * images[:, 2:3]


def blend(images: Tensor, target: Tensor, factor: Tensor) -> Tensor:
    """The target at factor 0, the images at 1, beyond them above 1; cut to [0,1]."""
    share = pixelwise(factor)
    return torch.addcmul(target * (1 - share), images, share).clamp(0, 1)


def hue(images: Tensor, shift: Tensor) -> Tensor:
    """Hue of the HSV colour circle moved by shift (N,), in turns; grey pixels stay, and what is not red, green, blue.

    Value and chroma do not change, so each channel is the smallest one plus chroma times a trapezium of the new hue.
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
    sixth = torch.where(high == red, 0.0, torch.where(high == green, 2.0, 4.0))
    turn = (
        rise / chroma.clamp_min(1e-20) + sixth + 6 * shift[:, None, None]
    )  # 1e-20: chroma 0 has rise 0
    turn = turn - 6 * torch.floor(turn / 6)
    shape = torch.stack([(turn - 3).abs() - 1, 2 - (turn - 2).abs(), 2 - (turn - 4).abs()], 1)
    return low[:, None] + chroma[:, None] * shape.clamp(0, 1)


def orders(unit: Tensor) -> Tensor:
    """Places (N,4) of brightness, contrast, saturation and hue in one of the 24 orders, all as likely, from (N,)."""
    code = torch.floor(unit * 24).long()[:, None]
    last, start, swap = code % 4, code // 4 % 3, code // 12
    among = (torch.arange(3, device=unit.device) - start) % 3  # place among the three without hue
    among = torch.where((among > 0) & (swap == 1), 3 - among, among)
    return torch.cat([among + (among >= last), last], 1)


def jitter(images: Tensor, factors: Tensor, places: Tensor) -> Tensor:
    """Brightness, contrast, saturation and hue by factors (N,4), each at its place (N,4) in the image's own order.

    The first three are one blend with targets black, mean grey and grey. So the order needs three blends before the hue
    and three after it, of which an image uses those of its order and passes the others with factor 1.
    """
    middle = places[:, HUE]
    for place in (0, 1, 2):
        images = _blend_at(images, factors, places == place, place < middle)
    images = hue(images, factors[:, HUE])
    for place in (1, 2, 3):
        images = _blend_at(images, factors, places == place, place > middle)
    return images


def _blend_at(images: Tensor, factors: Tensor, chosen: Tensor, active: Tensor) -> Tensor:
    """The one of the three blends that is chosen (N,4), where active (N,)."""
    grey = luma(images)
    level = grey.mean((1, 2, 3), keepdim=True)
    target = grey * pixelwise(chosen[:, SATURATION]) + level * pixelwise(chosen[:, CONTRAST])
    return blend(images, target, torch.where(active, (factors * chosen).sum(1), 1.0))


def greyscale(images: Tensor, chosen: Tensor) -> Tensor:
    """Grey in all channels where chosen (N,); channels that are no colours stay as they are."""
    if images.shape[1] != 3:
        return images
    return torch.where(pixelwise(chosen), luma(images), images)


def mix(images: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
    """All channels replaced by their sum under weights (N,C) where chosen (N,)."""
    mixed = (images * weights[:, :, None, None]).sum(1, keepdim=True)
    return torch.where(pixelwise(chosen), mixed, images)


def solarise(images: Tensor, chosen: Tensor, threshold: float = 0.5) -> Tensor:
    """Values from the threshold on inverted where chosen (N,)."""
    return torch.where(pixelwise(chosen) & (images >= threshold), 1 - images, images)


def invert(images: Tensor, chosen: Tensor) -> Tensor:
    """Inverted where chosen (N,)."""
    return torch.where(pixelwise(chosen), 1 - images, images)


def standardise(images: Tensor) -> Tensor:
    """Each image with mean 0 and standard deviation 1 over all its values."""
    centred = images - images.mean((1, 2, 3), keepdim=True)
    # 1e-3 is a quarter of a grey level: an image of one colour becomes 0, not amplified rounding
    return centred / centred.square().mean((1, 2, 3), keepdim=True).sqrt().clamp_min(1e-3)
