"""Runs of toy size, in this process or under torchrun, where each rank dumps a digest of what it ended with.

`die` names, for each attempt of torchrun, the rank and the step at which it is killed: "1@7".
"""

import contextlib
import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import torch

from antipode import api, dist
from antipode.data.sources.source import Memory
from antipode.data.sources.splits import Splits
from antipode.recipe.resolve import resolve
from antipode.training import loop
from antipode.training.build import Setup
from antipode.training.record import Recorder
from tests.toys import SMALL, Tiny

IMAGES, BATCH = 40, 16  # two steps an epoch, and a remainder that is dropped
ROOT = Path(__file__).parents[2]


def pixels():
    return torch.randint(
        0, 256, (IMAGES, 3, 32, 32), dtype=torch.uint8, generator=torch.Generator().manual_seed(0)
    )


def small_splits():
    source = Memory(pixels(), torch.arange(IMAGES) % 4, list("abcd"))
    return Splits("shapes", source, source, source, 32)


def small(method, epochs=5):
    """What makes a run of a method small."""
    chosen = {f"method.{name}": value for name, value in SMALL[method].items()}
    own = {
        "train.epochs": epochs,
        "train.batch": BATCH,
        "train.device": "cpu",
        "monitor.log_every": 1,
    }
    return chosen | own | {"views.policy": "shapes", "views.size": 16}


def small_recipe(method, epochs=5, **more):
    name = f"shapes.{method}" if method != "custom" else None
    return resolve(name, method=method, overrides=small(method, epochs) | more)


def equal(a, b):
    """Whether two checkpoints are the same to the bit."""
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(equal(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(equal(x, y) for x, y in zip(a, b, strict=True))
    return torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b


def last(run):
    return torch.load(run / "checkpoints" / "last.pt", weights_only=True)


def environment():
    places = [str(ROOT / "src"), str(ROOT), *sys.path]
    return os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(places)}


def torchrun(*options):
    return [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "2",
        *options,
        "-m",
    ]


def started(out, *options, methods, epochs, more=None, die=(), **further):
    """The command that runs this file on two ranks."""
    out.mkdir(exist_ok=True)
    spec = {"methods": methods, "epochs": epochs, "more": more or {}, "die": die, **further}
    return [*torchrun(*options), "tests.training.runs", str(out), json.dumps(spec)]


def launch(*arguments, **spec):
    """Run this file on two ranks; what came out."""
    command = started(*arguments, **spec)
    return subprocess.run(
        command, env=environment(), capture_output=True, text=True, check=False, timeout=300
    )


def children(pid):
    """The living processes that a process started: torchrun puts its ranks into sessions of their own."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            state, parent = stat.read_text().rpartition(")")[2].split()[:2]
            if int(parent) == pid and state != "Z":
                found.append(int(stat.parent.name))
    return found


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def reached(run, rows, child, log):
    """Wait until a run that was just started has recorded so many rows; it may not end before."""
    begun, seen = time.time(), []
    while child.poll() is None:
        described = run / "env.json"
        if (
            described.exists() and described.stat().st_mtime >= begun - 1
        ):  # rows of before are taken back about now
            seen.append(
                sum(1 for _ in (run / "metrics.jsonl").open())
                if (run / "metrics.jsonl").exists()
                else 0
            )
        if seen and seen[-1] >= min(seen) + rows:
            return
        time.sleep(0.02)
    raise AssertionError(f"it ended by itself: {log.read_text()}")


class Dumping(Recorder):
    """At the end every rank writes a digest of its learner."""

    def finish(self):
        super().finish()
        found = hashlib.sha256()
        for value in self.job.learner.state_dict().values():
            found.update(value.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
        (self.run.path / f"rank-{dist.rank()}.digest").write_text(found.hexdigest())


class Images(torch.utils.data.Dataset):
    def __init__(self):
        self.images = pixels()

    def __len__(self):
        return IMAGES

    def __getitem__(self, index):
        return self.images[index], index % 4


def pretrain(out, method, epochs, more, **options):
    """A small run through the front door."""
    torch.manual_seed(5)
    chosen = {"method": method, "overrides": small(method, epochs) | more, "quiet": True, **options}
    return api.pretrain(data=Images(), backbone=Tiny(), out=out, **chosen)


def deadly(out, die):
    """From now on a rank is killed before a step, once in each attempt that `die` names."""
    attempt = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
    if attempt >= len(die):
        return
    rank, step = map(int, die[attempt].split("@"))
    prepare = Setup.prepare

    def prepare_or_die(self, at):
        if at == step and dist.rank() == rank:
            (out / "died").write_text(str(time.time()))
            os.kill(os.getpid(), signal.SIGKILL)
        return prepare(self, at)

    Setup.prepare = prepare_or_die


def main(out, methods, epochs, more, die, **options):
    """Train the methods one after the other; the last one is the fatal one."""
    loop.Recorder = Dumping
    for method in methods:
        if method == methods[-1]:
            deadly(out, die)
        try:
            pretrain(out / method, method, epochs, more, **options)
        except ConnectionError as error:
            (out / f"survivor-{dist.rank()}").write_text(f"{time.time()} {error}")
            raise


if __name__ == "__main__":
    main(Path(sys.argv[1]), **json.loads(sys.argv[2]))
