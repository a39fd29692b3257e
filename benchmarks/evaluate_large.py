"""Measure evaluations at the size of ImageNet and COCO, on data that the script makes.

    python benchmarks/evaluate_large.py --device cuda --out large-evaluations.json
    python benchmarks/evaluate_large.py --device cuda --part detect-voc linear
    python benchmarks/evaluate_large.py --smoke          # all parts on a CPU, very small

| part | what is measured |
|---|---|
| logistic | `linear-fast` on 50,000 x 512 features of 100 classes, all penalties and folds |
| logistic-large | the same on 1,281,167 x 2,048 features of 1,000 classes, which lie on the host |
| knn | the 200 nearest of 1,281,167 x 2,048 features on the host, for 50,000 queries |
| detect-voc, detect-coco, segment-coco | 300 iterations of fine-tuning on drawn scenes |
| linear, semi-10 | training on JPEG files at 224 px, as a share of the bare step |
| linear-gpu, linear-both | the same for `linear`, if the GPU decodes all or most of the files |
| linear-pack | the same for `linear` from a pack of 256 px pixels |

The features are correlated and non-negative, as those of a ResNet. logistic and knn are also
compared with float64 on a part of the data: the excess of the objective over its minimum, and the
neighbours. The three parts on features take about 5 minutes on one H200 together, and the detectors
about 3 minutes each.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import evaluate_networks as networks
from antipode.core.neighbours import nearest
from antipode.core.scores import unit
from antipode.evaluation import logistic, storage
from antipode.evaluation.frame import standard, turned
from antipode.types import Features
from machine import CORES, surroundings

Report = dict[str, Any]
ROWS = 1 << 16  # rows that are made at a time


def features(n: int, width: int, classes: int, seed: int, device: torch.device) -> Features:
    """Return features (N,D) of overlapping classes, clipped at zero, in host memory or on disk."""
    common = torch.Generator(device).manual_seed(0)  # the same classes for train and test
    generator = torch.Generator(device).manual_seed(seed)
    centres = torch.randn(classes, width, generator=common, device=device)
    mix = torch.randn(width, width, generator=common, device=device) / width**0.5
    scale = torch.arange(1, width + 1, device=device) ** -0.5
    y = torch.randint(classes, (n,), generator=generator, device=device)
    x = storage.empty((n, width))
    for first in range(0, n, ROWS):
        rows = slice(first, min(first + ROWS, n))
        noise = torch.randn(rows.stop - first, width, generator=generator, device=device)
        x[rows] = (((0.5 * centres[y[rows]] + noise) * scale) @ mix).relu_().cpu()
    return Features(x, y.cpu())


def timed(device: torch.device, work: Callable[[], Any]) -> tuple[Any, Report]:
    """Return the result of some work, its seconds, and its peak of memory on a GPU."""
    on_gpu = device.type == "cuda"
    if on_gpu:
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
    start = time.perf_counter()
    result = work()
    if on_gpu:
        torch.cuda.synchronize()
    seconds = time.perf_counter() - start
    peak = torch.cuda.max_memory_allocated() / 2**30 if on_gpu else None
    return result, {"seconds": seconds, "peak_gib": peak}


def measure_logistic(n: int, width: int, classes: int, device: torch.device) -> Report:
    """Measure the whole protocol, after a small one that loads the libraries."""
    small = features(min(n, 3000), 64, 10, 1, device)
    logistic.classify(small, small, device=device)
    train = features(n, width, classes, 1, device)
    test = features(max(100, n // 25), width, classes, 2, device)
    evaluations = [0]
    plain = logistic.objective

    def counted(*arguments: Any) -> Any:
        evaluations[0] += 1
        return plain(*arguments)

    logistic.objective = counted
    try:
        result, report = timed(device, lambda: logistic.classify(train, test, device=device))
    finally:
        logistic.objective = plain
    accuracy = 100 * (result.ranks == 0).double().mean().item()
    return report | {
        "evaluations": evaluations[0],
        "penalty": result.penalty,
        "top1": accuracy,
        "excess": excess(train, classes, device),
    }


def excess(train: Features, classes: int, device: torch.device, most: int = 20_000) -> float:
    """Return the excess of the objective in float32 over its minimum in float64, on some rows."""
    x, y = train.x[:most].to(device), train.y[:most].to(device)
    values = []
    for dtype in (torch.float32, torch.float64):
        frame = standard(x.to(dtype), device)
        rows = logistic.Rows(turned(x.to(dtype), frame), y, device)
        start = torch.zeros(x.shape[1] + 1, classes, dtype=torch.float64)
        tolerance = logistic.TOLERANCE if dtype == torch.float32 else 1e-8
        parts = [slice(0, len(x))]
        theta = logistic.fit(rows, parts, frame.spread, 1e-3, start, tolerance)
        wide = logistic.Rows(turned(x.double(), _wide(frame)), y, device)
        values.append(float(logistic.objective(wide, parts, theta, 1e-3, len(x))[0]))
    return values[0] - values[1]


def _wide(frame: Any) -> Any:
    return frame._replace(mean=frame.mean.double(), axes=frame.axes.double())


def measure_knn(n: int, queries: int, width: int, k: int, device: torch.device) -> Report:
    """Measure the search, and compare the neighbours of 200 queries with those in float64."""
    bank = features(n, width, 1000, 1, device)
    test = unit(features(queries, width, 1000, 2, device).x.to(device))
    nearest(bank.x[: 20 * k], test[:100], k)  # loads the libraries
    (near, index), report = timed(device, lambda: nearest(bank.x, test, k))
    some = test[:200].double()
    exact, place = nearest(bank.x, some, k)
    same = (index[:200].sort(1).values == place.sort(1).values).double().mean().item()
    error = float((near[:200].double() - exact).abs().max())
    return report | {"same_neighbours": 100 * same, "largest_error": error}


def parts(device: torch.device, folder: Path, smoke: bool) -> dict[str, Callable[[], Report]]:
    """Return the measurements by name."""
    size = networks.SMOKE if smoke else networks.FULL
    small = (600, 16, 5) if smoke else (50_000, 512, 100)
    large = (800, 24, 8) if smoke else (1_281_167, 2048, 1000)
    bank = (900, 50, 16, 10) if smoke else (1_281_167, 50_000, 2048, 200)
    result: dict[str, Callable[[], Report]] = {
        "logistic": lambda: measure_logistic(*small, device),
        "logistic-large": lambda: measure_logistic(*large, device),
        "knn": lambda: measure_knn(*bank, device),
    }
    for name in networks.DETECTORS:
        result[name] = lambda name=name: networks.measure_detector(name, size, device, folder)
    result["linear"] = lambda: networks.measure_linear(size, device, folder)
    for where in ("gpu", "both"):
        result[f"linear-{where}"] = lambda where=where: networks.measure_linear(
            size, device, folder, decoder=where
        )
    result["linear-pack"] = lambda: networks.measure_linear(size, device, folder, from_pack=True)
    result["semi-10"] = lambda: networks.measure_semi(size, device, folder)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = list(parts(torch.device("cpu"), Path(), smoke=True))
    parser.add_argument("--part", nargs="+", default=names, choices=names)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--smoke", action="store_true", help="very small, to try the script")
    parser.add_argument("--out", type=Path, help="the JSON file to write")
    args = parser.parse_args()
    torch.set_num_threads(1 if args.smoke else CORES)
    device = torch.device(args.device)
    report: Report = {"surroundings": surroundings("torch", "torchvision"), "smoke": args.smoke}
    print(report["surroundings"], flush=True)
    with tempfile.TemporaryDirectory() as folder:
        chosen = parts(device, Path(folder), args.smoke)
        for name in args.part:
            begin = time.perf_counter()
            report[name] = chosen[name]()
            report[name]["seconds_in_all"] = time.perf_counter() - begin
            print(name, json.dumps(report[name]), flush=True)
            if args.out:
                args.out.write_text(json.dumps(report, indent=2) + "\n")
            if device.type == "cuda":
                torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
