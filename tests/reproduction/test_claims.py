"""The runs of the claims: when they stop, and in which order they are tried."""

import importlib
import signal
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from antipode.devices import pick_device

ROOT = Path(__file__).parents[2]


@pytest.fixture
def claims(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    module = importlib.import_module("claims")
    monkeypatch.setattr(module, "BEGAN", time.monotonic())
    return module


def run_in(folder):
    planned = SimpleNamespace(folder=folder, label=folder.name, work=1.0)
    return SimpleNamespace(planned=planned)


def test_the_runs_stop_in_time_also_if_sigint_is_ignored(claims, tmp_path, monkeypatch, capsys):
    """As it is for a command that a script has started in the background."""
    monkeypatch.setattr(claims, "perform", lambda tasks, at_once: time.sleep(20))
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        claims.train_all([], 1, 0.0, tmp_path / "out")
    finally:
        signal.signal(signal.SIGINT, before)
    assert "resumes the runs" in capsys.readouterr().out


def test_runs_that_have_failed_are_tried_after_the_others(claims, tmp_path, monkeypatch):
    def fail(*arguments):
        raise RuntimeError("CUDA error")

    runs = [run_in(tmp_path / name) for name in "ab"]
    monkeypatch.setattr(claims, "finish", fail)
    with pytest.raises(RuntimeError):
        claims.attempt(runs[0], 1, tmp_path / "out", True)
    assert (tmp_path / "a" / claims.FAILED).read_text() == "RuntimeError: CUDA error\n"
    labels = []
    monkeypatch.setattr(
        claims, "perform", lambda tasks, at_once: labels.extend(t.label for t in tasks) or {}
    )
    claims.train_all(runs, 1, 1.0, tmp_path / "out")
    assert labels == ["b", "a"]


def test_runs_use_the_device_of_the_call_and_no_other(claims, tmp_path):
    runs = claims.wanted_runs(["eqco.fig3"], 1, tmp_path)
    name = pick_device("auto").type
    assert {run.plan.device for run in runs} == {name}
    assert {run.planned.recipe.train.device for run in runs if run.planned.recipe} == {name}
