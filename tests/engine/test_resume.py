"""A run that was stopped, killed or damaged ends where an undisturbed one ends, to the bit."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from antipode.data.source import Memory
from antipode.data.splits import Splits
from antipode.engine import checkpoint
from antipode.engine.recipe import resolve
from antipode.engine.rundir import RunDir
from antipode.engine.train import Interrupted, train
from antipode.methods import PRESETS
from tests.toys import SMALL, Tiny

IMAGES, BATCH = 40, 16  # two steps an epoch, and a remainder that is dropped


def small_splits():
    images = torch.randint(0, 256, (IMAGES, 3, 32, 32), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    source = Memory(images, torch.arange(IMAGES) % 4, list("abcd"))
    return Splits("shapes", source, source, source, 32)


def small_recipe(method, epochs=5):
    chosen = {f"method.{name}": value for name, value in SMALL[method].items()}
    own = {"train.epochs": epochs, "train.batch": BATCH, "train.device": "cpu", "monitor.log_every": 1}
    views = {"views.policy": "shapes", "views.size": 16}
    return resolve(f"shapes.{method}" if method != "custom" else None, method=method, overrides=chosen | own | views)


def run_to(recipe, run, stop=None):
    """Train, or be interrupted before step `stop` as SIGTERM would do it."""
    torch.manual_seed(5)
    backbone = Tiny()

    class Stopping(RunDir):
        def record(self, row):
            super().record(row)
            if stop is not None and row["step"] == stop - 1:
                os.kill(os.getpid(), signal.SIGTERM)

    train(recipe, Stopping(run.path), splits=small_splits(), backbone=backbone, quiet=True)


def weights(run):
    return torch.load(run.checkpoints / "last.pt", weights_only=True)


def equal(a, b):
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(equal(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(equal(x, y) for x, y in zip(a, b, strict=True))
    return torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b


@pytest.mark.parametrize("method", PRESETS)
def test_five_steps_and_five_more_are_ten(method, tmp_path):
    """Interrupted in the middle of an epoch, with everything from disk but the code."""
    recipe = small_recipe(method)
    whole, halves = RunDir(tmp_path / "whole"), RunDir(tmp_path / "halves")
    run_to(recipe, whole)
    with pytest.raises(Interrupted, match="stopped after step 5 of 10"):
        run_to(recipe, halves, stop=5)
    run_to(recipe, halves)
    assert equal(weights(whole), weights(halves))
    forget = ("images_per_second",)
    rows = [[{k: v for k, v in row.items() if k not in forget} for row in run.metrics()] for run in (whole, halves)]
    assert rows[0] == rows[1] and [row["step"] for row in rows[0]] == list(range(10))


def test_a_damaged_checkpoint_gives_way_to_the_one_before_it(tmp_path):
    recipe = small_recipe("mocov2", epochs=4).model_copy(deep=True)
    recipe = resolve(None, method="mocov2", overrides={**_plain(recipe), "train.checkpoint_every": 1, "train.keep": 3})
    whole, hurt = RunDir(tmp_path / "whole"), RunDir(tmp_path / "hurt")
    run_to(recipe, whole)
    with pytest.raises(Interrupted):
        run_to(recipe, hurt, stop=6)
    newest = sorted(hurt.checkpoints.glob("step-*.pt"))[-1]
    data = bytearray(newest.read_bytes())
    data[len(data) // 2] ^= 0xFF
    newest.write_bytes(bytes(data))
    with pytest.warns(checkpoint.DamagedCheckpoint, match=f"{newest.name} is damaged"):
        run_to(recipe, hurt)
    assert equal(weights(whole), weights(hurt))


def _plain(recipe):
    return {key: value for key, value in recipe.leaves().items() if recipe.sources[key] == "--set"}


def test_checkpoints_beyond_the_last_n_are_dropped_and_last_is_the_newest(tmp_path):
    recipe = small_recipe("dcl", epochs=5)
    recipe = resolve(None, method="dcl", overrides={**_plain(recipe), "train.checkpoint_every": 1, "train.keep": 2})
    run = RunDir(tmp_path / "run")
    run_to(recipe, run)
    assert [file.name for file in sorted(run.checkpoints.glob("step-*.pt"))] == [
        "step-000000008.pt",
        "step-000000010.pt",
    ]
    assert weights(run)["step"] == 10


def test_a_full_disk_ends_in_a_sentence_and_leaves_a_whole_checkpoint(tmp_path, monkeypatch):
    run = RunDir(tmp_path / "run")
    checkpoint.save(run, {"step": 1, "x": torch.zeros(3)}, keep=2)

    def full(content, handle):
        handle.write(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(torch, "save", full)
    with pytest.raises(
        OSError, match=r"is full: no checkpoint could be written, the last whole one is step-000000001\.pt"
    ):
        checkpoint.save(run, {"step": 2}, keep=2)
    monkeypatch.undo()
    assert checkpoint.load(run, torch.device("cpu"))["step"] == 1
    assert {file.name for file in run.checkpoints.iterdir()} == {"step-000000001.pt", "step-000000001.sum", "last.pt"}


def test_metrics_cut_short_by_a_crash_are_mended(tmp_path):
    run = RunDir(tmp_path)
    for step in range(4):
        run.record({"step": step, "loss": 1.0})
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 4, "lo')
    run.rewind(3)
    assert [row["step"] for row in run.metrics()] == [0, 1, 2]
    assert (tmp_path / "metrics.jsonl").read_text().endswith("}\n")


def command(out, epochs, *more):
    sizes = ["--batch", "128", "--epochs", str(epochs), "--set", "train.checkpoint_every=1", "--device", "cpu"]
    return [sys.executable, "-m", "antipode", "pretrain", "digits.mocov2", "--out", str(out), *sizes, *more]


def quiet_env():
    root = str(Path(__file__).parents[2] / "src")
    return os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join([root, *sys.path])}


def killed_again_and_again(tmp_path, kills, epochs, launch):
    """kill -9 at random moments, then let it finish; the weights must be those of an undisturbed run."""
    subprocess.run(launch(tmp_path / "whole", epochs), env=quiet_env(), check=True, capture_output=True)
    chance, done = random.Random(0), 0
    begun = time.monotonic()
    while done < kills:
        child = subprocess.Popen(launch(tmp_path / "killed", epochs), env=quiet_env(), stderr=subprocess.DEVNULL,
                                 stdout=subprocess.DEVNULL, start_new_session=True)  # fmt: skip
        time.sleep(chance.uniform(5.5, 9.0))  # some before the first checkpoint, most in the middle of an epoch
        if child.poll() is not None:
            break  # it finished: the folder may not be killed any more
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()
        done += 1
        assert time.monotonic() - begun < 900
    subprocess.run(launch(tmp_path / "killed", epochs), env=quiet_env(), check=True, capture_output=True)
    assert done >= min(kills, 2)
    assert equal(weights(RunDir(tmp_path / "whole")), weights(RunDir(tmp_path / "killed")))
    return done


@pytest.mark.slow
def test_twenty_kills_do_not_change_a_bit(tmp_path):
    assert killed_again_and_again(tmp_path, 20, 80, command) == 20


def ranks(out, epochs):
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m"]
    return [*torchrun, *command(out, epochs, "--set", "method.groups=2")[2:]]


@pytest.mark.slow
@pytest.mark.dist
def test_kills_under_two_ranks_do_not_change_a_bit(tmp_path):
    assert killed_again_and_again(tmp_path, 3, 15, ranks) == 3


@pytest.mark.dist
@pytest.mark.xdist_group("ranks")
def test_two_ranks_under_torchrun_train_like_one(tmp_path):
    """The same global batch, the same losses, and one writer."""

    def launch(out, *start):
        sizes = ["--batch", "250", "--epochs", "1", "--device", "cpu", "--set", "monitor.log_every=1"]
        return [*start, "antipode", "pretrain", "shapes.simclr", "--out", str(out), *sizes]

    two = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m"]
    for name, start in (("one", [sys.executable, "-m"]), ("two", two)):
        done = subprocess.run(
            launch(tmp_path / name, *start), env=quiet_env(), capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
    losses = [[row["loss"] for row in RunDir(tmp_path / name).metrics()] for name in ("one", "two")]
    assert len(losses[0]) == 20
    # float32 sums in another order, amplified by training: close at first, near at the end
    assert losses[0][:3] == pytest.approx(losses[1][:3], rel=1e-3)
    assert losses[0] == pytest.approx(losses[1], rel=2e-2)
