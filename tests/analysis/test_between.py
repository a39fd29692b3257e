"""Measures between runs: what they must not see, and what they must."""

import math

import pytest
import torch

from antipode.analysis.between import cka, nearest, overlap
from tests.analysis.vectors import pairs, rotation


def naive_cka(x, y):
    """Kornblith et al. eq. (3): HSIC of the centred kernels K = X X' and L = Y Y'."""
    n = len(x)
    centre = torch.eye(n, dtype=x.dtype) - 1 / n
    k, m = centre @ (x @ x.T) @ centre, centre @ (y @ y.T) @ centre
    return float(torch.trace(k @ m) / (torch.trace(k @ k) * torch.trace(m @ m)).sqrt())


def test_cka_is_the_naive_one():
    x, y = torch.randn(30, 7, dtype=torch.float64), torch.randn(30, 11, dtype=torch.float64)
    assert cka(x, y) == pytest.approx(naive_cka(x, y), abs=1e-12)
    assert cka(x, y) == pytest.approx(cka(y, x), abs=1e-12)


def test_cka_sees_neither_rotation_nor_scale_nor_shift():
    x, y = torch.randn(30, 7, dtype=torch.float64), torch.randn(30, 7, dtype=torch.float64)
    assert cka(x, x) == pytest.approx(1)
    assert cka(x, -2.5 * x @ rotation(7) + 3) == pytest.approx(1)
    assert cka(x @ rotation(7), 4 * y) == pytest.approx(cka(x, y), abs=1e-12)


def test_cka_tells_related_features_from_unrelated_ones():
    x, other = torch.randn(2, 2000, 5, dtype=torch.float64)
    assert cka(x, other) < 0.05
    assert 0.5 < cka(x, x + 0.5 * other) < 1


@pytest.mark.parametrize("value", [0.0, 0.1, 1e6])
def test_cka_of_features_that_do_not_vary_is_not_a_number(value):
    x = torch.randn(7, 4)
    assert math.isnan(cka(torch.full((7, 3), value), x)) and math.isnan(
        cka(x, torch.full((7, 3), value))
    )
    assert cka(x, value + 1e-6 * x.double()) == pytest.approx(1, abs=1e-3)  # little is not nothing


def test_cka_takes_the_rounding_of_a_mean_for_nothing():
    still = torch.full((13, 3), 0.3, dtype=torch.float64)
    assert (still - still.mean(0)).any() and math.isnan(cka(still, torch.randn(13, 4)))


def test_neighbours_are_the_naive_ones(monkeypatch):
    from antipode.analysis import between

    x, _ = pairs(40, 5)
    naive = []
    for i in range(40):
        others = sorted((j for j in range(40) if j != i), key=lambda j: -float(x[i] @ x[j]))
        naive.append(others[:6])
    assert nearest(x, 6).tolist() == naive
    monkeypatch.setattr(between, "ROWS", 100)  # two rows at a time
    assert nearest(3 * x @ rotation(5), 6).tolist() == naive


def test_overlap_is_one_with_itself_whatever_the_order_and_the_share_elsewhere():
    x, _ = pairs(50, 5)
    near = nearest(x, 8)
    assert overlap(near, near) == overlap(near, near.flip(1)) == 1
    assert overlap(torch.tensor([[1, 2, 3, 4]]), torch.tensor([[4, 9, 1, 8]])) == 0.5
    assert overlap(torch.tensor([[1, 2], [3, 4]]), torch.tensor([[5, 6], [3, 4]])) == 0.5


def test_chance_shares_as_many_neighbours_as_chance_does():
    x, y = torch.randn(2, 400, 6)
    assert overlap(nearest(x, 20), nearest(y, 20)) == pytest.approx(20 / 399, abs=0.01)


WRONG = {
    "other images": (lambda: cka(torch.ones(3, 4), torch.ones(4, 4)), r"\(3, 4\), \(4, 4\)"),
    "one image": (lambda: cka(torch.ones(1, 4), torch.ones(1, 4)), "two images"),
    "no neighbour": (lambda: nearest(torch.ones(3, 2), 0), "1 to 2 neighbours, not 0"),
    "too many": (lambda: nearest(torch.ones(3, 2), 3), "1 to 2 neighbours, not 3"),
    "lists that differ": (
        lambda: overlap(torch.ones(3, 2), torch.ones(3, 4)),
        r"\(3, 2\), \(3, 4\)",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_input_is_refused_in_a_sentence(name):
    call, text = WRONG[name]
    with pytest.raises(ValueError, match=text):
        call()
