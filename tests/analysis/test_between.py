"""Tests of nearest neighbours, against a loop."""

import pytest
import torch

from antipode.analysis import between
from antipode.analysis.between import nearest
from tests.analysis.vectors import pairs, rotation


def test_neighbours_are_the_naive_ones(monkeypatch):
    x, _ = pairs(40, 5)
    naive = []
    for i in range(40):
        others = sorted((j for j in range(40) if j != i), key=lambda j: -float(x[i] @ x[j]))
        naive.append(others[:6])
    assert nearest(x, 6).tolist() == naive
    monkeypatch.setattr(between, "CELLS", 100)  # two rows at a time
    assert nearest(3 * x @ rotation(5), 6).tolist() == naive


WRONG = {
    "no neighbour": (lambda: nearest(torch.ones(3, 2), 0), "1 to 2 neighbours, not 0"),
    "too many": (lambda: nearest(torch.ones(3, 2), 3), "1 to 2 neighbours, not 3"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_input_is_refused_in_a_sentence(name):
    call, text = WRONG[name]
    with pytest.raises(ValueError, match=text):
        call()
