"""Our loop against the bare step on a fixed batch: what loading, views, records and checkpoints cost.

    python benchmarks/overhead.py --out overhead.json
    python benchmarks/overhead.py --recipe cifar10.simclr "cifar10.adco method.bank=8192" --device cuda --images 50000

Both sides take turns in one process, on the same network, precision and compilation. The bare side repeats forward,
backward and optimiser on one batch of views that is ready on the device; on a GPU it is one captured graph.
"""

import argparse
import json
import os
import platform
import time
from pathlib import Path

import torch

from antipode.data.sources.source import Memory
from antipode.data.sources.splits import Splits
from antipode.recipe.resolve import resolve
from antipode.runs.folder import RunFolder
from antipode.training.loop import Recorder, build
from antipode.training.progress import Silent
from antipode.training.step import filling
from antipode.types import Batch


def images(count: int, size: int) -> Splits:
    source = Memory(torch.randint(0, 256, (count, 3, size, size), dtype=torch.uint8))
    return Splits("random", source, source, None, size)


def wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def bare(job, steps: int) -> float:
    """Seconds of a step on a fixed batch."""
    _, _, batch = next(job.loader.steps())
    batch = Batch([view.clone() for view in batch.views], batch.image_ids.clone())
    while filling(job.step.learner):  # a step that fills AdCo's bank is another one
        job.step(batch)
    for _ in range(3):
        job.step(batch)
    step = lambda: job.step(batch)  # noqa: E731
    if job.device.type == "cuda":
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            step()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            step()
        step = graph.replay
    wait(job.device)
    start = time.perf_counter()
    for _ in range(steps):
        step()
    wait(job.device)
    return (time.perf_counter() - start) / steps


def atomic_write(job, steps: int, out: Path) -> float:
    """Seconds of a step of the loop, records included, after a warm-up."""
    book = Recorder(job, RunFolder(out), Silent(), None)
    out.mkdir(parents=True, exist_ok=True)
    start, warm = 0.0, 10
    for count, (step, epoch, rates, result, norm) in enumerate(job.run(0)):
        book.note(step, epoch, rates, result, norm)
        if count + 1 == warm:
            wait(job.device)
            start = time.perf_counter()
        if count + 1 == warm + steps:
            break
    wait(job.device)
    return (time.perf_counter() - start) / steps


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--recipe", nargs="+", default=["shapes.dcl"])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--images", type=int, default=5000)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("overhead.json"))
    args = parser.parse_args()
    rows = []
    for name in args.recipe:
        plain, *values = name.split()
        recipe = resolve(plain, overrides=[*values, f"train.device={args.device}"])
        splits = images(args.images, recipe.views.size)
        times = {"bare": float("inf"), "whole": float("inf")}
        for _ in range(args.rounds):
            torch.compiler.reset()
            job = build(recipe, splits)
            if args.device == "cuda":
                job.step.compile()
            times["bare"] = min(times["bare"], bare(job, args.steps))
            torch.compiler.reset()
            fresh = build(recipe, splits)
            times["whole"] = min(
                times["whole"], atomic_write(fresh, args.steps, args.out.with_suffix(""))
            )
        row = {
            "recipe": name,
            "batch": recipe.train.batch,
            **{k: v * 1e3 for k, v in times.items()},
        }
        row["share"] = times["bare"] / times["whole"]
        row["images_per_second"] = recipe.train.batch / times["whole"]
        share = f"{100 * row['share']:.1f} % of the bare speed"
        print(f"{name}: bare {row['bare']:.2f} ms, loop {row['whole']:.2f} ms, {share}", flush=True)
        rows.append(row)
    where = (
        torch.cuda.get_device_name()
        if args.device == "cuda"
        else platform.processor() or platform.machine()
    )
    facts = {
        "device": where,
        "cores": os.cpu_count(),
        "torch": torch.__version__,
        "load": os.getloadavg(),
    }
    args.out.write_text(json.dumps({**facts, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
