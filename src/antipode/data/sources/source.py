"""Images as uint8, in memory or decoded on demand.

N images, B images in a batch, C channels, H W pixels, K classes.

Labels are only for evaluation. The loader returns image ids, and `source.labels[ids]` are their
labels.
"""

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor

from antipode.data.sources.image_names import Names
from antipode.names import printable

TRIES = 100  # this many unreadable images in a row mean a broken disk, not a few bad files


class BrokenImages(UserWarning):
    """Some images were skipped or replaced; the message counts them and names the first."""


class Skip(NamedTuple):
    """An image that is not used, and why.

    The reason is the rest of a sentence that starts with the name.
    """

    name: str
    reason: str


class Source(Protocol):
    """What the loader and the evaluations need from a data set. An image's id is its index."""

    @property
    def classes(self) -> list[str] | None: ...  # noqa: D102

    @property
    def labels(self) -> Tensor | None:
        """Labels int64 (N,), or (N,K) if an image may have several classes.

        In rows (N,K), 1 means present, 0 absent, and -1 not to be evaluated.
        """

    @property
    def channels(self) -> int: ...  # noqa: D102

    def __len__(self) -> int: ...

    def take(self, indices: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return images uint8 (B,C,H,W) and their labels."""


@dataclass(frozen=True)
class Memory:
    """A data set as one tensor.

    Taking a batch is an index operation and does not synchronise with the device.
    """

    images: Tensor  # uint8 (N,C,H,W)
    labels: Tensor | None = None
    classes: list[str] | None = None
    skipped: tuple[Skip, ...] = ()
    varies: bool = False  # the images were others when they were read before

    def __len__(self) -> int:
        return len(self.images)

    @property
    def channels(self) -> int:
        """The number of channels C."""
        return self.images.shape[1]

    @property
    def size(self) -> int:
        """The shorter side in pixels."""
        return min(self.images.shape[2:])

    def to(self, device: torch.device | str) -> "Memory":
        """Return the same data set on another device."""
        labels = None if self.labels is None else self.labels.to(device)
        return replace(self, images=self.images.to(device), labels=labels)

    def take(self, indices: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return images uint8 (B,C,H,W) and their labels.

        `indices` must be on the device of the images.
        """
        labels = None if self.labels is None else self.labels[indices]
        return self.images.index_select(0, indices), labels


@dataclass(frozen=True)
class Decoded:
    """A data set whose images, of any size, are read when they are needed."""

    # returns uint8 (C,H,W); raises ValueError or OSError for a broken image
    read: Callable[[int], Tensor]
    names: Sequence[str]
    labels: Tensor | None = None
    classes: list[str] | None = None
    channels: int = 3
    size: int = 224  # side of the images that `take` returns
    skipped: tuple[Skip, ...] = ()  # images skipped when the data set was opened
    # name -> reason, of images that could not be read later
    failed: dict[str, str] = field(default_factory=dict)
    # whether the caller leaves out images that could not be read later, as the warnings then say
    leaves_out: bool = False

    def __len__(self) -> int:
        return len(self.names)

    def read_or_next(self, index: int) -> tuple[int, Tensor, list[Skip]]:
        """Read the image at `index`, or the next image that can be read.

        Returns its index, the image (C,H,W), and the images that could not be read before it.
        Raises ValueError after TRIES failures in a row.
        """
        failures: list[Skip] = []
        for step in range(min(TRIES, len(self))):
            at = (index + step) % len(self)
            try:
                return at, self.read(at), failures
            except (ValueError, OSError) as error:
                failures.append(Skip(self.names[at], str(error)))
        first = failures[0]
        text = f"{len(failures)} images in a row cannot be read, the first: "
        raise ValueError(printable(f"{text}{shortened(first.name)} {first.reason}"))

    def take(self, indices: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return the scaled centres uint8 (B,C,size,size) of images, and their labels.

        The next image that can be read replaces a broken one.
        """
        images = []
        taken = []
        for index in indices.tolist():
            at, image, failures = self.read_or_next(index)
            self.report_failures(failures)
            images.append(centre(image, self.size))
            taken.append(at)
        labels = None if self.labels is None else self.labels[torch.tensor(taken)]
        return torch.stack(images), labels

    def report_failures(self, failures: list[Skip]) -> None:
        """Add images that could not be read to `failed` and warn about them.

        Each of the first ten gets a warning, then only the 100th, the 1,000th and so on.
        """
        for failure in failures:
            if failure.name in self.failed:
                continue
            self.failed[failure.name] = failure.reason
            count = len(self.failed)
            if count <= 10 or math.log10(count).is_integer():
                # The folder is part of the message, because Python shows equal warnings only once,
                # and two splits may have files of the same name.
                name = f"{folder_prefix(self.read)}{shortened(failure.name)}"
                fate = "is left out" if self.leaves_out else "is replaced by the next image"
                text = f"{name} {failure.reason} and {fate} ({count} so far)"
                warnings.warn(printable(text), BrokenImages, stacklevel=3)


def leaving_out(source: Source) -> Source:
    """Return a source for a caller that leaves out the images that could not be read."""
    return replace(source, leaves_out=True) if isinstance(source, Decoded) else source


def left_out(source: Source) -> int:
    """Return how many images were skipped when a source was opened, or could not be read later."""
    skipped = len(getattr(source, "skipped", ()))
    if not isinstance(source, Decoded) or not source.failed:
        return skipped
    return skipped + sum(name in source.failed for name in source.names)


def warn_skipped(where: object, skipped: Sequence[Skip], count: int) -> None:
    """Warn once that some of `count` files are skipped: how many, and the first five by name."""
    if skipped:
        first = listed([f"{shortened(skip.name)} {skip.reason}" for skip in skipped], "; ")
        text = f"{len(skipped)} of {count} files of {where} were skipped ({first})"
        warnings.warn(printable(text), BrokenImages, stacklevel=3)


def listed(names: Sequence[str], separator: str = ", ") -> str:
    """Return the first five names for a message, and dots if there are more."""
    return separator.join([*names[:5], *(["..."] if len(names) > 5 else [])])


def shortened(name: str) -> str:
    """Return a name for a message; the middle of a very long path is left out."""
    return name if len(name) <= 300 else f"{name[:140]}...{name[-140:]}"


def centre(image: Tensor, size: int, edge: int | None = None) -> Tensor:
    """Return the centre (C,size,size) of an image whose shorter side is first scaled to `edge`.

    By default, `edge` is 8/7 of `size`, which is 256 for 224.
    """
    # slow to import, and not needed for images in memory: torchvision loads torch's compiler
    from torchvision.transforms.v2 import functional as F  # noqa: PLC0415

    height, width = image.shape[1:]
    # the final crop removes the rest anyway; without this, a long strip becomes 25,600 px long
    longest = 3 * min(height, width)
    image = F.center_crop(image, [min(height, longest), min(width, longest)])
    image = F.resize(image, [round(size * 8 / 7) if edge is None else edge], antialias=True)
    middle: Tensor = F.center_crop(image, [size, size])
    return middle.contiguous()


AnySource = TypeVar("AnySource", bound=Source)


def subset(source: AnySource, indices: Tensor) -> AnySource:
    """Return the images of a source at `indices`, in that order."""
    labels = None if source.labels is None else source.labels[indices]
    if isinstance(source, Memory):
        return replace(source, images=source.images[indices], labels=labels)
    if not isinstance(source, Decoded):
        raise ValueError(f"a {type(source).__name__} cannot be split; use Memory or Decoded")
    positions = indices.tolist()
    names = source.names if isinstance(source.names, Names) else Names(source.names)
    # both sources share `failed`, so that failures are listed in both
    chosen = names.at(np.asarray(positions, np.int64))
    return replace(source, read=_At(source.read, positions), names=chosen, labels=labels)


def folder_prefix(read: Any) -> str:
    """Return the folder of a reader's images as a prefix of their names: "FOLDER/", or ""."""
    root = getattr(read, "root", None)
    inner = getattr(read, "read", None)
    return f"{Path(root).name}/" if root else "" if inner is None else folder_prefix(inner)


def marks(read: Callable[[int], Tensor], indices: np.ndarray[Any, Any]) -> dict[str, bytes]:
    """Return what is known about a reader's images at `indices` without reading them.

    The values are bytes that change if the images change, such as the sizes of the files. They do
    not depend on where the files are.
    """
    method = getattr(read, "marks", None)
    known: dict[str, bytes] = method(indices) if method else {}
    return known


def fingerprint(read: Callable[[int], Tensor]) -> str | None:
    """Return a text that changes when a reader's images change, or None if that is unknown.

    The images are not read.
    """
    method = getattr(read, "fingerprint", None)
    text: str | None = method() if method else None
    return text


def grey_to_rgb(source: Source) -> Source:
    """Return a source of grey images with the grey repeated in three channels."""
    if isinstance(source, Memory):
        return replace(source, images=source.images.expand(-1, 3, -1, -1))
    if not isinstance(source, Decoded):
        raise ValueError(
            f"a {type(source).__name__} cannot be converted to RGB; use Memory or Decoded"
        )
    return replace(source, read=_GreyToRgb(source.read), channels=3)


@dataclass(frozen=True)
class _GreyToRgb:
    """A reader that repeats the grey images of another reader in three channels."""

    read: Callable[[int], Tensor]

    def __call__(self, index: int) -> Tensor:
        return self.read(index).expand(3, -1, -1)

    def fingerprint(self) -> str | None:
        """Return the fingerprint of the grey images."""
        return fingerprint(self.read)

    def marks(self, indices: np.ndarray[Any, Any]) -> dict[str, bytes]:
        """Return the marks of the grey images."""
        return marks(self.read, indices)


@dataclass(frozen=True)
class _At:
    """A reader for a list of indices of another reader.

    This is a class and not a closure, because workers may have to pickle it.
    """

    read: Callable[[int], Tensor]
    indices: list[int]

    def __call__(self, index: int) -> Tensor:
        return self.read(self.indices[index])

    def fingerprint(self) -> str | None:
        """Return the fingerprint of all images of the other reader, with the indices."""
        text = fingerprint(self.read)
        return None if text is None else f"{text} {self.indices}"

    def marks(self, indices: np.ndarray[Any, Any]) -> dict[str, bytes]:
        """Return the marks of the other reader."""
        return marks(self.read, np.asarray(self.indices)[indices])

    def encoded(self, index: int) -> bytes | None:
        """Return the bytes of the image file, or None if the other reader has none."""
        encoded = getattr(self.read, "encoded", None)
        data: bytes | None = encoded(self.indices[index]) if encoded else None
        return data
