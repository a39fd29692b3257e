"""On a GPU steps are compiled and captured: a resumed run must still equal an uninterrupted one."""

import os
import signal

import pytest
import torch
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
