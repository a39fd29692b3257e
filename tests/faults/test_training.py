"""Training in the face of numbers that are not finite, damaged checkpoints, kills and signals.

Every test goes through the command line or the public functions.
"""

import contextlib
import hashlib
import io
import json
import os
import pickle
import random
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import antipode
import antipode.api
from antipode import cli
from antipode.files import atomic_write
from antipode.training.build import Setup

NAN = float("nan")


class Images(torch.utils.data.Dataset):
    """Thirty-two images of noise."""

    def __len__(self):
        return 32

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        return torch.randint(0, 256, (3, 16, 16), dtype=torch.uint8, generator=generator)


class Net(nn.Module):
    """A small network whose output is not finite in some of its training passes.

    A step of the methods below passes the trained network once (`dcl`) or twice.
    """

    def __init__(self, bad=(), value=NAN):
        super().__init__()
        torch.manual_seed(3)
        self.conv = nn.Conv2d(3, 8, 3, 2, 1)
        self.bn = nn.BatchNorm2d(8)
        self.bad = bad
        self.value = value
        self.passes = 0

    def forward(self, x):
        out = torch.relu(self.bn(self.conv(x))).mean((2, 3))
        if self.training and torch.is_grad_enabled():
            self.passes += 1
            if self.passes - 1 in self.bad:
                out = out * self.value
        return out


QUICK = {
    "train.batch": 8,
    "train.device": "cpu",
    "views.policy": "shapes",
    "views.size": 16,
    "monitor.log_every": 1,
    "data.workers": 0,
}
SMALL = {
    "dcl": {"method.dim": 6},
    "mocov2": {"method.dim": 6, "method.queue": 20, "method.groups": 2},
    "byol": {"method.dim": 6, "method.hidden": 10},
}
PASSES = {"dcl": 1, "mocov2": 1, "byol": 2}  # of the trained network in a step


def train(out, net, method="dcl", epochs=3, **more):
    """Train a small run of four steps per epoch; return the error in which it ends, or None."""
    torch.manual_seed(5)
    options = {"overwrite": more.pop("overwrite", False), "quiet": True}
    overrides = {**QUICK, **SMALL[method], "train.checkpoint_every": 1, **more}
    given = {"method": method, "data": Images(), "backbone": net, "epochs": epochs}
    try:
        antipode.pretrain(out=out, overrides=overrides, **given, **options)
    except (Exception, KeyboardInterrupt) as error:  # a signal ends a run in a KeyboardInterrupt
        return error
    return None


def metrics(run):
    """Return the lines of metrics.jsonl."""
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def tensors(content):
    """Yield all tensors in nested dictionaries and lists."""
    if isinstance(content, torch.Tensor):
        yield content
    elif isinstance(content, dict | list | tuple):
        for value in content.values() if isinstance(content, dict) else content:
            yield from tensors(value)


def weight_files(run):
    """Return the content of all checkpoints and of the backbone in a run folder, by name."""
    files = {
        file.name: torch.load(file, weights_only=True)
        for file in sorted((run / "checkpoints").glob("*.pt"))
    }
    backbone = run / "backbone.safetensors"
    return files | ({backbone.name: load_file(backbone)} if backbone.exists() else {})


def check_finite(run):
    """Assert that every file of a run folder holds finite numbers only, and return their names."""
    files = weight_files(run)
    for name, content in files.items():
        for value in tensors(content):
            assert not value.is_floating_point() or value.isfinite().all(), name
    return list(files)


def status_of(error):
    """Return the exit status of the command line after an error of training, or after none."""
    if error is None:
        return 0
    with pytest.MonkeyPatch.context() as patch:
        for module in (antipode, antipode.api):
            patch.setattr(module, "pretrain", raising(error))
        return call("pretrain")[0]


def raising(error):
    """Return a function that raises this error."""

    def fail(*_, **__):
        raise error

    return fail


def call(*words):
    """Run a command in this process, and return its status, output and errors."""
    out = io.StringIO()
    err = io.StringIO()
    with (
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        pytest.raises(SystemExit) as end,
    ):
        cli.main([str(word) for word in words])
    return end.value.code, out.getvalue(), err.getvalue()


# Numbers that are not finite


@pytest.mark.parametrize("value", [NAN, float("inf")])
@pytest.mark.parametrize("on_collapse", ["warn", "stop"])
def test_one_bad_step_neither_ends_a_run_nor_reaches_a_file(on_collapse, value, tmp_path, recwarn):
    """Finding 1 and 2: the views of one step are damaged, and a good state is lost."""
    error = train(tmp_path, Net([5], value), **{"train.on_collapse": on_collapse})
    assert error is None
    assert "backbone.safetensors" in check_finite(tmp_path)
    rows = metrics(tmp_path)
    assert [row["step"] for row in rows if row["loss"] is None] == [5]
    assert rows[-1]["loss"] > 0 and rows[-1]["skipped"] == 1
    assert any("1 step of 6 had a loss" in str(warning.message) for warning in recwarn)


def test_the_age_of_the_queue_counts_the_steps_that_added_keys(tmp_path):
    """A queue of 20 keys is full after three steps of 8 images; the second step is skipped."""
    ages = []
    for name, bad in (("whole", []), ("skipped", [1])):
        train(tmp_path / name, Net(bad), "mocov2", epochs=2, **{"monitor.health_every": 1})
        ages.append([row.get("queue_age") for row in metrics(tmp_path / name)])
    full = (8 + 2 * 8 + 3 * 4) / 20
    assert ages[0] == [None, 1.0, 1.5, full, full, full, full, full]
    assert ages[1] == [None, None, 1.0, 1.5, full, full, full, full]


@pytest.mark.parametrize("on_collapse", ["warn", "stop"])
def test_a_network_that_stays_broken_ends_with_status_3_and_keeps_its_last_good_checkpoint(
    on_collapse, tmp_path
):
    """Finding 1 and 2: from the seventh step on, nothing is finite."""
    broken = Net(range(6, 1000))
    more = {"train.on_collapse": on_collapse}
    error = train(tmp_path, broken, epochs=7, **more)
    assert status_of(error) == 3
    assert re.search(r"not finite .* step 2\d.*lr.*the last good checkpoint is kept", str(error))
    assert check_finite(tmp_path) == ["last.pt", "step-000000004.pt"]
    # the same command resumes from there, if the cause is gone
    assert train(tmp_path, Net(), epochs=7, **more) is None
    whole = tmp_path / "whole"
    assert train(whole, Net(), epochs=7, **more) is None
    ours, theirs = (load_file(run / "backbone.safetensors") for run in (tmp_path, whole))
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


def test_too_high_a_learning_rate_ends_with_status_3_and_one_sentence(tmp_path):
    words = "pretrain --data digits --method dcl --backbone resnet10-slim --batch 64 --device cpu"
    words += " --epochs 2 --set views.size=8 --set train.checkpoint_every=1"
    words += " --set optim.network.lr=1e30 --set optim.network.warmup=0 --set monitor.log_every=5"
    status, _, err = call(*words.split(), "--out", tmp_path)
    sentence = err.splitlines()[-1]
    assert status == 3 and sentence.startswith("antipode: ")
    assert "not finite" in sentence and "step" in sentence and "optim.network.lr" in sentence
    assert "Traceback" not in err
    check_finite(tmp_path)


class Spoils(Net):
    """Makes one of its weights infinite after a pass: loss and gradient of that step are finite."""

    def forward(self, x):
        out = super().forward(x)
        if out.requires_grad and self.passes - 1 in self.bad:
            out.register_hook(self._spoil)
        return out

    def _spoil(self, grad):
        self.bn.running_var.data[0] = float("inf")
        return grad


@pytest.mark.parametrize("on_collapse", ["warn", "stop"])
def test_weights_that_are_not_finite_after_a_finite_step_are_not_written(on_collapse, tmp_path):
    """The seventh step makes a number infinite that no training step reads."""
    net = Spoils([6], value=1.0)
    error = train(tmp_path, net, **{"train.on_collapse": on_collapse})
    assert status_of(error) == 3
    assert re.search("weights are not finite after 8 steps .*running_var.*lr", str(error))
    assert check_finite(tmp_path) == ["last.pt", "step-000000004.pt"]


def test_a_run_that_ends_with_a_bad_batch_is_a_good_run(tmp_path):
    """The network itself is finite: the images of another step show it."""
    assert train(tmp_path, Net([11])) is None
    assert "backbone.safetensors" in check_finite(tmp_path)


def test_the_batch_of_the_last_finite_step_shows_whether_the_network_is_broken(
    tmp_path, monkeypatch
):
    """The batches of the skipped steps may be damaged. The last 2 of 12 steps are skipped."""
    steps = []
    real = Setup.is_finite_at
    monkeypatch.setattr(
        Setup, "is_finite_at", lambda self, step: steps.append(step) or real(self, step)
    )
    assert train(tmp_path, Net([10, 11])) is None
    assert steps == [9]


def test_a_run_that_ends_with_a_broken_network_is_not(tmp_path):
    """The last steps are too few to end the run before."""
    error = train(tmp_path, Net(range(9, 100)))
    assert status_of(error) == 3 and "the last 3 steps up to step 12" in str(error)
    assert "backbone.safetensors" not in check_finite(tmp_path)


def test_a_run_in_trouble_from_the_start_does_not_replace_a_good_one(tmp_path):
    assert train(tmp_path, Net()) is None
    before = {name: list(tensors(content)) for name, content in weight_files(tmp_path).items()}
    error = train(tmp_path, Net(range(1000)), epochs=9, overwrite=True)
    assert status_of(error) == 3 and "not finite" in str(error)
    after = {name: list(tensors(content)) for name, content in weight_files(tmp_path).items()}
    assert before.keys() == after.keys()
    for name, values in before.items():
        assert all(torch.equal(a, b) for a, b in zip(values, after[name], strict=True)), name


def harness(tmp_path, trials, seed):
    """Make random steps of random runs bad, for good or once; return what became of the runs."""
    chance = random.Random(seed)
    counts = {"recovered": 0, "ended": 0}
    for trial in range(trials):
        method = chance.choice(["dcl", "mocov2", "byol"])
        first = chance.randrange(12) * PASSES[method]
        forever = chance.random() < 0.5
        bad = range(first, 1000) if forever else [first]
        more = {
            "train.on_collapse": chance.choice(["warn", "stop"]),
            "train.checkpoint_steps": chance.choice([1, 2, 7]),
            "train.checkpoint_every": 100,
            "monitor.log_every": chance.choice([1, 3]),
        }
        net = Net(bad, chance.choice([NAN, float("inf"), -float("inf")]))
        error = train(tmp_path / str(trial), net, method, **more)
        names = check_finite(tmp_path / str(trial))
        assert status_of(error) == (3 if forever else 0), (trial, error)
        assert ("backbone.safetensors" in names) == (not forever)
        counts["ended" if forever else "recovered"] += 1
        if forever:  # the cause is gone: the run resumes from its last good checkpoint
            assert train(tmp_path / str(trial), Net(), method, **more) is None
            check_finite(tmp_path / str(trial))
        shutil.rmtree(tmp_path / str(trial))
    return counts


def test_a_bad_step_at_any_time_reaches_no_file(tmp_path):
    assert sum(harness(tmp_path, 4, seed=0).values()) == 4


@pytest.mark.slow
def test_fifty_bad_steps_at_random_times_reach_no_file(tmp_path):
    counts = harness(tmp_path, 50, seed=1)
    assert sum(counts.values()) == 50 and min(counts.values()) > 10, counts


# Checkpoints


def test_checkpoints_are_written_every_so_many_steps_and_epochs(tmp_path):
    more = {"train.checkpoint_steps": 5, "train.checkpoint_every": 1, "train.keep": 9}
    assert train(tmp_path, Net(), epochs=3, **more) is None
    steps = [int(file.stem[5:]) for file in (tmp_path / "checkpoints").glob("step-*.pt")]
    assert sorted(steps) == [4, 5, 8, 10, 12]


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    """A finished run of digits with two checkpoints, whose backbone is not written yet."""
    run = tmp_path_factory.mktemp("stopped") / "run"
    assert call(*command(run))[0] == 0
    (run / "backbone.safetensors").unlink()
    return run


def command(run):
    words = "pretrain digits.dcl --epochs 2 --batch 700 --device cpu --set train.checkpoint_every=1"
    return [*words.split(), "--out", run]


@pytest.fixture
def run(stopped, tmp_path):
    shutil.copytree(stopped, tmp_path / "run")
    return tmp_path / "run"


def rewrite(run, change):
    """Change the content of all checkpoints, as someone else's program might have written them."""
    for file in (run / "checkpoints").glob("*.pt"):
        content = change(torch.load(file, weights_only=True))
        file.unlink()
        torch.save(content, file)
    for file in (run / "checkpoints").glob("*.sum"):
        file.unlink()


def without(name):
    return lambda content: {key: value for key, value in content.items() if key != name}


def with_entry(name, value):
    return lambda content: content | {name: value}


def shorter_momentum(content):
    for state in content["optim"]["network"]["state"].values():
        state["momentum_buffer"] = torch.zeros(3)
    return content


ODD = {
    "a list": lambda content: [1, 2],
    "None": lambda content: None,
    "a number": lambda content: 7,
    "nothing": lambda content: {},
    "no step": without("step"),
    "no learner": without("learner"),
    "no optimiser": without("optim"),
    "no generator": without("torch"),
    "a step of text": with_entry("step", "4"),
    "a negative step": with_entry("step", -4),
    "a list of weights": with_entry("learner", [1]),
    "weights of text": with_entry("learner", {"a": "b"}),
    "other weights": with_entry("learner", {"a": torch.zeros(3)}),
    "an odd health": with_entry("health", {"note": 2}),
    "a health of text": with_entry("health", {"rows": "many"}),
    "a list of health": with_entry("health", [1]),
    "an infinite health": with_entry("health", {"rows": 1, "level": float("inf")}),
    "a health of NaN": with_entry("health", {"rows": 1, "level": NAN}),
    "an odd optimiser": with_entry("optim", {"network": {"state": 3}}),
    "a list of optimisers": with_entry("optim", [3]),
    "short momentum": shorter_momentum,
    "an odd generator": with_entry("torch", torch.zeros(3)),
    "an odd format": with_entry("format", "two"),
    "an odd number of images": with_entry("images", "many"),
}


@pytest.fixture(scope="module")
def unfinished(tmp_path_factory):
    """A run of noise whose backbone is not written yet."""
    run = tmp_path_factory.mktemp("unfinished") / "run"
    assert train(run, Net(), epochs=2) is None
    (run / "backbone.safetensors").unlink()
    return run


def checkpoints(run):
    return {file: file.read_bytes() for file in (run / "checkpoints").iterdir()}


@pytest.mark.parametrize("kind", ODD)
def test_a_checkpoint_with_odd_content_is_answered_in_one_sentence(kind, unfinished, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(unfinished, run)
    rewrite(run, ODD[kind])
    files = checkpoints(run)
    error = train(run, Net(), epochs=2)
    assert isinstance(error, ValueError) and "checkpoint" in str(error)
    assert "\n" not in str(error) and status_of(error) == 2
    assert not (run / "backbone.safetensors").exists() and checkpoints(run) == files


@pytest.mark.parametrize("kind", ["a list", "other weights", "an odd health"])
def test_the_command_line_answers_odd_checkpoints_in_one_sentence(kind, run):
    rewrite(run, ODD[kind])
    files = checkpoints(run)
    status, out, err = call(*command(run))
    assert (status, out) == (2, "") and "Traceback" not in err, err
    sentence = err.splitlines()[-1]
    assert sentence.startswith("antipode: ") and "checkpoint" in sentence
    assert not (run / "backbone.safetensors").exists() and checkpoints(run) == files


@pytest.mark.parametrize("damage", ["zeroed", "cut", "empty", "text"])
def test_last_serves_if_all_step_files_are_damaged(damage, run):
    last = run / "checkpoints" / "last.pt"
    copy = last.read_bytes()
    for file in (run / "checkpoints").glob("*.pt"):
        file.unlink()
    for name in ("step-000000002.pt", "step-000000004.pt"):
        damaged = {"zeroed": bytes(len(copy)), "cut": copy[: len(copy) // 2], "empty": b""}
        (run / "checkpoints" / name).write_bytes(damaged.get(damage, b"hello"))
    last.write_bytes(copy)
    status, _, err = call(*command(run))
    assert status == 0, err
    assert (run / "backbone.safetensors").exists()
    assert last.read_bytes() == copy  # it stays the one good checkpoint


def test_the_step_files_serve_if_last_is_damaged(run):
    (run / "checkpoints" / "last.pt").unlink()
    (run / "checkpoints" / "last.pt").write_bytes(b"damaged")
    status, _, err = call(*command(run))
    assert status == 0, err
    assert torch.load(run / "checkpoints" / "last.pt", weights_only=True)["step"] == 4


class Malicious:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


def test_a_malicious_checkpoint_runs_nothing_and_no_one_is_advised_to_run_it(run, tmp_path):
    for file in (run / "checkpoints").iterdir():
        file.unlink()
    torch.save({"step": Malicious(tmp_path / "owned")}, run / "checkpoints" / "last.pt")
    status, out, err = call(*command(run))
    assert (status, out) == (2, "") and not (tmp_path / "owned").exists()
    assert "last.pt" in err.splitlines()[-1] and "Traceback" not in err
    assert "weights_only" not in err and "re-run" not in err and "trust" not in err
    # as a pickle without torch's own format
    (run / "checkpoints" / "last.pt").write_bytes(pickle.dumps(Malicious(tmp_path / "owned")))
    status, out, err = call(*command(run))
    assert (status, out) == (2, "") and not (tmp_path / "owned").exists()
    assert "weights_only" not in err and "re-run" not in err and "trust" not in err


# Kills and signals

CRASH = """import os, sys
from antipode import cli
left = int(sys.argv[1])
plain = os.fsync
def fsync(descriptor):
    global left
    left -= 1
    if left < 0:
        os._exit(9)
    plain(descriptor)
os.fsync = fsync
cli.main(sys.argv[2:])"""


def temporary(run):
    return sorted(str(file.relative_to(run)) for file in run.rglob(".*.tmp"))


@pytest.mark.skipif(sys.platform == "win32", reason="forks")
@pytest.mark.parametrize("name", ["recipe.json", "env.json", "checkpoints/step-000000004.pt"])
def test_what_a_killed_writer_leaves_is_gone_after_the_next_start(name, unfinished, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(unfinished, run)
    child = os.fork()
    if not child:
        with atomic_write(run / name) as file:
            file.write(b"half of ")
            os._exit(9)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    assert len(temporary(run)) == 1
    assert train(run, Net(), epochs=2) is None
    assert temporary(run) == []


@pytest.mark.slow
def test_a_kill_while_a_file_is_written_leaves_nothing_after_the_next_start(tmp_path):
    """The file that is written first is recipe.json."""
    run = tmp_path / "run"
    crash = [sys.executable, "-c", CRASH, "0", *map(str, command(run))]
    assert subprocess.run(crash, check=False, capture_output=True).returncode == 9
    assert len(temporary(run)) == 1
    assert call(*command(run))[0] == 0
    assert temporary(run) == []


class Slow(Net):
    """Takes three seconds in a single operation, during which Python handles no signals."""

    def __init__(self):
        super().__init__()
        begun = time.thread_time()  # other work on the machine must not shorten the step
        hashlib.pbkdf2_hmac("sha256", b"", b"", 100_000)
        self.rounds = int(100_000 * 3 / (time.thread_time() - begun))

    def forward(self, x):
        if torch.is_grad_enabled() and self.training:
            hashlib.pbkdf2_hmac("sha256", b"", b"", self.rounds)
            self.ended = time.monotonic()
        return super().forward(x)


class Clocked(io.StringIO):
    """Notes when a text was first written."""

    first = None

    def write(self, text):
        self.first = self.first or time.monotonic()
        return super().write(text)


def test_a_slow_step_is_announced_at_once_when_the_run_is_told_to_stop(tmp_path, monkeypatch):
    """At 224 pixels on a CPU, a step may take longer than a scheduler waits."""
    net = Slow()
    err = Clocked()
    monkeypatch.setattr(sys, "stderr", err)
    prepare = Slow.forward

    def forward(self, x):
        if self.training and torch.is_grad_enabled():
            threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGTERM)).start()
        return prepare(self, x)

    monkeypatch.setattr(Slow, "forward", forward)
    error = train(tmp_path, net)
    sentence = err.getvalue()
    assert re.search("SIGTERM received: .* after step 1 of 12, .*checkpoint", sentence), sentence
    assert err.first < net.ended  # while the step was still being computed
    assert status_of(error) == 130 and "stopped after step 1 of 12" in str(error)
    assert (tmp_path / "checkpoints" / "step-000000001.pt").exists()
