"""Compare our training loop with the bare step: the cost of loading, views, schedules and records.

    python benchmarks/overhead.py --out overhead.json
    python benchmarks/overhead.py --device cuda --images 50000 --recipe cifar10.simclr
    python benchmarks/overhead.py --device cuda --recipe "cifar10.adco method.bank=8192"

Both sides take turns in one process, with the same network, precision and compilation, and the
share is the median over the turns. The bare step repeats forward pass, backward pass and optimiser
on one batch of views that is already on the device. On a GPU it is captured as one CUDA graph.
"""

import argparse
import json
import os
import platform
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

from antipode.threads import prepare

prepare()  # as the command line does; this has to precede the import of torch

import torch  # noqa: E402

from antipode.data.sources.source import Memory  # noqa: E402
from antipode.data.sources.splits import Splits  # noqa: E402
from antipode.recipe.recipe import Recipe  # noqa: E402
from antipode.recipe.resolve import resolve  # noqa: E402
from antipode.runs.folder import RunFolder  # noqa: E402
from antipode.training.build import Setup, build  # noqa: E402
from antipode.training.progress import Silent  # noqa: E402
from antipode.training.record import Recorder  # noqa: E402
from antipode.training.step import filling  # noqa: E402
from antipode.types import Batch  # noqa: E402

WARM_UP = 10  # steps of the loop before the clock starts


def random_images(count: int, size: int) -> Splits:
    """Return a data set of random colour images, without test images."""
    source = Memory(torch.randint(0, 256, (count, 3, size, size), dtype=torch.uint8))
    return Splits("random", source, source, None, size)


def wait(device: torch.device) -> None:
    """Wait until a GPU has done all its work."""
    if device.type == "cuda":
        torch.cuda.synchronize()


def warmed_up_batch(setup: Setup) -> Batch:
    """Return a fixed batch, after steps on it that fill AdCo's bank and warm up the device."""
    _, _, batch = next(setup.loader.steps())
    batch = Batch([view.clone() for view in batch.views], batch.image_ids.clone())
    while filling(setup.learner):  # a step that fills AdCo's bank does other work
        setup.step(batch)
    for _ in range(3):
        setup.step(batch)
    return batch


def bare_step(setup: Setup) -> Callable[[], object]:
    """Return the step on a fixed batch."""
    batch = warmed_up_batch(setup)
    step: Callable[[], object] = lambda: setup.step(batch)  # noqa: E731
    return captured(step) if setup.device.type == "cuda" else step


def captured(step: Callable[[], object]) -> Callable[[], object]:
    """Capture a step as one CUDA graph, and return the function that replays it."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph.replay


def loop_steps(setup: Setup, out: Path) -> Iterator[None]:
    """Take the steps of the training loop, with records, one for each call of `next`."""
    out.mkdir(parents=True, exist_ok=True)
    recorder = Recorder(setup, RunFolder(out), Silent(), None)
    for step, epoch, rates, result, norm in setup.run(0):
        recorder.note(step, epoch, rates, result, norm)
        yield


def seconds(step: Callable[[], object], count: int, device: torch.device) -> float:
    """Return the seconds of one step, from `count` of them."""
    wait(device)
    start = time.perf_counter()
    for _ in range(count):
        step()
    wait(device)
    return (time.perf_counter() - start) / count


def compare(name: str, recipe: Recipe, args: argparse.Namespace) -> dict[str, Any]:
    """Return the times of both sides in milliseconds per step, and the share of the bare speed.

    Both are medians over rounds. The two sides of a round directly follow each other, so that a
    machine whose speed changes affects both.
    """
    splits = random_images(args.images, recipe.views.size)
    torch.compiler.reset()
    setup = build(recipe, splits)
    if args.device == "cuda":
        setup.step.compile()
    bare = bare_step(setup)
    loop = loop_steps(build(recipe, splits), args.out.with_suffix(""))
    for _ in range(WARM_UP):
        next(loop)
    rounds = []
    for _ in range(args.rounds):
        fixed = seconds(bare, args.steps, setup.device)
        rounds.append((fixed, seconds(lambda: next(loop), args.steps, setup.device)))
    whole = median(one for _, one in rounds)
    return {
        "recipe": name,
        "batch": recipe.train.batch,
        "bare": median(one for one, _ in rounds) * 1e3,
        "whole": whole * 1e3,
        "share": median(fixed / one for fixed, one in rounds),
        "images_per_second": recipe.train.batch / whole,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--recipe",
        nargs="+",
        default=["shapes.dcl"],
        help='recipes; "name key=value ..." changes values of one',
    )
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--images", type=int, default=5000, help="size of the random data set")
    parser.add_argument("--steps", type=int, default=10, help="steps of each side in a round")
    parser.add_argument("--rounds", type=int, default=12, help="rounds, of which the median counts")
    parser.add_argument(
        "--out", type=Path, default=Path("overhead.json"), help="the JSON file to write"
    )
    args = parser.parse_args()
    cpu = platform.processor() or platform.machine()
    facts = {
        "device": torch.cuda.get_device_name() if args.device == "cuda" else cpu,
        "cores": os.cpu_count(),
        "torch": torch.__version__,
        "load": os.getloadavg(),
    }
    rows = []
    for name in args.recipe:
        plain, *values = name.split()
        recipe = resolve(plain, overrides=[*values, f"train.device={args.device}"])
        row = compare(name, recipe, args)
        share = f"{100 * row['share']:.1f} % of the bare speed"
        print(f"{name}: bare {row['bare']:.2f} ms, loop {row['whole']:.2f} ms, {share}", flush=True)
        rows.append(row)
        args.out.write_text(json.dumps({**facts, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
