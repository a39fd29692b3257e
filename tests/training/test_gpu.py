"""On a GPU steps are compiled and captured: a resumed run must still equal an uninterrupted one."""

import os
import signal
import warnings

import numpy as np
import pytest
import torch
import torch.distributed as process
from PIL import Image
from safetensors.torch import load_file
from torch import nn

import antipode
from antipode.training.build import Setup
from antipode.training.graph import Slower
from antipode.training.record import Interrupted, Recorder

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device"),
    pytest.mark.xdist_group("gpu"),
]


def trained(method, out):
    torch.compiler.reset()
    values = {"train.deterministic": True, "train.epochs": 4}
    return antipode.pretrain(
        f"digits.{method}", out=out, device="cuda", overrides=values, quiet=True
    )


class ReadsBack(nn.Module):
    """A network that reads a value back from the device."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 16, 3, 2, 1)

    def forward(self, x):
        x = self.conv(x).relu().mean((2, 3))
        return x * 2 if x.mean().item() > 0 else x


def test_a_network_that_can_be_neither_compiled_nor_captured_trains_all_the_same(tmp_path):
    torch.compiler.reset()
    with pytest.warns(Slower, match="training continues without it") as caught:
        run = antipode.pretrain(
            method="simclr",
            data="shapes",
            backbone=ReadsBack(),
            epochs=1,
            out=tmp_path,
            device="cuda",
            quiet=True,
        )
    text = " ".join(str(warning.message) for warning in caught)
    assert "compiling the learner failed" in text
    assert "capturing the step as a CUDA graph failed" in text
    assert (run.path / "backbone.safetensors").exists() and run.metrics()[-1]["loss"] > 0


@pytest.mark.parametrize("method", ["dcl", "adco", "mocov2", "byol"])
def test_a_cut_run_continues_bit_for_bit(method, tmp_path, monkeypatch):
    whole = trained(method, tmp_path / "whole")
    plain = Recorder.note

    def cut(recorder, step, *rest):
        plain(recorder, step, *rest)
        if step == 30:  # in the middle of the second epoch
            os.kill(os.getpid(), signal.SIGTERM)

    with monkeypatch.context() as patch, pytest.raises(Interrupted):
        patch.setattr(Recorder, "note", cut)
        trained(method, tmp_path / "cut")
    cut_run = trained(method, tmp_path / "cut")
    a, b = (load_file(run.path / "backbone.safetensors") for run in (whole, cut_run))
    assert all(torch.equal(a[name], b[name]) for name in a)
    assert [row["loss"] for row in whole.metrics()] == [row["loss"] for row in cut_run.metrics()]


class Switched(nn.Module):
    """A network whose output is multiplied by a number on the device."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 16, 3, 2, 1)
        self.bn = nn.BatchNorm2d(16)
        self.register_buffer("factor", torch.ones(()))

    def forward(self, x):
        return self.bn(self.conv(x)).relu().mean((2, 3)) * self.factor


@pytest.mark.parametrize("method", ["dcl", "mocov2", "byol", "adco", "npid"])
def test_a_step_that_is_not_finite_changes_nothing(method, tmp_path, monkeypatch):
    """Step 1 is compiled only; the others are replays of a captured step."""
    torch.compiler.reset()
    bad = (1, 10, 11, 15)
    prepare = Setup.prepare
    note = Recorder.note
    states = {}

    def switched(setup, step):
        buffers = dict(setup.learner.online.named_buffers()).items()
        (factor,) = (value for name, value in buffers if name.endswith("factor"))
        factor.fill_(torch.nan if step in bad else 1.0)
        return prepare(setup, step)

    def kept(recorder, step, *rest):
        note(recorder, step, *rest)
        state = recorder.setup.learner.state_dict()
        states[step] = {name: value.clone() for name, value in state.items()}
        for name, optim in recorder.setup.optims.items():
            for at, kept_for in enumerate(optim.state.values()):
                for key, value in kept_for.items():
                    states[step][f"{name} {at} {key}"] = value.clone()

    monkeypatch.setattr(Setup, "prepare", switched)
    monkeypatch.setattr(Recorder, "note", kept)
    small = {"adco": {"method.bank": 512}, "mocov2": {"method.queue": 512}}.get(method, {})
    with pytest.warns(UserWarning, match="had a loss or a gradient that is not finite"):
        run = antipode.pretrain(
            method=method,
            data="shapes",
            backbone=Switched(),
            epochs=1,
            out=tmp_path,
            device="cuda",
            overrides={"monitor.log_every": 1, **small},
            quiet=True,
        )
    varying = ("step", "factor", "pace")  # the number of the step, our switch, the twin's schedule
    for step in range(1, len(states)):
        before, after = states[step - 1], states[step]
        changed = [name for name in after if not torch.equal(before[name], after[name])]
        changed = [name for name in changed if name.split(".")[-1] not in varying]
        assert bool(changed) == (step not in bad), (step, changed)
    assert [row.get("skipped", 0) for row in run.metrics()][-1] == len(bad)


@pytest.mark.parametrize("method", ["dcl", "adco", "mocov2", "byol"])
def test_the_check_changes_no_bit_of_finite_steps(method, tmp_path, monkeypatch):
    checked = trained(method, tmp_path / "checked")
    run = Setup.run

    def unchecked(setup, start):
        setup.step.checks = False
        return run(setup, start)

    monkeypatch.setattr(Setup, "run", unchecked)
    plain = trained(method, tmp_path / "plain")
    a, b = (load_file(run.path / "backbone.safetensors") for run in (checked, plain))
    assert all(torch.equal(a[name], b[name]) for name in a)
    assert [row["loss"] for row in checked.metrics()] == [row["loss"] for row in plain.metrics()]


WHOLE = {"train.accumulate": 4, "train.negatives": "batch", "train.deterministic": True}


def losses(out, **values):
    """Return the losses of a short run in float32."""
    torch.compiler.reset()
    settings = {"train.epochs": 2, "train.precision": "fp32", "monitor.log_every": 1, **values}
    method = settings.pop("method", "dcl")
    run = antipode.pretrain(
        f"digits.{method}", out=out, device="cuda", overrides=settings, quiet=True
    )
    return [row["loss"] for row in run.metrics()]


@pytest.mark.parametrize("method", ["dcl", "adco", "mocov2", "byol"])
def test_parts_with_the_loss_of_the_whole_batch_are_captured_and_equal_plain_steps(
    method, tmp_path
):
    with warnings.catch_warnings():
        warnings.simplefilter("error", Slower)
        fast = losses(tmp_path / "fast", method=method, **WHOLE)
    plain = losses(tmp_path / "plain", method=method, **WHOLE, **{"train.compile": "off"})
    assert fast[:12] == pytest.approx(plain[:12], rel=2e-3)
    assert losses(tmp_path / "again", method=method, **WHOLE) == fast


def test_a_network_with_dropout_trains_in_parts_without_a_capture(tmp_path):
    torch.compiler.reset()
    net = nn.Sequential(nn.Conv2d(3, 16, 3, 2, 1), nn.Dropout(0.5), nn.ReLU(), nn.Flatten())
    net.append(nn.Linear(16 * 16 * 16, 32))
    with pytest.warns(Slower, match="draws random numbers"):
        antipode.pretrain(
            method="simclr",
            data="shapes",
            backbone=net,
            epochs=1,
            out=tmp_path,
            device="cuda",
            overrides=WHOLE,
            quiet=True,
        )


@pytest.fixture
def alone(tmp_path):
    """A group of one rank, which uses all collectives."""
    store = f"file://{tmp_path / 'store'}"
    process.init_process_group("nccl", init_method=store, rank=0, world_size=1)
    yield
    process.destroy_process_group()


@pytest.mark.parametrize("values", [{}, WHOLE], ids=["at once", "in parts"])
@pytest.mark.parametrize("method", ["dcl", "adco", "mocov2", "byol"])
def test_a_step_with_collectives_is_compiled_and_captured(alone, method, values, tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("error", Slower)
        grouped = losses(tmp_path / "grouped", method=method, **values)
    plain = losses(tmp_path / "plain", method=method, **values, **{"train.compile": "off"})
    assert grouped[:12] == pytest.approx(plain[:12], rel=2e-3)


@pytest.fixture
def photos(tmp_path):
    """A folder of images of different sizes, which are decoded by workers."""
    random = np.random.default_rng(0)
    (tmp_path / "photos").mkdir()
    for number in range(192):
        shape = (40 + number % 9, 50 - number % 7, 3)
        pixels = Image.fromarray(random.integers(0, 256, shape, dtype=np.uint8))
        pixels.save(tmp_path / "photos" / f"{number:03d}.jpg")
    return tmp_path / "photos"


def from_files(photos, out, **values):
    """Return the losses of a run on decoded images."""
    torch.compiler.reset()
    settings = {"monitor.log_every": 1, "train.precision": "fp32", "train.deterministic": True}
    settings |= {"views.size": 32, "method.queue": 64, "data.workers": 2, "train.batch": 32}
    run = antipode.pretrain(
        method="mocov2",
        data=photos,
        backbone="resnet18",
        epochs=3,
        out=out,
        device="cuda",
        overrides=settings | values,
        quiet=True,
    )
    return [row["loss"] for row in run.metrics()]


def test_a_step_from_decoded_images_is_captured_and_equals_the_plain_one(photos, tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("error", Slower)
        fast = from_files(photos, tmp_path / "fast")
    plain = from_files(photos, tmp_path / "plain", **{"train.compile": "off"})
    assert fast[:10] == pytest.approx(plain[:10], rel=5e-3)
    assert from_files(photos, tmp_path / "again", **{"data.workers": 1}) == fast


@pytest.mark.parametrize("decoder", ["cpu", "gpu", "both"])
def test_a_cut_run_on_decoded_images_continues_bit_for_bit(photos, tmp_path, monkeypatch, decoder):
    values = {"data.decoder": decoder}
    whole = from_files(photos, tmp_path / "whole", **values)
    plain = Recorder.note

    def cut(recorder, step, *rest):
        plain(recorder, step, *rest)
        if step == 8:  # in the middle of the second epoch
            os.kill(os.getpid(), signal.SIGTERM)

    with monkeypatch.context() as patch, pytest.raises(Interrupted):
        patch.setattr(Recorder, "note", cut)
        from_files(photos, tmp_path / "cut", **values)
    assert from_files(photos, tmp_path / "cut", **values) == whole
