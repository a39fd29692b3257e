"""What a worker does: read some images and cut the crops of all their views.

Shapes: n images of a chunk, V views, U uniform numbers per view, C channels, S pixels of the side
of a view.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.utils.data import Dataset

from antipode import rng
from antipode.data.sources.source import Decoded, Skip
from antipode.data.workers import Ring


class Maker(Protocol):
    """An object that makes views.

    `cut` followed by `finish` is equivalent to `apply`. Workers run `cut` on the host, and `finish`
    runs on the device.
    """

    count: int
    slots: int
    sizes: list[int]  # the side S of each view
    boxed: bool  # every view begins with a random crop, so `boxes` and `cut_flat` can make it

    def apply(self, images: Tensor, uniforms: Tensor) -> list[Tensor]:
        """Return V views (N,C,S,S) of uint8 images (N,C,H,W) from uniforms (N,V,U)."""

    def cut(self, image: Tensor, uniforms: Tensor) -> list[Tensor]:
        """Return V crops uint8 (C,S,S) of one image (C,H,W) from uniforms (V,U)."""

    def cut_all(self, images: list[Tensor], uniforms: Tensor, out: list[Tensor]) -> None:
        """Write the crops of n images to V tensors uint8 (n,C,S,S), from uniforms (n,V,U)."""

    def boxes(self, uniforms: Tensor, sides: Tensor) -> Tensor:
        """Return (V,n,6) the boxes and flips of images with sides (n,2), from uniforms (n,V,U)."""

    def cut_flat(self, view: int, flat: Tensor, places: Tensor, boxes: Tensor, out: Tensor) -> None:
        """Write the crops (n,C,S,S) of one view, see `views.flat.crop_flat`."""

    def cubic(self, view: int) -> bool:
        """Return True if the crops of a view are interpolated bicubically."""

    def finish(self, crops: list[Tensor], uniforms: Tensor) -> list[Tensor]:
        """Return V views (N,C,S,S) of V crops uint8 (N,C,S,S) from uniforms (N,V,U)."""


def uniforms(key: Tensor, image_ids: Tensor, views: Maker) -> Tensor:
    """Return independent uniform numbers (N,V,U) for each image in `image_ids` (N,) and each view.

    Does not synchronise with the device.
    """
    view = torch.arange(views.count, device=image_ids.device)
    return rng.uniform(rng.fold(rng.fold(key, image_ids)[:, None], view), views.slots)


Reduce = Callable[[Decoded, Maker, list[int], Tensor, list[Tensor]], list[int]]


class Chunk(NamedTuple):
    """The result of one worker call: the crops of some images of a step."""

    step: int
    epoch: int
    slot: int  # where the crops are, if there is a ring
    crops: list[Tensor]  # V tensors uint8 (n,C,S,S); none if there is a ring
    planned_ids: Tensor  # (n,) the ids in the order of the epoch
    image_ids: Tensor  # (n,) the ids of the images that were read; differ for broken images
    failures: list[Skip]


@dataclass(frozen=True)
class Crops(Dataset[Chunk]):
    """A data set that maps (step, epoch, slot, ids) to a chunk of random crops."""

    source: Decoded
    views: Maker
    seed: int
    ring: Ring | None = None
    # writes crops of reduced images and returns the rows of the others, see reduced.py
    reduce: Reduce | None = None

    def __getitem__(self, plan: tuple[int, int, int, Tensor]) -> Chunk:
        step, epoch, slot, ids = plan
        unit = uniforms(rng.key(self.seed, "augment", epoch), ids, self.views)  # (n,V,U)
        crops = self._memory(len(ids)) if self.ring is None else self.ring.slot(slot, len(ids))
        rows = [*range(len(ids))]
        if self.reduce is not None:
            rows = self.reduce(self.source, self.views, ids.tolist(), unit, crops)
        # all views of an image share one decode
        taken = [self.source.read_or_next(int(ids[row])) for row in rows]
        self._cut([image for _, image, _ in taken], rows, unit, crops)
        image_ids = ids.clone()
        image_ids[rows] = torch.tensor([image_id for image_id, _, _ in taken], dtype=ids.dtype)
        failures = [skip for _, _, skips in taken for skip in skips]
        made = crops if self.ring is None else []
        return Chunk(step, epoch, slot, made, ids, image_ids, failures)

    def _cut(
        self, images: list[Tensor], rows: list[int], unit: Tensor, crops: list[Tensor]
    ) -> None:
        """Write the crops of images to their rows."""
        if len(rows) == len(unit):
            self.views.cut_all(images, unit, crops)
        elif rows:
            parts = [torch.empty_like(crop[: len(rows)]) for crop in crops]
            self.views.cut_all(images, unit[rows], parts)
            for crop, part in zip(crops, parts, strict=True):
                crop[rows] = part

    def _memory(self, count: int) -> list[Tensor]:
        """Return new memory for the crops of some images."""
        channels = self.source.channels
        shapes = [(count, channels, side, side) for side in self.views.sizes]
        return [torch.empty(shape, dtype=torch.uint8) for shape in shapes]


@dataclass(frozen=True)
class Centres(Dataset[Any]):
    """A data set that maps ids (n,) to the crops (n,C,S,S) of an evaluation view."""

    source: Decoded
    eval_view: Maker

    def __getitem__(self, ids: Tensor) -> tuple[Tensor, Tensor, list[Skip]]:
        crops: list[Tensor] = []
        image_ids: list[int] = []
        failures: list[Skip] = []
        for index in ids.tolist():
            image_id, image, skips = self.source.read_or_next(index)
            crops += self.eval_view.cut(image, torch.zeros(1, self.eval_view.slots))
            image_ids.append(image_id)
            failures += skips
        return torch.stack(crops), torch.tensor(image_ids), failures
