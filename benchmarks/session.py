"""Use a GPU that is there for a limited time: measurements that need it alone, then the claims.

    python benchmarks/session.py --out OUT --minutes 9
    python benchmarks/session.py --out OUT --minutes 9 --only decoders claims
    python benchmarks/session.py --list

Each measurement is a script of this folder in a process of its own. Its output is in OUT/NAME.log
and its results are beside it. Those of speed run first, one after the other. The claims (claims.py)
take what time is left. Whatever still runs at the end is stopped; the scripts write every result as
soon as they have it.

Without CIFAR-10, the measurements that need it are left out. The command may be repeated with the
same OUT, for a machine that limits the time of a command. It then leaves out the measurements that
have ended, and resumes the runs of the claims. The environment variable ANTIPODE_DATA names the
folder with CIFAR-10.
"""

import argparse
import os
import signal
import subprocess
import sys
import time
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from claims import data_problem

HERE = Path(__file__).parent
GRACE = 8.0  # seconds between the request to stop and the end of a process
STOP = 30.0  # seconds in which claims.py starts, and its runs write their checkpoints
SHORTEST = 100.0  # seconds for which the claims are started


class Part(NamedTuple):
    """A measurement: its command, and about the most seconds that it takes."""

    command: str
    seconds: float = 1e9


# in commands, OUT and MINUTES are replaced
ALONE = {
    "overhead": Part(
        "overhead.py --device cuda --images 50000 --steps 40 --rounds 6"
        " --recipe cifar10.jcl cifar10.msbreg --out OUT/overhead.json",
        240,
    ),
    "partition": Part("overlap.py --part partition --out OUT/partition.json", 110),
    "at-once": Part("at_once.py --out OUT/at-once.json", 330),
    "decoders": Part(
        "evaluate_large.py --device cuda --part linear linear-gpu linear-both semi-10"
        " --out OUT/linear.json",
        200,
    ),
    "features": Part(
        "evaluate_large.py --device cuda --part logistic logistic-large knn"
        " --out OUT/features.json",
        330,
    ),
    "large": Part(
        "large.py --network resnet18 resnet50 --source files --seconds 2 --out OUT/large.json", 220
    ),
    "accuracy": Part(
        "accuracy.py --only mocov2 adco mocov1 npid invspread --jobs 2 --out OUT/accuracy.jsonl",
        600,
    ),
    "times": Part(
        "claims.py --only adco.cost --headlines --seeds 1 --jobs 1 --folder OUT/claims"
        " --out OUT/claims.jsonl",
        150,
    ),
    "detectors": Part(
        "evaluate_large.py --device cuda --part detect-voc detect-coco segment-coco"
        " --out OUT/detectors.json",
        450,
    ),
}
CLAIMS = Part("claims.py --jobs 4 --minutes MINUTES --folder OUT/claims --out OUT/claims.jsonl")
ON_CIFAR = {"accuracy", "times", "claims"}


def start(name: str, part: Part, out: Path, minutes: float) -> subprocess.Popen[bytes]:
    """Start a measurement in a process group of its own."""
    words = part.command.replace("OUT", str(out)).replace("MINUTES", f"{minutes:.2f}").split()
    with (out / f"{name}.log").open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-u", str(HERE / words[0]), *words[1:]],
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def finish(name: str, process: subprocess.Popen[bytes], until: float) -> bool:
    """Wait for a measurement until a time, then stop it and all processes that it started.

    Returns True if it succeeded.
    """
    start_of_wait = time.monotonic()
    try:
        process.wait(max(0.0, until - time.monotonic()))
        state = f"ended with status {process.returncode}"
    except subprocess.TimeoutExpired:
        state = "was stopped"
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
        grace = time.monotonic() + GRACE
        while time.monotonic() < grace:  # until all processes of the group have ended
            process.poll()
            os.killpg(process.pid, 0)
            time.sleep(0.1)
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    print(f"{name} {state} after {time.monotonic() - start_of_wait:.0f} s", flush=True)
    return process.returncode == 0


def run(names: Collection[str], out: Path, end: float) -> None:
    """Run the measurements that have not ended yet, then the claims."""
    for name, part in ALONE.items():
        ended = out / f"{name}.ended"
        left = end - time.monotonic()
        if name not in names or ended.exists():
            continue
        if left < part.seconds:
            print(f"{name} takes up to {part.seconds:.0f} s and was left out", flush=True)
        elif finish(name, start(name, part, out, 0.0), time.monotonic() + part.seconds):
            ended.touch()
    if "claims" in names and (left := end - time.monotonic()) > SHORTEST:
        finish("claims", start("claims", CLAIMS, out, (left - STOP) / 60), end)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    every = ALONE | {"claims": CLAIMS}
    parser.add_argument("--out", type=Path, help="the folder for logs and results")
    parser.add_argument("--minutes", type=float, default=9.0, help="stop after this time")
    parser.add_argument("--only", nargs="+", choices=every, metavar="NAME", help="default: all")
    parser.add_argument("--list", action="store_true", help="only list the measurements")
    args = parser.parse_args()
    if args.list or args.out is None:
        print("\n".join(f"{name:16} {part.command}" for name, part in every.items()))
        return
    names = args.only or [*every]
    if ON_CIFAR & {*names} and (problem := data_problem()):
        if args.only:
            sys.exit(problem)
        names = [name for name in names if name not in ON_CIFAR]
        print(f"left out {', '.join(sorted(ON_CIFAR))}: {problem}", flush=True)
    args.out.mkdir(parents=True, exist_ok=True)
    run(names, args.out.resolve(), time.monotonic() + 60 * args.minutes)


if __name__ == "__main__":
    main()
