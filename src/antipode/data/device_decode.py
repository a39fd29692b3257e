"""Decode JPEG files on the device, ahead of the training step.

Shapes: N images of this rank, V views, C channels, S pixels of the side of a view.

A thread of its own takes the files that workers have read, decodes them in batches, and cuts all
crops with one kernel per view. On a GPU this happens on a stream of its own, beside the step.
"""

import queue
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from antipode import rng
from antipode.data.chunks import uniforms
from antipode.data.encoded import Encoded, Rows, crops_of
from antipode.data.sources.source import Skip

# decodes files uint8 (L,) in host memory, with their heights and widths, to images uint8 (3,H,W)
Decode = Callable[[list[Tensor], Sequence[Sequence[int]]], list[Tensor]]
SETS = 3  # batches that may exist on the device: one in use, one ready, one being made
THREAD = "decoding on the device"
PIXELS = 1 << 29  # bytes of decoded images that exist at once, about


@contextmanager
def side_stream(device: torch.device) -> Iterator[None]:
    """Work on another stream than the default one of a GPU; do nothing on a CPU.

    Work of a library on streams that it has created itself may wait for the default stream, and the
    default stream for it.
    """
    if device.type != "cuda":
        yield
        return
    before = torch.cuda.current_stream(device)
    stream = _side(device)
    stream.wait_stream(before)
    try:
        with torch.cuda.stream(stream):
            yield
    finally:
        before.wait_stream(stream)


@cache
def _side(device: torch.device) -> Any:
    """Return one stream per device: torch keeps freed memory for each stream."""
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


class DeviceCrops:
    """Make the crops of all images of a step on a device, some steps ahead.

    `made` yields (step, epoch, planned ids (N,), image ids (N,), V crops uint8 (N,C,S,S)) for the
    chunks of each step. What it yields is overwritten when the next step is taken.
    """

    def __init__(
        self,
        dataset: Encoded,
        decode: Decode,
        count: int,
        device: torch.device,
    ) -> None:
        self.source = dataset.source
        self.views = dataset.views
        self.slots = dataset.slots
        self.seed = dataset.seed
        self.decode = decode
        self.count = count  # N
        self.device = device
        self.lane = _Lane(device)
        ids = [torch.empty(count, dtype=torch.int64, device=device) for _ in range(2 * SETS)]
        shapes = [(count, self.source.channels, side, side) for side in self.views.sizes]
        self.sets = [
            [ids[2 * turn], ids[2 * turn + 1]]
            + [torch.empty(shape, dtype=torch.uint8, device=device) for shape in shapes]
            for turn in range(SETS)
        ]
        self.lane.follow()
        self.closed = False
        self.free: queue.SimpleQueue[int | None] = queue.SimpleQueue()
        self.ready: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def made(self, chunks: Iterator[Rows]) -> Generator[Any, None, None]:
        """Yield the batches of all steps, and the failures of each to `source`."""
        for turn in range(SETS):
            self.free.put(turn)
        thread = threading.Thread(target=self._work, args=(chunks,), name=THREAD, daemon=True)
        thread.start()
        try:
            while (item := self.ready.get()) is not None:
                if isinstance(item, BaseException):
                    raise item
                turn, step, epoch, failures = item
                self.source.report_failures(failures)
                yield step, epoch, *self.lane.entered(turn, self.sets[turn])
                self.lane.leave(turn)
                self.free.put(turn)
        finally:
            self.closed = True
            self.free.put(None)
            thread.join()

    def _work(self, chunks: Iterator[Rows]) -> None:
        """Make batches until the chunks end or the main thread has closed."""
        try:
            with self.lane.running():
                while (turn := self.free.get()) is not None and not self.closed:
                    pending = self._chunks_of_step(chunks)
                    if not pending:
                        break
                    self.lane.reuse(turn)
                    failures = self._fill(self.sets[turn], pending)
                    self.lane.done(turn)
                    self.ready.put((turn, pending[0].step, pending[0].epoch, failures))
            self.ready.put(None)
        except BaseException as error:  # raised again in the main thread
            with suppress(RuntimeError):  # copies from the files' memory may be under way
                self.lane.wait()
            self.ready.put(error)

    def _chunks_of_step(self, chunks: Iterator[Rows]) -> list[Rows]:
        """Return the next chunks that make up the images of a step; none at the end."""
        pending: list[Rows] = []
        missing = self.count
        while missing and (chunk := next(chunks, None)) is not None:
            pending.append(chunk)
            missing -= len(chunk.image_ids)
        return pending

    def _fill(self, buffers: list[Tensor], pending: list[Rows]) -> list[Skip]:
        """Write ids and crops of a step to the buffers; return images that were broken."""
        failures = [skip for rows in pending for skip in rows.failures]
        files = [data for rows in pending for data in self.slots.take(rows)]
        table = np.concatenate([rows.table for rows in pending])
        boxes = torch.from_numpy(np.concatenate([rows.boxes for rows in pending], 1))
        planned = torch.from_numpy(np.concatenate([rows.planned_ids for rows in pending]))
        ids = torch.from_numpy(np.concatenate([rows.image_ids for rows in pending]))
        crops = buffers[2:]
        self._place({row: files[row] for row in np.flatnonzero(table[:, 2] == 0).tolist()}, crops)
        for group in _groups(table):
            images = self._decoded([files[row] for row in group], table[group, 2:])
            kept = [row for row, image in zip(group, images, strict=True) if image is not None]
            self._cut([image for image in images if image is not None], kept, boxes, crops)
            self.lane.wait()
            for row in sorted({*group} - {*kept}):
                at, data, skips = self._read(int(planned[row]), pending[0].epoch)
                self._place({row: data}, crops)
                ids[row] = at
                failures += skips
        for buffer, values in zip(buffers[:2], (planned, ids), strict=True):
            buffer.copy_(values)
        self.lane.wait()  # workers may now overwrite the files and crops of this step
        return failures

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
        """Cut all views of some images and write them to their rows of the crops."""
        if not rows:
            return
        flat, firsts = _together(images)
        places = [(at, *image.shape[1:]) for at, image in zip(firsts, images, strict=True)]
        moved = torch.tensor(places).to(self.device)
        chosen = boxes[:, rows].to(self.device)
        every = len(rows) == self.count
        index = torch.tensor(rows).to(self.device)
        for view, target in enumerate(crops):
            out = target if every else torch.empty_like(target[: len(rows)])
            self.views.cut_flat(view, flat, moved, chosen[view], out)
            if not every:
                target.index_copy_(0, index, out)

    def _read(self, planned_id: int, epoch: int) -> tuple[int, Tensor, list[Skip]]:
        """Read and cut an image on the host, or the next one that can be read."""
        key = rng.key(self.seed, "augment", epoch)
        unit = uniforms(key, torch.tensor([planned_id]), self.views)[0]
        at, data, skips = crops_of(self.source, self.views, planned_id, unit)
        return at, torch.from_numpy(data), skips

    def _place(self, on_host: dict[int, Tensor], crops: list[Tensor]) -> None:
        """Write crops that were cut on the host to their rows."""
        sizes = [target[0].numel() for target in crops]
        for row, data in on_host.items():
            for target, part in zip(crops, torch.split(data, sizes), strict=True):
                target[row].copy_(part.view(target.shape[1:]), non_blocking=True)


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


class _Lane:
    """The stream on which batches are made, and the events that order it with the step.

    On a CPU there is no stream, and all methods do nothing.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.on_gpu = device.type == "cuda"
        cuda: Any = torch.cuda
        if self.on_gpu:
            # a higher priority than the step's: small kernels between those of the step
            self.stream = cuda.Stream(device, priority=-1)
            self.made = [cuda.Event() for _ in range(SETS)]
            self.used = [cuda.Event() for _ in range(SETS)]

    def running(self) -> Any:
        """Return a context in which work goes to the stream."""
        return torch.cuda.stream(self.stream) if self.on_gpu else torch.no_grad()

    def follow(self) -> None:
        """Let the stream wait for all that is queued so far, which may use the same memory."""
        if self.on_gpu:
            self.stream.wait_stream(torch.cuda.current_stream(self.device))

    def reuse(self, turn: int) -> None:
        """Let the stream wait until the step has read the buffers of this turn."""
        if self.on_gpu:
            self.stream.wait_event(self.used[turn])

    def wait(self) -> None:
        """Wait until all crops are cut.

        The decoder writes from a stream of its own, so the memory of decoded images must not be
        used again before.
        """
        if self.on_gpu:
            self.stream.synchronize()

    def done(self, turn: int) -> None:
        """Mark the end of the work that makes the batch."""
        if self.on_gpu:
            self.made[turn].record(self.stream)

    def entered(self, turn: int, buffers: list[Tensor]) -> list[Tensor]:
        """Let the step wait for the batch, and return its tensors: on a CPU copies."""
        if not self.on_gpu:
            return [buffer.clone() for buffer in buffers]
        torch.cuda.current_stream(self.device).wait_event(self.made[turn])
        return buffers

    def leave(self, turn: int) -> None:
        """Mark the end of the work that reads the batch."""
        if self.on_gpu:
            self.used[turn].record(torch.cuda.current_stream(self.device))
