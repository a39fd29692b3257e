"""Small runs for tests, in this process or under torchrun.

Under torchrun each rank writes a digest of its trained learner. `die` names, for each attempt of
torchrun, the rank that is killed and the step: "1@7" kills rank 1 before step 7. `spoil` names a
step for some methods, in which the loss of rank 1 is infinite and its gradient is not.
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
from antipode.training.step import Step
from tests.toys import SMALL, Tiny

# two steps per epoch, and a remainder that is dropped
IMAGES = 40
BATCH = 16
ROOT = Path(__file__).parents[2]


def pixels():
    return torch.randint(
        0, 256, (IMAGES, 3, 32, 32), dtype=torch.uint8, generator=torch.Generator().manual_seed(0)
    )


def small_splits():
    source = Memory(pixels(), torch.arange(IMAGES) % 4, list("abcd"))
    return Splits("shapes", source, source, source, 32)


def small(method, epochs=5):
    """Return the settings that make a run of a method small."""
    arguments = {f"method.{name}": value for name, value in SMALL[method].items()}
    return arguments | {
        "train.epochs": epochs,
        "train.batch": BATCH,
        "train.device": "cpu",
        "monitor.log_every": 1,
        "views.policy": "shapes",
        "views.size": 16,
    }


def small_recipe(method, epochs=5, **more):
    """Return a recipe of a small run; `more` are further settings."""
    name = f"shapes.{method}" if method != "custom" else None
    return resolve(name, method=method, overrides=small(method, epochs) | more)


def equal(a, b):
    """Return True if two checkpoints are bitwise equal."""
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(equal(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(equal(x, y) for x, y in zip(a, b, strict=True))
    return torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b


def last(run):
    """Return the content of the last checkpoint in a run folder."""
    return torch.load(run / "checkpoints" / "last.pt", weights_only=True)


def environment():
    """Return the environment variables for a subprocess."""
    places = [str(ROOT / "src"), str(ROOT), *sys.path]
    return os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(places)}


def torchrun(*options):
    """Return the start of a command that runs a module on two ranks."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    return [*launcher, "--nproc-per-node", "2", *options, "-m"]


def started(out, *options, methods, epochs, more=None, die=(), **further):
    """Return the command that runs this file on two ranks."""
    out.mkdir(exist_ok=True)
    spec = {"methods": methods, "epochs": epochs, "more": more or {}, "die": die, **further}
    return [*torchrun(*options), "tests.training.runs", str(out), json.dumps(spec)]


def launch(*arguments, **spec):
    """Run this file on two ranks and return the finished process."""
    command = started(*arguments, **spec)
    return subprocess.run(
        command, env=environment(), capture_output=True, text=True, check=False, timeout=300
    )


def children(pid):
    """Return the ids of the running child processes of a process.

    A process group would not do, because torchrun starts its ranks in sessions of their own.
    """
    pids = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            state, parent = stat.read_text().rpartition(")")[2].split()[:2]
            if int(parent) == pid and state != "Z":
                pids.append(int(stat.parent.name))
    return pids


def alive(pid):
    """Return True if a process exists and is not a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def reached(run, rows, child, log):
    """Wait until a run that was just started has recorded `rows` rows; it must not end before."""
    begun = time.time()
    description = run / "env.json"
    metrics = run / "metrics.jsonl"
    counts = []
    while child.poll() is None:
        # the run deletes the rows after its checkpoint at about the time when it writes env.json
        if description.exists() and description.stat().st_mtime >= begun - 1:
            counts.append(len(metrics.read_bytes().splitlines()) if metrics.exists() else 0)
        if counts and counts[-1] >= min(counts) + rows:
            return
        time.sleep(0.02)
    raise AssertionError(f"the run ended by itself: {log.read_text()}")


class Dumping(Recorder):
    """A recorder with which every rank writes a digest of its learner at the end."""

    def finish(self):
        super().finish()
        digest = hashlib.sha256()
        for value in self.setup.learner.state_dict().values():
            digest.update(value.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
        (self.folder.path / f"rank-{dist.rank()}.digest").write_text(digest.hexdigest())


class Images(torch.utils.data.Dataset):
    def __init__(self):
        self.images = pixels()

    def __len__(self):
        return IMAGES

    def __getitem__(self, index):
        return self.images[index], index % 4


def pretrain(out, method, epochs, more, **options):
    """Train a small run with the public function."""
    torch.manual_seed(5)
    overrides = small(method, epochs) | more
    return api.pretrain(
        method=method,
        data=Images(),
        backbone=Tiny(),
        out=out,
        overrides=overrides,
        quiet=True,
        **options,
    )


def deadly(out, die):
    """Patch `Setup` to kill a rank before a step, once in each attempt that `die` names."""
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


def spoiled(gradients, step, rank):
    """Return `Step._gradients` with an infinite loss in one step on one rank."""

    def spoiled_gradients(self, batch):
        out, norms = gradients(self, batch)
        if int(self.learner.step) == step and dist.rank() == rank:
            out = out._replace(loss=out.loss + torch.inf)
        return out, norms

    return spoiled_gradients


def main(out, methods, epochs, more, die, spoil=None, **options):
    """Train the methods one after the other; a rank is killed in the last one."""
    loop.Recorder = Dumping
    plain = Step._gradients
    for method in methods:
        Step._gradients = spoiled(plain, (spoil or {}).get(method), rank=1)
        if method == methods[-1]:
            deadly(out, die)
        try:
            pretrain(out / method, method, epochs, more, **options)
        except ConnectionError as error:
            (out / f"survivor-{dist.rank()}").write_text(f"{time.time()} {error}")
            raise


if __name__ == "__main__":
    main(Path(sys.argv[1]), **json.loads(sys.argv[2]))
