"""Any torch Dataset as a source. N images, C channels, H W pixels."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import Dataset, IterableDataset, Subset

from antipode.data.sources import decode, labels
from antipode.data.sources.source import Decoded, Memory, Numbered

RESIDENT = 1 << 29  # a data set of equal images up to this many bytes is read once and kept
PEEK = 16  # items that tell whether pictures are grey or coloured


def wrap(
    dataset: Dataset[Any],
    *,
    given: Tensor | None = None,
    classes: list[str] | None = None,
    ask: bool = True,
) -> Memory | Decoded:
    """A Dataset of (image, label) or images (Pillow, tensor, array) as a source; small equal images are kept in memory.

    Labels are those `given`, or come from `dataset.targets`, or from the items where these are all read anyway or, if
    one may `ask`, are few.
    """
    if isinstance(dataset, IterableDataset):
        raise ValueError("an IterableDataset has no order to shuffle; give a Dataset with a length")
    count = len(dataset)  # type: ignore[arg-type]
    first, labelled = _peek(dataset, count)
    named = getattr(dataset.dataset if isinstance(dataset, Subset) else dataset, "classes", None)
    if (
        classes is None
        and isinstance(named, list | tuple)
        and all(isinstance(name, str) for name in named)
    ):
        classes = list(named)
    raw = labels.stored_labels(dataset, count) if given is None else given
    kept = (
        _gather(dataset, count, first.shape, labelled)
        if first.numel() * count <= RESIDENT
        else None
    )
    if raw is None and labelled:
        raw = kept[1] if kept is not None else labels.read_labels(dataset, count) if ask else None
    found, classes = labels.numbers(raw, classes)
    if kept is not None:
        return Memory(kept[0], found, classes)
    channels, size = len(first), min(224, *first.shape[1:])
    return Decoded(Items(dataset, channels), Numbered(count), found, classes, channels, size)


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
    image, label = (
        (*item, None)[:2] if isinstance(item, (tuple, list)) else (item, None)
    )  # (image,): no label
    if isinstance(image, Image.Image):
        return decode.picture(
            image, channels=channels or (1 if image.mode in ("1", "L") else 3)
        ), label
    if isinstance(image, Tensor):
        image = image.numpy(force=True)
        if image.ndim == 3:  # a tensor is (C,H,W) by convention, however few its rows
            if image.shape[2] in (1, 3, 4) and min(image.shape[:2]) > 16:
                raise ValueError(
                    f"a tensor image is (C,H,W), and {image.shape} looks like (H,W,C): permute it"
                )
            return decode.tensor(image.transpose(1, 2, 0), channels=len(image)), label
    if isinstance(image, np.ndarray):
        return decode.tensor(image), label
    kind = f"an item holds a {type(image).__name__}, not a Pillow image, a tensor or an array"
    raise ValueError(f"{kind}: let it be the image or (image, label)")


def _peek(dataset: Dataset[Any], count: int) -> tuple[Tensor, bool]:
    """One of the first images (C,H,W), a coloured one where there is one, and whether any has a label."""
    found, reason = [], ""
    for index in range(min(PEEK, count)):
        try:
            found.append(_item(dataset[index]))
        except Exception as error:
            reason = reason or f"; the first: {error}"
    if not count:
        raise ValueError(f"{type(dataset).__name__} has no items")
    if not found:
        raise ValueError(
            f"none of the first {min(PEEK, count)} of {count} items holds an image{reason}"
        )
    # a second view of the image is no label
    labelled = any(
        label is not None and not isinstance(label, Image.Image) and getattr(label, "ndim", 0) < 2
        for _, label in found
    )
    return max((image for image, _ in found), key=len), labelled


def _gather(
    dataset: Dataset[Any], count: int, shape: torch.Size, labelled: bool
) -> tuple[Tensor, list[Any]] | None:
    """All images (N,C,H,W) and N labels as they come, or None where sizes differ or an item cannot be read."""
    images, found = torch.empty(count, *shape, dtype=torch.uint8), []
    for index in range(count):
        try:
            image, label = _item(dataset[index], shape[0])
        except Exception:
            return None  # read again one by one, where a broken image is counted and listed
        if image.shape != shape:
            return None
        images[index] = image
        found.append(label if labelled else None)
    return images, found
