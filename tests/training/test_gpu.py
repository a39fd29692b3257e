"""On a GPU the engine compiles and captures: a run that is cut must still end as one that is not."""

import os
import signal

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import antipode
from antipode.training.record import Interrupted, Recorder
from antipode.training.step import Slower

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


class Asks(nn.Module):
    """A network that wants to know on the host what a tensor holds."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 16, 3, 2, 1)

    def forward(self, x):
        x = self.conv(x).relu().mean((2, 3))
        return x * 2 if x.mean().item() > 0 else x


def test_a_network_that_can_be_neither_compiled_nor_captured_trains_all_the_same(tmp_path):
    torch.compiler.reset()
    with pytest.warns(Slower, match="training goes on without it") as told:
        run = antipode.pretrain(
            method="simclr",
            data="shapes",
            backbone=Asks(),
            epochs=1,
            out=tmp_path,
            device="cuda",
            quiet=True,
        )
    output = " ".join(str(one.message) for one in told)
    assert (
        "compiling the learner failed" in output
        and "capturing the step as a CUDA graph failed" in output
    )
    assert (run.path / "backbone.safetensors").exists() and run.metrics()[-1]["loss"] > 0


@pytest.mark.parametrize("method", ["dcl", "adco", "mocov2", "byol"])
def test_a_cut_run_continues_bit_for_bit(method, tmp_path, monkeypatch):
    whole, plain = trained(method, tmp_path / "whole"), Recorder.note

    def cut(book, step, *rest):
        plain(book, step, *rest)
        if step == 30:  # in the middle of the second epoch
            os.kill(os.getpid(), signal.SIGTERM)

    with monkeypatch.context() as patch, pytest.raises(Interrupted):
        patch.setattr(Recorder, "note", cut)
        trained(method, tmp_path / "cut")
    cut_run = trained(method, tmp_path / "cut")
    a, b = (load_file(run.path / "backbone.safetensors") for run in (whole, cut_run))
    assert all(torch.equal(a[name], b[name]) for name in a)
    assert [row["loss"] for row in whole.metrics()] == [row["loss"] for row in cut_run.metrics()]
