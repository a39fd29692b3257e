"""On a GPU steps are compiled and captured: a resumed run must still equal an uninterrupted one."""

import os
import signal

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import antipode
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
