"""Loading batches of views from a source onto the device.

Shapes: N images of this rank, V views, U uniform numbers per view, C channels, S pixels of the side
of a view.

The loader has no state. The order of the images is a function of (seed, epoch). The views of an
image are a function of (seed, epoch, image id, view). The images and random numbers of a batch are
therefore bit-identical after a restart and for any number of workers or ranks. Two methods with the
same seed see the same crops of the same images.
"""

import os
from collections.abc import Generator, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import cached_property
from itertools import chain, islice
from typing import Any

import torch
from torch import Tensor

from antipode import rng
from antipode.data.chunks import Centres, Chunk, Crops, Maker, uniforms
from antipode.data.device_decode import Decode, DeviceCrops, side_stream
from antipode.data.encoded import Encoded, slots_for
from antipode.data.reduced import cut_reduced
from antipode.data.sources.source import Decoded, Memory, Source
from antipode.data.sources.stamp import Stamp, stamp
from antipode.data.workers import AHEAD, Ring, Staging, can_share, pinned, read, sent
from antipode.types import Batch

# Images that a worker decodes before it returns them, at most this many and about this many bytes
# of crops. This bounds the memory for any batch size.
CHUNK = 64
CHUNK_BYTES = 16 << 20


class Loader:
    """Produce seeded, sharded and resumable batches of views.

    `batch` is the number of images over all ranks. The last batch of an epoch is dropped if it is
    incomplete. `parts` is the number of parts in which a network processes the batch (gradient
    accumulation). `decoder` decodes JPEG files in batches on the device; by default workers decode.
    With `share`, the workers decode a random quarter of the images, and the device the others. With
    `reduced`, workers decode JPEG files at a reduced size where the crops allow it.
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
        decoder: Decode | None = None,
        share: bool = False,
        reduced: bool = False,
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
        self.decoder = decoder
        self.share = share
        self.reduced = reduced
        self.per_epoch = len(source) // batch
        self.total = self.per_epoch * epochs

    @property
    def decoded_by(self) -> str:
        """Who decodes JPEG files: "cpu", "gpu" or "both"."""
        if not self.decodes_on_device:
            return "cpu"
        return "both" if self.share else "gpu"

    @property
    def decodes_on_device(self) -> bool:
        """True if the device decodes. Workers that do not inherit memory decode themselves."""
        return self.decoder is not None and (self.workers == 0 or can_share(self.workers))

    def beside(self) -> AbstractContextManager[None]:
        """Return a context for the steps of training, in which they overlap with decoding."""
        return side_stream(self.device) if self.decodes_on_device else nullcontext()

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

    def inputs(self, start: int = 0) -> Generator[tuple[int, int, tuple[Tensor, ...]], None, None]:
        """Yield (step, epoch, tensors on the device from which the views of a step are made).

        The tensors are image ids (N,) and the key () of the draws for images in memory. For images
        that are decoded they are image ids (N,), planned ids (N,), the key () and V crops uint8
        (N,C,S,S), and are overwritten two steps later.
        """
        if isinstance(self.source, Memory):
            for step, epoch, image_ids, key in self.plan(start):
                yield step, epoch, (image_ids, key)
            return
        epoch_of_key = -1
        for step, epoch, planned_ids, image_ids, *crops in self._crops(start):
            if epoch != epoch_of_key:
                key = sent(rng.key(self.seed, "augment", epoch), self.device)
                epoch_of_key = epoch
            yield step, epoch, (image_ids, planned_ids, key, *crops)

    def decoded(self, start: int = 0) -> Iterator[tuple[int, int, list[Tensor], Tensor, Tensor]]:
        """Yield (step, epoch, V crops uint8 (N,C,S,S), uniforms (N,V,U), image ids (N,)).

        Workers decode the images in advance. The next readable image replaces a broken one. The id
        is then that of the replacement, and the uniforms are those of the broken image. On a GPU,
        crops and ids are overwritten two steps later.
        """
        assert isinstance(self.source, Decoded)
        for step, epoch, (image_ids, planned_ids, key, *crops) in self.inputs(start):
            yield step, epoch, crops, uniforms(key, planned_ids, self.views), image_ids

    def _crops(self, start: int) -> Iterator[Any]:
        """Yield (step, epoch, planned ids (N,), image ids (N,), V crops (N,C,S,S))."""
        assert isinstance(self.source, Decoded)
        if self.decoder is not None and self.decodes_on_device:
            yield from self._crops_of_device(self.decoder, start)
            return
        ring = self._ring() if can_share(self.workers) else None
        reduces = self.reduced and self.views.boxed and hasattr(self.source.read, "encoded")
        reduce = cut_reduced if reduces else None
        dataset = Crops(self.source, self.views, self.seed, ring, reduce)
        plan = _Plan(self, start, ring.slots if ring else 1, self._chunk_size())
        chunks = read(dataset, plan, self.workers, self.device, ring)
        staging = Staging(self.device) if self.device.type == "cuda" else None
        try:
            while pending := self._chunks_of_step(chunks, staging):
                columns = [*zip(*(self._rows(chunk, ring) for chunk in pending), strict=True)]
                moved = staging.copy(columns) if staging else [torch.cat(part) for part in columns]
                yield pending[0].step, pending[0].epoch, *moved
                if staging:
                    staging.release()
        finally:
            chunks.close()

    def _crops_of_device(self, decoder: Decode, start: int) -> Iterator[Any]:
        """Yield what `_crops` yields; the device decodes all files that workers do not decode."""
        assert isinstance(self.source, Decoded)
        count = self.batch // self.world
        slots, size = slots_for(self.source, self.views, count, AHEAD * self.workers)
        dataset = Encoded(self.source, self.views, self.seed, slots, self.share)
        plan = _Plan(self, start, slots.count, size)
        chunks = read(dataset, plan, self.workers, torch.device("cpu"))
        first = [*islice(chunks, 1)]  # starts the workers before there is another thread
        ahead = DeviceCrops(dataset, decoder, count, self.device)
        try:
            with pinned(slots.flat, self.device):
                yield from ahead.made(chain(first, chunks))
        finally:
            chunks.close()

    def _chunks_of_step(self, chunks: Iterator["Chunk"], staging: Staging | None) -> list["Chunk"]:
        """Return the next chunks that make up the images of a step; none at the end."""
        assert isinstance(self.source, Decoded)
        if staging:  # a new chunk may overwrite the slot of a chunk of two steps before
            staging.wait()
        pending: list[Chunk] = []
        missing = self.batch // self.world
        while missing and (chunk := next(chunks, None)) is not None:
            self.source.report_failures(chunk.failures)
            pending.append(chunk)
            missing -= len(chunk.image_ids)
        return pending

    def _rows(self, chunk: "Chunk", ring: Ring | None) -> list[Tensor]:
        """Return planned ids, image ids and crops of a chunk, on the host."""
        count = len(chunk.image_ids)
        crops = chunk.crops if ring is None else ring.slot(chunk.slot, count)
        return [chunk.planned_ids, chunk.image_ids, *crops]

    def _ring(self) -> Ring:
        """Return memory for all chunks that may be under way.

        These are the chunks that workers prepare, and those of the two steps whose copies to the
        device need not have ended.
        """
        assert isinstance(self.source, Decoded)
        size = self._chunk_size()
        shapes = [(size, self.source.channels, side, side) for side in self.views.sizes]
        per_step = -(-self.batch // self.world // size)
        return Ring(shapes, AHEAD * self.workers + 3 * per_step)

    def _chunk_size(self) -> int:
        """Return the number of images that a worker decodes at once."""
        channels = self.source.channels
        size = sum(channels * side * side for side in self.views.sizes)
        return max(1, min(CHUNK, self.batch // self.world, CHUNK_BYTES // size))

    def _share(self, order: Tensor, step: int) -> Tensor:
        """Return the image ids of this rank in a step.

        The ids of all ranks, concatenated, are the batch of a single process. If the batch is
        processed in several parts, this holds for each part.
        """
        first = (step % self.per_epoch) * self.batch
        batch = order[first : first + self.batch]
        return batch.view(self.parts, self.world, -1)[:, self.rank].flatten()


def in_order(
    source: Source,
    eval_view: Maker,
    *,
    batch: int = 256,
    device: torch.device | str = "cpu",
    workers: int | None = None,
    rows: range | None = None,
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield (views (B,C,S,S), image ids (B,)) for every image once, in the order of the source.

    `eval_view` makes one view without randomness. Each view is made from the original image, and
    the images may differ in size. The labels are `source.labels[ids]`. `rows` are the images, by
    default all.
    """
    part = rows or range(len(source))
    plan = torch.split(torch.arange(part.start, part.stop), batch)
    zeros = torch.zeros(batch, 1, eval_view.slots, device=device)  # in place of random numbers
    if not isinstance(source, Decoded):
        for ids in plan:
            indices = ids.to(source.images.device) if isinstance(source, Memory) else ids
            images, _ = source.take(indices)
            yield eval_view.apply(images.to(device), zeros[: len(ids)])[0], ids
        return
    workers = cores(1) if workers is None else workers
    centres = Centres(source, eval_view)
    for crops, ids, failures in read(centres, plan, workers, torch.device(device)):
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


class _Plan:
    """An iterable over the chunks (step, epoch, slot, ids) of this rank, beginning at `start`."""

    def __init__(self, loader: Loader, start: int, slots: int, size: int) -> None:
        self.loader = loader
        self.start = start
        self.slots = slots
        self.size = size

    def __iter__(self) -> Iterator[tuple[int, int, int, Tensor]]:
        loader = self.loader
        number = 0
        for epoch in range(self.start // loader.per_epoch, loader.epochs):
            order = loader.order(epoch)
            first = max(self.start, epoch * loader.per_epoch)
            for step in range(first, (epoch + 1) * loader.per_epoch):
                for ids in torch.split(loader._share(order, step), self.size):
                    # a clone, because a tensor view would send the whole order to the worker
                    yield step, epoch, number % self.slots, ids.clone()
                    number += 1
