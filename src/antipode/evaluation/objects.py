"""Batches of images and their objects for training a detector. M objects, H W pixels."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from antipode import dist, rng
from antipode.data.loader import cores
from antipode.data.sources.annotated import Detection, Target, Thing
from antipode.data.sources.folder import Files
from antipode.data.sources.image_names import Names
from antipode.evaluation.precision import drawn

FEW = 500  # up to this many images are read faster than worker processes start
Batch = tuple[list[Tensor], list[Target]]


def usable(objects: Detection, *, spared: bool, masks: bool) -> Detection:
    """Return the images that have an object to train on, with only those objects.

    The filter is Detectron2's. Boxes without area are left out. `spared` says whether to keep
    objects marked as `spared`: VOC's difficult objects are trained on, COCO's crowds are not.
    `masks` says whether to keep the outlines; it raises ValueError if an object has none.
    """
    kept = [
        [_with_outline(thing, masks) for thing in row if _is_usable(thing, spared)]
        for row in objects.things
    ]
    indices = [index for index, row in enumerate(kept) if row]
    if not indices:
        raise ValueError(f"none of the {len(objects)} training images has an object to train on")
    names = Names(objects.read.names[index] for index in indices)
    return replace(
        objects,
        read=replace(objects.read, names=names),
        things=[kept[index] for index in indices],
        ids=[objects.ids[index] for index in indices],
    )


def _with_outline(thing: Thing, masks: bool) -> Thing:
    """Return the object with its outline, or without it if there are no `masks` to predict."""
    if masks and thing.outline is None:
        raise ValueError("segmentation needs outlines of the objects, but this data set has none")
    return thing if masks else thing._replace(outline=None)


def _is_usable(thing: Thing, spared: bool) -> bool:
    x0, y0, x1, y1 = thing.box
    return x1 > x0 and y1 > y0 and (spared or not thing.spared)


def mirrored(image: Tensor, target: Target) -> tuple[Tensor, Target]:
    """Return an image (3,H,W) and its target, flipped horizontally."""
    x0, y0, x1, y1 = target["boxes"].unbind(1)
    width = image.shape[2]
    flipped = target | {"boxes": torch.stack([width - x1, y0, width - x0, y1], 1)}
    if "masks" in target:
        flipped["masks"] = target["masks"].flip(2)
    return image.flip(2), flipped


def batches(
    objects: Detection, *, batch: int, count: int, flip: float, seed: int
) -> Iterator[Batch]:
    """Yield this rank's share of `count` batches: images uint8 (3,H,W) and their targets.

    `batch` is the number of images over all ranks. Each image is mirrored with probability `flip`.
    Epochs follow one another without a gap, so a batch may span two epochs, and each epoch has its
    own order. The random draws depend only on the seed, the epoch and the position in the epoch.
    """
    if batch % dist.world():
        raise ValueError(
            f"a batch of {batch} images cannot be divided equally among {dist.world()} ranks"
        )
    outlines = [
        [_as_arrays(thing.outline) for thing in row if thing.outline is not None]
        for row in objects.things
    ]
    bare = replace(
        objects, things=[[thing._replace(outline=None) for thing in row] for row in objects.things]
    )
    dataset = _Batches(bare, outlines)
    plan = _Plan(len(objects), batch, count, flip, seed)
    yield from _loader(dataset, plan, len(objects))


def _as_arrays(outline: Any) -> Any:
    """Return an outline with polygons as NumPy arrays; run lengths stay as they are.

    Worker processes share arrays. They would each copy gigabytes of COCO's lists of numbers.
    """
    return outline if isinstance(outline, dict) else [np.asarray(polygon) for polygon in outline]


def images(objects: Detection, indices: range) -> Iterator[Tensor]:
    """Yield the images uint8 (3,H,W) at some indices, in order."""
    yield from _loader(_Images(objects.read), indices, len(indices))


def _loader(dataset: Dataset[Any], plan: Any, count: int) -> DataLoader[Any]:
    """Return a loader that yields one item of the data set for each item of `plan`.

    The order does not depend on the number of workers. `count` is the number of images.
    """
    return DataLoader(
        dataset,
        sampler=plan,
        batch_size=None,
        num_workers=cores(dist.world()) if count > FEW else 0,
        collate_fn=_identity,
        # DataLoader draws a seed for its workers. Its own generator keeps that draw from changing
        # the global random state.
        generator=torch.Generator(),
    )


def _identity(item: Any) -> Any:
    return item


@dataclass(frozen=True)
class _Plan:
    """This rank's images at each step, as pairs (index, mirrored)."""

    images: int
    batch: int
    count: int
    flip: float
    seed: int

    def __iter__(self) -> Iterator[list[tuple[int, bool]]]:
        share = self.batch // dist.world()
        orders: dict[int, Tensor] = {}
        for step in range(self.count):
            first = step * self.batch + dist.rank() * share
            positions = [divmod(position, self.images) for position in range(first, first + share)]
            orders = {
                epoch: orders[epoch] if epoch in orders else self._order(epoch)
                for epoch, _ in positions
            }
            yield [
                (int(orders[epoch][position]), self._mirrored(epoch, position))
                for epoch, position in positions
            ]

    def _order(self, epoch: int) -> Tensor:
        return rng.permutation(rng.key(self.seed, "detect", "order", epoch), self.images)

    def _mirrored(self, epoch: int, position: int) -> bool:
        key = rng.fold(rng.key(self.seed, "detect", "flip", epoch), position)
        return bool(rng.uniform(key, 1) < self.flip)


@dataclass(frozen=True)
class _Batches(Dataset[Batch]):
    """Batches of images with their targets. An index is a list of pairs (index, mirrored).

    The masks are rasterised as in COCO's metric.
    """

    objects: Detection  # without outlines
    outlines: list[list[Any]]  # of each image; empty if the detector predicts no masks

    def __getitem__(self, plan: list[tuple[int, bool]]) -> Batch:
        pairs = [mirrored(*self.pair(index)) if flip else self.pair(index) for index, flip in plan]
        return [image for image, _ in pairs], [target for _, target in pairs]

    def pair(self, index: int) -> tuple[Tensor, Target]:
        """Return an image uint8 (3,H,W) and its target."""
        image, whole = self.objects[index]
        target = {name: whole[name] for name in ("boxes", "labels")}
        if self.outlines[index]:
            target["masks"] = drawn(self.outlines[index], image.shape[1], image.shape[2])
        return image, target


@dataclass(frozen=True)
class _Images(Dataset[Tensor]):
    """The images alone."""

    read: Files

    def __getitem__(self, index: int) -> Tensor:
        return self.read(index)
