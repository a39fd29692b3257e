"""Where the GPU time of a step goes, by kind of kernel: AdCo's bank against BYOL's predictor, for example.

    python benchmarks/breakdown.py "cifar10.adco method.bank=8192 method.symmetric=true" cifar10.byol

The compiled step runs on a fixed batch under torch's profiler; kernels are told apart by their names. One line for each
recipe is added to --out, and benchmarks/tables.py makes RESULTS.md's table of the last line of each.
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
from antipode.training.loop import build
from antipode.training.step import filling
from antipode.types import Batch
from overhead import images

KINDS = {  # the first that fits; names of CUDA kernels, and of operations on a CPU
    "convolutions": r"xmma|convolve|conv|nhwc|nchw|cudnn|dgrad|wgrad",
    "optimiser and twin": r"multi_tensor_apply|foreach|fused_sgd|_fused_sgd",
    "matrix products (heads, scores)": r"gemm|cublas|cutlass|nvjet|aten::addmm|aten::mm|aten::bmm",
    "batch norm, losses and all else that is fused": r"triton|native_batch_norm|batch_norm",
    "copies and fills": r"memcpy|memset|copy|fill",
}


def kind(name: str) -> str:
    """The kind of a kernel."""
    return next(
        (label for label, pattern in KINDS.items() if re.search(pattern, name, re.IGNORECASE)),
        "other",
    )


def measure(text: str, device: str, steps: int, count: int) -> dict[str, Any]:
    """Milliseconds of a step for each kind of kernel."""
    torch.compiler.reset()
    name, *pairs = text.split()
    values = {key: json.loads(value) for key, value in (pair.split("=", 1) for pair in pairs)}
    recipe = resolve(name, overrides={"train.device": device, **values})
    job = build(recipe, images(count, recipe.views.size))
    if device == "cuda":
        job.step.compile()
    _, _, batch = next(job.loader.steps())
    batch = Batch([view.clone() for view in batch.views], batch.image_ids.clone())
    while filling(job.step.learner):
        job.step(batch)
    for _ in range(3):
        job.step(batch)
    activity = ProfilerActivity.CUDA if device == "cuda" else ProfilerActivity.CPU
    with profile(activities=[activity]) as found:
        for _ in range(steps):
            job.step(batch)
        if device == "cuda":
            torch.cuda.synchronize()
    parts = dict.fromkeys([*KINDS, "other"], 0.0)
    for event in found.key_averages():
        own = event.self_device_time_total if device == "cuda" else event.self_cpu_time_total
        parts[kind(event.key)] += own / 1e3 / steps
    return {
        "recipe": name,
        "set": values,
        "ms": {label: ms for label, ms in parts.items() if ms > 0},
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "recipe", nargs="+", help='a recipe, with "name key=value ..." for other values'
    )
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--images", type=int, default=5000)
    parser.add_argument(
        "--out", type=Path, default=Path(__file__).parent / "results" / "breakdown.jsonl"
    )
    args = parser.parse_args()
    where = torch.cuda.get_device_name() if args.device == "cuda" else "cpu"
    facts = {
        "device": where,
        "torch": torch.__version__,
        "commit": os.environ.get("ANTIPODE_COMMIT", ""),
    }
    for text in args.recipe:
        line = (
            measure(text, args.device, args.steps, args.images)
            | facts
            | {"date": time.strftime("%Y-%m-%d")}
        )
        with args.out.open("a") as file:
            file.write(json.dumps(line) + "\n")
        print(f"{text}: {sum(line['ms'].values()):.2f} ms")
        for label, ms in sorted(line["ms"].items(), key=lambda part: -part[1]):
            print(f"  {ms:8.3f} ms  {label}")


if __name__ == "__main__":
    main()
