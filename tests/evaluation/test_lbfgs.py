"""Tests of L-BFGS: the minimum of convex functions, few evaluations, and when it ends."""

import pytest
import torch

from antipode.evaluation import lbfgs
from antipode.evaluation.lbfgs import Pairs, minimise


def bowl(width, condition, seed=0):
    """Return a quadratic function with a random centre, the centre, and a list of evaluations."""
    generator = torch.Generator().manual_seed(seed)
    centre = torch.randn(width, generator=generator, dtype=torch.float64)
    curvature = torch.logspace(0, -condition, width, dtype=torch.float64)
    evaluated = []

    def function(point):
        evaluated.append(point)
        offset = point - centre
        return (curvature * offset**2).sum() / 2, curvature * offset

    return function, centre, evaluated


@pytest.mark.parametrize("condition", [0, 2, 4])
def test_it_finds_the_bottom_of_a_bowl(condition, monkeypatch):
    monkeypatch.setattr(lbfgs, "GAIN", 0.0)
    function, centre, evaluated = bowl(50, condition)
    start = torch.zeros(50, dtype=torch.float64)
    point = minimise(function, start, tolerance=1e-7, steps=500)
    assert function(point)[1].abs().max() <= 1e-7
    assert (point - centre).abs().max() <= 1e-7 * 10**condition
    assert len(evaluated) < 20 + 10 * 10 ** (condition / 2)  # the root of the condition number


def test_it_is_newtons_minimum_of_a_function_that_is_no_bowl():
    x = torch.randn(200, 8, generator=torch.Generator().manual_seed(1), dtype=torch.float64)

    def function(point):
        heights = (x @ point - 1).exp()
        return heights.mean() + (point**2).sum() / 100, x.T @ heights / 200 + point / 50

    theirs = torch.zeros(8, dtype=torch.float64)
    for _ in range(20):
        hessian = (x.T * (x @ theirs - 1).exp()) @ x / 200 + torch.eye(8) / 50
        theirs = theirs - torch.linalg.solve(hessian, function(theirs)[1])
    ours = minimise(function, torch.zeros(8, dtype=torch.float64), tolerance=1e-8, steps=200)
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


def test_directions_are_those_of_the_two_loop_recursion():
    generator = torch.Generator().manual_seed(3)
    matrix = torch.randn(30, 30, generator=generator, dtype=torch.float64)
    matrix = matrix @ matrix.T + torch.eye(30, dtype=torch.float64)
    gradient = torch.randn(30, generator=generator, dtype=torch.float64)
    pairs, steps = Pairs(gradient), []
    for _ in range(lbfgs.PAIRS + 3):  # the first ones are forgotten
        step = torch.randn(30, generator=generator, dtype=torch.float64)
        steps.append((step, matrix @ step))
        gradient = gradient + matrix @ step
        pairs.add(step, matrix @ step, gradient)
    q = gradient.clone()
    alphas = []
    for step, change in reversed(steps[-lbfgs.PAIRS :]):
        alphas.append((step @ q) / (step @ change))
        q -= alphas[-1] * change
    step, change = steps[-1]
    q *= (step @ change) / (change @ change)
    for (step, change), alpha in zip(steps[-lbfgs.PAIRS :], reversed(alphas), strict=True):
        q += (alpha - (change @ q) / (step @ change)) * step
    direction, slope = pairs.direction()
    torch.testing.assert_close(direction, -q)
    assert slope == pytest.approx(float(-q @ gradient)) and slope < 0


def test_pairs_without_curvature_are_left_out():
    gradient = torch.ones(4, dtype=torch.float64)
    pairs = Pairs(gradient)
    pairs.add(gradient, -gradient, gradient)
    assert pairs.used == []
    pairs.add(gradient, 2 * gradient, gradient)
    assert pairs.used == [0]
    assert torch.allclose(pairs.direction()[0], -gradient / 2)


def test_it_ends_where_it_cannot_descend_and_after_its_steps():
    flat = torch.zeros(3, dtype=torch.float64)
    calls = []

    def rises(point):  # its gradient has the wrong sign
        calls.append(1)
        return (point - 1).sum(), -torch.ones(3, dtype=torch.float64)

    assert torch.equal(minimise(rises, flat, tolerance=1e-9, steps=50), flat)
    assert len(calls) == 1 + lbfgs.TRIALS
    function, _, evaluated = bowl(50, 4)
    minimise(function, torch.zeros(50), tolerance=0, steps=3)
    assert len(evaluated) < 12
