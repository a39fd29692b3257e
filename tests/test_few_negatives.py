"""The losses of benchmarks/few_negatives.py have the bias and the noise that it says."""

import importlib
import json
import sys
from pathlib import Path

import pytest
import torch

from antipode import rng
from antipode.core.loss import eqco
from antipode.core.negatives import InBatch
from antipode.core.objective import Contrast
from antipode.core.scores import unit
from antipode.types import Pair

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
TAU, ALPHA = 0.2, 256.0


@pytest.fixture
def script(monkeypatch):
    monkeypatch.setattr(sys, "path", [str(BENCHMARKS), *sys.path])
    return importlib.import_module("few_negatives")


def random_pair(images=32):
    """Return random queries and keys in float64."""
    draws = torch.Generator().manual_seed(0)
    query, keys = unit(torch.randn(2, images, 8, generator=draws, dtype=torch.float64))
    ids = 7 * torch.arange(images)
    return Pair(query, keys[None], ids, keys, ids, rng.key(3))


@pytest.mark.parametrize("k", [1, 2, 3])
def test_the_mean_gradient_over_all_draws_is_that_of_all_negatives(script, k):
    deviations = script.deviations(images=7, k=k)
    assert deviations["weighted"] < 1e-9
    assert deviations["corrected"] < 1e-9


def test_the_paper_s_draw_and_its_mean_have_the_same_bias(script):
    deviations = script.deviations(images=7, k=3)
    assert deviations["drawn"] > 1e-2
    assert deviations["averaged"] == pytest.approx(deviations["drawn"], rel=1e-9)


@pytest.mark.parametrize(
    ("way", "subset", "shared"), [("all", None, True), ("drawn", 5, True), ("own", 5, False)]
)
def test_a_published_way_is_simo_with_the_same_draw(script, way, subset, shared):
    pair = random_pair()
    pool = InBatch("pair", subset=subset, shared=shared)
    simo = Contrast(pool, tau=TAU, margin=eqco(ALPHA))
    loss, _ = script.Estimate(way, 5, 32, TAU, ALPHA)(pair)
    assert loss.item() == pytest.approx(simo(pair)[0].item(), abs=1e-12)


def test_all_ways_are_the_same_with_all_negatives(script):
    pair = random_pair()
    ways = [way for way in script.WAYS if way != "weighted"]  # equal in its gradient only
    values = [script.Estimate(way, 31, 32, TAU, ALPHA)(pair)[0].item() for way in ways]
    assert values == pytest.approx([values[0]] * len(values), abs=1e-12)


def test_bias_and_noise_are_told_apart(script):
    """Draws of nine tenths of a gradient plus noise give a bias of a tenth, whatever the noise."""
    whole = torch.tensor([3.0, 4.0], dtype=torch.float64)
    shift = torch.tensor([0.0, 0.5], dtype=torch.float64)  # the noise left in the mean of 4 draws
    means = [0.9 * whole + shift, 0.9 * whole - shift]
    samples = [script.Sample(whole, mean, variance=1.0, draws=4) for mean in means]
    numbers = script.summarise(samples)
    assert numbers["length"] == pytest.approx(5)
    assert numbers["bias"] == pytest.approx(0.1)
    assert numbers["scale"] == pytest.approx(0.9)
    assert numbers["noise"] == pytest.approx(0.2)


def line(way, negatives, seed, knn):
    scores = {"knn": {"value": knn}, "linear-fast": {"value": knn + 5}}
    setting = {"network": "resnet18", "stem": "small", "epochs": 1, "batch": 256, "device": "cpu"}
    start = {"kind": "run", "way": way, "negatives": negatives, "seed": seed}
    return start | setting | {"scores": scores}


def test_differences_are_between_runs_of_the_same_seed(script):
    """A seed without a run of `all` counts in the mean only."""
    lines = [line("all", 255, 0, 60.0), line("all", 255, 1, 62.0)]
    lines += [line("drawn", 16, seed, knn) for seed, knn in enumerate((59.0, 60.0, 70.0))]
    assert script.run_rows(lines) == [
        "| 255 | all | 0 1 | 61.00 ± 1.41 |  | 66.00 ± 1.41 |  |",
        "| 16 | drawn | 0 1 2 | 63.00 ± 6.08 | -1.50 ± 0.71 | 68.00 ± 6.08 | -1.50 ± 0.71 |",
    ]


def test_a_finished_run_is_recognised(script, tmp_path, monkeypatch):
    options = ["--epochs", "1", "--negatives", "4", "16", "--ways", "all", "drawn"]
    monkeypatch.setattr(sys, "argv", ["few_negatives.py", *options])
    wanted = script.wanted(script.read_arguments())
    assert [(one["way"], one["negatives"]) for one in wanted] == [
        *(("all", 255), ("drawn", 4), ("drawn", 16))  # `all` does not depend on K
    ]
    file = tmp_path / "lines.jsonl"
    file.write_text(json.dumps(line("drawn", 4, 0, 60.0)) + "\n")
    assert [script.identity(one) for one in script.read_lines(file)] == [script.identity(wanted[1])]
