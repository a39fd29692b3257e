"""Decode JPEG files on the device, ahead of the training step.

Shapes: N images of this rank, V views, C channels, S pixels of the side of a view.

A thread of its own takes the files that workers have read, and lets a `Cutter` decode them in
batches and cut all crops with one kernel per view. On a GPU, nvJPEG does this in a process of its
own, beside the step.
"""

import queue
import threading
from collections import deque
from collections.abc import Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import wait as wait_for
from contextlib import contextmanager
from functools import cache
from itertools import cycle
from typing import Any

import numpy as np
import torch
from torch import Tensor

from antipode import rng
from antipode.data.chunks import uniforms
from antipode.data.cutting import Cutter, Decode, place, wait
from antipode.data.decoding_process import LANES, apart
from antipode.data.encoded import Encoded, Rows, crops_of
from antipode.data.sources.source import Skip

SETS = 2  # batches that exist on the device beside those being made: one in use, one ready
THREAD = "decoding on the device"


@contextmanager
def side_stream(device: torch.device) -> Iterator[None]:
    """Work on another stream than the default one of a GPU; do nothing on a CPU.

    Work of a library on streams that it has created itself may wait for the default stream, and the
    default stream for it. This matters if the decoder is not in a process of its own.
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
        self.seed = dataset.seed
        self.count = count  # N
        self.device = device
        lanes = LANES if getattr(decode, "apart", False) else 1
        self.lane = _Lane(device, SETS + lanes)
        shapes = [(count, self.source.channels, side, side) for side in self.views.sizes]
        ids = torch.empty(SETS + lanes, 2, count, dtype=torch.int64, device=device)
        self.ids = [[*pair] for pair in ids]
        self.crops = [
            [torch.empty(shape, dtype=torch.uint8, device=device) for shape in shapes]
            for _ in range(SETS + lanes)
        ]
        self.lane.follow()
        cubic = [self.views.cubic(view) for view in range(len(shapes))]
        cutter = Cutter(decode, dataset.slots, cubic, self.crops)
        self.process = apart(cutter)
        self.cutters: list[Any] = self.process.lanes if self.process else [cutter]
        self.closed = False
        self.free: queue.SimpleQueue[int | None] = queue.SimpleQueue()
        self.ready: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def made(self, chunks: Iterator[Rows]) -> Generator[Any, None, None]:
        """Yield the batches of all steps, and the failures of each to `source`."""
        for turn in range(len(self.crops)):
            self.free.put(turn)
        thread = threading.Thread(target=self._work, args=(chunks,), name=THREAD, daemon=True)
        thread.start()
        try:
            while (item := self.ready.get()) is not None:
                if isinstance(item, BaseException):
                    raise item
                turn, step, epoch, filling = item
                self.source.report_failures(filling.result())
                yield step, epoch, *self.lane.entered(turn, self.ids[turn] + self.crops[turn])
                self.lane.leave(turn)
                self.free.put(turn)
        finally:
            self.closed = True
            self.free.put(None)
            thread.join()
            if self.process:
                self.process.close()

    def _work(self, chunks: Iterator[Rows]) -> None:
        """Make batches until the chunks end or the main thread has closed."""
        filling: deque[Future[list[Skip]]] = deque()
        count = len(self.cutters)
        try:
            with ThreadPoolExecutor(count, THREAD) as pool:
                for cutter in cycle(self.cutters):
                    if (turn := self.free.get()) is None or self.closed:
                        break
                    # workers may overwrite the files of all steps but the last `count - 1`
                    if len(filling) == count:
                        wait_for([filling.popleft()])
                    if not (pending := self._chunks_of_step(chunks)):
                        break
                    filling.append(pool.submit(self._fill, cutter, turn, pending))
                    self.ready.put((turn, pending[0].step, pending[0].epoch, filling[-1]))
            self.ready.put(None)
        except BaseException as error:  # raised again in the main thread
            self.ready.put(error)

    def _chunks_of_step(self, chunks: Iterator[Rows]) -> list[Rows]:
        """Return the next chunks that make up the images of a step; none at the end."""
        pending: list[Rows] = []
        missing = self.count
        while missing and (chunk := next(chunks, None)) is not None:
            pending.append(chunk)
            missing -= len(chunk.image_ids)
        return pending

    def _fill(self, cutter: Any, turn: int, pending: list[Rows]) -> list[Skip]:
        """Make the batch of a step; return images that were broken."""
        with self.lane.running():
            self.lane.reuse(turn)
            try:
                failures = self._write(cutter, turn, pending)
            finally:
                wait(self.device)  # copies from the files' memory may be under way
            self.lane.done(turn)
        return failures

    def _write(self, cutter: Any, turn: int, pending: list[Rows]) -> list[Skip]:
        """Write ids and crops of a step to the buffers; return images that were broken."""
        failures = [skip for rows in pending for skip in rows.failures]
        planned = torch.from_numpy(np.concatenate([rows.planned_ids for rows in pending]))
        ids = torch.from_numpy(np.concatenate([rows.image_ids for rows in pending]))
        for row in cutter.fill(turn, pending):
            at, data, skips = self._read(int(planned[row]), pending[0].epoch)
            place({row: data}, self.crops[turn])
            ids[row] = at
            failures += skips
        for buffer, values in zip(self.ids[turn], (planned, ids), strict=True):
            buffer.copy_(values)
        return failures

    def _read(self, planned_id: int, epoch: int) -> tuple[int, Tensor, list[Skip]]:
        """Read and cut an image on the host, or the next one that can be read."""
        key = rng.key(self.seed, "augment", epoch)
        unit = uniforms(key, torch.tensor([planned_id]), self.views)[0]
        at, data, skips = crops_of(self.source, self.views, planned_id, unit)
        return at, torch.from_numpy(data), skips


class _Lane:
    """The stream on which batches are made, and the events that order it with the step.

    On a CPU there is no stream, and all methods do nothing.
    """

    def __init__(self, device: torch.device, turns: int) -> None:
        self.device = device
        self.on_gpu = device.type == "cuda"
        cuda: Any = torch.cuda
        if self.on_gpu:
            # a higher priority than the step's: small kernels between those of the step
            self.stream = cuda.Stream(device, priority=-1)
            self.made = [cuda.Event() for _ in range(turns)]
            self.used = [cuda.Event(blocking=True) for _ in range(turns)]

    def running(self) -> Any:
        """Return a context in which work goes to the stream."""
        return torch.cuda.stream(self.stream) if self.on_gpu else torch.no_grad()

    def follow(self) -> None:
        """Let the stream wait for all that is queued so far, which may use the same memory."""
        if self.on_gpu:
            self.stream.wait_stream(torch.cuda.current_stream(self.device))

    def reuse(self, turn: int) -> None:
        """Wait until the step has read the buffers of this turn."""
        if self.on_gpu:
            self.used[turn].synchronize()

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
