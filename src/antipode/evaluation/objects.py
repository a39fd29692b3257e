"""Images with their objects, in the order and form that a detector is trained on. M objects, H W pixels."""

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
from antipode.data.sources.folder import Files, Names
from antipode.evaluation.precision import drawn

FEW = 500  # so many images are read faster than workers start
Batch = tuple[list[Tensor], list[Target]]


def usable(objects: Detection, *, spared: bool, masks: bool) -> Detection:
    """The images that have an object to learn from, with those objects only, as Detectron2 filters them.

    spared: with VOC's difficult objects, which are learnt; COCO's crowds are not. A box without area is none.
    """
    kept = [
        [_plain(thing, masks) for thing in row if _learnt(thing, spared)] for row in objects.things
    ]
    where = [index for index, row in enumerate(kept) if row]
    if not where:
        raise ValueError(f"none of {len(objects)} training images has an object to learn from")
    names = Names(objects.read.names[index] for index in where)
    ids = [objects.ids[index] for index in where]
    return replace(
        objects,
        read=replace(objects.read, names=names),
        things=[kept[index] for index in where],
        ids=ids,
    )


def _plain(thing: Thing, masks: bool) -> Thing:
    if masks and thing.outline is None:
        raise ValueError(
            "segmentation needs the outlines of objects, and this data set has boxes only"
        )
    return thing if masks else thing._replace(outline=None)


def _learnt(thing: Thing, spared: bool) -> bool:
    x0, y0, x1, y1 = thing.box
    return x1 > x0 and y1 > y0 and (spared or not thing.spared)


def mirrored(image: Tensor, target: Target) -> tuple[Tensor, Target]:
    """An image (3,H,W) and its target, left and right exchanged."""
    x0, y0, x1, y1 = target["boxes"].unbind(1)
    turned = target | {"boxes": torch.stack([image.shape[2] - x1, y0, image.shape[2] - x0, y1], 1)}
    if "masks" in target:
        turned["masks"] = target["masks"].flip(2)
    return image.flip(2), turned


def batches(
    objects: Detection, *, batch: int, count: int, flip: float, seed: int
) -> Iterator[Batch]:
    """`count` times this rank's share of a batch: images uint8 (3,H,W), some mirrored, and their targets.

    Epochs, each in its own order, follow each other without a gap, and what is drawn depends on the seed and the place
    in that row alone.
    """
    if batch % dist.world():
        raise ValueError(f"a batch of {batch} images cannot be shared by {dist.world()} ranks")
    outlines = [
        [_dense(thing.outline) for thing in row if thing.outline is not None]
        for row in objects.things
    ]
    bare = replace(
        objects, things=[[thing._replace(outline=None) for thing in row] for row in objects.things]
    )
    yield from _loader(
        _Mirrored(bare, outlines), _Plan(len(objects), batch, count, flip, seed), len(objects)
    )


def _dense(outline: Any) -> Any:
    """Polygons as arrays: workers that touch COCO's lists of numbers would each copy gigabytes of them."""
    return outline if isinstance(outline, dict) else [np.asarray(polygon) for polygon in outline]


def images(objects: Detection) -> Iterator[Tensor]:
    """All images uint8 (3,H,W) in order."""
    yield from _loader(_Images(objects.read), range(len(objects)), len(objects))


def _loader(dataset: Dataset[Any], plan: Any, count: int) -> DataLoader[Any]:
    """One item of `plan` is one of the data set, in order whatever the number of workers."""
    return DataLoader(
        dataset,
        sampler=plan,
        batch_size=None,
        num_workers=cores(dist.world()) if count > FEW else 0,
        collate_fn=_same,
        generator=torch.Generator(),  # a seed for workers is drawn; from the global one that would shift others' draws
    )


def _same(item: Any) -> Any:
    return item


@dataclass(frozen=True)
class _Plan:
    """The images (index, mirrored) of this rank at each step."""

    images: int
    batch: int
    count: int
    flip: float
    seed: int

    def __iter__(self) -> Iterator[list[tuple[int, bool]]]:
        share, orders = self.batch // dist.world(), dict[int, Tensor]()
        for step in range(self.count):
            first = step * self.batch + dist.rank() * share
            places = [divmod(place, self.images) for place in range(first, first + share)]
            orders = {
                epoch: orders[epoch] if epoch in orders else self._order(epoch)
                for epoch, _ in places
            }
            yield [
                (int(orders[epoch][place]), self._mirrored(epoch, place)) for epoch, place in places
            ]

    def _order(self, epoch: int) -> Tensor:
        return rng.permutation(rng.key(self.seed, "detect", "order", epoch), self.images)

    def _mirrored(self, epoch: int, place: int) -> bool:
        return bool(
            rng.uniform(rng.fold(rng.key(self.seed, "detect", "flip", epoch), place), 1) < self.flip
        )


@dataclass(frozen=True)
class _Mirrored(Dataset[Batch]):
    """Batches of images with their targets, the masks drawn as COCO's metric draws them."""

    objects: Detection  # without outlines
    outlines: list[list[Any]]  # of each image, or none

    def __getitem__(self, plan: list[tuple[int, bool]]) -> Batch:
        pairs = [mirrored(*self.pair(index)) if flip else self.pair(index) for index, flip in plan]
        return [image for image, _ in pairs], [target for _, target in pairs]

    def pair(self, index: int) -> tuple[Tensor, Target]:
        image, whole = self.objects[index]
        target = {name: whole[name] for name in ("boxes", "labels")}
        if self.outlines[index]:
            target["masks"] = drawn(self.outlines[index], image.shape[1], image.shape[2])
        return image, target


@dataclass(frozen=True)
class _Images(Dataset[Tensor]):
    read: Files

    def __getitem__(self, index: int) -> Tensor:
        return self.read(index)
