"""Tests of the measures of embeddings, against loops and known values.

Health, analyses and report must give the same number for the same vectors.
"""

import math
from types import SimpleNamespace

import pytest
import torch

from antipode import functional, measures
from antipode.analysis import geometry
from antipode.analysis.between import nearest
from antipode.core.scores import unit
from antipode.reporting.geometry import spectrum
from antipode.training import health
from tests.analysis.vectors import pairs, rotation


def naive_uniformity(x, t=2.0):
    """Return Wang & Isola's log mean exp(-t |x_i-x_j|^2) over pairs i < j, one pair at a time."""
    z = x / x.norm(dim=1, keepdim=True)
    terms = [
        math.exp(-t * float(((z[i] - z[j]) ** 2).sum())) for i in range(len(z)) for j in range(i)
    ]
    return math.log(sum(terms) / len(terms))


def in_parts_of(rows, n, monkeypatch):
    """Let `measures` process `rows` rows of n similarities at a time."""
    monkeypatch.setattr(measures, "SIMILARITIES", rows * n)


# ---- effective rank


@pytest.mark.parametrize("d", [1, 5, 64])
def test_the_effective_rank_of_the_identity_is_its_dimension(d):
    values = measures.singular_values(torch.eye(d, dtype=torch.float64))
    assert measures.effective_rank(values) == pytest.approx(d)


def test_the_effective_rank_of_rank_one_is_one():
    x = torch.outer(torch.randn(20).double(), torch.randn(7).double())
    assert measures.effective_rank(measures.singular_values(x)) == pytest.approx(1, abs=1e-5)


def test_the_effective_rank_counts_equal_directions():
    for rank in (1, 3, 8):
        x = torch.eye(8, dtype=torch.float64)[:rank].repeat(5, 1)
        values = measures.singular_values(unit(x))
        assert measures.effective_rank(values) == pytest.approx(rank, abs=1e-5)
    uneven = torch.tensor([4.0, 2.0, 1.0, 1.0])
    entropy = sum(-p * math.log(p) for p in (0.5, 0.25, 0.125, 0.125))
    assert measures.effective_rank(uneven) == pytest.approx(math.exp(entropy))


def test_vectors_of_zeros_have_collapsed_to_rank_one():
    assert measures.effective_rank(torch.zeros(4)) == 1
    assert measures.effective_rank(measures.singular_values(unit(torch.zeros(5, 3)))) == 1
    collapsed = measures.singular_values(unit(torch.ones(5, 3)))
    assert measures.effective_rank(collapsed) == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize("shape", [(30, 8), (8, 30), (8, 8)])
def test_the_spectrum_is_that_of_the_unit_vectors(shape):
    x = torch.randn(shape, dtype=torch.float64)
    expected = torch.linalg.svdvals(x / x.norm(dim=1, keepdim=True))
    turned = unit(3 * x @ rotation(shape[1]))
    assert torch.allclose(measures.singular_values(unit(x)), expected, atol=1e-7)
    assert torch.allclose(measures.singular_values(turned), expected, atol=1e-7)


@pytest.mark.parametrize("shape", [(30, 8), (8, 30)])
def test_singular_values_are_those_of_the_vectors_as_they_are(shape):
    x = 5 + 3 * torch.randn(shape, dtype=torch.float64)
    expected = torch.linalg.svdvals(x)
    assert torch.allclose(measures.singular_values(x), expected, atol=1e-7 * float(expected[0]))


@pytest.mark.parametrize("kind", ["random", "clustered"])
def test_health_analysis_and_report_have_the_same_effective_rank_of_unit_centred_vectors(kind):
    half, _ = pairs(60, 12, kind=kind, dtype=torch.float32)
    x = torch.cat([half, -half])  # unit vectors with mean zero
    learner = SimpleNamespace(objective=None)
    subject = SimpleNamespace(
        eval_features=lambda: (x, x),
        eval_split="test",
        settings=lambda **settings: settings,
    )
    in_training = health.measure(learner, x)["rank"]
    in_analysis = geometry.spectra(subject)["values"]
    in_report = spectrum(x)["rank"]
    expected = measures.effective_rank(torch.linalg.svdvals(x.double()))
    assert in_training == pytest.approx(expected, rel=1e-5)
    assert in_analysis["effective rank, backbone"] == pytest.approx(expected, rel=1e-5)
    assert in_analysis["effective rank, head"] == pytest.approx(expected, rel=1e-5)
    assert in_report == pytest.approx(expected, rel=1e-4)  # the page rounds to five digits


# ---- alignment and uniformity


def test_alignment_is_the_naive_mean_over_pairs():
    x, y = pairs(40, 6)
    naive = sum(float(((a - b) ** 2).sum()) for a, b in zip(x, y, strict=True)) / 40
    assert float(measures.alignment(3 * x, 0.5 * y)) == pytest.approx(naive)


@pytest.mark.parametrize("t", [0.5, 2.0])
@pytest.mark.parametrize("kind", ["random", "clustered"])
def test_uniformity_is_the_naive_double_loop_and_the_public_function(kind, t):
    x, _ = pairs(37, kind=kind)
    x = x * torch.linspace(0.1, 9, 37).double()[:, None]  # lengths must not matter
    found = float(measures.uniformity(x, t))
    assert found == pytest.approx(naive_uniformity(x, t), abs=1e-12)
    assert found == float(functional.uniformity(x, t))


def test_uniformity_in_pieces_is_uniformity(monkeypatch):
    x, _ = pairs(101)
    whole = float(measures.uniformity(x))
    in_parts_of(9, 101, monkeypatch)  # with a remainder of two rows
    assert float(measures.uniformity(x)) == pytest.approx(whole, abs=1e-12)
    assert float(measures.uniformity(x)) == pytest.approx(naive_uniformity(x), abs=1e-12)


@pytest.mark.parametrize("rows", [0, 1, 4, 23])
def test_the_potential_in_several_parts_is_that_in_one(rows, monkeypatch):
    """The others are of other images, some of them repeated. With room for 0 rows, one is used."""
    x = pairs(23, 6)[0].requires_grad_()
    others = pairs(15, 6, seed=4)[0].requires_grad_()
    ids = torch.arange(23)
    other_ids = torch.arange(15) % 7
    whole = measures.log_potential(x, others, ids, other_ids)
    gradients = torch.autograd.grad(whole, (x, others))
    in_parts_of(rows, 15, monkeypatch)
    parts = measures.log_potential(x, others, ids, other_ids)
    assert parts.item() == pytest.approx(whole.item(), abs=1e-12)
    for one, other in zip(torch.autograd.grad(parts, (x, others)), gradients, strict=True):
        assert torch.allclose(one, other, atol=1e-12)
    terms = [
        math.exp(-2 * ((x[i] - others[j]) ** 2).sum().item())
        for i in range(23)
        for j in range(15)
        if ids[i] != other_ids[j]
    ]
    assert whole.item() == pytest.approx(math.log(sum(terms) / len(terms)), abs=1e-12)


@pytest.mark.parametrize("rows", [2, 9])
def test_the_gradient_of_uniformity_is_that_of_finite_differences(rows, monkeypatch):
    in_parts_of(rows, 9, monkeypatch)
    x = torch.randn(9, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(measures.uniformity, (x,), eps=1e-6, atol=1e-8)


def test_uniformity_of_vectors_far_apart_is_their_distance():
    x = torch.tensor([[1.0, 0.0], [-1.0, 0.0]])
    assert float(measures.uniformity(x, t=30)) == pytest.approx(-120)


def test_spread_is_one_all_over_the_sphere_and_zero_at_a_point():
    z, _ = pairs(20000, 8)
    assert float(measures.spread(z)) == pytest.approx(1, abs=0.02)
    assert float(measures.spread(z[:1].expand(50, -1))) == pytest.approx(0, abs=1e-12)


def test_mean_similarity_is_that_of_the_pairs():
    z, _ = pairs(20, 5)
    cosines = [float(z[i] @ z[j]) for i in range(20) for j in range(20) if i != j]
    assert float(measures.mean_similarity(z)) == pytest.approx(sum(cosines) / len(cosines))


# ---- CKA and overlap


def naive_cka(x, y):
    """Kornblith et al. eq. (3): HSIC of the centred kernels K = X X' and L = Y Y'."""
    n = len(x)
    centre = torch.eye(n, dtype=x.dtype) - 1 / n
    k, m = centre @ (x @ x.T) @ centre, centre @ (y @ y.T) @ centre
    return float(torch.trace(k @ m) / (torch.trace(k @ k) * torch.trace(m @ m)).sqrt())


def test_cka_is_the_naive_one():
    x, y = torch.randn(30, 7, dtype=torch.float64), torch.randn(30, 11, dtype=torch.float64)
    assert measures.cka(x, y) == pytest.approx(naive_cka(x, y), abs=1e-12)
    assert measures.cka(x, y) == pytest.approx(measures.cka(y, x), abs=1e-12)


def test_cka_sees_neither_rotation_nor_scale_nor_shift():
    x, y = torch.randn(30, 7, dtype=torch.float64), torch.randn(30, 7, dtype=torch.float64)
    assert measures.cka(x, x) == pytest.approx(1)
    assert measures.cka(x, -2.5 * x @ rotation(7) + 3) == pytest.approx(1)
    turned = measures.cka(x @ rotation(7), 4 * y)
    assert turned == pytest.approx(measures.cka(x, y), abs=1e-12)


def test_cka_tells_related_features_from_unrelated_ones():
    x, other = torch.randn(2, 2000, 5, dtype=torch.float64)
    assert measures.cka(x, other) < 0.05
    assert 0.5 < measures.cka(x, x + 0.5 * other) < 1


@pytest.mark.parametrize("value", [0.0, 0.1, 1e6])
def test_cka_of_features_that_do_not_vary_is_not_a_number(value):
    x = torch.randn(7, 4)
    constant = torch.full((7, 3), value)
    assert math.isnan(measures.cka(constant, x)) and math.isnan(measures.cka(x, constant))
    small = value + 1e-6 * x.double()  # a small variation is not a constant
    assert measures.cka(x, small) == pytest.approx(1, abs=1e-3)


def test_cka_takes_the_rounding_of_a_mean_for_nothing():
    constant = torch.full((13, 3), 0.3, dtype=torch.float64)
    assert (constant - constant.mean(0)).any()
    assert math.isnan(measures.cka(constant, torch.randn(13, 4)))


def test_overlap_is_one_with_itself_whatever_the_order_and_the_share_elsewhere():
    x, _ = pairs(50, 5)
    near = nearest(x, 8)
    assert measures.overlap(near, near) == measures.overlap(near, near.flip(1)) == 1
    assert measures.overlap(torch.tensor([[1, 2, 3, 4]]), torch.tensor([[4, 9, 1, 8]])) == 0.5
    first, second = torch.tensor([[1, 2], [3, 4]]), torch.tensor([[5, 6], [3, 4]])
    assert measures.overlap(first, second) == 0.5


def test_chance_shares_as_many_neighbours_as_chance_does():
    x, y = torch.randn(2, 400, 6)
    shared = measures.overlap(nearest(x, 20), nearest(y, 20))
    assert shared == pytest.approx(20 / 399, abs=0.01)


# ---- errors

ones = torch.ones
WRONG = {
    "uniformity of one": (lambda: measures.uniformity(ones(1, 4)), r"two vectors .* \(1, 4\)"),
    "uniformity of views": (lambda: measures.uniformity(ones(2, 3, 4)), r"\(2, 3, 4\)"),
    "spectrum of none": (lambda: measures.singular_values(ones(0, 4)), r"\(0, 4\)"),
    "spectrum of views": (lambda: measures.singular_values(ones(2, 3, 4)), r"\(2, 3, 4\)"),
    "other images": (lambda: measures.cka(ones(3, 4), ones(4, 4)), r"\(3, 4\) and \(4, 4\)"),
    "one image": (lambda: measures.cka(ones(1, 4), ones(1, 4)), "at least two images"),
    "lists that differ": (
        lambda: measures.overlap(ones(3, 2), ones(3, 4)),
        r"\(3, 2\) and \(3, 4\)",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_input_is_refused_in_a_sentence(name):
    call, text = WRONG[name]
    with pytest.raises(ValueError, match=text):
        call()
