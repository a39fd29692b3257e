"""Show whether decoding on the GPU and the training step overlap, for `linear` on JPEG files.

    python benchmarks/overlap.py --out overlap.json

- `pairs`: the decoder and the captured step, without a loader, alone and at the same time, with
  each backend of nvJPEG: the engine for JPEG, and kernels. The decoder runs in a thread of the
  process of the steps, then in a process of its own, which has another CUDA context.
- `formats`: the same in one process, with what nvJPEG may write (`FORMATS`), the kernels and copies
  of one batch, and how far the pixels are from those of the workers.
- `several`: the same in one process, with several decoders that share each batch, and the speed of
  `linear` with them.
- `partition`: the same in one process, with steps that leave some multiprocessors to the decoder (a
  green context of the CUDA driver), and the speed of `linear` with such steps.
- `allocators`: the same in one process, and the speed of `linear`, if nvJPEG takes memory from
  blocks that are kept (`KeptBlocks`), and how often it takes some; with what happens on the GPU and
  in the decoder's thread in the order of time.
- `shares`: the speed of `linear` if workers decode a share of the images and the GPU the others.
- `memory`: the decoder without a step, with the same files again and again in memory that CUDA has
  allocated (`own`), or with the files of many batches in memory as that of the loader (`slots`).
- `events`: a profiled epoch in which a thread decodes. `device` has the kernels and copies, with
  their number, time and stream, and `runtime` the calls of the CUDA runtime by thread. A call that
  takes long waits for the step.
- `times`: in milliseconds per call, what the loader's thread does beside the steps.
- `alone`: the loader without a step, and the use of the GPU's JPEG engines by `nvidia-smi dmon`.

About four minutes on an H200. With --device cpu the same code runs on a few small files, without
`pairs`, `formats`, `allocators`, `several`, `partition`, `shares` and `memory`. The environment
variable CUDA_DEVICE_MAX_CONNECTIONS=32 shows whether streams wait for each other because they share
a queue of the GPU.
"""

import argparse
import ctypes
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any
from unittest.mock import patch

import torch
from torch.profiler import ProfilerActivity, profile

import evaluate_networks as networks
from antipode.data import decoders, device_decode, encoded, nvjpeg
from antipode.data.decoders import evaluation_decoder
from antipode.data.device_decode import DeviceCrops
from antipode.data.encoded import Encoded, device_file, slots_for
from antipode.data.loader import Loader
from antipode.data.nvjpeg import BACKENDS, NvJpeg, NvJpegError
from antipode.data.sources import decode
from antipode.data.workers import AHEAD, pinned
from antipode.evaluation import classifier, linear
from antipode.evaluation.classifier import augmented
from antipode.evaluation.task import Task
from antipode.launch import products
from antipode.training.graph import CapturedStep
from machine import CORES, surroundings

MOST = 25  # rows of each table
SECONDS = 6  # of the loader alone
EPOCHS = 5  # of `linear`, of which the first is not timed
SPARED = (8, 16)  # multiprocessors that a step leaves to the decoder
SHARES = (0.25, 0.5)
SEVERAL = (2, 4, 8)  # decoders at the same time
OF_LINEAR = ((4, 0.0), (8, 0.0), (4, 0.25), (4, 0.5))  # decoders, and the share of the workers
# flags of nvjpegCreateEx, nvjpegOutputFormat_t, and whether only the middle is decoded
FORMATS = {
    "rgb": (0, 3, False),
    "rgb, interpolated colour": (32, 3, False),
    "rgb, no pipeline": (1, 3, False),
    "rgb, interpolated colour, no pipeline": (1 | 32, 3, False),
    "rgb of the middle": (0, 3, True),
    "planes as in the file": (0, 1, False),
    "nv12": (0, 8, False),
}
COMPARED = 64  # images whose pixels are compared with those of the workers
RESOURCE = 256  # bytes of CUdevResource, at most; smCount is at byte 96
TIMED = [  # what the loader's thread does, and parts of it
    (DeviceCrops, "_chunks_of_step"),
    (DeviceCrops, "_fill"),
    (DeviceCrops, "_decoded"),
    (DeviceCrops, "_cut"),
    (NvJpeg, "_call"),
]
Files = tuple[list[torch.Tensor], list[Any]]  # and their sides


def engines(work: Callable[[], float]) -> dict[str, Any]:
    """Return the images per second of some work, and what `nvidia-smi dmon` prints meanwhile."""
    smi = shutil.which("nvidia-smi")
    command = [smi, "dmon", "-s", "u", "-d", "1"]
    watch = subprocess.Popen(command, stdout=subprocess.PIPE, text=True) if smi else None
    result: dict[str, Any] = {"images_per_second": work()}
    if watch:
        watch.terminate()
        with suppress(subprocess.TimeoutExpired):
            result["dmon"] = watch.communicate(timeout=5)[0].splitlines()[:12]
    return result


class Middle(NvJpeg):
    """Decode 9/16 of each image, about as much as a random crop has on average."""

    def __call__(
        self, files: list[torch.Tensor], sides: Sequence[Sequence[int]]
    ) -> list[torch.Tensor]:
        if not hasattr(self, "regions"):
            self.regions = (ctypes.c_void_p * len(files))()
            for number, (height, width) in enumerate(sides):
                region = ctypes.c_void_p()
                self._call("nvjpegDecodeParamsCreate", ctypes.byref(region))
                corner = (width // 8, height // 8, 3 * width // 4, 3 * height // 4)
                nvjpeg._check("ROI", self.library.nvjpegDecodeParamsSetROI(region, *corner))
                self.regions[number] = region
        return super().__call__(files, sides)

    def _call(self, name: str, *arguments: Any) -> None:
        if name == "nvjpegDecodeBatched":
            name = "nvjpegDecodeBatchedEx"
            arguments = (*arguments[:-1], self.regions, arguments[-1])
        super()._call(name, *arguments)


class KeptBlocks:
    """Memory for nvJPEG: freed blocks are kept for the next request of the same size.

    cudaFree waits for all work on the GPU, and nvJPEG's own memory comes from cudaMalloc.
    """

    def __init__(self) -> None:
        self.free: dict[Any, list[torch.Tensor]] = defaultdict(list)
        self.used: dict[int, torch.Tensor] = {}
        self.counts = {"device": 0, "host": 0, "new": 0, "freed": 0}
        out = ctypes.POINTER(ctypes.c_void_p)
        size, number = ctypes.c_size_t, ctypes.c_int
        malloc = ctypes.CFUNCTYPE(number, out, size)
        malloc_host = ctypes.CFUNCTYPE(number, out, size, ctypes.c_uint)
        release = ctypes.CFUNCTYPE(number, ctypes.c_void_p)
        self.functions = [
            malloc(lambda at, length: self.take("device", at, length)),
            release(self.give),
            malloc_host(lambda at, length, _: self.take("host", at, length)),
            release(self.give),
        ]
        pointers = [ctypes.cast(function, ctypes.c_void_p) for function in self.functions]
        self.device = (ctypes.c_void_p * 2)(*pointers[:2])
        self.host = (ctypes.c_void_p * 2)(*pointers[2:])

    def take(self, kind: str, at: Any, length: int) -> int:
        self.counts[kind] += 1
        key = kind, 1 << (max(length, 512) - 1).bit_length()
        if not self.free[key]:
            self.counts["new"] += 1
            on_device = kind == "device"
            self.free[key].append(
                torch.empty(
                    key[1],
                    dtype=torch.uint8,
                    device="cuda" if on_device else "cpu",
                    pin_memory=not on_device,
                )
            )
        block = self.free[key].pop()
        self.used[block.data_ptr()] = block
        at[0] = block.data_ptr()
        return 0

    def give(self, pointer: int) -> int:
        if pointer:
            self.counts["freed"] += 1
            block = self.used.pop(pointer)
            kind = "device" if block.is_cuda else "host"
            self.free[kind, block.numel()].append(block)
        return 0

    def created(self, backends: Sequence[str]) -> tuple[Any, ctypes.c_void_p]:
        """Return the library and a handle of it with this memory, as `nvjpeg._created`."""
        for library in nvjpeg._libraries():
            handle = ctypes.c_void_p()
            backend = BACKENDS[next(iter(backends))]
            flags = nvjpeg.FLAGS
            if not library.nvjpegCreateEx(
                backend, self.device, self.host, flags, ctypes.byref(handle)
            ):
                return library, handle
        raise NvJpegError("no libnvjpeg takes this memory")


class Several:
    """Decode each batch in equal parts, each with a decoder, a stream and a thread of its own."""

    def __init__(self, device: torch.device, count: int) -> None:
        self.count = count
        self.decoders = [NvJpeg(device, ("hardware",)) for _ in range(count)]
        self.streams = [torch.cuda.Stream(device, priority=-1) for _ in range(count)]
        self.pool = ThreadPoolExecutor(count)

    def __call__(
        self, files: list[torch.Tensor], sides: Sequence[Sequence[int]]
    ) -> list[torch.Tensor]:
        def part(number: int) -> list[torch.Tensor]:
            first, end = (len(files) * at // self.count for at in (number, number + 1))
            if first == end:
                return []
            with torch.cuda.stream(self.streams[number]):
                images = self.decoders[number](files[first:end], sides[first:end])
            self.streams[number].synchronize()
            return images

        return [image for images in self.pool.map(part, range(self.count)) for image in images]


class Decoding:
    """Decode the same files again and again, on a stream with a higher priority than the step's."""

    def __init__(
        self,
        batches: list[Files],
        device: torch.device,
        backend: str,
        kind: type[NvJpeg] = NvJpeg,
    ) -> None:
        self.batches = batches
        self.decoder = kind(device, (backend,))
        self.stream = torch.cuda.Stream(device, priority=-1)
        self.stopped = threading.Event()
        self.images_per_second = 0.0
        for number in range(3):
            self.once(number)

    def once(self, number: int) -> int:
        files, sides = self.batches[number % len(self.batches)]
        with torch.cuda.stream(self.stream):
            self.decoder(files, sides)
        self.stream.synchronize()
        return len(files)

    def run(self, seconds: float) -> float:
        """Decode for some seconds, or until `stopped`; return the images per second."""
        begin = time.perf_counter()
        count = number = 0
        while time.perf_counter() < begin + seconds and not self.stopped.is_set():
            count += self.once(number)
            number += 1
        self.images_per_second = count / (time.perf_counter() - begin)
        return self.images_per_second


def own_memory(source: Any, batch: int) -> list[Files]:
    """Return the files of one batch, each in pinned memory that CUDA has allocated."""
    pairs = [device_file(source, index) for index in range(batch)]
    files = [torch.from_numpy(data.copy()).pin_memory() for data, _ in pairs]
    return [(files, [sides for _, sides in pairs])]


@contextmanager
def slots(task: Task, source: Any, batch: int) -> Iterator[list[Files]]:
    """Yield the files of several batches in memory as that of the loader."""
    views = augmented(task.eval_view)
    memory, size = slots_for(source, views, batch, AHEAD * CORES)
    dataset = Encoded(source, views, 0, memory)
    batches = []
    per_batch = batch // size
    for first in range(0, memory.count - per_batch + 1, per_batch):
        numbers = range(first, first + per_batch)
        chunks = [dataset[0, 0, n, torch.arange(n * size, (n + 1) * size)] for n in numbers]
        files = [data for rows in chunks for data in memory.take(rows)]
        batches.append((files, [sides for rows in chunks for sides in rows.table[:, 2:].tolist()]))
    with pinned(memory.flat, task.device):
        yield batches


def by_memory(task: Task, source: Any, batch: int, seconds: float = 1.5) -> dict[str, float]:
    """Return the speed of the decoder for files in both kinds of memory."""
    own = Decoding(own_memory(source, batch), task.device, "hardware").run(seconds)
    with slots(task, source, batch) as batches:
        shared = Decoding(batches, task.device, "hardware").run(seconds)
    return {"own": own, "slots": shared}


def times_of(work: Callable[[], object]) -> dict[str, Any]:
    """Return the mean milliseconds and the number of calls of what the loader's thread does."""
    seconds: dict[str, list[float]] = defaultdict(list)
    with ExitStack() as stack:
        for owner, name in TIMED:
            plain = getattr(owner, name)

            def timed(*args: Any, plain: Any = plain, name: str = name) -> Any:
                begin = time.perf_counter()
                result = plain(*args)
                seconds[name].append(time.perf_counter() - begin)
                return result

            stack.enter_context(patch.object(owner, name, timed))
        work()
    return {name: [1e3 * fmean(some), len(some)] for name, some in seconds.items()}


def captured_step(task: Task, size: networks.Size, batch: int) -> Callable[[], object]:
    """Return a captured step of `linear` on a batch of views that is ready."""
    heads = classifier.Heads(1, size.classes, classifier.width(task), std=0.01, seed=0)
    heads = heads.to(task.device)
    optimiser = linear._optimiser(linear.MOCO, [*heads.weights, *heads.biases])
    view = torch.randn(batch, 3, task.size, task.size, device=task.device)
    ids = torch.arange(batch, device=task.device)
    features = partial(classifier.embed, task.backbone)
    learn = classifier.learning(heads, ids % task.classes, features, [optimiser])
    return partial(CapturedStep(learn, what="the step"), view, ids)


def speed_of_steps(step: Callable[[], object], batch: int, seconds: float) -> float:
    """Return the images per second of steps, of which two are queued at a time."""
    for _ in range(6):
        step()
    torch.cuda.synchronize()
    stream = torch.cuda.current_stream()
    begin = time.perf_counter()
    count = 0
    while time.perf_counter() < begin + seconds:
        step()
        step()
        stream.synchronize()
        count += 2 * batch
    return count / (time.perf_counter() - begin)


def side_by_side(
    task: Task, source: Any, size: networks.Size, folder: Path, seconds: float = 1.5
) -> dict[str, Any]:
    """Return the speeds of decoder and step, alone and at the same time, for each backend."""
    batch = size.batch["linear"]
    step = captured_step(task, size, batch)
    with torch.cuda.stream(torch.cuda.Stream()):
        report: dict[str, Any] = {"step alone": speed_of_steps(step, batch, seconds)}
        for backend in BACKENDS:
            try:
                decoding = Decoding(own_memory(source, batch), task.device, backend)
            except (NvJpegError, RuntimeError) as error:
                report[backend] = str(error)
                continue
            row = {"decoder alone": decoding.run(seconds)}
            row |= beside([decoding], step, batch, seconds)
            report[backend] = row | beside_a_process(step, batch, backend, folder, seconds)
            print(backend, report[backend], flush=True)
    return report


def with_formats(task: Task, source: Any, size: networks.Size) -> dict[str, Any]:
    """Return the speeds of decoder and step for each of `FORMATS`, and what a batch runs."""
    batch = size.batch["linear"]
    step = captured_step(task, size, batch)
    files = own_memory(source, batch)
    report: dict[str, Any] = {}
    with torch.cuda.stream(torch.cuda.Stream()):
        for name, (flags, planes, middle) in FORMATS.items():
            with patch.object(nvjpeg, "FLAGS", flags), patch.object(nvjpeg, "PLANES", planes):
                try:
                    kind = Middle if middle else NvJpeg
                    decoding = Decoding(files, task.device, "hardware", kind)
                    row: dict[str, Any] = {"decoder alone": decoding.run(1.0)}
                    row |= beside([decoding], step, batch, 1.0)
                    row["device"] = events_of(lambda one=decoding: one.once(0), True)["device"]
                    if planes == 3 and not middle:
                        row["pixels"] = difference(decoding.decoder, files[0])
                except (NvJpegError, RuntimeError, AttributeError) as error:
                    row = {"error": str(error)}
            report[name] = row
            print(name, row, flush=True)
    return report


def difference(decoder: NvJpeg, files: Files) -> dict[str, float]:
    """Return how far the pixels of a decoder are from those of the workers, in grey levels."""
    data, sides = files
    found = decoder(data[:COMPARED], sides[:COMPARED])
    torch.cuda.synchronize()
    gaps = [
        (image.cpu().int() - decode.decode(file.numpy().tobytes()).int()).abs().flatten()
        for image, file in zip(found, data, strict=False)
    ]
    whole = torch.cat(gaps)
    return {
        "mean": float(whole.double().mean()),
        "most": int(whole.max()),
        "% equal": 100 * float((whole == 0).double().mean()),
    }


def with_allocators(
    task: Task, source: Any, size: networks.Size, linear_speed: Callable[[], float]
) -> dict[str, Any]:
    """Return the speeds of decoder, step and `linear` for both kinds of nvJPEG's memory."""
    batch = size.batch["linear"]
    step = captured_step(task, size, batch)
    files = own_memory(source, batch)
    report: dict[str, Any] = {}
    for backend in BACKENDS:
        for kept in (None, KeptBlocks()):
            created = kept.created if kept else nvjpeg._created
            with patch.object(nvjpeg, "_created", created), torch.cuda.stream(torch.cuda.Stream()):
                name = f"{backend}, {'kept' if kept else 'own'} memory"
                try:
                    decoding = Decoding(files, task.device, backend)
                    row: dict[str, Any] = {"decoder alone": decoding.run(1.0)}
                    row |= beside([decoding], step, batch, 1.0)
                    if kept:
                        before = dict(kept.counts)
                        decoding.once(0)
                        now = kept.counts.items()
                        row["of a batch"] = {kind: count - before[kind] for kind, count in now}
                    timed = partial(beside, [decoding], step, batch, 0.15)
                    row["in time"] = in_time(timed)
                    row["linear"] = linear_speed()
                except Exception as error:  # the other rows must not be lost
                    row = {"error": f"{type(error).__name__}: {error}"}
            report[name] = row
            print(name, {key: row[key] for key in row if key != "in time"}, flush=True)
    return report


def in_time(work: Callable[[], object]) -> dict[str, Any]:
    """Profile some work; return in the order of time what the streams and threads did.

    The rows are (start in ms, milliseconds, stream or thread, name). `streams` has the number of
    rows and the milliseconds of each stream, and `threads` the longest calls of each thread.
    """
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiled:
        work()
    device, runtime = [], []
    for event in profiled.profiler.kineto_results.events():  # type: ignore[union-attr]
        on_device = event.device_type() != torch.autograd.DeviceType.CPU
        name = event.name()[:60]
        if on_device or name.startswith("cu"):
            place = event.device_resource_id() if on_device else event.start_thread_id()
            row = (event.start_ns() / 1e6, event.duration_ns() / 1e6, place, name)
            (device if on_device else runtime).append(row)
    first = min(row[0] for row in device + runtime)
    middle = first + (max(row[0] for row in device) - first) / 2
    streams: dict[int, list[float]] = defaultdict(lambda: [0, 0.0])
    for _, length, place, _ in device:
        streams[place][0] += 1
        streams[place][1] += length
    threads: dict[Any, list[float]] = defaultdict(lambda: [0, 0.0])
    for _, length, place, name in runtime:
        threads[f"{place} {name}"][0] += 1
        threads[f"{place} {name}"][1] += length

    def cut(rows: list[Any], most: int) -> list[Any]:
        later = sorted(row for row in rows if row[0] >= middle)[:most]
        return [[round(row[0] - first, 4), round(row[1], 4), *row[2:]] for row in later]

    return {
        "streams": dict(streams),
        "threads": dict(sorted(threads.items(), key=lambda item: -item[1][1])[:40]),
        "device": cut(device, 700),
        "runtime": cut(runtime, 500),
    }


def with_several(
    task: Task, source: Any, size: networks.Size, linear_speed: Callable[[], float]
) -> dict[str, Any]:
    """Return the speeds of the step and of several decoders, and of `linear` with them."""
    batch = size.batch["linear"]
    step = captured_step(task, size, batch)
    report: dict[str, Any] = {}
    with torch.cuda.stream(torch.cuda.Stream()):
        for count in SEVERAL:
            files = own_memory(source, batch // count)
            some = [Decoding(files, task.device, "hardware") for _ in range(count)]
            report[str(count)] = beside(some, step, batch, 1.5)
            print(count, "decoders", report[str(count)], flush=True)
    report["linear"] = {}
    for count, share in OF_LINEAR:
        several = Several(task.device, count)
        where = "both" if share else "gpu"
        with (
            patch.object(decoders, "device_decoder", lambda _, one=several: one),
            patch.dict(os.environ, ANTIPODE_DECODER=where),
        ):
            report["linear"][f"{count}, {share}"] = of_share(share, linear_speed)
        several.pool.shutdown()
        print("linear", report["linear"], flush=True)
    return report


def beside_a_process(
    step: Callable[[], object], batch: int, backend: str, folder: Path, seconds: float
) -> dict[str, float]:
    """Return the speeds of the step and of a decoder in another process, at the same time."""
    command = [sys.executable, __file__, "--decode", str(folder), backend, str(seconds + 2)]
    other = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert other.stdout
    other.stdout.readline()  # it has begun
    speed = speed_of_steps(step, batch, seconds)
    text = other.communicate(timeout=60)[0].split()
    return {"step beside a process": speed, "decoder in a process": float(text[-1])}


def driver(name: str, *arguments: Any) -> None:
    """Call a function of the CUDA driver."""
    code = getattr(ctypes.CDLL("libcuda.so.1"), name)(*arguments)
    if code:
        raise RuntimeError(f"{name} failed with status {code}")


def partition(device: torch.device, spared: int) -> tuple[torch.cuda.Stream, int]:
    """Return a stream whose kernels leave some multiprocessors to others, and how many it has."""
    torch.cuda.synchronize(device)  # a green context shares the context that torch has created
    number = ctypes.c_int(device.index or 0)
    whole, others, ours = (ctypes.create_string_buffer(RESOURCE) for _ in range(3))
    groups = ctypes.c_uint(1)
    described, context, stream = (ctypes.c_void_p() for _ in range(3))
    driver("cuDeviceGetDevResource", number, whole, 1)  # 1: multiprocessors
    split = (others, ctypes.byref(groups), whole, ours, 0, spared)
    driver("cuDevSmResourceSplitByCount", *split)
    driver("cuDevResourceGenerateDesc", ctypes.byref(described), ours, 1)
    driver("cuGreenCtxCreate", ctypes.byref(context), described, number, 1)  # 1: the only flag
    driver("cuGreenCtxStreamCreate", ctypes.byref(stream), context, 1, 0)  # 1: non-blocking
    count = int.from_bytes(ours.raw[96:100], "little")
    return torch.cuda.ExternalStream(stream.value, device), count


@contextmanager
def steps_on(stream: torch.cuda.Stream) -> Iterator[None]:
    """Capture steps on a stream, and let the loop of `linear` work on it."""
    on_stream = partial(torch.cuda.graph, stream=stream)
    with (
        patch.object(torch.cuda, "graph", on_stream),
        patch.object(device_decode, "_side", lambda _: stream),
        torch.cuda.stream(stream),
    ):
        yield


def with_partitions(
    task: Task, source: Any, size: networks.Size, linear_speed: Callable[[], float]
) -> dict[str, Any]:
    """Return the speeds of steps that leave multiprocessors to the decoder, of it, and of both."""
    batch = size.batch["linear"]
    report: dict[str, Any] = {"none": {"linear": linear_speed()}}
    decoding = Decoding(own_memory(source, batch), task.device, "hardware")
    for spared in SPARED:
        try:
            stream, count = partition(task.device, spared)
        except (RuntimeError, OSError, AttributeError) as error:
            report[str(spared)] = str(error)
            continue
        with steps_on(stream):
            step = captured_step(task, size, batch)
            row: dict[str, Any] = {"multiprocessors": count}
            row["products are right"] = products.are_right(task.device)
            row["step alone"] = speed_of_steps(step, batch, 1.5)
            row |= beside([decoding], step, batch, 1.5)
            row["linear"] = linear_speed()
        report[str(spared)] = row
        print(spared, row, flush=True)
    return report


def of_share(share: float, linear_speed: Callable[[], float]) -> float:
    """Return the speed of `linear` if workers decode a share of the images."""
    with patch.object(encoded, "WORKERS", share):
        return linear_speed()


def beside(
    decoders: list[Decoding], step: Callable[[], object], batch: int, seconds: float
) -> dict[str, float]:
    """Return the speeds of the step and of decoders in a thread each, at the same time."""
    threads = [threading.Thread(target=one.run, args=(60.0,)) for one in decoders]
    for one, thread in zip(decoders, threads, strict=True):
        one.stopped.clear()
        thread.start()
    speed = speed_of_steps(step, batch, seconds)
    for one in decoders:
        one.stopped.set()
    for thread in threads:
        thread.join()
    decoded = sum(one.images_per_second for one in decoders)
    return {"step beside it": speed, "decoder beside the step": decoded}


def decode_files(folder: Path, backend: str, seconds: float) -> None:
    """Decode in this process for some seconds, and print the images per second."""
    size = networks.FULL
    source = networks.photographs(folder, size)
    files = own_memory(source, size.batch["linear"])
    decoding = Decoding(files, torch.device("cuda"), backend)
    print("began", flush=True)
    print(decoding.run(seconds), flush=True)


def loader_alone(task: Task, source: Any, batch: int) -> float:
    """Return the images per second of the loader, with nothing beside it."""
    views = augmented(task.eval_view)
    loader = Loader(
        source,
        views,
        batch=batch,
        epochs=1000,
        seed=0,
        device=task.device,
        **evaluation_decoder(source, views, task.device),
    )
    steps = loader.steps()
    for _ in range(3):
        next(steps)
    begin = time.perf_counter()
    count = 0
    while time.perf_counter() < begin + SECONDS:
        next(steps)
        count += 1
    seconds = time.perf_counter() - begin
    steps.close()  # type: ignore[attr-defined]
    return count * batch / seconds


def events_of(work: Callable[[], object], on_gpu: bool) -> dict[str, list[Any]]:
    """Profile some work; return what ran on the GPU by stream, and the runtime's calls by thread.

    The rows are (milliseconds, number, place, name), the longest first.
    """
    kinds = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * on_gpu
    with profile(activities=kinds) as profiled:
        work()
    sums: dict[str, dict[tuple[int, str], list[float]]] = {
        "device": defaultdict(lambda: [0.0, 0]),
        "runtime": defaultdict(lambda: [0.0, 0]),
    }
    for event in profiled.profiler.kineto_results.events():  # type: ignore[union-attr]
        name = event.name()
        on_device = event.device_type() != torch.autograd.DeviceType.CPU
        if not on_device and not name.startswith("cu"):
            continue
        place = event.device_resource_id() if on_device else event.start_thread_id()
        row = sums["device" if on_device else "runtime"][place, name[:90]]
        row[0] += event.duration_ns() / 1e6
        row[1] += 1
    return {
        kind: sorted(
            ([round(ms, 3), count, place, name] for (place, name), (ms, count) in rows.items()),
            reverse=True,
        )[:MOST]
        for kind, rows in sums.items()
    }


def parts(device: torch.device, folder: Path) -> dict[str, Callable[[], Any]]:
    """Return the measurements by name."""
    on_gpu = device.type == "cuda"
    size = networks.FULL if on_gpu else networks.SMOKE
    source = networks.photographs(folder, size)
    task = networks.make_task(size, device, source)
    batch = size.batch["linear"]
    settings = replace(linear.MOCO, batch=batch, epochs=1, at=(1,))

    def train(epochs: int = 1) -> object:
        chosen = replace(settings, epochs=epochs)
        return linear.trained(task, chosen, source, chosen.rates)

    def linear_speed() -> float:
        whole = len(source) // batch * batch
        return 1 / networks.seconds_per_image(train, whole, device, EPOCHS)

    def of_shares() -> dict[float, float]:
        with patch.dict(os.environ, ANTIPODE_DECODER="both"):
            return {share: of_share(share, linear_speed) for share in SHARES}

    result: dict[str, Callable[[], Any]] = {
        "formats": lambda: with_formats(task, source, size),
        "allocators": lambda: with_allocators(task, source, size, linear_speed),
        "several": lambda: with_several(task, source, size, linear_speed),
        "pairs": lambda: side_by_side(task, source, size, folder),
        "partition": lambda: with_partitions(task, source, size, linear_speed),
        "shares": of_shares,
        "memory": lambda: by_memory(task, source, batch),
    }
    if not on_gpu:
        result.clear()
    train()
    return result | {
        "events": lambda: events_of(train, on_gpu),
        "times": lambda: times_of(train),
        "alone": lambda: engines(lambda: loader_alone(task, source, batch)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cuda", choices=["cpu", "cuda"])
    parser.add_argument("--decoder", default="gpu", choices=["cpu", "gpu", "both"])
    parser.add_argument("--part", nargs="+", metavar="NAME", help="only these parts")
    parser.add_argument("--out", type=Path, help="the JSON file to write")
    parser.add_argument("--decode", nargs=3, help=argparse.SUPPRESS)  # folder, backend, seconds
    args = parser.parse_args()
    if args.decode:
        decode_files(Path(args.decode[0]), args.decode[1], float(args.decode[2]))
        return
    os.environ["ANTIPODE_DECODER"] = args.decoder
    torch.set_num_threads(CORES if args.device == "cuda" else 1)
    report: dict[str, Any] = {"surroundings": surroundings("torch")}
    with tempfile.TemporaryDirectory() as folder:
        for name, part in parts(torch.device(args.device), Path(folder) / "photographs").items():
            if args.part and name not in args.part:
                continue
            try:
                report[name] = part()
            except Exception as error:  # the other parts must not be lost
                report[name] = {"error": f"{type(error).__name__}: {error}"}
            print(name, json.dumps(report[name], indent=1), flush=True)
            if args.out:
                args.out.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
