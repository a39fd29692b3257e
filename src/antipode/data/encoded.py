"""What a worker does if the device decodes: read the files, check them, and draw the boxes.

Shapes: n images of a chunk, V views, C channels, S pixels of the side of a view.

A file that the device cannot decode, such as a PNG or a progressive JPEG, is decoded and cut by the
worker as usual, and its crops take the place of its bytes. If workers and device share the work,
the same happens to a random quarter of the images.
"""

import math
import mmap
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from antipode import rng
from antipode.data.chunks import Maker, uniforms
from antipode.data.sources.headers import plain_jpeg
from antipode.data.sources.source import Decoded, Skip

SAMPLE = 16  # files that are read to see how long they are, and whether the device can decode them
SLOT_BYTES = 32 << 20  # of the files of a chunk, about
CHUNK = 64  # images of a chunk, at most
WORKERS = 0.25  # the share of images that workers decode if they share the work with the device
Bytes = np.ndarray[Any, Any]
_NO_FILE = (np.empty(0, np.uint8), (0, 0))  # the host must decode the image


class Rows(NamedTuple):
    """The images of a chunk.

    `table` int64 (n,4) has the first byte, the number of bytes, the height and the width of each
    image in its slot. The height is 0 if the bytes are the crops of all views. `boxes` are int32
    (V,n,6), see `views.flat.crop_flat`.
    """

    step: int
    epoch: int
    slot: int
    planned_ids: Bytes  # int64 (n,)
    image_ids: Bytes  # int64 (n,)
    table: Bytes
    boxes: Bytes
    rest: dict[int, Bytes]  # the bytes of rows that the slot has no space for
    failures: list[Skip]


class Slots:
    """Memory for the files of several chunks, which forked workers share with the main process."""

    def __init__(self, count: int, size: int) -> None:
        self.count = count
        self.flat = torch.frombuffer(mmap.mmap(-1, count * size), dtype=torch.uint8)
        self.bytes = self.flat.view(count, size)

    def take(self, rows: Rows) -> list[Tensor]:
        """Return the bytes uint8 (L,) of each image of a chunk."""
        slot = self.bytes[rows.slot]
        kept = [slot[first : first + length] for first, length, *_ in rows.table.tolist()]
        for row, data in rows.rest.items():
            kept[row] = torch.from_numpy(data)
        return kept


@dataclass(frozen=True)
class Encoded(Dataset[Rows]):
    """A data set that maps (step, epoch, slot, ids) to the files and the boxes of a chunk."""

    source: Decoded
    views: Maker
    seed: int
    slots: Slots
    share: bool = False  # workers decode the share WORKERS of the images

    def __getitem__(self, plan: tuple[int, int, int, Tensor]) -> Rows:
        step, epoch, slot, ids = plan
        unit = uniforms(rng.key(self.seed, "augment", epoch), ids, self.views)  # (n,V,U)
        image_ids = ids.numpy().copy()
        table = np.zeros((len(ids), 4), np.int64)
        failures: list[Skip] = []
        rest: dict[int, Bytes] = {}
        memory = self.slots.bytes[slot].numpy()
        end = 0
        own = workers_own(self.seed, epoch, ids) if self.share else torch.zeros(len(ids))
        for row, (index, by_worker) in enumerate(zip(ids.tolist(), own.tolist(), strict=True)):
            data, sides = _NO_FILE if by_worker else device_file(self.source, index)
            if sides == (0, 0):
                image_ids[row], data, skips = crops_of(self.source, self.views, index, unit[row])
                failures += skips
            table[row] = (end, len(data), *sides)
            if end + len(data) <= len(memory):
                memory[end : end + len(data)] = data
                end += len(data)
            else:
                table[row, 0] = 0
                rest[row] = data.copy()
        boxes = boxes_of(self.views, unit, torch.from_numpy(table[:, 2:])).numpy()
        return Rows(step, epoch, slot, ids.numpy(), image_ids, table, boxes, rest, failures)


def workers_own(seed: int, epoch: int, ids: Tensor) -> Tensor:
    """Return which images (n,) workers decode if they share the work with the device.

    It is drawn for each image and epoch, so that a restart changes nothing, and no class of images
    has the pixels of one decoder.
    """
    return rng.uniform(rng.fold(rng.key(seed, "decoder", epoch), ids), 1)[:, 0] < WORKERS


def device_file(source: Decoded, index: int) -> tuple[Bytes, tuple[int, int]]:
    """Return the bytes of an image file with height and width, or zeros if the host must decode."""
    read: Callable[[int], bytes | None] = source.read.encoded  # type: ignore[attr-defined]
    try:
        data = read(index)
        sides = plain_jpeg(data) if data is not None else None
    except (ValueError, OSError):  # reported when the host reads the image
        sides = None
    if sides is None or data is None:
        return _NO_FILE
    return np.frombuffer(data, np.uint8), sides


def crops_of(
    source: Decoded, views: Maker, index: int, unit: Tensor
) -> tuple[int, Bytes, list[Skip]]:
    """Return the id of a readable image, its crops of all views as bytes, and broken images."""
    image_id, image, skips = source.read_or_next(index)
    crops = views.cut(image, unit)
    return image_id, torch.cat([crop.flatten() for crop in crops]).numpy(), skips


def boxes_of(views: Maker, unit: Tensor, sides: Tensor) -> Tensor:
    """Return the boxes int32 (V,n,6) of images with sides int64 (n,2), see `flat.crop_flat`."""
    known = sides.clamp_min(2)  # an image that the host has cut has no sides
    return views.boxes(unit, known).to(torch.int32)


def slots_for(source: Decoded, views: Maker, batch: int, ahead: int) -> tuple[Slots, int]:
    """Return memory for `ahead` chunks and those of two steps, and the images of a chunk."""
    crops = sum(source.channels * side * side for side in views.sizes)
    each = max(crops, 2 * round(np.mean([len(data) for data, _ in sample(source)])))
    size = max(1, min(CHUNK, batch, SLOT_BYTES // each))
    return Slots(ahead + 2 * math.ceil(batch / size), size * each), size


def sample(source: Decoded) -> list[tuple[Bytes, tuple[int, int]]]:
    """Return what `device_file` gives for some images that are spread over the data set."""
    places = np.linspace(0, len(source) - 1, min(SAMPLE, len(source))).astype(int)
    return [device_file(source, int(place)) for place in places]


def suits(source: Decoded, views: Maker) -> bool:
    """Return True if a device can decode the files of a source and cut the views.

    It can if the images have three channels, every view begins with a random crop, and more than
    half of a sample of the files are ordinary baseline JPEG.
    """
    if source.channels != 3 or not hasattr(source.read, "encoded") or not views.boxed:
        return False
    return 2 * sum(sides != (0, 0) for _, sides in sample(source)) > min(SAMPLE, len(source))
