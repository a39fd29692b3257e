"""Use a GPU that is there for a limited time: measurements that need it alone, then all others.

    python benchmarks/session.py --out OUT --minutes 25
    python benchmarks/session.py --out OUT --minutes 25 --only linear claims
    python benchmarks/session.py --list

Each measurement is a script of this folder in a process of its own. Its output is in OUT/NAME.log
and its results are beside it. Measurements of speed run first, one after the other. The others then
run side by side under NVIDIA's Multi-Process Service. The claims (claims.py) take what time is left
and start no run that would end too late. Whatever still runs at the end is stopped; the scripts
write every result as soon as they have it. The environment variable ANTIPODE_DATA names the folder
with CIFAR-10.
"""

import argparse
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import torch

from antipode.launch.mps import shared_gpu

HERE = Path(__file__).parent
GRACE = 8.0  # seconds between the request to stop and the end of a process
THREADS = 4  # of each script, if several share the cores


class Part(NamedTuple):
    """A measurement: its command, and the most seconds that it may take."""

    command: str
    seconds: float = 1e9


# OUT and MINUTES are replaced
ALONE = {
    "at-once": Part("at_once.py --out OUT/at-once.json", 330),
    "decoders": Part(
        "evaluate_large.py --device cuda --part linear-gpu linear-both --out OUT/linear.json",
        110,
    ),
    "large-resnet18": Part(
        "large.py --network resnet18 --source files --seconds 3 --out OUT/large-r18.json", 110
    ),
    "overhead": Part(
        "overhead.py --device cuda --images 50000 --steps 40 --rounds 6"
        " --recipe cifar10.adco cifar10.jcl cifar10.msbreg --out OUT/overhead.json",
        160,
    ),
    "detectors": Part(
        "evaluate_large.py --device cuda --part detect-voc segment-coco detect-coco"
        " --out OUT/detectors.json",
        280,
    ),
}
TOGETHER = {
    "claims": Part("claims.py --headlines --jobs 5 --minutes MINUTES --out OUT/claims.jsonl"),
}


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


def finish(name: str, process: subprocess.Popen[bytes], until: float) -> None:
    """Wait for a measurement until a time, then stop it and all processes that it started."""
    start_of_wait = time.monotonic()
    try:
        process.wait(max(0.0, until - time.monotonic()))
        state = f"ended with status {process.returncode}"
    except subprocess.TimeoutExpired:
        state = "was stopped"
    for request in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, request)
        with suppress(subprocess.TimeoutExpired):
            process.wait(GRACE)
    print(f"{name} {state} after {time.monotonic() - start_of_wait:.0f} s", flush=True)


def run(parts: dict[str, Part], alone: dict[str, Part], out: Path, end: float) -> None:
    """Run the measurements that need the GPU alone, then all others side by side."""
    for name, part in alone.items():
        if time.monotonic() < end - GRACE:
            until = min(end, time.monotonic() + part.seconds)
            finish(name, start(name, part, out, 0.0), until)
    os.environ["OMP_NUM_THREADS"] = str(THREADS)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    with shared_gpu(device):
        begin = time.monotonic()
        minutes = (end - begin) / 60
        busy = {name: start(name, part, out, minutes) for name, part in parts.items()}
        order = sorted(busy, key=lambda name: parts[name].seconds)
        for name in order:
            finish(name, busy[name], min(end, begin + parts[name].seconds))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    every = ALONE | TOGETHER
    parser.add_argument("--out", type=Path, help="the folder for logs and results")
    parser.add_argument("--minutes", type=float, default=25.0, help="stop after this time")
    parser.add_argument("--only", nargs="+", choices=every, default=list(every), metavar="NAME")
    parser.add_argument("--list", action="store_true", help="only list the measurements")
    args = parser.parse_args()
    if args.list or args.out is None:
        print("\n".join(f"{name:16} {part.command}" for name, part in every.items()))
        return
    end = time.monotonic() + 60 * args.minutes
    args.out.mkdir(parents=True, exist_ok=True)
    alone = {name: part for name, part in ALONE.items() if name in args.only}
    together = {name: part for name, part in TOGETHER.items() if name in args.only}
    run(together, alone, args.out.resolve(), end)


if __name__ == "__main__":
    main()
