"""Measure where the GPU time of a step goes, by kind of kernel.

    python benchmarks/breakdown.py cifar10.byol "cifar10.adco method.bank=8192"

This example compares BYOL's predictor with AdCo's bank (RESULTS.md also sets
method.symmetric=true). The compiled step runs on a fixed batch under torch's profiler, and kernels
are assigned to kinds by their names. The script appends one line per recipe to --out;
benchmarks/tables.py makes the table in RESULTS.md from the last line of each recipe.
"""

import argparse
import json
import os
import re
import time
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from antipode.recipe.resolve import resolve
from antipode.training.build import build
from overhead import random_images, warmed_up_batch

# Kind -> pattern for names of CUDA kernels, and of operations on a CPU. The first match counts.
KINDS = {
    "convolutions": r"xmma|convolve|conv|nhwc|nchw|cudnn|dgrad|wgrad",
    "optimiser and twin": r"multi_tensor_apply|foreach|fused_sgd|_fused_sgd",
    "matrix products (heads, scores)": r"gemm|cublas|cutlass|nvjet|aten::addmm|aten::mm|aten::bmm",
    "batch norm, losses and all else that is fused": r"triton|native_batch_norm|batch_norm",
    "copies and fills": r"memcpy|memset|copy|fill",
}


def kind(name: str) -> str:
    """Return the kind of a kernel."""
    for label, pattern in KINDS.items():
        if re.search(pattern, name, re.IGNORECASE):
            return label
    return "other"


def measure(text: str, device: str, steps: int, images: int) -> dict[str, Any]:
    """Return the milliseconds of a step for each kind of kernel."""
    torch.compiler.reset()
    name, *pairs = text.split()
    values = {key: json.loads(value) for key, value in (pair.split("=", 1) for pair in pairs)}
    recipe = resolve(name, overrides={"train.device": device, **values})
    setup = build(recipe, random_images(images, recipe.views.size))
    if device == "cuda":
        setup.step.compile()
    batch = warmed_up_batch(setup)
    activity = ProfilerActivity.CUDA if device == "cuda" else ProfilerActivity.CPU
    with profile(activities=[activity]) as profiler:
        for _ in range(steps):
            setup.step(batch)
        if device == "cuda":
            torch.cuda.synchronize()
    milliseconds = dict.fromkeys([*KINDS, "other"], 0.0)
    for event in profiler.key_averages():
        # time of the event itself, without the events that it contains
        total = event.self_device_time_total if device == "cuda" else event.self_cpu_time_total
        milliseconds[kind(event.key)] += total / 1e3 / steps
    return {
        "recipe": name,
        "set": values,
        "ms": {label: ms for label, ms in milliseconds.items() if ms > 0},
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "recipe", nargs="+", help='recipes; "name key=value ..." changes values of one'
    )
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--steps", type=int, default=20, help="steps under the profiler")
    parser.add_argument("--images", type=int, default=5000, help="size of the random data set")
    parser.add_argument(
        "--out",
        type=Path,
        default=Path(__file__).parent / "results" / "breakdown.jsonl",
        help="the file that lines are appended to",
    )
    args = parser.parse_args()
    facts = {
        "device": torch.cuda.get_device_name() if args.device == "cuda" else "cpu",
        "torch": torch.__version__,
        "commit": os.environ.get("ANTIPODE_COMMIT", ""),
        "date": time.strftime("%Y-%m-%d"),
    }
    for text in args.recipe:
        line = measure(text, args.device, args.steps, args.images) | facts
        with args.out.open("a") as file:
            file.write(json.dumps(line) + "\n")
        print(f"{text}: {sum(line['ms'].values()):.2f} ms")
        for label, ms in sorted(line["ms"].items(), key=lambda part: -part[1]):
            print(f"  {ms:8.3f} ms  {label}")


if __name__ == "__main__":
    main()
