"""Operations with their numbers: each turns its own uniform numbers into parameters and calls `augment`."""

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
    """Images (N,C,H,W) in [0,1] and the operation's own uniform numbers (N,slots) to images."""

    @property
    def slots(self) -> int:
        """How many uniform numbers it reads."""

    def __call__(self, images: Tensor, unit: Tensor, /) -> Tensor:
        """The images after it."""


def _within(name: str, low: float, value: Range | float, high: float) -> None:
    numbers = value if isinstance(value, tuple) else (value, value)
    if len(numbers) != 2 or not low <= numbers[0] <= numbers[1] <= high:
        raise ValueError(
            f"{name} must lie in [{low:g}, {high:g}], in ascending order, but is {value}"
        )


def _whole(name: str, value: int) -> None:
    if not hasattr(value, "__index__") or value < 1:
        raise ValueError(f"{name} must be a whole number of at least 1 but is {value}")


@dataclass(frozen=True)
class Crop:
    """RandomResizedCrop and flips."""

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
        """Crops (N,C,size,size)."""
        boxes, mirror, upend = self.draw(unit, images.shape[2], images.shape[3])
        return augment.crop(images, boxes, self.size, mirror=mirror, upend=upend, cubic=self.cubic)

    def draw(self, unit: Tensor, height: int, width: int) -> tuple[Tensor, Tensor, Tensor]:
        """Boxes (N,4) and choices (N,) of both flips."""
        boxes = augment.crop_boxes(unit[:, :-2], height, width, self.scale, self.ratio)
        return boxes, unit[:, -2] < self.flip, unit[:, -1] < self.upend

    def cut(self, image: Tensor, unit: Tensor) -> Tensor:
        """The same of one uint8 image (1,C,H,W) of any size on the host: only the box is read."""
        boxes, mirror, upend = self.draw(unit, image.shape[2], image.shape[3])
        top, left, height, width = (int(side) for side in boxes[0].tolist())
        part = image[:, :, top : top + height, left : left + width]
        # torch's bicubic on bytes cuts the overshoot between rows and columns, so cubic goes through floats
        part, mode = (part / 255, "bicubic") if self.cubic else (part, "bilinear")
        part = F.interpolate(
            part, (self.size, self.size), mode=mode, align_corners=False, antialias=True
        )
        part = atomic_write(part) if self.cubic else part
        return part.flip([axis for axis, chosen in ((3, mirror), (2, upend)) if chosen])


@dataclass(frozen=True)
class Centre:
    """The shorter side resized to `edge`, the central square cut out; images of the right size stay as they are."""

    size: int
    edge: int
    slots: ClassVar[int] = 0

    def __call__(self, images: Tensor, unit: Tensor) -> Tensor:
        """Centres (N,C,size,size)."""
        same = images.shape[2:] == (self.size, self.size)
        return images if same else augment.centre(images, self.size, self.edge)

    def cut(self, image: Tensor, unit: Tensor) -> Tensor:
        """The same of one uint8 image (1,C,H,W) of any size, on bytes: ten times as fast, and within one of 255."""
        same = image.shape[2:] == (self.size, self.size)
        return image if same else centre(image[0], self.size, self.edge)[None]


@dataclass(frozen=True)
class Turn:
    """Rotation by a uniform angle of at most `degrees` either way; the border is mirrored, so no corner shows."""

    degrees: float
    slots: ClassVar[int] = 1

    def __post_init__(self) -> None:
        _within("the turn's degrees", 0, self.degrees, 360)

    def __call__(self, images: Tensor, unit: Tensor) -> Tensor:
        """Turned images."""
        return augment.rotate(
            images, augment.between(unit[:, 0], -self.degrees, self.degrees), "reflection"
        )

    def cut(self, image: Tensor, unit: Tensor) -> Tensor:
        """The same of one uint8 image (1,C,H,W)."""
        return atomic_write(self(image / 255, unit))


@dataclass(frozen=True)
class Jitter:
    """ColorJitter: four strengths, a random order for each image, and the probability of the whole."""

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
        """Jittered images."""
        coloured = images.shape[1] in (1, 3)  # saturation and hue are of red, green and blue
        own = self if coloured else replace(self, saturation=0.0, hue=0.0)
        return augment.jitter(images, own.factors(unit), augment.orders(unit[:, 1]))

    def factors(self, unit: Tensor) -> Tensor:
        """Factors (N,4); 1, 1, 1, 0 for images that are not jittered."""
        ranges = [
            (max(0.0, 1 - s), 1 + s) for s in (self.brightness, self.contrast, self.saturation)
        ]
        drawn = [
            augment.between(unit[:, 2 + i], *r)
            for i, r in enumerate([*ranges, (-self.hue, self.hue)])
        ]
        chosen = unit[:, 0] < self.p
        return torch.stack(
            [
                torch.where(chosen, f, rest)
                for f, rest in zip(drawn, (1.0, 1.0, 1.0, 0.0), strict=True)
            ],
            1,
        )


@dataclass(frozen=True)
class Blur:
    """Gaussian blur with a uniform sigma."""

    p: float
    taps: int
    sigma: Range = (0.1, 2.0)  # of all papers here
    slots: ClassVar[int] = 2

    def __post_init__(self) -> None:
        _within("the blur's probability", 0, self.p, 1)

    def fits(self, size: int) -> None:
        """Refuse views whose mirrored border would be wider than they are."""
        if self.taps // 2 >= size:
            raise ValueError(
                f"a blur of {self.taps} taps needs views of more than {self.taps // 2} pixels, not {size}"
            )

    def __call__(self, images: Tensor, unit: Tensor) -> Tensor:
        """Blurred images."""
        self.fits(min(images.shape[2:]))
        sigma = torch.where(unit[:, 0] < self.p, augment.between(unit[:, 1], *self.sigma), 0.0)
        return augment.blur(images, sigma, self.taps)


@dataclass(frozen=True)
class Chance:
    """An operation without parameters, done with probability p: greyscale, solarise, invert."""

    operation: Callable[[Tensor, Tensor], Tensor]
    p: float
    slots: ClassVar[int] = 1

    def __post_init__(self) -> None:
        _within(f"the probability of {self.operation.__name__}", 0, self.p, 1)

    def __call__(self, images: Tensor, unit: Tensor) -> Tensor:
        """The images, those that chance chose changed."""
        return self.operation(images, unit[:, 0] < self.p)


@dataclass(frozen=True)
class Mix:
    """Channels mixed to grey with weights drawn evenly from all that are positive and sum to 1."""

    p: float
    channels: int = 3

    def __post_init__(self) -> None:
        _within("the probability of mix", 0, self.p, 1)
        _whole("the number of channels to mix", self.channels)

    @property
    def slots(self) -> int:
        """One number per channel and one for the choice."""
        return 1 + self.channels

    def __call__(self, images: Tensor, unit: Tensor) -> Tensor:
        """The images, those that chance chose grey."""
        if images.shape[1] != self.channels:
            raise ValueError(
                f"mix draws weights of {self.channels} channels but the images have {images.shape[1]}"
            )
        weights = -torch.log1p(-unit[:, 1:]) + 1e-6  # exponential; 1e-6: all of them may be 0
        return augment.mix(images, weights / weights.sum(1, keepdim=True), unit[:, 0] < self.p)


@dataclass(frozen=True)
class Erase:
    """RandomErasing with zeros and torchvision's own ranges; after the normalisation, as there."""

    p: float
    slots: ClassVar[int] = 2 * augment.ATTEMPTS + 3

    def __post_init__(self) -> None:
        _within("the probability of erase", 0, self.p, 1)

    def __call__(self, images: Tensor, unit: Tensor) -> Tensor:
        """The images, those that chance chose with a hole."""
        boxes = augment.erase_boxes(
            unit[:, 1:], images.shape[2], images.shape[3], (0.02, 0.33), (0.3, 3.3)
        )
        return augment.erase(images, torch.where(unit[:, :1] < self.p, boxes, 0.0))


@dataclass(frozen=True)
class Standardise:
    """Each image with mean 0 and standard deviation 1."""

    slots: ClassVar[int] = 0

    def __call__(self, images: Tensor, unit: Tensor) -> Tensor:
        """Standardised images."""
        return augment.standardise(images)


def atomic_write(images: Tensor) -> Tensor:
    """Images in [0,1] as uint8, rounded."""
    return (images * 255).round().clamp(0, 255).to(torch.uint8)
