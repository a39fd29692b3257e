"""From a source to batches on the device. N images of this rank, V views, U uniforms a view, C channels, S pixels.

Nothing here has a state. The order is a function of (seed, epoch), the views of an image are one of (seed, epoch, image
id, view), so that restarts, worker counts and rank counts change no bit, and two methods with one seed see the same
crops of the same images.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from antipode import rng
from antipode.data.sources.source import Decoded, Memory, Skip, Source
from antipode.types import Batch

CHUNK = (
    64  # images a worker decodes before it hands them over: bounds the memory whatever the batch
)


class Maker(Protocol):
    """What makes views. `cut` and `finish` together are `apply`, split where workers hand over to the device."""

    count: int
    slots: int

    def apply(self, images: Tensor, uniforms: Tensor) -> list[Tensor]:
        """V views (N,C,S,S) of uint8 images (N,C,H,W), decided by uniforms (N,V,U)."""

    def cut(self, image: Tensor, uniforms: Tensor) -> list[Tensor]:
        """V crops uint8 (C,S,S) of one image (C,H,W), decided by uniforms (V,U)."""

    def finish(self, crops: list[Tensor], uniforms: Tensor) -> list[Tensor]:
        """V views (N,C,S,S) of crops uint8 (N,C,S,S), decided by uniforms (N,V,U)."""


class Loader:
    """Seeded, sharded, resumable batches of views. `batch` counts images of all ranks; a short last one is dropped."""

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
            raise ValueError(f"a batch of {batch} does not fit a data set of {len(source)} images")
        if batch % world or not 0 <= rank < world:
            raise ValueError(
                f"a batch of {batch} cannot be shared by {world} ranks, of which this is {rank}"
            )
        if batch % (world * parts):
            raise ValueError(
                f"a batch of {batch} cannot be shared by {world} ranks in {parts} parts each"
            )
        if not isinstance(source, Memory | Decoded):
            raise ValueError(
                f"the loader reads Memory or Decoded sources, not {type(source).__name__}"
            )
        # without labels: what pretraining is given has none that could leak
        bare = replace(source, labels=None)
        self.source = bare.to(device) if isinstance(bare, Memory) else bare
        self.views, self.batch, self.epochs, self.seed = views, batch, epochs, seed
        self.rank, self.world, self.parts, self.device = rank, world, parts, torch.device(device)
        self.workers = cores(world) if workers is None else workers
        self.per_epoch = len(source) // batch
        self.total = self.per_epoch * epochs

    def order(self, epoch: int, device: torch.device | str = "cpu") -> Tensor:
        """The ids (N,) of all images in the order of an epoch."""
        return rng.permutation(rng.key(self.seed, "order", epoch, device=device), len(self.source))

    def uniforms(self, epoch: int, image_ids: Tensor) -> Tensor:
        """The numbers (N,V,U) in [0,1) that decide the views of the images `image_ids` (N,) in an epoch."""
        return uniforms(
            rng.key(self.seed, "augment", epoch, device=image_ids.device), image_ids, self.views
        )

    def steps(self, start: int = 0) -> Iterator[tuple[int, int, Batch]]:
        """Step, epoch and batch, from any step on."""
        if isinstance(self.source, Memory):
            for step, epoch, images, chance, image_ids in self.resident(start):
                yield step, epoch, Batch(self.views.apply(images, chance), image_ids)
        else:
            for step, epoch, crops, chance, image_ids in self.decoded(start):
                yield step, epoch, Batch(self.views.finish(crops, chance), image_ids)

    def resident(self, start: int = 0) -> Iterator[tuple[int, int, Tensor, Tensor, Tensor]]:
        """Step, epoch, images (N,C,H,W), uniforms (N,V,U) and ids (N,); the host waits for the device once an epoch."""
        assert isinstance(self.source, Memory)
        for step, epoch, image_ids, key in self.plan(start):
            yield (
                step,
                epoch,
                self.source.images.index_select(0, image_ids),
                uniforms(key, image_ids, self.views),
                image_ids,
            )

    def plan(self, start: int = 0) -> Iterator[tuple[int, int, Tensor, Tensor]]:
        """Step, epoch, this rank's ids (N,) and the key () of the views' draws, on the device."""
        for epoch in range(start // self.per_epoch, self.epochs):
            order, key = (
                self.order(epoch, self.device),
                rng.key(self.seed, "augment", epoch, device=self.device),
            )
            for step in range(max(start, epoch * self.per_epoch), (epoch + 1) * self.per_epoch):
                yield step, epoch, self._share(order, step), key

    def decoded(self, start: int = 0) -> Iterator[tuple[int, int, list[Tensor], Tensor, Tensor]]:
        """Step, epoch, V crops uint8 (N,C,S,S), uniforms (N,V,U) and ids (N,), decoded by workers ahead of time.

        A broken image gives way to the next readable one: the id is that one's, the uniforms stay those of the first.
        """
        assert isinstance(self.source, Decoded)
        chunks = _read(
            _Crops(self.source, self.views, self.seed),
            _Plan(self, start),
            self.workers,
            self.device,
        )
        held: list[_Chunk] = []
        for chunk in chunks:
            self.source.note(chunk.failures)
            held.append(chunk)
            if sum(len(part.image_ids) for part in held) == self.batch // self.world:
                yield self._join(held)
                held = []

    def _share(self, order: Tensor, step: int) -> Tensor:
        """This rank's share of a step's ids: those of the ranks in a row are the batch of a single process.

        Where the batch goes through a network in parts, so are those of each part: a part meets the same images.
        """
        first = (step % self.per_epoch) * self.batch
        return (
            order[first : first + self.batch]
            .view(self.parts, self.world, -1)[:, self.rank]
            .flatten()
        )

    def _join(self, chunks: list["_Chunk"]) -> tuple[int, int, list[Tensor], Tensor, Tensor]:
        moved = [
            [crop.to(self.device, non_blocking=True) for crop in chunk.crops] for chunk in chunks
        ]
        crops = [torch.cat(parts) for parts in zip(*moved, strict=True)]
        asked, image_ids = (
            torch.cat([ids.to(self.device, non_blocking=True) for ids in column])
            for column in ([chunk.asked for chunk in chunks], [chunk.image_ids for chunk in chunks])
        )
        step, epoch = chunks[0].step, chunks[0].epoch
        return step, epoch, crops, self.uniforms(epoch, asked), image_ids


def uniforms(key: Tensor, image_ids: Tensor, views: Maker) -> Tensor:
    """Uniforms (N,V,U) of the images `image_ids` (N,), each view with its own; no host sync."""
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
    """All images once, in order, as the one view that `look` makes without chance: (B,C,S,S), and their ids (B,).

    A view is made of the image itself, whatever the size of the others; labels are `source.labels[ids]`.
    """
    plan = torch.split(torch.arange(len(source)), batch)
    nothing = torch.zeros(batch, 1, eval_view.slots, device=device)
    if not isinstance(source, Decoded):
        for ids in plan:
            images, _ = source.take(
                ids.to(source.images.device) if isinstance(source, Memory) else ids
            )
            yield eval_view.apply(images.to(device), nothing[: len(ids)])[0], ids
        return
    workers = cores(1) if workers is None else workers
    for crops, ids, failures in _read(
        _Centres(source, eval_view), plan, workers, torch.device(device)
    ):
        source.note(failures)
        yield eval_view.finish([crops.to(device, non_blocking=True)], nothing[: len(ids)])[0], ids


def cores(world: int) -> int:
    """Workers of one rank: the cores this process may use, shared among the ranks, at most 16."""
    mine = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(16, mine // world))


class _Chunk(NamedTuple):
    """What a worker hands over: the crops of some images of a step."""

    step: int
    epoch: int
    crops: list[Tensor]  # V tensors uint8 (n,C,S,S)
    asked: Tensor  # (n,) the ids that the order names
    image_ids: Tensor  # (n,) the ids of the images that were read
    failures: list[Skip]


class _Plan:
    """The chunks (step, epoch, ids) of this rank, from a step on."""

    def __init__(self, loader: Loader, start: int) -> None:
        self.loader, self.start = loader, start

    def __iter__(self) -> Iterator[tuple[int, int, Tensor]]:
        loader = self.loader
        for epoch in range(self.start // loader.per_epoch, loader.epochs):
            order = loader.order(epoch)
            for step in range(
                max(self.start, epoch * loader.per_epoch), (epoch + 1) * loader.per_epoch
            ):
                for ids in torch.split(loader._share(order, step), CHUNK):
                    yield (
                        step,
                        epoch,
                        ids.clone(),
                    )  # a view would carry the whole order to the worker


@dataclass(frozen=True)
class _Crops(Dataset[_Chunk]):
    source: Decoded
    views: Maker
    seed: int

    def __getitem__(self, plan: tuple[int, int, Tensor]) -> _Chunk:
        step, epoch, ids = plan
        chance = uniforms(rng.key(self.seed, "augment", epoch), ids, self.views)  # (n,V,U)
        cuts, image_ids, failures = [], [], []
        for index, mine in zip(ids.tolist(), chance, strict=True):
            at, image, skips = self.source.nearest(index)
            cuts.append(self.views.cut(image, mine))  # all views of an image cost one decode
            image_ids.append(at)
            failures += skips
        crops = [torch.stack(view) for view in zip(*cuts, strict=True)]
        return _Chunk(step, epoch, crops, ids, torch.tensor(image_ids), failures)


@dataclass(frozen=True)
class _Centres(Dataset[Any]):
    source: Decoded
    eval_view: Maker

    def __getitem__(self, ids: Tensor) -> tuple[Tensor, Tensor, list[Skip]]:
        crops, image_ids, failures = [], [], []
        for index in ids.tolist():
            at, image, skips = self.source.nearest(index)
            crops += self.eval_view.cut(image, torch.zeros(1, self.eval_view.slots))
            image_ids.append(at)
            failures += skips
        return torch.stack(crops), torch.tensor(image_ids), failures


def _read(dataset: Dataset[Any], plan: Any, workers: int, device: torch.device) -> Iterator[Any]:
    """One item of `plan` is one call of `dataset`: results come in order whatever the number of workers."""
    loader: DataLoader[Any] = DataLoader(
        dataset,
        sampler=plan,
        batch_size=None,
        num_workers=workers,
        pin_memory=device.type == "cuda",
        collate_fn=_same,
        generator=torch.Generator(),  # a seed for workers is drawn; from the global one that would shift others' draws
    )
    try:
        yield from loader
    except ValueError as error:
        _, wrapped, with_source = str(error).strip().rpartition("\nValueError: ")
        if not wrapped:
            raise
        raise ValueError(with_source) from error  # what the worker said, without the way it came


def _same(item: Any) -> Any:
    return item
