"""Show why decoding on the GPU and the training step overlap or not, for `linear` on JPEG files.

    python benchmarks/overlap.py --out overlap.json

Three things are recorded while nvJPEG decodes all files:

- the use of the GPU's JPEG engines that `nvidia-smi dmon` reports, without a step beside them,
- the kernels and copies of a profiled epoch: their number, time and stream,
- the calls of the CUDA runtime in that epoch: their number and time, by thread. A call that waits
  for the whole device, such as cudaFree, makes the decoder wait for all queued steps.

About 40 seconds on an H200. With --device cpu the same code runs on a few small files.
"""

import argparse
import json
import os
import shutil
import subprocess
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

import evaluate_networks as networks
from antipode.data.decoders import evaluation_decoder
from antipode.data.loader import Loader
from antipode.evaluation import linear
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


def loader_alone(task: Task, source: Any, batch: int) -> float:
    """Return the images per second of the loader, with nothing beside it."""
    views = task.eval_view
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
    text = json.dumps(report, indent=1)
    print(text)
    if args.out:
        args.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
