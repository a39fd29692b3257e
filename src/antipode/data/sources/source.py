"""Images as uint8, in memory or decoded on demand. N images, B of them in a batch, C channels, H W pixels, K classes.

Labels are for evaluation only: the loader hands out image ids, and `source.labels[ids]` are the labels.
"""

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor
from torchvision.transforms.v2 import functional as F

TRIES = 100  # so many unreadable images in a row are a broken disk, not a few bad files


class BrokenImages(UserWarning):
    """Some images were left out or replaced; the text counts them and names the first."""


class Skip(NamedTuple):
    """An image that is not used, and why."""

    name: str
    reason: str


class Source(Protocol):
    """What the loader and the evaluations need of a data set. An image's id is its index."""

    @property
    def classes(self) -> list[str] | None: ...  # noqa: D102

    @property
    def labels(self) -> Tensor | None:
        """Int64 (N,), or (N,K) where an image may have several classes: 1 present, 0 absent, -1 not to be judged."""

    @property
    def channels(self) -> int: ...  # noqa: D102

    def __len__(self) -> int: ...

    def take(self, indices: Tensor) -> tuple[Tensor, Tensor | None]:
        """Images uint8 (B,C,H,W) and their labels."""


class Numbered(Sequence[str]):
    """The names "image 0", "image 1", ... without a list of them."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: Any) -> Any:
        if not -self.length <= index < self.length:  # what ends a loop over it
            raise IndexError(f"there are {self.length} images, and none at {index}")
        return f"image {index % self.length}"


@dataclass(frozen=True)
class Memory:
    """A data set as one tensor; a batch is an index operation, without a word between host and device."""

    images: Tensor  # uint8 (N,C,H,W)
    labels: Tensor | None = None
    classes: list[str] | None = None
    skipped: tuple[Skip, ...] = ()

    def __len__(self) -> int:
        return len(self.images)

    @property
    def channels(self) -> int:
        """C."""
        return self.images.shape[1]

    @property
    def size(self) -> int:
        """The shorter side in pixels."""
        return min(self.images.shape[2:])

    def to(self, device: torch.device | str) -> "Memory":
        """The same data set on another device."""
        labels = None if self.labels is None else self.labels.to(device)
        return replace(self, images=self.images.to(device), labels=labels)

    def take(self, indices: Tensor) -> tuple[Tensor, Tensor | None]:
        """Images uint8 (B,C,H,W) and their labels; indices must be on the device of the images."""
        labels = None if self.labels is None else self.labels[indices]
        return self.images.index_select(0, indices), labels


@dataclass(frozen=True)
class Decoded:
    """A data set whose images, of any size, are read when they are needed."""

    read: Callable[[int], Tensor]  # uint8 (C,H,W); ValueError or OSError where the image is broken
    names: Sequence[str]
    labels: Tensor | None = None
    classes: list[str] | None = None
    channels: int = 3
    size: int = 224  # of what `take` gives
    skipped: tuple[Skip, ...] = ()  # left out when the data set was opened
    failed: dict[str, str] = field(
        default_factory=dict
    )  # name -> reason, of images that later could not be read

    def __len__(self) -> int:
        return len(self.names)

    def nearest(self, index: int) -> tuple[int, Tensor, list[Skip]]:
        """The image at `index`, or the next that can be read: its index, itself (C,H,W), and what failed before it."""
        failures: list[Skip] = []
        for step in range(min(TRIES, len(self))):
            at = (index + step) % len(self)
            try:
                return at, self.read(at), failures
            except (ValueError, OSError) as error:
                failures.append(Skip(self.names[at], str(error)))
        first = failures[0]
        raise ValueError(
            f"{len(failures)} images in a row cannot be read, the first: {first.name} {first.reason}"
        )

    def take(self, indices: Tensor) -> tuple[Tensor, Tensor | None]:
        """Images uint8 (B,C,size,size), the scaled centre of each, and their labels; the next replaces a broken one."""
        images, found = [], []
        for index in indices.tolist():
            at, image, failures = self.nearest(index)
            self.note(failures)
            images.append(centre(image, self.size))
            found.append(at)
        return torch.stack(images), None if self.labels is None else self.labels[
            torch.tensor(found)
        ]

    def note(self, failures: list[Skip]) -> None:
        """Count and list images that could not be read; the first ten are named in warnings, then tenfold counts."""
        for failure in failures:
            if failure.name in self.failed:
                continue
            self.failed[failure.name] = failure.reason
            count = len(self.failed)
            if count <= 10 or math.log10(count).is_integer():
                # with its folder: Python says a sentence once, and two splits may have a file of one name
                which = f"{place(self.read)}{failure.name} {failure.reason}"
                text = f"{which}; the next image takes its place ({count} so far)"
                warnings.warn(_printable(text), BrokenImages, stacklevel=3)


def warn_skipped(where: object, skipped: Sequence[Skip], count: int) -> None:
    """One warning for all that was left out of `count` files: how many, and the first five by name."""
    if skipped:
        first = "; ".join(f"{skip.name} {skip.reason}" for skip in skipped[:5])
        text = f"{len(skipped)} of {count} files of {where} are left out ({first}{'; ...' if len(skipped) > 5 else ''})"
        warnings.warn(_printable(text), BrokenImages, stacklevel=3)


def _printable(text: str) -> str:
    """A file name need not be valid Unicode, but the terminal wants it so."""
    return text.encode("utf-8", "backslashreplace").decode()


def centre(image: Tensor, size: int, edge: int | None = None) -> Tensor:
    """The middle (C,size,size) of an image with its shorter side scaled to `edge`: 8/7 size, as 256 for 224."""
    height, width = image.shape[1:]
    longest = 3 * min(
        height, width
    )  # the rest would be cut off anyway, after a resize of a strip to 25,600 px
    image = F.center_crop(image, [min(height, longest), min(width, longest)])
    image = F.resize(image, [round(size * 8 / 7) if edge is None else edge], antialias=True)
    middle: Tensor = F.center_crop(image, [size, size])
    return middle.contiguous()


Some = TypeVar("Some", bound=Source)


def subset(source: Some, indices: Tensor) -> Some:
    """The images of a source at `indices`, in that order."""
    labels = None if source.labels is None else source.labels[indices]
    if isinstance(source, Memory):
        return replace(source, images=source.images[indices], labels=labels)
    if not isinstance(source, Decoded):
        raise ValueError(f"a {type(source).__name__} cannot be split; use Memory or Decoded")
    picked = indices.tolist()
    names = [source.names[at] for at in picked]
    return replace(
        source, read=_At(source.read, picked), names=names, labels=labels
    )  # what failed is told to both


def place(read: Any) -> str:
    """The folder that the images of a reader lie in, as what stands before their names; nothing where there is none."""
    root = getattr(read, "root", None)
    inner = getattr(read, "read", None)
    return f"{Path(root).name}/" if root else "" if inner is None else place(inner)


def stamp(read: Callable[[int], Tensor]) -> str | None:
    """A text that changes when the images of a reader do, without reading them; None where nobody can tell."""
    own = getattr(read, "stamp", None)
    found: str | None = own() if own else None
    return found


def three(source: Source) -> Source:
    """A source of grey images with the grey in three channels."""
    if isinstance(source, Memory):
        return replace(source, images=source.images.expand(-1, 3, -1, -1))
    if not isinstance(source, Decoded):
        raise ValueError(f"a {type(source).__name__} cannot be given colour; use Memory or Decoded")
    return replace(source, read=_Three(source.read), channels=3)


@dataclass(frozen=True)
class _Three:
    """A reader of grey images that repeats them."""

    read: Callable[[int], Tensor]

    def __call__(self, index: int) -> Tensor:
        return self.read(index).expand(3, -1, -1)

    def stamp(self) -> str | None:
        """Of the grey images."""
        return stamp(self.read)


@dataclass(frozen=True)
class _At:
    """A reader behind a list of indices. A class, not a closure, because workers may have to pickle it."""

    read: Callable[[int], Tensor]
    indices: list[int]

    def __call__(self, index: int) -> Tensor:
        return self.read(self.indices[index])

    def stamp(self) -> str | None:
        """Of all images and which of them these are."""
        found = stamp(self.read)
        return None if found is None else f"{found} {self.indices}"

    def encoded(self, index: int) -> bytes | None:
        """The bytes of the image file, where the reader has one."""
        encoded = getattr(self.read, "encoded", None)
        found: bytes | None = encoded(self.indices[index]) if encoded else None
        return found
