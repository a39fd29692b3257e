"""A run that was stopped, killed or damaged ends bitwise equal to an undisturbed run."""

import os
import random
import signal
import subprocess
import sys

import pytest
import torch

from antipode import api
from antipode.data.sources.source import Memory
from antipode.data.sources.splits import Splits
from antipode.papers import methods
from antipode.recipe.resolve import resolve
from antipode.runs.folder import RunFolder
from antipode.training import checkpoint
from antipode.training.loop import Interrupted, train
from antipode.training.record import Recorder
from tests.toys import Tiny
from tests.training.runs import (
    children,
    environment,
    equal,
    last,
    reached,
    small,
    small_recipe,
    small_splits,
    torchrun,
)


class Dropping(Tiny):
    """A backbone with dropout, which draws from torch's generator."""

    def forward(self, x):
        return torch.nn.functional.dropout(super().forward(x), 0.5, self.training)


def run_to(recipe, run, stop=None, network=Tiny):
    """Train to the end, or until SIGTERM arrives before step `stop`."""
    torch.manual_seed(5)
    backbone = network()

    class Stopping(RunFolder):
        def record(self, row):
            super().record(row)
            if stop is not None and row["step"] == stop - 1:
                os.kill(os.getpid(), signal.SIGTERM)

    train(recipe, Stopping(run.path), splits=small_splits(), backbone=backbone, quiet=True)


def weights(run):
    return last(run.path)


# one method of each kind: without a twin, with a twin, a queue, a bank with its own optimiser, a
# memory, a strength that grows, three views; tests/test_presets.py has the learners of all methods
FIRST = ("simclr", "byol", "mocov2", "adco", "npid", "jcl", "msbreg")
METHODS = [
    name if name in FIRST else pytest.param(name, marks=pytest.mark.slow) for name in methods()
]


@pytest.mark.parametrize("method", METHODS)
def test_three_steps_and_three_more_are_six(method, tmp_path):
    """The run is interrupted within an epoch, and everything is restored from the disk."""
    recipe = small_recipe(method, 3)
    whole, halves = RunFolder(tmp_path / "whole"), RunFolder(tmp_path / "halves")
    run_to(recipe, whole)
    with pytest.raises(Interrupted, match="stopped after step 3 of 6"):
        run_to(recipe, halves, stop=3)
    run_to(recipe, halves)
    assert equal(weights(whole), weights(halves))
    rows = [
        [{k: v for k, v in row.items() if k != "images_per_second"} for row in run.metrics()]
        for run in (whole, halves)
    ]
    assert rows[0] == rows[1] and [row["step"] for row in rows[0]] == list(range(6))


def test_a_backbone_with_dropout_resumes_with_the_same_masks(tmp_path):
    """Its masks depend on the state of torch's generator, which the checkpoint restores."""
    recipe = small_recipe("simclr", 2)
    whole = RunFolder(tmp_path / "whole")
    halves = RunFolder(tmp_path / "halves")
    run_to(recipe, whole, network=Dropping)
    with pytest.raises(Interrupted, match="stopped after step 3 of 4"):
        run_to(recipe, halves, stop=3, network=Dropping)
    run_to(recipe, halves, network=Dropping)
    assert whole.metrics()[3]["loss"] == halves.metrics()[3]["loss"]
    assert equal(weights(whole), weights(halves))


def test_a_stopped_run_says_which_command_goes_on(tmp_path, monkeypatch):
    few = {"method.dim": 6, "train.batch": 150, "train.device": "cpu", "monitor.log_every": 1}
    arguments = {"epochs": 1, "out": tmp_path / "run", "overrides": few, "quiet": True}
    original = Recorder.note

    def note(self, step, *more):
        original(self, step, *more)
        if step == 1:
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(Recorder, "note", note)
    for flags, words in (
        ({}, "the same call resumes from there"),
        ({"overwrite": True}, "the same call without overwrite=True resumes from there"),
        (
            {"overwrite": True, "resume": False},
            "the same call without resume=False and overwrite=True resumes from there",
        ),
    ):
        with pytest.raises(Interrupted, match=f"stopped after step 2 of 9.*; {words}"):
            api.pretrain("digits.dcl", **arguments, **flags)
    monkeypatch.undo()
    assert [row["step"] for row in api.pretrain("digits.dcl", **arguments).metrics()][:3] == [
        0,
        1,
        2,
    ]


@pytest.mark.parametrize("stop", [5, None])
def test_a_run_goes_on_with_the_images_it_began_with_or_not_at_all(stop, tmp_path):
    recipe = small_recipe("dcl")
    run = RunFolder(tmp_path / "run")
    if stop is None:
        run_to(recipe, run)
    else:
        with pytest.raises(Interrupted):
            run_to(recipe, run, stop=stop)
    before = weights(run)
    source = small_splits().train
    fewer = Memory(source.images[:36], source.labels[:36], source.classes)
    with pytest.raises(ValueError, match="trained on 40 images, but shapes now has 36"):
        train(
            recipe,
            run,
            splits=Splits("shapes", fewer, fewer, None, 32),
            backbone=Tiny(),
            quiet=True,
        )
    assert equal(weights(run), before)


def test_a_damaged_checkpoint_gives_way_to_the_one_before_it(tmp_path):
    values = small("mocov2", epochs=4) | {"train.checkpoint_every": 1, "train.keep": 3}
    recipe = resolve(None, method="mocov2", overrides=values)
    whole, hurt = RunFolder(tmp_path / "whole"), RunFolder(tmp_path / "hurt")
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


def test_checkpoints_beyond_the_last_n_are_dropped_and_last_is_the_newest(tmp_path):
    values = small("dcl", epochs=5) | {"train.checkpoint_every": 1, "train.keep": 2}
    recipe = resolve(None, method="dcl", overrides=values)
    run = RunFolder(tmp_path / "run")
    run_to(recipe, run)
    assert [file.name for file in sorted(run.checkpoints.glob("step-*.pt"))] == [
        "step-000000008.pt",
        "step-000000010.pt",
    ]
    assert weights(run)["step"] == 10


def test_checkpoints_of_a_run_that_has_ended_are_not_deleted(tmp_path):
    """A kill before the end may leave one too many; a smaller `keep` later deletes none."""
    values = small("dcl", epochs=3) | {"train.checkpoint_every": 1, "train.keep": 3}
    run = RunFolder(tmp_path / "run")
    run_to(resolve(None, method="dcl", overrides=values), run)
    fewer = resolve(None, method="dcl", overrides=values | {"train.keep": 1})
    run_to(fewer, run)
    assert len(list(run.checkpoints.glob("step-*.pt"))) == 3
    (run.path / "backbone.safetensors").unlink()
    run_to(fewer, run)
    assert len(list(run.checkpoints.glob("step-*.pt"))) == 1 and weights(run)["step"] == 6


def test_last_is_the_newest_also_where_a_kill_came_between_the_two(tmp_path):
    recipe = small_recipe("simclr", 3, **{"train.checkpoint_every": 1, "train.keep": 3})
    train(recipe, RunFolder(tmp_path), splits=small_splits(), backbone=Tiny(), quiet=True)
    files = sorted((tmp_path / "checkpoints").glob("step-*.pt"))
    (tmp_path / "checkpoints" / "last.pt").unlink()
    (tmp_path / "checkpoints" / "last.pt").write_bytes(files[0].read_bytes())
    (tmp_path / "backbone.safetensors").unlink()
    train(recipe, RunFolder(tmp_path), splits=small_splits(), backbone=Tiny(), quiet=True)
    assert last(tmp_path)["step"] == 6 and (tmp_path / "backbone.safetensors").exists()


def test_a_checkpoint_of_a_newer_version_is_refused_with_advice(tmp_path, recwarn):
    """Also if there is an older checkpoint that could be read: training would lose steps."""
    run = RunFolder(tmp_path / "run")
    checkpoint.save(run, {"step": 1, "learner": {}, "format": checkpoint.FORMAT}, keep=2)
    checkpoint.save(run, {"step": 2, "learner": {}, "format": checkpoint.FORMAT + 1}, keep=2)
    sentence = (
        r"step-000000002\.pt was written by a newer version of antipode "
        r"\(format 3, this one reads up to 2\): update antipode"
    )
    with pytest.raises(ValueError, match=sentence):
        checkpoint.load(run, torch.device("cpu"))
    assert not [warning for warning in recwarn if issubclass(warning.category, UserWarning)]


def test_checkpoints_carry_their_format_and_those_without_one_are_read(tmp_path):
    run = RunFolder(tmp_path / "run")
    run_to(small_recipe("dcl", 1), run)
    content = weights(run)
    assert content["format"] == checkpoint.FORMAT == 2
    del content["format"]
    checkpoint.save(run, content, keep=1)
    assert equal(checkpoint.load(run, torch.device("cpu")), content)


def test_a_full_disk_ends_in_a_sentence_and_leaves_a_whole_checkpoint(tmp_path, monkeypatch):
    run = RunFolder(tmp_path / "run")
    checkpoint.save(run, {"step": 1, "learner": {"x": torch.zeros(3)}}, keep=2)

    def full(content, handle):
        handle.write(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(torch, "save", full)
    sentence = "is full: no checkpoint could be written, the newest complete one is step-000000001"
    with pytest.raises(OSError, match=sentence):
        checkpoint.save(run, {"step": 2}, keep=2)
    monkeypatch.undo()
    assert checkpoint.load(run, torch.device("cpu"))["step"] == 1
    assert {file.name for file in run.checkpoints.iterdir()} == {
        "step-000000001.pt",
        "step-000000001.sum",
        "last.pt",
    }


def test_metrics_cut_short_by_a_crash_are_mended(tmp_path):
    run = RunFolder(tmp_path)
    for step in range(4):
        run.record({"step": step, "loss": 1.0})
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 4, "lo')
    run.rewind(3)
    assert [row["step"] for row in run.metrics()] == [0, 1, 2]
    assert (tmp_path / "metrics.jsonl").read_text().endswith("}\n")


def command(out, epochs, *more):
    words = f"-m antipode pretrain digits.mocov2 --batch 128 --epochs {epochs} --device cpu".split()
    words += ["--set", "train.checkpoint_every=1", "--set", "monitor.log_every=1"]
    return [sys.executable, *words, "--out", str(out), *more]


def killed_after(start, run, rows):
    """Start a run and kill all its processes with SIGKILL once it has recorded `rows` rows."""
    output = run.path.parent / "output"
    with output.open("w") as file:
        child = subprocess.Popen(start, env=environment(), stdout=file, stderr=file)
    reached(run.path, rows, child, output)
    for pid in [child.pid, *children(child.pid)]:
        os.kill(pid, signal.SIGKILL)
    child.wait()


def killed_again_and_again(tmp_path, kills, epochs, launch):
    """Kill a run with SIGKILL at random moments, then let it finish.

    Its weights must be those of an undisturbed run.
    """
    whole, killed = RunFolder(tmp_path / "whole"), RunFolder(tmp_path / "killed")
    subprocess.run(launch(whole.path, epochs), env=environment(), check=True, capture_output=True)
    chance = random.Random(0)
    # an epoch has 11 steps: some attempts end before their first checkpoint, most within an epoch
    for _ in range(kills):
        killed_after(launch(killed.path, epochs), killed, chance.randrange(1, 40))
    subprocess.run(launch(killed.path, epochs), env=environment(), check=True, capture_output=True)
    assert equal(weights(whole), weights(killed))
    assert [row["step"] for row in killed.metrics()] == list(range(11 * epochs))


@pytest.mark.slow
def test_twenty_kills_do_not_change_a_bit(tmp_path):
    killed_again_and_again(tmp_path, 20, 80, command)


def ranks(out, epochs):
    return [*torchrun(), *command(out, epochs, "--set", "method.groups=2")[2:]]


@pytest.mark.slow
@pytest.mark.dist
def test_kills_under_two_ranks_do_not_change_a_bit(tmp_path):
    killed_again_and_again(tmp_path, 3, 15, ranks)


def test_what_a_killed_process_was_writing_is_removed_by_the_next(tmp_path):
    recipe = small_recipe("dcl")
    run = RunFolder(tmp_path / "run")
    with pytest.raises(Interrupted):
        run_to(recipe, run, stop=5)
    temporary = run.path / "checkpoints" / ".step-000000005.pt.12345.tmp"
    temporary.write_bytes(b"half a checkpoint")
    run_to(recipe, run)
    assert not temporary.exists()
