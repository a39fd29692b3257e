"""Show why decoding on the GPU and the training step overlap or not, for `linear` on JPEG files.

    python benchmarks/overlap.py --out overlap.json

Three things are recorded while nvJPEG decodes all files:

- the use of the GPU's JPEG engines that `nvidia-smi dmon` reports, without a step beside them,
- the kernels and copies of a profiled epoch: their number, time and stream,
- the calls of the CUDA runtime in that epoch: their number and time, by thread. A call that waits
  for the whole device, such as cudaFree, makes the decoder wait for all queued steps.

With --lanes 1 2 4, `linear` is then timed with 1, 2 and 4 decoders at the same time, each with a
thread, a stream and a state of its own for its share of every batch. If the small kernels of
nvJPEG wait for gaps between those of the step, several decoders wait at the same time.

About 80 seconds on an H200. With --device cpu the same code runs on a few small files.
"""

import argparse
import json
import os
import shutil
import subprocess
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

import evaluate_networks as networks
from antipode.data import decoders
from antipode.data.decoders import evaluation_decoder
from antipode.data.loader import Loader
from antipode.data.nvjpeg import NvJpeg
from antipode.evaluation import linear
from antipode.evaluation.classifier import augmented
from antipode.evaluation.task import Task
from machine import CORES, surroundings

MOST = 25  # rows of each table
SECONDS = 6  # of the loader alone


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


class Lanes:
    """Decode each batch with several decoders at the same time."""

    def __init__(self, device: torch.device, count: int) -> None:
        self.device = device
        self.decoders = [NvJpeg(device) for _ in range(count)]
        self.streams = [torch.cuda.Stream(device, priority=-1) for _ in range(count)]
        self.pool = ThreadPoolExecutor(count)

    def __call__(
        self, files: list[torch.Tensor], sides: Sequence[Sequence[int]]
    ) -> list[torch.Tensor]:
        caller = torch.cuda.current_stream(self.device)
        size = -(-len(files) // len(self.decoders))

        def part(number: int) -> list[torch.Tensor]:
            rows = slice(number * size, (number + 1) * size)
            if not files[rows]:
                return []
            stream = self.streams[number]
            stream.wait_stream(caller)
            with torch.cuda.stream(stream):
                images = self.decoders[number](files[rows], sides[rows])
            for image in images[:1]:  # all images of a decoder are in one block of memory
                image.record_stream(caller)
            return images

        futures = [self.pool.submit(part, number) for number in range(len(self.decoders))]
        wait(futures)
        for stream in self.streams:
            caller.wait_stream(stream)
        return [image for future in futures for image in future.result()]


def with_lanes(count: int, size: networks.Size, device: torch.device, folder: Path) -> Any:
    """Return the speed of `linear` if several decoders share every batch."""
    if device.type == "cuda":
        decoder = Lanes(device, count)
        decoders.device_decoder = lambda _: decoder  # type: ignore[assignment]
    return networks.measure_linear(size, device, folder, decoder="gpu")


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


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cuda", choices=["cpu", "cuda"])
    parser.add_argument("--decoder", default="gpu", choices=["cpu", "gpu", "both"])
    parser.add_argument("--lanes", type=int, nargs="*", default=[1, 2, 4], help="see above")
    parser.add_argument("--out", type=Path, help="the JSON file to write")
    args = parser.parse_args()
    os.environ["ANTIPODE_DECODER"] = args.decoder
    torch.set_num_threads(CORES if args.device == "cuda" else 1)
    device = torch.device(args.device)
    size = networks.FULL if args.device == "cuda" else networks.SMOKE
    with tempfile.TemporaryDirectory() as folder:
        source = networks.photographs(Path(folder) / "photographs", size)
        task = networks.make_task(size, device, source)
        batch = size.batch["linear"]
        settings = replace(linear.MOCO, batch=batch, epochs=1, at=(1,))

        def epoch() -> object:
            return linear.trained(task, settings, source, settings.rates)

        alone = engines(lambda: loader_alone(task, source, batch))
        epoch()
        report = {"surroundings": surroundings("torch"), "alone": alone}
        report |= events_of(epoch, args.device == "cuda")
        report["lanes"] = {}
        for count in (0, *args.lanes):
            if count:
                found = with_lanes(count, size, device, Path(folder))
                report["lanes"][count] = found
                print(count, found, flush=True)
            if args.out:
                args.out.write_text(json.dumps(report, indent=1) + "\n")
    print(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
