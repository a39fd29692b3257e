"""Compare training through the distributed path with training without it, on one device.

    python benchmarks/ranks.py                                   # one GPU, NCCL
    torchrun --nproc-per-node 1 benchmarks/ranks.py --out ranks.json
    python benchmarks/ranks.py --smoke                           # a CPU, gloo, seconds

Both sides take turns in one process: the whole training loop with views and records, on random
images in the device's memory, compiled and captured as one CUDA graph. The distributed side belongs
to a group of a single rank. It gathers features, synchronises batch norm, averages gradients in
flat buckets and agrees on skipped steps, as every rank of a larger group does. So the difference is
the cost of the distributed path itself, without the time that data need between devices (see
scaling_model.py for that).
"""

import argparse
import json
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import torch
import torch.distributed as process

from antipode.recipe.recipe import Recipe
from antipode.recipe.resolve import resolve
from antipode.training.build import build
from antipode.training.graph import Slower
from machine import surroundings
from overhead import WARM_UP, loop_steps, random_images
from overhead import seconds as seconds_of

RECIPES = [
    "cifar10.simclr",
    "imagenet.simclr backbone.name=resnet50 train.batch=256",
    "imagenet.mocov2 backbone.name=resnet50 train.batch=256",
]
SMOKE = ["shapes.simclr train.batch=32 views.size=16", "shapes.mocov2 train.batch=32 views.size=16"]


def join(device: str, store: Path) -> None:
    """Create a group of one rank, which exchanges addresses in a file."""
    backend = "nccl" if device == "cuda" else "gloo"
    process.init_process_group(backend, init_method=f"file://{store}", rank=0, world_size=1)


def seconds(recipe: Recipe, grouped: bool, args: argparse.Namespace) -> float:
    """Return the seconds of one step of the training loop, in a group of one rank or without."""
    torch.compiler.reset()
    with tempfile.TemporaryDirectory() as folder:
        if grouped:
            join(args.device, Path(folder) / "store")
        try:
            stored = round(recipe.views.size * 8 / 7)  # 256 px for views of 224
            count = max(args.images if recipe.views.size < 64 else 2048, 4 * recipe.train.batch)
            setup = build(recipe, random_images(count, stored))
            loop = loop_steps(setup, Path(folder) / "run")
            for _ in range(WARM_UP):
                next(loop)
            return seconds_of(lambda: next(loop), args.steps, setup.device)
        finally:
            if grouped:
                process.destroy_process_group()


def compare(name: str, args: argparse.Namespace) -> dict[str, Any]:
    """Return the best of some rounds of both sides, and warnings of failed compilation."""
    plain, *values = name.split()
    fixed = [f"train.device={args.device}", "train.epochs=1000"]
    recipe = resolve(plain, overrides=[*values, *fixed])
    best = {False: float("inf"), True: float("inf")}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", Slower)
        for _ in range(args.rounds):
            for grouped in (False, True):
                best[grouped] = min(best[grouped], seconds(recipe, grouped, args))
                if args.device == "cuda":
                    torch.cuda.empty_cache()
    slower = [str(warning.message) for warning in caught if issubclass(warning.category, Slower)]
    row = {"recipe": name, "plain ms": 1e3 * best[False], "distributed ms": 1e3 * best[True]}
    return {**row, "share": best[False] / best[True], "slower": slower}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--recipe", nargs="+", help='"name key=value ..."')
    parser.add_argument("--images", type=int, default=50_000, help="random images of 32 px")
    parser.add_argument("--steps", type=int, default=200, help="steps of one measurement")
    parser.add_argument("--rounds", type=int, default=1, help="rounds, of which the best counts")
    parser.add_argument("--smoke", action="store_true", help="a few steps on a CPU")
    parser.add_argument("--out", type=Path, help="the JSON file to write")
    args = parser.parse_args()
    args.device = "cuda" if torch.cuda.is_available() and not args.smoke else "cpu"
    if args.smoke:
        args.steps, args.images = 5, 256
    rows = []
    for name in args.recipe or (SMOKE if args.smoke else RECIPES):
        start = time.perf_counter()
        row = compare(name, args)
        rows.append(row)
        times = f"{row['plain ms']:.2f} ms alone, {row['distributed ms']:.2f} ms distributed"
        took = f"({time.perf_counter() - start:.0f} s in all)"
        print(f"{name}: {times}, {100 * row['share']:.1f} % of the speed {took}", flush=True)
        print("\n".join(row["slower"]), end="\n" if row["slower"] else "")
    if args.out:
        content = {**surroundings("torch"), "date": time.strftime("%Y-%m-%d"), "rows": rows}
        args.out.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
