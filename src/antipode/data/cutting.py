"""Decode the files of a step on a device, and cut the crops of all views.

Shapes: N images of this rank, V views, C channels, S pixels of the side of a view.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from antipode.data.encoded import Rows, Slots
from antipode.data.views.flat import crop_flat

# Decodes files uint8 (L,) in host memory, with their heights and widths, to images uint8 (3,H,W).
# One with a true attribute `apart` can be pickled, and decodes in a process of its own, see
# `decoding_process`.
Decode = Callable[[list[Tensor], Sequence[Sequence[int]]], list[Tensor]]
PIXELS = 1 << 29  # bytes of decoded images that exist at once, about


class Cutter:
    """Fill sets of buffers with the crops of files, on the current stream of a GPU.

    Args:
        decode: decodes on the device.
        slots: the memory of the files.
        cubic: for each view, whether it is interpolated bicubically.
        sets: the crops of the batches that may exist at once, V tensors uint8 (N,C,S,S) for each.
    """

    def __init__(
        self, decode: Decode, slots: Slots, cubic: Sequence[bool], sets: list[list[Tensor]]
    ) -> None:
        self.decode = decode
        self.slots = slots
        self.cubic = cubic
        self.sets = sets
        self.device = sets[0][0].device

    def fill(self, turn: int, pending: list[Rows]) -> list[int]:
        """Write the crops of a step to a set; return the rows of files that are not decodable.

        The work is done when this returns: the files and crops of the step may be overwritten.
        """
        crops = self.sets[turn]
        files = [data for rows in pending for data in self.slots.take(rows)]
        table = np.concatenate([rows.table for rows in pending])
        boxes = torch.from_numpy(np.concatenate([rows.boxes for rows in pending], 1))
        place({row: files[row] for row in np.flatnonzero(table[:, 2] == 0).tolist()}, crops)
        boxes = boxes.to(self.device, non_blocking=True)
        refused: list[int] = []
        for group in _groups(table):
            images = self._decoded([files[row] for row in group], table[group, 2:])
            kept = [row for row, image in zip(group, images, strict=True) if image is not None]
            self._cut([image for image in images if image is not None], kept, boxes, crops)
            # A decoder may write from a stream of its own, so the memory of decoded images must
            # not be used again before all crops are cut.
            wait(self.device)
            refused += sorted({*group} - {*kept})
        wait(self.device)
        return refused

    def _decoded(self, files: list[Tensor], sides: Any) -> list[Tensor | None]:
        """Decode some files; None for those that the device cannot decode."""
        expected = sides.tolist()
        try:
            images = self.decode(files, expected)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError:  # one of the files is damaged
            if len(files) == 1:
                return [None]
            pairs = zip(files, sides, strict=True)
            return [self._decoded([data], side[None])[0] for data, side in pairs]
        return [
            image if [*image.shape[1:]] == side else None
            for image, side in zip(images, expected, strict=True)
        ]

    def _cut(
        self, images: list[Tensor], rows: list[int], boxes: Tensor, crops: list[Tensor]
    ) -> None:
        """Cut all views of some images and write them to their rows of the crops.

        The host does not wait: beside another process, each time costs part of a millisecond.
        """
        if not rows:
            return
        flat, firsts = _together(images)
        places = [(at, *image.shape[1:]) for at, image in zip(firsts, images, strict=True)]
        moved = torch.tensor(places).to(self.device, non_blocking=True)
        every = len(rows) == len(crops[0])
        index = torch.tensor(rows).to(self.device, non_blocking=True)
        for view, target in enumerate(crops):
            out = target if every else torch.empty_like(target[: len(rows)])
            chosen = boxes[view] if every else boxes[view].index_select(0, index)
            crop_flat(flat, moved, chosen, out, cubic=self.cubic[view])
            if not every:
                target.index_copy_(0, index, out)


def place(on_host: dict[int, Tensor], crops: list[Tensor]) -> None:
    """Write crops that were cut on the host, given as bytes by row, to their rows."""
    sizes = [target[0].numel() for target in crops]
    for row, data in on_host.items():
        for target, part in zip(crops, torch.split(data, sizes), strict=True):
            target[row].copy_(part.view(target.shape[1:]), non_blocking=True)


def wait(device: torch.device) -> None:
    """Wait for the current stream of a GPU."""
    if device.type == "cuda":
        torch.cuda.current_stream(device).synchronize()


def _together(images: list[Tensor]) -> tuple[Tensor, list[int]]:
    """Return memory (L,) that holds all images (3,H,W), and where each begins.

    A copy is made only if they are not in one block of memory already.
    """
    sizes = [image.numel() for image in images]
    blocks = {image.untyped_storage().data_ptr() for image in images}
    if len(blocks) == 1 and all(image.is_contiguous() for image in images):
        firsts = [int(image.storage_offset()) for image in images]
        length = max(first + size for first, size in zip(firsts, sizes, strict=True))
        return images[0].as_strided((length,), (1,), 0), firsts
    flat = torch.cat([image.flatten() for image in images])
    return flat, [0, *np.cumsum(sizes[:-1]).tolist()]


def _groups(table: Any) -> Iterator[list[int]]:
    """Yield the rows of files for the device, in groups of about PIXELS bytes of images."""
    group: list[int] = []
    total = 0
    for row, (height, width) in enumerate(table[:, 2:].tolist()):
        if not height:
            continue
        if group and total + 3 * height * width > PIXELS:
            yield group
            group, total = [], 0
        group.append(row)
        total += 3 * height * width
    if group:
        yield group
