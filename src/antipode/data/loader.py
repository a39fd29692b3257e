"""Loading batches of views from a source onto the device.

Shapes: N images of this rank, V views, U uniform numbers per view, C channels, S pixels of the side
of a view.

The loader has no state. The order of the images is a function of (seed, epoch). The views of an
image are a function of (seed, epoch, image id, view). The images and random numbers of a batch are
therefore bit-identical after a restart and for any number of workers or ranks. Two methods with the
same seed see the same crops of the same images.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from importlib import import_module
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from antipode import rng
from antipode.data.sources.source import Decoded, Memory, Skip, Source
from antipode.data.sources.stamp import Stamp, stamp
from antipode.types import Batch

# Images that a worker decodes before it returns them. This bounds the memory for any batch size.
CHUNK = 64


class Maker(Protocol):
    """An object that makes views.

    `cut` followed by `finish` is equivalent to `apply`. Workers run `cut` on the host, and `finish`
    runs on the device.
    """

    count: int
    slots: int

    def apply(self, images: Tensor, uniforms: Tensor) -> list[Tensor]:
        """Return V views (N,C,S,S) of uint8 images (N,C,H,W) from uniforms (N,V,U)."""

    def cut(self, image: Tensor, uniforms: Tensor) -> list[Tensor]:
        """Return V crops uint8 (C,S,S) of one image (C,H,W) from uniforms (V,U)."""

    def finish(self, crops: list[Tensor], uniforms: Tensor) -> list[Tensor]:
        """Return V views (N,C,S,S) of V crops uint8 (N,C,S,S) from uniforms (N,V,U)."""


class Loader:
    """Produce seeded, sharded and resumable batches of views.

    `batch` is the number of images over all ranks. The last batch of an epoch is dropped if it is
    incomplete. `parts` is the number of parts in which a network processes the batch (gradient
    accumulation).
    """

    def __init__(
        self,
        source: Source,
        views: Maker,
        *,
        batch: int,
        epochs: int,
        seed: int,
        rank: int = 0,
        world: int = 1,
        parts: int = 1,
        device: torch.device | str = "cpu",
        workers: int | None = None,
    ) -> None:
        if not 0 < batch <= len(source):
            raise ValueError(
                f"the batch size must be between 1 and the {len(source)} images of the data set, "
                f"not {batch}"
            )
        if not 0 <= rank < world:
            raise ValueError(f"the rank must be at least 0 and below {world}, not {rank}")
        if batch % world:
            raise ValueError(f"a batch of {batch} images cannot be divided evenly by {world} ranks")
        if batch % (world * parts):
            raise ValueError(
                f"a batch of {batch} images cannot be divided evenly by {world} ranks "
                f"with {parts} parts each"
            )
        if not isinstance(source, Memory | Decoded):
            raise ValueError(
                f"the loader needs a Memory or Decoded source, not {type(source).__name__}"
            )
        # labels are removed so that they cannot leak into pretraining
        unlabelled = replace(source, labels=None)
        self.source = unlabelled.to(device) if isinstance(unlabelled, Memory) else unlabelled
        self.views = views
        self.batch = batch
        self.epochs = epochs
        self.seed = seed
        self.rank = rank
        self.world = world
        self.parts = parts
        self.device = torch.device(device)
        self.workers = cores(world) if workers is None else workers
        self.per_epoch = len(source) // batch
        self.total = self.per_epoch * epochs

    @cached_property
    def stamp(self) -> Stamp:
        """The stamp of the images, by which a resumed run recognises them."""
        return stamp(self.source)

    def order(self, epoch: int, device: torch.device | str = "cpu") -> Tensor:
        """Return the ids of all images of the source in the order of an epoch."""
        return rng.permutation(rng.key(self.seed, "order", epoch, device=device), len(self.source))

    def uniforms(self, epoch: int, image_ids: Tensor) -> Tensor:
        """Return the uniform numbers (N,V,U) that determine the views of the images in an epoch."""
        key = rng.key(self.seed, "augment", epoch, device=image_ids.device)
        return uniforms(key, image_ids, self.views)

    def steps(self, start: int = 0) -> Iterator[tuple[int, int, Batch]]:
        """Yield (step, epoch, batch), beginning with step `start`."""
        if isinstance(self.source, Memory):
            for step, epoch, images, unit, image_ids in self.resident(start):
                yield step, epoch, Batch(self.views.apply(images, unit), image_ids)
        else:
            for step, epoch, crops, unit, image_ids in self.decoded(start):
                yield step, epoch, Batch(self.views.finish(crops, unit), image_ids)

    def resident(self, start: int = 0) -> Iterator[tuple[int, int, Tensor, Tensor, Tensor]]:
        """Yield (step, epoch, images (N,C,H,W), uniforms (N,V,U), image ids (N,)).

        The host synchronises with the device only once per epoch.
        """
        assert isinstance(self.source, Memory)
        for step, epoch, image_ids, key in self.plan(start):
            images = self.source.images.index_select(0, image_ids)
            yield step, epoch, images, uniforms(key, image_ids, self.views), image_ids

    def plan(self, start: int = 0) -> Iterator[tuple[int, int, Tensor, Tensor]]:
        """Yield (step, epoch, image ids (N,) of this rank, key () of the views' draws).

        The ids and the key are on the device.
        """
        for epoch in range(start // self.per_epoch, self.epochs):
            order = self.order(epoch, self.device)
            key = rng.key(self.seed, "augment", epoch, device=self.device)
            for step in range(max(start, epoch * self.per_epoch), (epoch + 1) * self.per_epoch):
                yield step, epoch, self._share(order, step), key

    def decoded(self, start: int = 0) -> Iterator[tuple[int, int, list[Tensor], Tensor, Tensor]]:
        """Yield (step, epoch, V crops uint8 (N,C,S,S), uniforms (N,V,U), image ids (N,)).

        Workers decode the images in advance. The next readable image replaces a broken one. The id
        is then that of the replacement, and the uniforms are those of the broken image.
        """
        assert isinstance(self.source, Decoded)
        chunks = _read(
            _Crops(self.source, self.views, self.seed),
            _Plan(self, start),
            self.workers,
            self.device,
        )
        pending: list[_Chunk] = []
        for chunk in chunks:
            self.source.report_failures(chunk.failures)
            pending.append(chunk)
            if sum(len(part.image_ids) for part in pending) == self.batch // self.world:
                yield self._join(pending)
                pending = []

    def _share(self, order: Tensor, step: int) -> Tensor:
        """Return the image ids of this rank in a step.

        The ids of all ranks, concatenated, are the batch of a single process. If the batch is
        processed in several parts, this holds for each part.
        """
        first = (step % self.per_epoch) * self.batch
        batch = order[first : first + self.batch]
        return batch.view(self.parts, self.world, -1)[:, self.rank].flatten()

    def _join(self, chunks: list["_Chunk"]) -> tuple[int, int, list[Tensor], Tensor, Tensor]:
        """Move the chunks of a step to the device and concatenate them."""
        moved = [
            [crop.to(self.device, non_blocking=True) for crop in chunk.crops] for chunk in chunks
        ]
        crops = [torch.cat(parts) for parts in zip(*moved, strict=True)]
        planned_ids, image_ids = (
            torch.cat([ids.to(self.device, non_blocking=True) for ids in column])
            for column in (
                [chunk.planned_ids for chunk in chunks],
                [chunk.image_ids for chunk in chunks],
            )
        )
        step, epoch = chunks[0].step, chunks[0].epoch
        return step, epoch, crops, self.uniforms(epoch, planned_ids), image_ids


def uniforms(key: Tensor, image_ids: Tensor, views: Maker) -> Tensor:
    """Return independent uniform numbers (N,V,U) for each image in `image_ids` (N,) and each view.

    Does not synchronise with the device.
    """
    view = torch.arange(views.count, device=image_ids.device)
    return rng.uniform(rng.fold(rng.fold(key, image_ids)[:, None], view), views.slots)


def in_order(
    source: Source,
    eval_view: Maker,
    *,
    batch: int = 256,
    device: torch.device | str = "cpu",
    workers: int | None = None,
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield (views (B,C,S,S), image ids (B,)) for every image once, in the order of the source.

    `eval_view` makes one view without randomness. Each view is made from the original image, and
    the images may differ in size. The labels are `source.labels[ids]`.
    """
    plan = torch.split(torch.arange(len(source)), batch)
    zeros = torch.zeros(batch, 1, eval_view.slots, device=device)  # in place of random numbers
    if not isinstance(source, Decoded):
        for ids in plan:
            indices = ids.to(source.images.device) if isinstance(source, Memory) else ids
            images, _ = source.take(indices)
            yield eval_view.apply(images.to(device), zeros[: len(ids)])[0], ids
        return
    workers = cores(1) if workers is None else workers
    centres = _Centres(source, eval_view)
    for crops, ids, failures in _read(centres, plan, workers, torch.device(device)):
        source.report_failures(failures)
        yield eval_view.finish([crops.to(device, non_blocking=True)], zeros[: len(ids)])[0], ids


def cores(world: int) -> int:
    """Return the number of workers of one rank, at most 16.

    The ranks share the CPU cores that this process may use.
    """
    if hasattr(os, "sched_getaffinity"):
        available = len(os.sched_getaffinity(0))
    else:
        available = os.cpu_count() or 1
    return max(1, min(16, available // world))


class _Chunk(NamedTuple):
    """The result of one worker call: the crops of some images of a step."""

    step: int
    epoch: int
    crops: list[Tensor]  # V tensors uint8 (n,C,S,S)
    planned_ids: Tensor  # (n,) the ids in the order of the epoch
    image_ids: Tensor  # (n,) the ids of the images that were read; differ for broken images
    failures: list[Skip]


class _Plan:
    """An iterable over the chunks (step, epoch, ids) of this rank, beginning with step `start`."""

    def __init__(self, loader: Loader, start: int) -> None:
        self.loader = loader
        self.start = start

    def __iter__(self) -> Iterator[tuple[int, int, Tensor]]:
        loader = self.loader
        for epoch in range(self.start // loader.per_epoch, loader.epochs):
            order = loader.order(epoch)
            first = max(self.start, epoch * loader.per_epoch)
            for step in range(first, (epoch + 1) * loader.per_epoch):
                for ids in torch.split(loader._share(order, step), CHUNK):
                    # a clone, because a tensor view would send the whole order to the worker
                    yield step, epoch, ids.clone()


@dataclass(frozen=True)
class _Crops(Dataset[_Chunk]):
    """A data set that maps (step, epoch, ids) to a chunk of random crops."""

    source: Decoded
    views: Maker
    seed: int

    def __getitem__(self, plan: tuple[int, int, Tensor]) -> _Chunk:
        step, epoch, ids = plan
        unit = uniforms(rng.key(self.seed, "augment", epoch), ids, self.views)  # (n,V,U)
        cuts: list[list[Tensor]] = []
        image_ids: list[int] = []
        failures: list[Skip] = []
        for index, numbers in zip(ids.tolist(), unit, strict=True):
            image_id, image, skips = self.source.read_or_next(index)
            cuts.append(self.views.cut(image, numbers))  # all views of an image share one decode
            image_ids.append(image_id)
            failures += skips
        crops = [torch.stack(view) for view in zip(*cuts, strict=True)]
        return _Chunk(step, epoch, crops, ids, torch.tensor(image_ids), failures)


@dataclass(frozen=True)
class _Centres(Dataset[Any]):
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


def _read(dataset: Dataset[Any], plan: Any, workers: int, device: torch.device) -> Iterator[Any]:
    """Yield `dataset[item]` for every item of `plan`, in order for any number of workers."""
    # Images are decoded and scaled with torchvision. It is slow to import, so it is imported once
    # here and not in every worker.
    import_module("torchvision.transforms.v2")
    loader: DataLoader[Any] = DataLoader(
        dataset,
        sampler=plan,
        batch_size=None,
        num_workers=workers,
        pin_memory=device.type == "cuda",
        collate_fn=_same,
        # The DataLoader draws a seed for its workers. From the global generator, that draw would
        # change the numbers that other code draws.
        generator=torch.Generator(),
    )
    iterator = iter(loader)
    try:
        yield from iterator
    except ValueError as error:
        # the DataLoader puts the worker's traceback before its message: keep the message only
        _, separator, message = str(error).strip().rpartition("\nValueError: ")
        if not separator:
            raise
        raise ValueError(message) from error
    finally:
        # if this is left to the garbage collector after an error, it waits 5 s for each worker
        stop_workers = getattr(iterator, "_shutdown_workers", None)
        if stop_workers is not None:
            stop_workers()


def _same(item: Any) -> Any:
    return item
