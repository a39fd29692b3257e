"""Any torch Dataset as a source. N images, C channels, H W pixels."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import Dataset, IterableDataset, Subset

from antipode.data import decode
from antipode.data.source import Decoded, Memory

RESIDENT = 1 << 29  # a data set of equal images up to this many bytes is read once and kept
PEEK = 16  # items that tell whether pictures are grey or coloured


def wrap(dataset: Dataset[Any], *, labels: Tensor | None = None, classes: list[str] | None = None) -> Memory | Decoded:
    """A Dataset of (image, label) or images (Pillow, tensor, array) as a source; small equal images are kept in memory.

    Labels come from the argument, from `dataset.targets`, or from the items where these are all read anyway.
    """
    if isinstance(dataset, IterableDataset):
        raise ValueError("an IterableDataset has no order to shuffle; give a Dataset with a length")
    count = len(dataset)  # type: ignore[arg-type]
    first, label = _peek(dataset, count)
    labels = _targets(dataset, count) if labels is None else labels
    named = dataset.dataset if isinstance(dataset, Subset) else dataset
    classes = getattr(named, "classes", None) if classes is None else classes
    if first.numel() * count <= RESIDENT:
        kept = _gather(dataset, count, first.shape)
        if kept is not None:
            return Memory(kept[0], kept[1] if labels is None else labels, classes)
    if label is not None and labels is None:
        warnings.warn(f"{type(dataset).__name__} has no `targets`, so its labels are not known", stacklevel=2)
    channels, size = len(first), min(224, *first.shape[1:])
    return Decoded(Items(dataset, channels), Numbered(count), labels, classes, channels, size)


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
class Items:
    """Reads the image at an index of a Dataset."""

    dataset: Dataset[Any]
    channels: int

    def __call__(self, index: int) -> Tensor:
        """The image uint8 (C,H,W)."""
        try:
            return decode.fit(_item(self.dataset[index], self.channels)[0], self.channels)
        except Exception as error:
            raise ValueError(f"cannot be read ({type(error).__name__}: {error})") from error

    def stamp(self) -> str | None:
        """The fingerprint that a data set of Hugging Face has; of others nobody knows what they will give next."""
        found = getattr(self.dataset, "_fingerprint", None)
        return None if found is None else f"{found} {len(self.dataset)}"  # type: ignore[arg-type]


def _item(item: Any, channels: int | None = None) -> tuple[Tensor, Any]:
    """The image uint8 (C,H,W) and the label, or None, of a data set's item."""
    image, label = (*item, None)[:2] if isinstance(item, (tuple, list)) else (item, None)  # (image,): no label
    if isinstance(image, Image.Image):
        return decode.picture(image, channels=channels or (1 if image.mode in ("1", "L") else 3)), label
    if isinstance(image, Tensor):
        image = image.numpy(force=True)
        if image.ndim == 3:  # a tensor is (C,H,W) by convention, however few its rows
            if image.shape[2] in (1, 3, 4) and min(image.shape[:2]) > 16:
                raise ValueError(f"a tensor image is (C,H,W), and {image.shape} looks like (H,W,C): permute it")
            return decode.tensor(image.transpose(1, 2, 0), channels=len(image)), label
    if isinstance(image, np.ndarray):
        return decode.tensor(image), label
    kind = f"an item holds a {type(image).__name__}, not a Pillow image, a tensor or an array"
    raise ValueError(f"{kind}: let it be the image or (image, label)")


def _peek(dataset: Dataset[Any], count: int) -> tuple[Tensor, Any]:
    """One of the first images (C,H,W), a coloured one where there is one, and its label."""
    found, reason = [], ""
    for index in range(min(PEEK, count)):
        try:
            found.append(_item(dataset[index]))
        except Exception as error:
            reason = reason or f"; the first: {error}"
    if not count:
        raise ValueError(f"{type(dataset).__name__} has no items")
    if not found:
        raise ValueError(f"none of the first {min(PEEK, count)} of {count} items holds an image{reason}")
    return max(found, key=lambda item: len(item[0]))


def _gather(dataset: Dataset[Any], count: int, shape: torch.Size) -> tuple[Tensor, Tensor | None] | None:
    """All images (N,C,H,W) and labels (N,), or None where sizes differ or an item cannot be read."""
    images, labels = torch.empty(count, *shape, dtype=torch.uint8), []
    for index in range(count):
        try:
            image, label = _item(dataset[index], shape[0])
        except Exception:
            return None  # read again one by one, where a broken image is counted and listed
        if image.shape != shape:
            return None
        images[index] = image
        labels.append(label)
    return images, None if labels[0] is None else _numbers(labels)


def _targets(dataset: Dataset[Any], count: int) -> Tensor | None:
    if isinstance(dataset, Subset):
        whole = _targets(dataset.dataset, len(dataset.dataset))  # type: ignore[arg-type]
        return None if whole is None else whole[torch.as_tensor(dataset.indices)]
    for name in ("targets", "labels"):
        found = getattr(dataset, name, None)
        if found is not None and len(found) == count:
            return _numbers(found)
    return None


def _numbers(labels: Any) -> Tensor:
    """Labels int64 (N,) or (N,K), from whatever holds numbers."""
    try:
        return torch.as_tensor(labels, dtype=torch.int64)
    except (TypeError, ValueError) as error:
        odd = next((label for label in labels if not isinstance(label, int)), labels[0])
        kind = f"{type(odd).__name__} {str(odd)[:40]!r}"
        raise ValueError(f"labels must be whole numbers from 0 on, one for each class, not the {kind}") from error
