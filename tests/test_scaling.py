"""The model of the step on many GPUs, and the tables of docs/scaling.md that it prints."""

import importlib.util
import sys
from dataclasses import replace
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def model():
    path = ROOT / "benchmarks" / "scaling_model.py"
    spec = importlib.util.spec_from_file_location("scaling_model", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


def test_the_tables_of_the_page_are_those_of_the_model(model):
    page = (ROOT / "docs" / "scaling.md").read_text()
    for work in (model.WORKS[0], model.WORKS[2]):
        assert model.markdown(model.table(work, model.Machine(), 64)) in page, work.name


def test_one_gpu_waits_for_nobody_and_more_gpus_never_gain_efficiency(model):
    for work in model.WORKS:
        rows = model.table(work, model.Machine(), 64)
        assert rows[0]["step"] == rows[0]["compute"] and rows[0]["efficiency"] == 1
        shares = [row["efficiency"] for row in rows]
        assert shares == sorted(shares, reverse=True)


def test_the_switches_of_the_page_help_as_it_says(model):
    over_ranks, per_rank, shuffled, plain, per_node, eight = model.WORKS
    machine = model.Machine()
    assert model.limit(model.table(over_ranks, machine, 64)) == 16
    assert model.table(per_rank, machine, 64)[-1]["efficiency"] > 0.9
    of_nodes = model.table(per_node, machine, 64)
    assert of_nodes[1] == model.table(over_ranks, machine, 64)[1]  # one node
    assert of_nodes[-1]["statistics"] == of_nodes[1]["statistics"]
    assert 0.8 < of_nodes[-1]["efficiency"] < 0.85
    assert model.limit(model.table(shuffled, machine, 64)) == 16
    of_eight = model.table(eight, machine, 64)
    assert [row["statistics"] for row in of_eight[:2]] == [0, 0]  # a group for each GPU
    assert [round(of_eight[at]["statistics"], 1) for at in (2, 4, -1)] == [2.6, 3.5, 10.7]
    assert model.limit(model.table(plain, machine, 64)) == 1024
    few, many = (model.table(over_ranks, machine, share)[-1] for share in (32, 256))
    assert many["efficiency"] > few["efficiency"] and many["statistics"] == few["statistics"]


def test_a_sum_takes_the_time_of_its_bytes_on_a_slow_network(model):
    """On two nodes, 1 GB travels 2 x 15/16 times at the bandwidth of a node."""
    machine = replace(model.Machine(), outside=1e9)
    seconds = machine.all_reduce(1e9, 16)
    assert seconds == pytest.approx(2 * 15 / 16 / 8, rel=0.01)
