"""Measure the contrastive losses with the matrix of scores stored, in tiles, and in kernels.

    python benchmarks/streamed.py --out streamed.json
    python benchmarks/streamed.py --passes half3 tf32x3 ieee --tune --out tuned.json
    python benchmarks/streamed.py --cases nt_xent --queries 4096 --tiles 8 16 32 64 128
    python benchmarks/streamed.py --device cpu --queries 256 1024 --negatives 4096 16384

Each line is forward and backward pass of one problem in float32, by one side: the time of both and
of the forward pass alone, the peak memory beyond the inputs, and the largest error of the loss and
of the gradients, as a share of the largest value. The exact values are streamed in float64. A side
is left out if its memory does not fit. `--tune` tries several block sizes of the kernels, and
`--tiles` several sizes of a tile.

- info_nce: N queries against K negatives without gradient, as MoCo's queue.
- bank: the same with a gradient for the negatives, as AdCo's bank.
- nt_xent: two views of N images, (2N)^2 scores; K has no effect.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from antipode import functional as A
from antipode.core import streamed
from antipode.core.scores import unit
from machine import CORES, surroundings

STORED = 1 << 62  # scores below this are stored, so all are
# Peak bytes of a side that stores its scores, for each score, measured by tests/test_numerics.py.
BYTES_PER_SCORE = 18
GPU_PROBLEMS = [
    ("info_nce", 256, 65536),
    ("info_nce", 4096, 65536),
    ("info_nce", 4096, 1 << 20),
    ("info_nce", 32768, 1 << 20),
    ("bank", 256, 65536),
    ("nt_xent", 4096, 0),
    ("nt_xent", 16384, 0),
    ("nt_xent", 32768, 0),
]
TUNED_SCORES = 1 << 32  # block sizes are compared on problems of this size
# Rows, columns, warps and stages of a tile, by the dimension.
TUNED = {
    "half3": {
        128: [(128, 64, 8, 2), (128, 64, 8, 4), (64, 64, 4, 3), (128, 128, 8, 2)],
        256: [(64, 32, 8, 2), (64, 32, 8, 3), (128, 32, 8, 2), (64, 32, 4, 2), (64, 16, 4, 2)],
    },
    "tf32x3": {128: [(128, 32, 8, 2), (64, 64, 4, 2)], 256: [(64, 16, 4, 1)]},
    "ieee": {128: [(64, 32, 4, 2)], 256: [(64, 16, 4, 1)]},
}


@cache
def own_blocks() -> Any:
    """Return the block sizes of the package, as they were at the first call."""
    from antipode.core import fused  # Triton exists for CUDA only

    return fused.BLOCKS


class Side(NamedTuple):
    """A way to compute a loss."""

    name: str
    tile: int | None = None  # bytes; None stores the matrix
    passes: str | None = None  # of the kernels; None uses torch's products
    blocks: tuple[int, ...] | None = None  # None uses the package's own

    def choose(self, device: torch.device) -> None:
        """Make the package compute losses in this way."""
        streamed.WHOLE[device.type] = STORED if self.tile is None else 0
        streamed.TILE[device.type] = self.tile or streamed.TILE[device.type]
        streamed.KERNELS[device.type] = self.passes is not None
        if self.passes is not None:
            from antipode.core import fused  # Triton exists for CUDA only

            fused.PASSES = self.passes
            own = own_blocks()
            same = None if self.blocks is None else fused.Blocks(*self.blocks)
            fused.BLOCKS = own if same is None else dict.fromkeys(own, same)


class Problem(NamedTuple):
    """A loss and what its gradient is taken of."""

    loss: Callable[..., Tensor]
    inputs: list[Tensor]
    scores: int

    def work(self) -> tuple[Tensor, ...]:
        """Return the loss and its gradients."""
        loss = self.loss(*self.inputs)
        wanted = [x for x in self.inputs if x.requires_grad]
        return loss.detach(), *torch.autograd.grad(loss, wanted)

    def exact(self, device: torch.device) -> tuple[Tensor, ...]:
        """Return the loss and its gradients in float64, streamed."""
        Side("exact", tile=1 << 28).choose(device)
        doubled = [x.detach().double().requires_grad_(x.requires_grad) for x in self.inputs]
        return tuple(x.cpu() for x in self._replace(inputs=doubled).work())


def problem(case: str, n: int, k: int, args: argparse.Namespace) -> Problem:
    """Return a loss of random vectors."""
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
    scores = (2 * n) ** 2 if case == "nt_xent" else n * k
    return Problem(loss, [query, key, vectors], scores)


def peak(work: Callable[[], Any], device: torch.device) -> int:
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


def seconds(work: Callable[[], Any], device: torch.device) -> float:
    """Return the duration of one call."""
    start = time.perf_counter()
    work()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start


def median_seconds(work: Callable[[], Any], args: argparse.Namespace) -> float:
    """Return the median duration of several calls, fewer if they are slow."""
    device = torch.device(args.device)
    first = seconds(work, device)
    calls = min(args.repeats, max(1, int(0.5 / first)))
    return statistics.median(seconds(work, device) for _ in range(calls))


def largest_error(found: Tensor, exact: Tensor) -> float:
    """Return the largest error as a share of the largest exact value."""
    # one row after the other, so that the errors take no memory of their own
    pairs = zip(found.split(1 << 16), exact.split(1 << 16), strict=True) if found.dim() else None
    worst = max(float((x.cpu().double() - y).abs().max()) for x, y in pairs or [(found, exact)])
    return worst / float(exact.abs().max())


def measure(side: Side, given: Problem, exact: Any, args: argparse.Namespace) -> dict[str, Any]:
    """Return times, memory and errors of one side."""
    device = torch.device(args.device)
    side.choose(device)
    loss, *gradients = given.work()  # the first call compiles and loads kernels
    if side.passes is not None and not streamed.KERNELS[device.type]:
        raise RuntimeError("the kernels could not be built (see the warning)")
    errors = {
        "loss_error": largest_error(loss, exact[0]),
        "gradient_error": max(
            largest_error(x, y) for x, y in zip(gradients, exact[1:], strict=True)
        ),
    }
    del loss, gradients
    return {
        "seconds": median_seconds(given.work, args),
        "forward": median_seconds(lambda: given.loss(*given.inputs), args),
        "peak": peak(given.work, device),
        **errors,
    }


def sides(scores: int, args: argparse.Namespace) -> Iterator[Side]:
    """Yield the sides that can compute a problem of so many scores."""
    device = torch.device(args.device)
    free = torch.cuda.mem_get_info()[0] if device.type == "cuda" else 4 * 2**30
    if scores * BYTES_PER_SCORE <= (free if args.limit is None else args.limit * 2**30):
        yield Side("stored")
    for mib in args.tiles:
        yield Side(f"tiles of {mib:g} MiB", int(mib * 2**20))
    if device.type == "cuda":
        yield from kernel_sides(args, args.tune and scores == TUNED_SCORES)


def kernel_sides(args: argparse.Namespace, tune: bool) -> Iterator[Side]:
    """Yield the sides that use kernels."""
    size = streamed.TILE["cuda"]
    for passes in args.passes:
        listed = TUNED[passes].get(args.dim, [])
        if passes == "half3":
            yield Side(passes, size, passes)
        for blocks in listed if tune or passes != "half3" else []:
            yield Side(f"{passes} {blocks}", size, passes, blocks)


def compile_kernels(side: Side, args: argparse.Namespace) -> None:
    """Run small problems, which leaves the compiled kernels in Triton's cache."""
    for case in ("info_nce", "bank", "nt_xent"):
        given = problem(case, 512, 1024, args)
        side.choose(torch.device(args.device))
        given.work()


def compile_all(args: argparse.Namespace) -> None:
    """Compile the kernels of all sides at once, in several processes."""
    with ProcessPoolExecutor(min(CORES, 12), get_context("spawn")) as pool:
        jobs = {
            side.name: pool.submit(compile_kernels, side, args)
            for side in kernel_sides(args, args.tune)
        }
        for name, job in jobs.items():
            if (error := job.exception()) is not None:
                print(f"{name}: {first_line(error)}", flush=True)


def first_line(error: BaseException) -> str:
    """Return an exception in one line."""
    return f"{type(error).__name__}: {str(error)[:160]}".replace("\n", " ")


def problems(args: argparse.Namespace) -> Iterator[tuple[str, int, int]]:
    """Yield the case, N and K of each problem."""
    if args.device == "cuda" and not (args.queries or args.negatives):
        yield from (x for x in GPU_PROBLEMS if x[0] in args.cases)
        return
    for case in args.cases:
        for n in args.queries or [256, 1024, 4096]:
            for k in (args.negatives or [4096, 16384]) if case != "nt_xent" else [0]:
                yield case, n, k


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    cases = ["info_nce", "bank", "nt_xent"]
    device = "cuda" if torch.cuda.is_available() else "cpu"
    parser.add_argument("--device", default=device, help="cpu or cuda")
    parser.add_argument("--cases", nargs="+", default=cases, choices=cases, help="losses")
    parser.add_argument("--queries", nargs="+", type=int, help="numbers N")
    parser.add_argument("--negatives", nargs="+", type=int, help="numbers K")
    parser.add_argument("--dim", type=int, default=128, help="dimensions of the vectors")
    parser.add_argument("--tiles", nargs="+", type=float, help="MiB of a tile (the package's own)")
    parser.add_argument("--passes", nargs="+", default=["half3"], choices=list(TUNED))
    parser.add_argument("--tune", action="store_true", help="try several block sizes")
    parser.add_argument("--compile", action="store_true", help="compile the losses of all sides")
    parser.add_argument("--repeats", type=int, default=10, help="timed calls of each side")
    parser.add_argument("--limit", type=float, help="GiB of a side (the GPU's free memory, or 4)")
    parser.add_argument("--seconds", type=float, default=115, help="start no side after this time")
    parser.add_argument("--out", type=Path, default=Path("streamed.json"), help="file to write")
    args = parser.parse_args()
    args.tiles = args.tiles or [streamed.TILE[args.device] / 2**20]
    return args


def line(name: str, found: dict[str, Any]) -> str:
    """Return a line of the table."""
    if "error" in found:
        return f"  {name:28} {found['error']}"
    return (
        f"  {name:28} {1000 * found['seconds']:9.2f} ms {1000 * found['forward']:9.2f} ms "
        f"{found['peak'] / 2**20:10,.1f} MiB {found['loss_error']:9.1e} "
        f"{found['gradient_error']:9.1e}"
    )


def run(case: str, n: int, k: int, args: argparse.Namespace, end: float) -> dict[str, Any]:
    """Measure all sides of a problem, and print them."""
    print(f"{case}, N = {n:,}" + (f", K = {k:,}" if k else ""), flush=True)
    torch.compiler.reset()
    given = problem(case, n, k, args)
    exact = given.exact(torch.device(args.device))
    rows: dict[str, dict[str, Any]] = {}
    for side in list(sides(given.scores, args)):
        try:
            late = time.monotonic() > end
            rows[side.name] = {"error": "skipped"} if late else measure(side, given, exact, args)
        except Exception as error:  # the other sides are still measured
            rows[side.name] = {"error": first_line(error)}
        print(line(side.name, rows[side.name]), flush=True)
    return {"case": case, "queries": n, "negatives": k, "sides": rows}


def main() -> None:
    args = parse()
    end = time.monotonic() + args.seconds
    if args.device == "cuda":
        compile_all(args)
    print(f"  {'side':28} {'both':>12} {'forward':>12} {'memory':>14} {'loss':>9} {'gradient':>9}")
    rows: list[dict[str, Any]] = []
    for case, n, k in problems(args):
        rows.append(run(case, n, k, args, end))
        result = {"dim": args.dim, "rows": rows, **surroundings("torch", "triton")}
        args.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
