"""Measure exact large batches: one loss over a batch that passes the network part by part.

    python benchmarks/accumulate.py --out accumulate.json        # one GPU, at most 40 GiB of it
    python benchmarks/accumulate.py --smoke                      # a CPU, a few steps

SimCLR, ResNet-50, two views of 224 px, random images in the GPU's memory. Each side takes whole
steps, with views: a batch of the size of one part without accumulation, a large batch with the loss
of each part (train.negatives=part), and the same batch with the loss of the whole batch
(train.negatives=batch). The script prints the time per image and the peak memory of each.
"""

import argparse
import json
import time
import warnings
from pathlib import Path
from typing import Any

import torch

from antipode.recipe.resolve import resolve
from antipode.training.build import build
from antipode.training.graph import WARM, Slower
from machine import surroundings
from overhead import random_images, wait


def seconds_per_image(values: dict[str, Any], args: argparse.Namespace) -> dict[str, float]:
    """Return time per image and peak memory of a training step, after its compilation."""
    torch.compiler.reset()
    cuda = args.device == "cuda"
    if cuda:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    recipe = resolve("imagenet.simclr", overrides=args.values | values)
    stored = round(recipe.views.size * 8 / 7)
    setup = build(recipe, random_images(max(args.batch, 4 * args.part), stored))
    parts = recipe.train.accumulate
    warm, steps = (WARM + 3, args.steps) if parts == 1 else (2, args.large_steps)
    run = setup.run(0)
    for _ in range(warm):
        next(run)
    wait(setup.device)
    start = time.perf_counter()
    for _ in range(steps):
        next(run)
    wait(setup.device)
    elapsed = (time.perf_counter() - start) / steps / recipe.train.batch
    memory = torch.cuda.max_memory_allocated() / 2**30 if cuda else 0.0
    return {"us per image": 1e6 * elapsed, "GiB": memory}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--batch", type=int, default=16_384)
    parser.add_argument("--part", type=int, default=128, help="images of a part")
    parser.add_argument("--gib", type=float, default=40, help="memory that may be used")
    parser.add_argument("--steps", type=int, default=60, help="steps without accumulation")
    parser.add_argument("--large-steps", type=int, default=3, help="steps of the large batch")
    parser.add_argument("--smoke", action="store_true", help="a small network on a CPU")
    parser.add_argument("--out", type=Path, help="the JSON file to write")
    args = parser.parse_args()
    args.device = "cuda" if torch.cuda.is_available() and not args.smoke else "cpu"
    args.values = {"train.device": args.device, "train.epochs": 1000, "backbone.name": "resnet50"}
    if args.smoke:
        args.batch, args.part, args.steps, args.large_steps = 64, 16, 6, 2
        args.values |= {"backbone.name": "resnet18", "backbone.stem": "small", "views.size": 32}
    if args.device == "cuda":
        total = torch.cuda.get_device_properties(0).total_memory
        torch.cuda.set_per_process_memory_fraction(min(1.0, args.gib * 2**30 / total))
    parts = args.batch // args.part
    large = {"train.batch": args.batch, "train.accumulate": parts}
    sides = {
        f"batch {args.part:,}": {"train.batch": args.part},
        f"batch {args.batch:,}, loss of each part": large,
        f"batch {args.batch:,}, loss of the batch": large | {"train.negatives": "batch"},
    }
    rows: dict[str, dict[str, float]] = {}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", Slower)
        for name, values in sides.items():
            rows[name] = seconds_per_image(values, args)
            first = next(iter(rows.values()))
            ratio = rows[name]["us per image"] / first["us per image"]
            rows[name]["ratio"] = ratio
            time_per_image = f"{rows[name]['us per image']:.0f} us per image ({ratio:.2f})"
            print(f"{name}: {time_per_image}, {rows[name]['GiB']:.1f} GiB", flush=True)
    slower = [str(warning.message) for warning in caught if issubclass(warning.category, Slower)]
    print("\n".join(slower), end="\n" if slower else "")
    if args.out:
        content = {**surroundings("torch"), "parts": parts, "slower": slower, "rows": rows}
        args.out.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
