"""Measure the contrastive losses with the matrix of scores stored and streamed in tiles.

    python benchmarks/streamed.py --device cuda
    python benchmarks/streamed.py --device cuda --cases nt_xent --tiles 8 16 32 64 128
    python benchmarks/streamed.py --queries 256 1024 --negatives 4096 16384 --repeats 5

Each line is one problem of forward and backward pass in float32, with both sides in turn: the time,
and the peak memory beyond the inputs. A side is left out if its memory does not fit. `--tiles` adds
a side for each size of a tile.

- info_nce: N queries against K negatives without gradient, as MoCo's queue.
- bank: the same with a gradient for the negatives, as AdCo's bank.
- nt_xent: two views of N images, (2N)^2 scores; K has no effect.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from antipode import functional as A
from antipode.core import streamed
from antipode.core.scores import unit
from machine import surroundings

STORED = 1 << 62  # scores below this are stored, so all are
# Peak bytes of a side that stores its scores, for each score, measured by tests/test_numerics.py.
BYTES_PER_SCORE = 18
Work = Callable[[], None]


def problem(case: str, n: int, k: int, args: argparse.Namespace) -> tuple[Work, int]:
    """Return forward and backward pass of a loss as one function, and its number of scores."""
    device = torch.device(args.device)
    generator = torch.Generator(device).manual_seed(0)

    def drawn(count: int) -> Tensor:
        return torch.randn(count, args.dim, device=device, generator=generator)

    query = drawn(n).requires_grad_()
    key = drawn(n).requires_grad_(case == "nt_xent")
    vectors = unit(drawn(1 if case == "nt_xent" else k)).requires_grad_(case == "bank")

    def forward(query: Tensor, key: Tensor, vectors: Tensor) -> Tensor:
        if case == "nt_xent":
            return A.nt_xent(query, key, tau=0.1)
        return A.info_nce(query, key, vectors, tau=0.1)

    loss = torch.compile(forward, fullgraph=True, dynamic=False) if args.compile else forward
    wanted = [x for x in (query, key, vectors) if x.requires_grad]

    def work() -> None:
        torch.autograd.grad(loss(query, key, vectors), wanted)

    return work, (2 * n) ** 2 if case == "nt_xent" else n * k


def choose(side: int | None, device: torch.device) -> None:
    """Store the scores (None), or stream them in tiles of this many bytes."""
    streamed.WHOLE[device.type] = STORED if side is None else 0
    if side is not None:
        streamed.TILE[device.type] = side


def peak(work: Work, device: torch.device) -> int:
    """Return the largest number of bytes in use during a call, beyond those before it."""
    if device.type == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        work()
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() - before
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as record:
        work()
    alive = largest = 0
    for event in record.profiler.kineto_results.events():  # type: ignore[union-attr]
        if event.name() == "[memory]":
            alive += event.nbytes()
            largest = max(largest, alive)
    return largest


def seconds(work: Work, device: torch.device) -> float:
    """Return the duration of one call."""
    start = time.perf_counter()
    work()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start


def room(device: torch.device, limit: float | None) -> float:
    """Return the bytes that a side may use."""
    if limit is not None:
        return limit * 2**30
    return float(torch.cuda.mem_get_info()[0]) if device.type == "cuda" else 4 * 2**30


def measure(work: Work, scores: int, args: argparse.Namespace) -> dict[str, dict[str, float]]:
    """Return seconds and peak bytes of each side; the sides take turns."""
    device = torch.device(args.device)
    sides: dict[str, int | None] = {f"tiles of {mib:g} MiB": int(mib * 2**20) for mib in args.tiles}
    if scores * BYTES_PER_SCORE <= room(device, args.limit):
        sides = {"stored": None} | sides
    times: dict[str, list[float]] = {name: [] for name in sides}
    peaks: dict[str, int] = {}
    for name, side in sides.items():
        choose(side, device)
        work()  # the first call loads kernels
        peaks[name] = peak(work, device)
    for number in range(args.repeats):
        for name in list(sides)[:: 1 if number % 2 == 0 else -1]:
            choose(sides[name], device)
            times[name].append(seconds(work, device))
    return {
        name: {"seconds": statistics.median(times[name]), "peak": peaks[name]} for name in sides
    }


def problems(args: argparse.Namespace) -> Iterator[tuple[str, int, int]]:
    """Yield the case, N and K of each problem."""
    for case in args.cases:
        for n in args.queries:
            for k in args.negatives if case != "nt_xent" else [0]:
                yield case, n, k


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    cases = ["info_nce", "bank", "nt_xent"]
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--cases", nargs="+", default=cases, choices=cases, help="losses")
    parser.add_argument("--queries", nargs="+", type=int, help="numbers N")
    parser.add_argument("--negatives", nargs="+", type=int, help="numbers K")
    parser.add_argument("--dim", type=int, default=128, help="dimensions of the vectors")
    parser.add_argument("--tiles", nargs="+", type=float, help="MiB of a tile (the package's own)")
    parser.add_argument("--compile", action="store_true", help="compile the losses of both sides")
    parser.add_argument("--repeats", type=int, default=10, help="timed calls of each side")
    parser.add_argument("--limit", type=float, help="GiB of a side (the GPU's free memory, or 4)")
    parser.add_argument("--out", type=Path, default=Path("streamed.json"), help="file to write")
    args = parser.parse_args()
    gpu = args.device == "cuda"
    args.queries = args.queries or ([256, 1024, 4096, 16384, 65536] if gpu else [256, 1024, 4096])
    args.negatives = args.negatives or ([4096, 65536, 1 << 20] if gpu else [4096, 16384])
    args.tiles = args.tiles or [streamed.TILE[args.device] / 2**20]
    return args


def main() -> None:
    args = parse()
    rows: list[dict[str, Any]] = []
    for case, n, k in problems(args):
        torch.compiler.reset()
        work, scores = problem(case, n, k, args)
        sides = measure(work, scores, args)
        rows.append({"case": case, "queries": n, "negatives": k, "sides": sides})
        print(f"{case}, N = {n:,}" + (f", K = {k:,}" if k else ""))
        for name, side in sides.items():
            took = f"{1000 * side['seconds']:.2f} ms, {side['peak'] / 2**20:,.1f} MiB"
            ratio = sides["stored"]["seconds"] / side["seconds"] if "stored" in sides else None
            speed = "" if ratio is None or name == "stored" else f", {ratio:.2f} times as fast"
            print(f"  {name}: {took}{speed}", flush=True)
        result = {"dim": args.dim, "rows": rows, **surroundings("torch")}
        args.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
