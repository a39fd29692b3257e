"""Benchmarks that choose settings train without the held-out images and never see test images."""

import importlib
import sys
from pathlib import Path

import pytest
import torch

import antipode
from antipode.analysis import run as analyses
from antipode.data.sources.catalog import load
from antipode.recipe import opening
from antipode.runs import run as runs
from antipode.training import pretrain as training

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture
def held_out(monkeypatch):
    """Hold out images as benchmarks/accuracy.py does, and undo it afterwards."""
    for module in (opening, training, runs, analyses):
        monkeypatch.setattr(module, "load", module.load)
    monkeypatch.setattr(sys, "path", [str(BENCHMARKS), *sys.path])
    importlib.import_module("accuracy").hold_out()


def test_a_tenth_of_the_train_images_takes_the_place_of_the_test_images(held_out, tmp_path):
    whole = load("digits")
    values = {"train.epochs": 1, "backbone.name": "resnet10-slim", "monitor.log_every": 1}
    run = antipode.pretrain("digits.dcl", out=tmp_path, batch=100, overrides=values, quiet=True)
    count = len(whole.train)
    kept = count - len(range(0, count, 10))
    assert run.metrics()[-1]["step"] + 1 == kept // 100  # one epoch of the images that are left
    splits = run.splits()
    assert len(splits.pretrain) == len(splits.train) == kept
    ids = torch.arange(0, count, 10)
    assert torch.equal(splits.test.labels, whole.train.labels[ids])
