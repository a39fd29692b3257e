"""The benchmark of the time to 90 % kNN accuracy: how it divides the time, and that it runs."""

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BATCH = 10


@pytest.fixture
def speedrun(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    return importlib.import_module("speedrun")


def rows(*seconds, every=100):
    """Rows of metrics.jsonl whose steps took the given seconds; the first row is step 0."""
    counts = [1, *[every] * (len(seconds) - 1)]
    steps = [every * index for index in range(len(seconds))]
    return [
        {"step": step, "loss": 1.0, "images_per_second": count * BATCH / time}
        for step, count, time in zip(steps, counts, seconds, strict=True)
    ]


@pytest.mark.parametrize(
    ("seconds", "compilation"),
    [
        ([0.1, 10, 10, 10], 0.0),  # an even pace
        ([30.1, 14, 10, 10], 34.0),  # 30 s in the first step and 4 s in the next 100
        ([30.1, 14, 10, 40], 34.0),  # later steps may be slower, with larger views
        ([0.05, 5, 10, 10], 0.0),  # never negative
        ([30.1, 14], 0.0),  # too few rows to tell
    ],
)
def test_the_parts_of_the_training_time_add_up(speedrun, seconds, compilation):
    whole = sum(seconds) + 3
    parts = speedrun.training_seconds(rows(*seconds), BATCH, whole)
    assert parts["compile"] == pytest.approx(compilation)
    assert parts["prepare"] == pytest.approx(3)
    assert sum(parts.values()) == pytest.approx(whole)


def line(value, *, seed=0, held_out=False):
    setting = {"recipe": "cifar10.byol", "epochs": 9, "batch": None, "set": [], "warm": False}
    facts = {"device": "a GPU", "commit": "0", "held_out": held_out}
    score = {"value": value}
    return {"seed": seed, "score": score, "seconds": {"train": 2.0, "all": 3.0}} | setting | facts


def test_the_seeds_of_a_setting_are_one_row_and_test_scores_stay_apart(speedrun):
    lines = [line(89.9), line(90.3, seed=1), line(95, held_out=True)]
    test, held_out = speedrun.table(lines)
    assert "(seeds 0 1; a GPU): 90.10 ± 0.28 % on test images, 90 % reached" in test
    assert "95.00 % on held-out images" in held_out
    assert "missed" in speedrun.table(lines[:1])[0]


@pytest.mark.slow
@pytest.mark.parametrize("options", [(), ("--hold-out",)])
def test_a_seed_is_measured_from_the_start_of_its_process(tmp_path, options):
    out = tmp_path / "lines.jsonl"
    recipe = ["--recipe", "digits.dcl", "--epochs", "1", "--set", "backbone.name=resnet10-slim"]
    command = [sys.executable, "benchmarks/speedrun.py", *recipe, *options, "--out", str(out)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    subprocess.run(command, cwd=ROOT, env=environment, check=True, capture_output=True)
    (text,) = out.read_text().splitlines()
    content = json.loads(text)
    seconds = content["seconds"]
    whole = seconds.pop("all")
    assert sum(seconds.values()) == pytest.approx(whole)
    assert min(seconds.values()) >= 0
    assert content["score"]["protocol"] == "knn10"
    assert content["score"]["n"] == (144 if options else 360)
    assert content["values"]["backbone.name"] == "resnet10-slim"
    assert {"commit", "torch", "device", "cores", "date"} <= content.keys()
