"""Measure what the check for finite numbers costs: images/s of training with and without it.

    python benchmarks/finite.py --device cuda --recipe cifar10.simclr --images 50000
    python benchmarks/finite.py --recipe "shapes.dcl train.batch=32 views.size=32" --images 512 \
        --steps 2 --rounds 3

The sides take turns in one process, on the same random images and with the same compilation. Two of
the three sides train without the check: the difference between these two is noise.
"""

import argparse
import json
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from antipode.data.sources.splits import Splits
from antipode.recipe.recipe import Recipe
from antipode.recipe.resolve import resolve
from antipode.training.build import build
from machine import surroundings
from overhead import random_images, wait

SIDES = {"without the check": False, "with the check": True, "without it, again": False}


def started(recipe: Recipe, splits: Splits, checks: bool, warm_up: int) -> Iterator[Any]:
    """Return the steps of a training run, after some steps that compile and capture them."""
    setup = build(recipe, splits)
    setup.step.checks = checks
    steps = setup.run(0)
    for _ in range(warm_up):
        next(steps)
    return steps


def seconds(steps: Iterator[Any], count: int, device: torch.device) -> float:
    """Return the seconds of one of the next `count` steps, on average."""
    wait(device)
    start = time.perf_counter()
    for _ in range(count):
        next(steps)
    wait(device)
    return (time.perf_counter() - start) / count


def compare(recipe: Recipe, args: argparse.Namespace) -> dict[str, list[float]]:
    """Return the seconds per step of all rounds, for each side."""
    splits = random_images(args.images, recipe.views.size)
    device = torch.device(args.device)
    runs = {name: started(recipe, splits, checks, args.warm_up) for name, checks in SIDES.items()}
    times: dict[str, list[float]] = {name: [] for name in SIDES}
    for number in range(args.rounds):
        # every second round goes backwards, so that no side is always the first
        for name in list(SIDES)[:: 1 if number % 2 == 0 else -1]:
            times[name].append(seconds(runs[name], args.steps, device))
    return times


def ratios(times: dict[str, list[float]], name: str) -> list[float]:
    """Return the speed of a side in each round, relative to that without the check."""
    return [
        plain / side for plain, side in zip(times["without the check"], times[name], strict=True)
    ]


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--recipe", default="cifar10.simclr", help='"name key=value ..." changes values of it'
    )
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--images", type=int, default=5000, help="size of the random data set")
    parser.add_argument("--steps", type=int, default=100, help="steps of one measurement")
    parser.add_argument("--rounds", type=int, default=20, help="measurements of each side")
    parser.add_argument("--warm-up", type=int, default=12, help="steps before the first one")
    parser.add_argument("--out", type=Path, default=Path("finite.json"), help="file to write")
    return parser.parse_args()


def main() -> None:
    args = parse()
    name, *values = args.recipe.split()
    recipe = resolve(name, overrides=[*values, f"train.device={args.device}"])
    times = compare(recipe, args)
    speed = {side: recipe.train.batch / statistics.median(times[side]) for side in SIDES}
    relative = {side: statistics.median(ratios(times, side)) for side in list(SIDES)[1:]}
    for side, value in speed.items():
        share = f", {100 * relative[side]:.2f} % of the first side" if side in relative else ""
        print(f"{args.recipe}, {side}: {value:,.0f} images/s{share}")
    result = {
        "recipe": args.recipe,
        "batch": recipe.train.batch,
        "images_per_second": speed,
        "relative": relative,
        "seconds": times,
        **surroundings("torch"),
    }
    args.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
