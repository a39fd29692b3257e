"""Tests of counting parameters, operations and bytes, and of timing."""

import time

import pytest
import torch
from torch import nn

from antipode.analysis import cost
from antipode.core.scores import unit
from antipode.papers.jcl.analyses import closed_form, vanilla
from antipode.training.build import build
from tests.reference import jcl as reference
from tests.toys import Tiny
from tests.training.test_resume import small_recipe, small_splits

CPU = torch.device("cpu")


def vectors(m, n=6, k=40, d=5):
    query, negatives = (unit(torch.randn(count, d, dtype=torch.float64)) for count in (n, k))
    return query.requires_grad_(), unit(torch.randn(m, n, d, dtype=torch.float64)), negatives


def test_parameters_are_counted_once_and_none_is_none():
    net = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 4), nn.BatchNorm1d(4))
    net.append(net[1])
    assert cost.parameters(net) == 3 * 4 + 4 + 4 * 4 + 4 + 4 + 4
    assert cost.parameters(None) == 0


def test_operations_of_a_convolution_are_two_for_each_product():
    layer = nn.Conv2d(3, 8, 3, padding=1, bias=False)
    assert cost.operations(layer, (3, 10, 10)) == 2 * 3 * 8 * 9 * 100


def test_both_forms_are_the_references():
    query, keys, negatives = vectors(4)
    found = (
        closed_form(query, keys, negatives, 0.2, 4.0),
        vanilla(query, keys, negatives, 0.2),
    )
    naive = (
        reference.loss(query, keys, negatives, 0.2, 4.0),
        reference.vanilla(query, keys, negatives, 0.2),
    )
    for one, other in zip(found, naive, strict=True):
        assert one.item() == pytest.approx(other.item(), abs=1e-12)


def test_with_one_key_both_forms_are_one():
    query, keys, negatives = vectors(1)
    one = closed_form(query, keys, negatives, 0.2, 4.0)
    assert one.item() == pytest.approx(vanilla(query, keys, negatives, 0.2).item(), abs=1e-12)


def test_memory_of_the_vanilla_loss_grows_with_its_keys_and_that_of_the_closed_form_hardly():
    """Each product with the negatives keeps one matrix of scores (N,K)."""
    kept = {}
    for m in (1, 3, 9):
        some = vectors(m, n=8, k=500, d=4)
        kept[m] = [
            cost.kept_bytes(lambda some=some: closed_form(*some, 0.2, 4.0), *some),
            cost.kept_bytes(lambda some=some: vanilla(*some, 0.2), *some),
        ]
    matrix = 8 * 500 * 8  # bytes
    assert kept[9][0] - kept[1][0] < 0.2 * matrix
    assert kept[9][1] - kept[1][1] > 8 * matrix
    assert kept[3][1] - kept[1][1] == pytest.approx((kept[9][1] - kept[1][1]) / 4, rel=0.05)


def test_kept_bytes_leave_out_what_was_given():
    x = torch.randn(100, requires_grad=True)
    assert cost.kept_bytes(lambda: torch.dot(x, x), x) == 0
    assert cost.kept_bytes(lambda: torch.exp(x).sum(), x) == 400  # exp keeps its result


def test_seconds_is_the_median_without_the_first():
    waits = iter([0.2, 0.001, 0.1, 0.001])
    assert cost.seconds(lambda: time.sleep(next(waits)), CPU, repeats=3) < 0.05


def test_steps_of_training_are_timed_and_a_run_that_is_too_short_is_refused():
    recipe, splits = small_recipe("dcl"), small_splits()  # ten steps with batches of 16
    found = cost.measure_steps(build(recipe, splits, Tiny()), 4, 2)
    assert found.images_per_second > 0 and found.peak is None and found.others == 0
    with pytest.raises(ValueError, match=r"only 10 steps, .* 8 steps after 3 steps of warm-up"):
        cost.measure_steps(build(recipe, splits, Tiny()), 8, 3)


def test_the_clock_starts_after_a_bank_is_full(monkeypatch):
    recipe = small_recipe("adco", **{"method.bank": 60, "method.fill": True, "train.epochs": 4})
    setup = build(recipe, small_splits(), Tiny())  # four steps of 16 fill the bank
    steps = []

    def now(device):
        steps.append(int(setup.learner.step))
        return float(len(steps))

    monkeypatch.setattr(cost, "_now", now)
    speed = cost.measure_steps(setup, 3, 2).images_per_second
    assert steps == [4 + 1, 4 + 1 + 3]  # the step that fills the bank is the first of the warm-up
    assert speed == 3 * 16


def test_device_hours_are_the_table_s_unit():
    """53 hours on 8 GPUs for 200 epochs of ImageNet give the 2.12 of AdCo's table 5."""
    images = 1_281_167
    speed = images * 200 / (53 * 3600)
    assert cost._pace(speed, images, 8)["device-hours per epoch"] == pytest.approx(2.12)
