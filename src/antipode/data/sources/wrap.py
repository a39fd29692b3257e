"""Any torch Dataset as a source. N images, C channels, H W pixels."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import Dataset, IterableDataset, Subset

from antipode.data.sources import decode, labels
from antipode.data.sources.image_names import Numbered
from antipode.data.sources.source import Decoded, Memory

RESIDENT = 1 << 29  # up to this many bytes, a data set of equal images is read once and kept
PEEK = 16  # the items that are read to find out whether the images are grey or coloured


def wrap(
    dataset: Dataset[Any],
    *,
    given: Tensor | None = None,
    classes: list[str] | None = None,
    ask: bool = True,
) -> Memory | Decoded:
    """Return a Dataset of images or of (image, label) as a source.

    An image may be a Pillow image, a tensor or an array. Images of equal size are kept in memory if
    they need at most RESIDENT bytes.

    Labels are the first of these that is available:

    - `given`;
    - the attribute `targets` or `labels` of the Dataset;
    - the labels of the items, if all items are read for the images anyway;
    - the labels of the items, if `ask` is True and there are few items (labels.MAX_READS).
    """
    if isinstance(dataset, IterableDataset):
        raise ValueError(
            "an IterableDataset has no order to shuffle; pass a Dataset with __len__ instead"
        )
    count = len(dataset)  # type: ignore[arg-type]
    peeked, labelled = _peek(dataset, count)
    first = max(peeked.values(), key=len)  # a coloured one if there is one
    named = getattr(dataset.dataset if isinstance(dataset, Subset) else dataset, "classes", None)
    if (
        classes is None
        and isinstance(named, list | tuple)
        and all(isinstance(name, str) for name in named)
    ):
        classes = list(named)
    raw = labels.stored_labels(dataset, count) if given is None else given
    kept = (
        _read_all(dataset, count, first.shape, labelled)
        if first.numel() * count <= RESIDENT
        else None
    )
    if raw is None and labelled:
        raw = kept[1] if kept is not None else labels.read_labels(dataset, count) if ask else None
    numbers, classes = labels.to_numbers(raw, classes)
    if kept is not None:
        # a Dataset that draws random numbers gives other pixels when it is read again
        varies = any(
            image.shape == first.shape and not torch.equal(kept[0][at], image)
            for at, image in peeked.items()
        )
        return Memory(kept[0], numbers, classes, varies=varies)
    channels = len(first)
    size = min(224, *first.shape[1:])
    return Decoded(Items(dataset, channels), Numbered(count), numbers, classes, channels, size)


@dataclass(frozen=True)
class Items:
    """A reader that returns the image at an index of a Dataset."""

    dataset: Dataset[Any]
    channels: int

    def __call__(self, index: int) -> Tensor:
        """Return the image uint8 (C,H,W)."""
        try:
            image, _ = _item(self.dataset[index], self.channels)
            return decode.match_channels(image, self.channels)
        except Exception as error:
            raise ValueError(f"cannot be read ({type(error).__name__}: {error})") from error

    def fingerprint(self) -> str | None:
        """Return the fingerprint of a Hugging Face data set, or None for any other Dataset.

        Nothing is known about the images that any other Dataset will return next.
        """
        text = getattr(self.dataset, "_fingerprint", None)
        return None if text is None else f"{text} {len(self.dataset)}"  # type: ignore[arg-type]


def _item(item: Any, channels: int | None = None) -> tuple[Tensor, Any]:
    """Return the image uint8 (C,H,W) of an item, and its label or None."""
    # (image,) has no label
    image, label = (*item, None)[:2] if isinstance(item, (tuple, list)) else (item, None)
    if isinstance(image, Image.Image):
        channels = channels or (1 if image.mode in ("1", "L") else 3)
        return decode.from_pillow(image, channels=channels), label
    if isinstance(image, Tensor):
        image = image.numpy(force=True)
        if image.ndim == 3:  # a tensor is (C,H,W) by convention, even if it has few rows
            if image.shape[2] in (1, 3, 4) and min(image.shape[:2]) > 16:
                raise ValueError(
                    f"a tensor image must be (C,H,W), but {image.shape} looks like (H,W,C); "
                    "permute it"
                )
            return decode.from_array(image.transpose(1, 2, 0), channels=len(image)), label
    if isinstance(image, np.ndarray):
        return decode.from_array(image), label
    raise ValueError(
        f"an item contains a {type(image).__name__}, not a Pillow image, a tensor or an array; "
        "an item must be an image or (image, label)"
    )


def _peek(dataset: Dataset[Any], count: int) -> tuple[dict[int, Tensor], bool]:
    """Return those of the first PEEK images (C,H,W) that can be read, by their index.

    Also returns whether any of them has a label.
    """
    items: dict[int, tuple[Tensor, Any]] = {}
    reason = ""
    for index in range(min(PEEK, count)):
        try:
            items[index] = _item(dataset[index])
        except Exception as error:
            reason = reason or f"; the first: {error}"
    if not count:
        raise ValueError(f"{type(dataset).__name__} has no items")
    if not items:
        raise ValueError(
            f"none of the first {min(PEEK, count)} of {count} items contains an image{reason}"
        )
    # a second view of the image is not a label
    labelled = any(
        label is not None and not isinstance(label, Image.Image) and getattr(label, "ndim", 0) < 2
        for _, label in items.values()
    )
    return {index: image for index, (image, _) in items.items()}, labelled


def _read_all(
    dataset: Dataset[Any], count: int, shape: torch.Size, labelled: bool
) -> tuple[Tensor, list[Any]] | None:
    """Return all images (N,C,H,W) and N unconverted labels.

    Returns None if the sizes differ or an item cannot be read.
    """
    images = torch.empty(count, *shape, dtype=torch.uint8)
    item_labels = []
    for index in range(count):
        try:
            image, label = _item(dataset[index], shape[0])
        except Exception:
            return None  # the items are read one by one later; that counts and lists broken images
        if image.shape != shape:
            return None
        images[index] = image
        item_labels.append(label if labelled else None)
    return images, item_labels
