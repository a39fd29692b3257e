"""Measure several trainings on one GPU at once: images per second in all, over one alone.

    python benchmarks/at_once.py --out at_once.json

SimCLR on CIFAR-10 (from the folder ANTIPODE_DATA, or made-up images of its shape), batch 32 with 1,
2, 4 and 8 runs at once, and batch 256 with 1, 2 and 4. These ways are measured side by side:

- processes: a process for each run, under NVIDIA's Multi-Process Service (MPS) if it is installed.
- streams: all runs in one process. Each has its captured step on a stream of its own, and the
  process takes one step of each run in turn.
- parts: as `processes`, but each process may use only a part of the multiprocessors, as `--at-once`
  starts them. This is measured for the largest number of runs.

Every run has its loader, views, schedules and records. All runs are compiled and captured before
the clock starts. Then the same number of seconds is measured for 1, 2, ... of them, while the
others wait. At the end, runs with train.deterministic=true take some steps at once and then one
after the other, and `same_bits` counts those whose weights are equal bit for bit.

About 270 seconds on an H200 with 16 cores. With --device cpu the same code runs without captured
steps, to test it.
"""

import argparse
import hashlib
import json
import os
import time
from collections import deque
from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, replace
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from operator import eq
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from antipode.data.sources.catalog import load
from antipode.data.sources.source import Memory
from antipode.data.sources.splits import Splits
from antipode.launch.mps import PERCENTAGE, PLACES, part, part_of_gpu, shared_gpu
from antipode.recipe.resolve import resolve
from antipode.runs.folder import RunFolder
from antipode.training.build import build
from antipode.training.progress import Silent
from antipode.training.record import Recorder
from machine import surroundings

RECIPE = "cifar10.simclr"
AT_ONCE = {32: (1, 2, 4, 8), 256: (1, 2, 4)}
WARM = 20  # steps of each run before the clock starts; the fourth is captured
AHEAD = 8  # steps that the host may be ahead of the device
SAME = 8  # runs at once whose bits are compared
CONNECTIONS = "CUDA_DEVICE_MAX_CONNECTIONS"  # queues of a process on the device, 8 by default
SOON = 0.3  # seconds between a command and the common start


@dataclass(frozen=True)
class Kind:
    """What is trained, and how many steps before the clock starts."""

    batch: int
    deterministic: bool = False
    device: str = "cuda"
    images: int = 50_000
    settings: tuple[str, ...] = ()
    warm: int = WARM

    def overrides(self, seed: int) -> dict[str, Any]:
        """Return the values of the recipe."""
        return {
            "train.batch": self.batch,
            "train.epochs": 1000,
            "train.seed": seed,
            "train.device": self.device,
            "train.deterministic": self.deterministic,
            **dict(text.split("=", 1) for text in self.settings),
        }


def cifar_images(count: int) -> Splits:
    """Return CIFAR-10, or made-up images of its shape if it is not in ANTIPODE_DATA."""
    if "ANTIPODE_DATA" in os.environ:
        try:
            return load("cifar10")
        except (ValueError, FileNotFoundError):
            pass
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 256, (count, 3, 32, 32), dtype=torch.uint8, generator=generator)
    source = Memory(pixels)
    return Splits("random", source, source, None, 32)


class Training:
    """A run that takes a step whenever it is asked to, on a stream of its own."""

    def __init__(self, kind: Kind, seed: int, splits: Splits, out: Path) -> None:
        self.cuda = kind.device == "cuda"
        self.stream = torch.cuda.Stream() if self.cuda else None
        self.ends: deque[torch.cuda.Event] = deque()
        out.mkdir(parents=True, exist_ok=True)
        with self._here():
            self.setup = build(resolve(RECIPE, overrides=kind.overrides(seed)), splits)
            self.recorder = Recorder(self.setup, RunFolder(out), Silent(), None)
            self.steps = self.setup.run(0)

    def step(self) -> None:
        """Start a step; wait first if the device is too far behind."""
        if len(self.ends) > AHEAD:
            self.ends.popleft().synchronize()
        with self._here():
            self.recorder.note(*next(self.steps))
            if self.cuda:
                event = torch.cuda.Event()
                event.record()
                self.ends.append(event)

    def digest(self) -> str:
        """Return a hash of all weights and buffers."""
        self.wait()
        found = hashlib.blake2b(digest_size=16)
        for name, value in self.setup.learner.state_dict().items():
            found.update(name.encode())
            found.update(value.cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
        return found.hexdigest()

    def wait(self) -> None:
        """Wait until the device has done all steps."""
        if self.stream is not None:
            self.stream.synchronize()

    def _here(self) -> AbstractContextManager[Any]:
        """Use the stream of this run, also to capture its step.

        Graphs that are captured on one stream share the workspace of cuBLAS, and must not run at
        the same time.
        """
        if self.stream is None:
            return nullcontext()
        torch.cuda.graph.default_capture_stream = self.stream
        return torch.cuda.stream(self.stream)


class Trainings:
    """The runs of one process. Each function is called by a command of the parent process."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.splits: Splits | None = None
        self.runs: list[Training] = []

    def prepare(self, kind: Kind, seeds: Sequence[int]) -> str:
        """Build runs and take their first steps, one run after the other."""
        if kind.device == "cuda":  # each learner may be one more version of a compiled function
            import torch._dynamo as compiler

            compiler.config.recompile_limit = 128
            compiler.config.accumulated_recompile_limit = 1024
        torch.use_deterministic_algorithms(False)  # `build` only switches it on
        self.splits = self.splits or cifar_images(kind.images)
        self.runs = []
        for seed in seeds:
            run = Training(kind, seed, self.splits, self.folder / f"{kind.batch}-{seed}")
            for _ in range(kind.warm):
                run.step()
            run.wait()
            self.runs.append(run)
        return ""

    def measure(self, count: int, start: float, seconds: float) -> tuple[int, float]:
        """Take steps of `count` runs in turn; return the steps of all and the seconds they took."""
        runs = self.runs[:count]
        time.sleep(max(0.0, start - time.monotonic()))
        began = time.monotonic()
        steps = 0
        while time.monotonic() < began + seconds:
            for run in runs:
                run.step()
            steps += len(runs)
        for run in runs:
            run.wait()
        return steps, time.monotonic() - began

    def skipped(self) -> int:
        """Return how many steps were skipped because they were not finite."""
        return sum(int(run.setup.step.skipped) for run in self.runs)

    def together(self, steps: int) -> list[str]:
        """Take the same number of steps of all runs in turn, and return their digests."""
        for _ in range(steps):
            for run in self.runs:
                run.step()
        return [run.digest() for run in self.runs]


def serve(commands: Connection, folder: Path, threads: int) -> None:
    """Perform commands (name of a method, arguments) until the connection is closed."""
    torch.set_num_threads(threads)
    trainings = Trainings(folder)
    while True:
        try:
            name, arguments = commands.recv()
        except (EOFError, OSError):
            return
        commands.send(getattr(trainings, name)(*arguments))


class Crew:
    """Processes that hold runs."""

    def __init__(self, count: int, folder: Path, threads: int) -> None:
        context = get_context("spawn")
        self.members: list[tuple[SpawnProcess, Connection]] = []
        for number in range(count):
            ours, theirs = context.Pipe()
            process = context.Process(target=serve, args=(theirs, folder / str(number), threads))
            process.start()
            theirs.close()
            self.members.append((process, ours))

    def __enter__(self) -> "Crew":
        return self

    def __exit__(self, *error: object) -> None:
        for process, commands in self.members:
            commands.close()
            process.join(0 if error[0] else 20)
            if process.is_alive():
                process.kill()

    def order(self, name: str, *each: Sequence[Any]) -> None:
        """Send a command to the first members, each with its arguments."""
        for (_, commands), arguments in zip(self.members, each, strict=False):
            commands.send((name, tuple(arguments)))

    def answers(self, count: int) -> list[Any]:
        """Return the answers of the first members."""
        return [commands.recv() for _, commands in self.members[:count]]

    def call(self, name: str, *each: Sequence[Any]) -> list[Any]:
        """Send a command to the first members and return their answers."""
        self.order(name, *each)
        return self.answers(len(each))


def speed(crew: Crew, processes: int, runs: int, batch: int, seconds: float) -> float:
    """Return the images per second of all runs; each process takes steps of `runs` runs."""
    start = time.monotonic() + SOON
    found = crew.call("measure", *[(runs, start, seconds)] * processes)
    return sum(batch * steps / took for steps, took in found)


def compare_parts(home: Path, kind: Kind, count: int, seconds: float) -> dict[str, Any]:
    """Return the row of processes that each use a part of the multiprocessors."""
    with part_of_gpu(count, torch.device(kind.device)):
        divided = PERCENTAGE in os.environ
    row: dict[str, Any] = {"batch": kind.batch, "at_once": count}
    row["part"] = part(count) if divided else 1
    begun = time.monotonic()
    with parts(count, home / f"parts-{kind.batch}-{count}", kind.device) as crew:
        crew.call("prepare", *[(kind, [seed]) for seed in range(count)])
        row["seconds_to_prepare"] = time.monotonic() - begun
        row["parts"] = speed(crew, count, 1, kind.batch, seconds)
        row["skipped_steps"] = sum(crew.call("skipped", *[()] * count))
    print(json.dumps(row), flush=True)
    return row


def parts(count: int, folder: Path, device: str) -> Crew:
    """Start processes that each use a part of the multiprocessors."""
    with part_of_gpu(count, torch.device(device)):
        return Crew(count, folder, threads(device))


def threads(device: str) -> int:
    """Return the number of threads of a process."""
    return 1 if device == "cpu" else 2


def compare(
    processes: Crew, streams: Crew, kind: Kind, counts: Sequence[int], seconds: float
) -> list[dict[str, Any]]:
    """Return one row per number of runs at once, with the images per second of both ways."""
    most = max(counts)
    streams.order("prepare", (kind, range(most)))
    processes.call("prepare", *[(kind, [seed]) for seed in range(most)])
    streams.answers(1)
    rows = []
    for count in counts:
        row: dict[str, Any] = {"batch": kind.batch, "at_once": count}
        row["processes"] = speed(processes, count, 1, kind.batch, seconds)
        row["streams"] = speed(streams, 1, count, kind.batch, seconds)
        rows.append(row)
    alone = max(rows[0]["processes"], rows[0]["streams"])
    for row in rows:
        for way in ("processes", "streams"):
            row[f"{way}_over_alone"] = row[way] / alone
        print(json.dumps(row), flush=True)
    return rows


def same_bits(
    processes: Crew, streams: Crew, in_parts: Crew, kind: Kind, count: int, steps: int
) -> dict[str, Any]:
    """Return how many runs at once have the weights that they have alone, for each way.

    All runs are built before the first step of any. Alone, a run takes all of its steps while the
    processes of the others wait.
    """
    seeds = range(count)
    steps += kind.warm
    fresh = replace(kind, warm=0)
    each = [(fresh, [seed]) for seed in seeds]
    streams.order("prepare", (fresh, seeds))
    in_parts.order("prepare", *each)
    processes.call("prepare", *each)
    in_parts.answers(count)
    streams.answers(1)
    at_once = [found for (found,) in processes.call("together", *[(steps,)] * count)]
    small = [found for (found,) in in_parts.call("together", *[(steps,)] * count)]
    [in_turn] = streams.call("together", (steps,))
    processes.call("prepare", *each)
    alone = []
    for number in seeds:
        _, commands = processes.members[number]
        commands.send(("together", (steps,)))
        alone += commands.recv()
    return {
        "runs": count,
        "distinct": len({*alone}),
        "steps": steps,
        "processes": sum(map(eq, at_once, alone)),
        "streams": sum(map(eq, in_turn, alone)),
        "parts": sum(map(eq, small, alone)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, help="the JSON file to write")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--batches", type=int, nargs="+", choices=AT_ONCE, default=[*AT_ONCE])
    parser.add_argument("--most", type=int, default=8, help="runs at once")
    parser.add_argument("--seconds", type=float, default=2.0, help="of each measurement")
    parser.add_argument("--steps", type=int, default=100, help="steps that are compared")
    parser.add_argument("--warm", type=int, default=WARM, help="steps before the clock starts")
    parser.add_argument("--images", type=int, default=50_000, help="made-up images")
    parser.add_argument("--connections", type=int, help=f"{CONNECTIONS} of the streams' process")
    parser.add_argument("--no-bits", action="store_true", help="do not compare the weights")
    parser.add_argument("--set", nargs="*", default=[], help="settings of the recipe")
    args = parser.parse_args()
    begun = time.monotonic()
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "4")  # of each process
    common = (args.device, args.images, tuple(args.set), args.warm)
    kinds = [Kind(batch, False, *common) for batch in args.batches]
    counts = [[count for count in AT_ONCE[one.batch] if count <= args.most] for one in kinds]
    result: dict[str, Any] = {"recipe": RECIPE, **surroundings("torch"), "rows": []}
    result["connections"] = args.connections
    with TemporaryDirectory() as folder, ExitStack() as stack:
        home = Path(folder)
        # Outside of MPS: a single process needs none. CUDA reads the variable when it starts, and
        # under MPS eight processes with 32 connections each are too many.
        if args.connections:
            os.environ[CONNECTIONS] = str(args.connections)
        streams = stack.enter_context(Crew(1, home / "streams", threads(args.device)))
        os.environ.pop(CONNECTIONS, None)
        stack.enter_context(shared_gpu(torch.device(args.device)))
        result["mps"] = PLACES[0] in os.environ
        most = max(len(kinds) + 1, *map(max, counts))
        processes = stack.enter_context(Crew(most, home / "processes", threads(args.device)))
        last = Kind(min(args.batches), True, *common)
        # the compiler's cache on the disk is filled once, for all processes
        processes.call("prepare", *[(kind, [0]) for kind in (*kinds, last)])
        result["seconds_to_compile"] = time.monotonic() - begun
        for kind, numbers in zip(kinds, counts, strict=True):
            result["rows"] += compare(processes, streams, kind, numbers, args.seconds)
            result["rows"] += [compare_parts(home, kind, max(numbers), args.seconds)]
            args.out.write_text(json.dumps(result, indent=1) + "\n")
        if not args.no_bits:
            count = min(SAME, most)
            with parts(count, home / "bits", args.device) as small:
                result["same_bits"] = same_bits(processes, streams, small, last, count, args.steps)
    result["seconds"] = time.monotonic() - begun
    args.out.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps({key: value for key, value in result.items() if key != "rows"}, indent=1))


if __name__ == "__main__":
    main()
