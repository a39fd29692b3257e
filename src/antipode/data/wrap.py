"""Any torch Dataset as a source. N images, C channels, H W pixels."""

import itertools
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import ConcatDataset, Dataset, IterableDataset, Subset

from antipode.data import decode
from antipode.data.progress import track
from antipode.data.source import Decoded, Memory, Numbered

RESIDENT = 1 << 29  # a data set of equal images up to this many bytes is read once and kept
PEEK = 16  # items that tell whether pictures are grey or coloured
ASKED = 10_000  # items that are read for their labels alone, at most: their images are decoded on the way


def wrap(dataset: Dataset[Any], *, labels: Tensor | None = None, classes: list[str] | None = None) -> Memory | Decoded:
    """A Dataset of (image, label) or images (Pillow, tensor, array) as a source; small equal images are kept in memory.

    Labels come from the argument, from `dataset.targets`, or from the items where these are few or all read anyway.
    """
    if isinstance(dataset, IterableDataset):
        raise ValueError("an IterableDataset has no order to shuffle; give a Dataset with a length")
    count = len(dataset)  # type: ignore[arg-type]
    first, label = _peek(dataset, count)
    named = dataset.dataset if isinstance(dataset, Subset) else dataset
    classes = getattr(named, "classes", None) if classes is None else classes
    raw = _targets(dataset, count) if labels is None else labels
    kept = _gather(dataset, count, first.shape) if first.numel() * count <= RESIDENT else None
    if raw is None and label is not None:
        raw = kept[1] if kept is not None else _asked(dataset, count)
    labels, classes = _numbers(raw, classes)
    if kept is not None:
        return Memory(kept[0], labels, classes)
    channels, size = len(first), min(224, *first.shape[1:])
    return Decoded(Items(dataset, channels), Numbered(count), labels, classes, channels, size)


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


def _gather(dataset: Dataset[Any], count: int, shape: torch.Size) -> tuple[Tensor, list[Any]] | None:
    """All images (N,C,H,W) and N labels as they come, or None where sizes differ or an item cannot be read."""
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
    return images, labels


def _asked(dataset: Dataset[Any], count: int) -> list[Any] | None:
    """The labels of all items, each of which is read for it; None, with a warning, where that would take long."""
    if count > ASKED:
        text = f"{type(dataset).__name__} has no `targets`, and {count} items are too many to read for their labels"
        warnings.warn(f"{text}: they are not known", stacklevel=3)
        return None
    found = []
    for index in track(range(count), count, "reading labels", least=500):
        try:
            item = dataset[index]
        except Exception:  # counted and listed when its image is wanted
            item = None
        found.append(item[1] if isinstance(item, (tuple, list)) and len(item) > 1 else None)
    return found


def _targets(dataset: Dataset[Any], count: int) -> Sequence[Any] | None:
    """The labels that a Dataset tells without being read, as it has them."""
    if isinstance(dataset, Subset):
        whole = _targets(dataset.dataset, len(dataset.dataset))  # type: ignore[arg-type]
        return None if whole is None else [whole[index] for index in dataset.indices]
    if isinstance(dataset, ConcatDataset):
        parts = [_targets(part, len(part)) for part in dataset.datasets]  # type: ignore[arg-type]
        known = [part for part in parts if part is not None]
        return list(itertools.chain.from_iterable(known)) if len(known) == len(parts) else None
    for name in ("targets", "labels"):
        found = getattr(dataset, name, None)
        if found is not None and len(found) == count:
            return list(found)
    return None


def _numbers(labels: Any, classes: list[str] | None) -> tuple[Tensor | None, list[str] | None]:
    """Labels int64 (N,) or (N,K), -1 where there is none, and class names, from numbers, one-hot rows or names.

    Training needs none of them: what is neither is told in a warning, and not used.
    """
    if labels is None or not any(label is not None for label in labels):
        return None, classes
    if all(label is None or isinstance(label, str) for label in labels):
        classes = _order(labels, classes)
        place = {name: number for number, name in enumerate(classes)}
        return torch.tensor([-1 if label is None else place[label] for label in labels]), classes
    try:
        return _whole([-1 if label is None else label for label in labels]), classes
    except (TypeError, ValueError, RuntimeError):
        odd = next((label for label in labels if not isinstance(label, int)), labels[0])
        kind = f"the {type(odd).__name__} {str(odd)[:40]!r}"
        text = f"labels are whole numbers from 0 on, one-hot rows or names, one for each class; {kind} is none"
        warnings.warn(f"{text}, and the labels are not used", stacklevel=3)
        return None, classes


def _order(labels: Sequence[str | None], classes: list[str] | None) -> list[str]:
    there = {label for label in labels if label is not None}
    return list(classes) if classes is not None and there <= set(classes) else sorted(there)


def _whole(labels: list[Any]) -> Tensor:
    """Numbers or rows as int64 (N,) or (N,K); rows with a single 1 are numbers. An error where they are neither."""
    rows = torch.stack([torch.as_tensor(label) for label in labels])
    numbers = rows.to(torch.int64)
    if rows.ndim > 2 or not torch.equal(numbers.to(rows.dtype), rows):
        raise ValueError("neither")
    if numbers.ndim == 2 and numbers.shape[1] == 1:
        return numbers[:, 0]
    one_hot = numbers.ndim == 2 and bool(((numbers == 0) | (numbers == 1)).all() and (numbers.sum(1) == 1).all())
    return numbers.argmax(1) if one_hot else numbers
