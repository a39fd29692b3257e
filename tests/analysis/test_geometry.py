"""Spread of views, uniformity and spectra, against loops and against what must hold of any vectors."""

import math

import pytest
import torch

from antipode.analysis import geometry
from antipode.analysis.result import curve, histogram
from antipode.files import finite
from antipode.functional import uniformity
from tests.analysis.vectors import pairs, rotation


def views(v=5, n=4, d=7):
    return torch.randn(v, n, d, dtype=torch.float64)


def test_similarity_and_variance_are_the_naive_ones():
    x = views()
    alike, spread = geometry.similarity(x), geometry.variance(x)
    for i in range(4):
        z = x[:, i] / x[:, i].norm(dim=1, keepdim=True)
        cosines = [float(z[a] @ z[b]) for a in range(5) for b in range(5)]  # self-pairs included
        assert float(alike[i]) == pytest.approx(sum(cosines) / 25)
        mean = z.mean(0)
        covariance = sum(torch.outer(row - mean, row - mean) for row in z) / 5
        assert float(spread[i]) == pytest.approx(float(covariance.diagonal().mean()))


def test_the_two_panels_of_the_figure_carry_the_same_information():
    x = views(32, 50, 12)
    assert torch.allclose(geometry.variance(x), (1 - geometry.similarity(x)) / 12, atol=1e-14)


def test_equal_views_are_alike_and_have_no_variance():
    x = views(1).expand(6, -1, -1)
    assert torch.allclose(geometry.similarity(x), torch.ones(4).double())
    assert torch.allclose(geometry.variance(x), torch.zeros(4).double(), atol=1e-15)


def test_uniformity_in_pieces_is_uniformity(monkeypatch):
    x, _ = pairs(101)
    whole = float(uniformity(x))
    assert geometry.uniformity(x) == pytest.approx(whole, abs=1e-6)
    monkeypatch.setattr(geometry, "ROWS", 1000)  # nine rows at a time, and a remainder
    assert geometry.uniformity(x) == pytest.approx(whole, abs=1e-6)
    z, total = x / x.norm(dim=1, keepdim=True), 0.0
    for i in range(101):
        for j in range(i):
            total += math.exp(-2 * float(((z[i] - z[j]) ** 2).sum()))
    assert geometry.uniformity(x) == pytest.approx(math.log(total / (101 * 50)), abs=1e-6)


@pytest.mark.parametrize("shape", [(30, 8), (8, 30), (8, 8)])
def test_the_spectrum_is_that_of_the_unit_vectors(shape):
    x = torch.randn(shape, dtype=torch.float64)
    expected = torch.linalg.svdvals(x / x.norm(dim=1, keepdim=True))
    assert torch.allclose(geometry.spectrum(x), expected, atol=1e-7)
    assert torch.allclose(geometry.spectrum(3 * x @ rotation(shape[1])), expected, atol=1e-7)


def test_the_effective_rank_counts_equal_directions():
    for rank in (1, 3, 8):
        x = torch.eye(8, dtype=torch.float64)[:rank].repeat(5, 1)
        assert geometry.effective_rank(geometry.spectrum(x)) == pytest.approx(rank, abs=1e-5)
    uneven = torch.tensor([4.0, 2.0, 1.0, 1.0])
    entropy = sum(-p * math.log(p) for p in (0.5, 0.25, 0.125, 0.125))
    assert geometry.effective_rank(uneven) == pytest.approx(math.exp(entropy))


def test_vectors_of_zeros_have_collapsed_to_rank_one():
    assert geometry.effective_rank(geometry.spectrum(torch.zeros(5, 3))) == 1
    assert geometry.effective_rank(geometry.spectrum(torch.ones(5, 3))) == pytest.approx(
        1, abs=1e-5
    )


def test_uniformity_of_vectors_far_apart_is_their_distance():
    assert geometry.uniformity(torch.tensor([[1.0, 0.0], [-1.0, 0.0]]), t=30) == pytest.approx(-120)


def test_a_histogram_counts_every_value_once():
    values = torch.tensor([0.0, 0.1, 0.25, 0.5, 0.99, 1.0, 1.0000001, -1e-9])
    found = histogram(values, 0, 1, "x", bins=4)
    assert found == {"edges": [0, 0.25, 0.5, 0.75, 1], "counts": [3, 1, 1, 3], "xlabel": "x"}


def test_a_histogram_is_numpy_s():
    import numpy as np

    values = torch.rand(1000, dtype=torch.float64) * 2 - 1
    counts, edges = np.histogram(values.numpy(), bins=100, range=(-1, 1))
    found = histogram(values, -1, 1, "x")
    assert found["counts"] == counts.tolist() and found["edges"] == pytest.approx(edges.tolist())


def test_json_gets_no_number_that_it_does_not_know():
    assert finite({"a": [1.0, float("nan"), {"b": float("inf")}], 3: (2,)}) == {
        "a": [1.0, None, {"b": None}],
        "3": [2],
    }


WRONG = {
    "empty histogram": (lambda: histogram(torch.empty(0), 0, 1, "x"), "0 values"),
    "range upside down": (lambda: histogram(torch.ones(3), 1, 0, "x"), r"\[1, 0\]"),
    "curve of two lengths": (lambda: curve([1, 2], [1.0], "x", "y"), "1 and 2"),
    "uniformity of one": (
        lambda: geometry.uniformity(torch.ones(1, 4)),
        r"two vectors .* \(1, 4\)",
    ),
    "spectrum of none": (lambda: geometry.spectrum(torch.ones(0, 4)), r"\(0, 4\)"),
    "spectrum of views": (lambda: geometry.spectrum(torch.ones(2, 3, 4)), r"\(2, 3, 4\)"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_input_is_refused_in_a_sentence(name):
    call, text = WRONG[name]
    with pytest.raises(ValueError, match=text):
        call()
