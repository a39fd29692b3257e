"""Image operations with their hyper-parameters.

Each operation turns its share of the uniform random numbers into parameters per image and calls the
corresponding function in `augment`.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from antipode.data.sources.source import centre
from antipode.data.views import augment
from antipode.data.views.augment import Range


class Operation(Protocol):
    """A function of images (N,C,H,W) in [0,1] and uniform numbers (N,slots) that returns images."""

    @property
    def slots(self) -> int:
        """The number of uniform numbers that the operation reads per image."""

    def __call__(self, images: Tensor, unit: Tensor, /) -> Tensor:
        """Apply the operation to the images."""


def _within(name: str, low: float, value: Range | float, high: float) -> None:
    numbers = value if isinstance(value, tuple) else (value, value)
    if len(numbers) != 2 or not low <= numbers[0] <= numbers[1] <= high:
        kind = "two numbers in ascending order" if isinstance(value, tuple) else "a number"
        raise ValueError(f"{name} must be {kind} in [{low:g}, {high:g}] but is {value}")


def _whole(name: str, value: int) -> None:
    if not hasattr(value, "__index__") or value < 1:
        raise ValueError(f"{name} must be a whole number of at least 1 but is {value}")


@dataclass(frozen=True)
class Crop:
    """A RandomResizedCrop with random flips.

    `flip` is the probability of a horizontal flip, `upend` that of a vertical flip.
    """

    size: int
    scale: Range
    flip: float = 0.5
    upend: float = 0.0
    cubic: bool = False
    ratio: Range = (3 / 4, 4 / 3)
    slots: ClassVar[int] = 2 * augment.ATTEMPTS + 4

    def __post_init__(self) -> None:
        _whole("the crop's size in pixels", self.size)
        _within("the crop's scale", 1e-6, self.scale, 1)
        _within("the crop's flip probability", 0, self.flip, 1)
        _within("the crop's upend probability", 0, self.upend, 1)

    def __call__(self, images: Tensor, unit: Tensor) -> Tensor:
        """Return crops (N,C,size,size)."""
        boxes, mirror, upend = self.draw(unit, images.shape[2], images.shape[3])
        return augment.crop(images, boxes, self.size, mirror=mirror, upend=upend, cubic=self.cubic)

    def draw(
        self, unit: Tensor, height: int | Tensor, width: int | Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return boxes (N,4) and masks (N,) of the images to flip horizontally and vertically.

        The images have one size, or sizes int64 (N,).
        """
        boxes = augment.crop_boxes(unit[:, :-2], height, width, self.scale, self.ratio)
        return boxes, unit[:, -2] < self.flip, unit[:, -1] < self.upend

    def cut(self, image: Tensor, unit: Tensor) -> Tensor:
        """Crop one uint8 image (1,C,H,W) of any size on the host; only the box is read."""
        boxes, mirror, upend = self.draw(unit, image.shape[2], image.shape[3])
        return self.resample(image, boxes[0].tolist(), bool(mirror), bool(upend))

    def resample(self, image: Tensor, box: list[float], mirror: bool, upend: bool) -> Tensor:
        """Return the box (top, left, height, width) of a uint8 image (1,C,H,W), resized."""
        top, left, height, width = map(int, box)
        part = image[:, :, top : top + height, left : left + width]
        # On uint8, torch's bicubic clamps the overshoot between rows and columns. The cubic mode
        # therefore converts to float first.
        part, mode = (part / 255, "bicubic") if self.cubic else (part, "bilinear")
        part = F.interpolate(
            part, (self.size, self.size), mode=mode, align_corners=False, antialias=True
        )
        part = to_uint8(part) if self.cubic else part
        axes = [axis for axis, chosen in ((3, mirror), (2, upend)) if chosen]
        return part.flip(axes) if axes else part


@dataclass(frozen=True)
class Centre:
    """Resize the shorter side to `edge`, then crop the central square.

    Images that already have the right size do not change.
    """

    size: int
    edge: int
    slots: ClassVar[int] = 0

    def __call__(self, images: Tensor, unit: Tensor) -> Tensor:
        """Return the central squares (N,C,size,size)."""
        unchanged = images.shape[2:] == (self.size, self.size)
        return images if unchanged else augment.centre(images, self.size, self.edge)

    def cut(self, image: Tensor, unit: Tensor) -> Tensor:
        """Return the central square of one uint8 image (1,C,H,W) of any size.

        Computing on uint8 is ten times as fast and differs by at most one grey level of 255.
        """
        unchanged = image.shape[2:] == (self.size, self.size)
        return image if unchanged else centre(image[0], self.size, self.edge)[None]


@dataclass(frozen=True)
class Turn:
    """A rotation by an angle that is uniform in [-degrees, degrees].

    The border is reflected, so the rotated images have no empty corners.
    """

    degrees: float
    slots: ClassVar[int] = 1

    def __post_init__(self) -> None:
        _within("the rotation angle in degrees", 0, self.degrees, 360)

    def __call__(self, images: Tensor, unit: Tensor) -> Tensor:
        """Return rotated images."""
        degrees = augment.between(unit[:, 0], -self.degrees, self.degrees)
        return augment.rotate(images, degrees, "reflection")

    def cut(self, image: Tensor, unit: Tensor) -> Tensor:
        """Rotate one uint8 image (1,C,H,W)."""
        return to_uint8(self(image / 255, unit))


@dataclass(frozen=True)
class Jitter:
    """A ColorJitter with a random order of its four adjustments for each image.

    `p` is the probability that an image is jittered at all.
    """

    brightness: float
    contrast: float
    saturation: float
    hue: float
    p: float = 1.0
    slots: ClassVar[int] = 6

    def __post_init__(self) -> None:
        _within("the jitter's probability", 0, self.p, 1)
        _within("the jitter's hue", 0, self.hue, 0.5)
        for name in ("brightness", "contrast", "saturation"):
            _within(f"the jitter's {name}", 0, getattr(self, name), float("inf"))

    def __call__(self, images: Tensor, unit: Tensor) -> Tensor:
        """Return jittered images."""
        coloured = images.shape[1] in (1, 3)  # saturation and hue need red, green and blue
        jitter = self if coloured else replace(self, saturation=0.0, hue=0.0)
        return augment.jitter(images, jitter.factors(unit), augment.orders(unit[:, 1]))

    def factors(self, unit: Tensor) -> Tensor:
        """Return factors (N,4), which are (1, 1, 1, 0) for images that are not jittered."""
        ranges = [
            (max(0.0, 1 - strength), 1 + strength)
            for strength in (self.brightness, self.contrast, self.saturation)
        ]
        ranges.append((-self.hue, self.hue))
        neutral = (1.0, 1.0, 1.0, 0.0)
        chosen = unit[:, 0] < self.p
        columns = []
        for i, (low, high) in enumerate(ranges):
            drawn = augment.between(unit[:, 2 + i], low, high)
            columns.append(torch.where(chosen, drawn, neutral[i]))
        return torch.stack(columns, 1)


@dataclass(frozen=True)
class Blur:
    """A Gaussian blur with a standard deviation that is uniform in the range `sigma`."""

    p: float
    taps: int
    sigma: Range = (0.1, 2.0)  # the range of all papers in this package
    slots: ClassVar[int] = 2

    def __post_init__(self) -> None:
        _within("the blur's probability", 0, self.p, 1)

    def fits(self, size: int) -> None:
        """Raise ValueError if the reflected border would be wider than a view of `size` pixels."""
        border = self.taps // 2
        if border >= size:
            raise ValueError(
                f"a blur of {self.taps} taps needs views of more than {border} pixels, not {size}"
            )

    def __call__(self, images: Tensor, unit: Tensor) -> Tensor:
        """Return blurred images."""
        self.fits(min(images.shape[2:]))
        sigma = torch.where(unit[:, 0] < self.p, augment.between(unit[:, 1], *self.sigma), 0.0)
        return augment.blur(images, sigma, self.taps)


@dataclass(frozen=True)
class Chance:
    """An operation without parameters (greyscale, solarise, invert), applied with probability p."""

    operation: Callable[[Tensor, Tensor], Tensor]
    p: float
    slots: ClassVar[int] = 1

    def __post_init__(self) -> None:
        _within(f"the probability of {self.operation.__name__}", 0, self.p, 1)

    def __call__(self, images: Tensor, unit: Tensor) -> Tensor:
        """Return the images, with the operation applied to a random subset."""
        return self.operation(images, unit[:, 0] < self.p)


@dataclass(frozen=True)
class Mix:
    """Mix the channels to grey with random weights, with probability p.

    The weights are uniform over all positive weights that sum to 1.
    """

    p: float
    channels: int = 3

    def __post_init__(self) -> None:
        _within("the probability of mix", 0, self.p, 1)
        _whole("the number of channels to mix", self.channels)

    @property
    def slots(self) -> int:
        """One uniform number per channel, and one that selects the images to mix."""
        return 1 + self.channels

    def __call__(self, images: Tensor, unit: Tensor) -> Tensor:
        """Return the images, with a random subset mixed to grey."""
        chosen = augment.pixelwise(unit[:, 0] < self.p)
        return torch.where(chosen, self.grey(images, unit), images)

    def grey(self, images: Tensor, unit: Tensor) -> Tensor:
        """Return all images mixed to grey, as one channel (N,1,H,W)."""
        channels = images.shape[1]
        if channels != self.channels:
            raise ValueError(
                f"mix draws weights for {self.channels} channels but the images have {channels}"
            )
        # exponential samples; 1e-6 avoids a division by 0 if all of them are 0
        weights = -torch.log1p(-unit[:, 1:]) + 1e-6
        return augment.mix(images, weights / weights.sum(1, keepdim=True))


@dataclass(frozen=True)
class Erase:
    """RandomErasing with zeros and torchvision's default ranges.

    As in torchvision, it comes after the normalisation.
    """

    p: float
    slots: ClassVar[int] = 2 * augment.ATTEMPTS + 3

    def __post_init__(self) -> None:
        _within("the probability of erase", 0, self.p, 1)

    def __call__(self, images: Tensor, unit: Tensor) -> Tensor:
        """Return the images, with a random box erased in a random subset."""
        boxes = augment.erase_boxes(
            unit[:, 1:], images.shape[2], images.shape[3], (0.02, 0.33), (0.3, 3.3)
        )
        return augment.erase(images, torch.where(unit[:, :1] < self.p, boxes, 0.0))


@dataclass(frozen=True)
class Standardise:
    """Scale each image to mean 0 and standard deviation 1."""

    slots: ClassVar[int] = 0

    def __call__(self, images: Tensor, unit: Tensor) -> Tensor:
        """Return standardised images."""
        return augment.standardise(images)


def to_uint8(images: Tensor) -> Tensor:
    """Convert images in [0,1] to uint8 with rounding."""
    return (images * 255).round().clamp(0, 255).to(torch.uint8)
