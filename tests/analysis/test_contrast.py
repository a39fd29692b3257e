"""EqCo's two theorems and DCL's first figure, on embeddings whose answers are known."""

import math

import pytest
import torch

from antipode import rng
from antipode.analysis import contrast
from antipode.functional import npc_multiplier
from tests.analysis.vectors import pairs
from tests.reference import dcl, eqco

TAU = 0.2
KINDS = pytest.mark.parametrize("kind", ["random", "clustered"])


def circle(keys, count, queries):
    """Each query's negatives, written out: the next `count` keys."""
    return [[keys[(i + 1 + j) % len(keys)] for j in range(count)] for i in range(queries)]


@pytest.mark.parametrize("alpha", [None, 50.0])
@pytest.mark.parametrize("count", [1, 5, 19])
def test_the_bound_is_that_of_the_naive_loss(count, alpha):
    q, k = pairs(20)
    found = contrast.information(contrast.drawn(q[:7], k, count, TAU), count, alpha)
    loss = eqco.loss(q[:7], k, circle(k, count, 7), TAU, alpha or count)
    assert found == pytest.approx(math.log(1 + (alpha or count)) - float(loss), abs=1e-12)


@pytest.mark.parametrize("alpha", [None, 50.0])
@pytest.mark.parametrize("count", [1, 5, 19])
def test_the_gradient_is_the_naive_one_and_autograd_s(count, alpha):
    q, k = pairs(20)
    found = contrast.gradient(contrast.drawn(q[:7], k, count, TAU), count, TAU, alpha)
    naive = eqco.query_gradient(q[:7], k, circle(k, count, 7), TAU, alpha or count)
    assert torch.allclose(found, naive.norm(dim=1), atol=1e-12)
    query = q[:7].clone().requires_grad_()
    (7 * eqco.loss(query, k, circle(k, count, 7), TAU, alpha or count)).backward()
    assert torch.allclose(found, query.grad.norm(dim=1), atol=1e-12)


def test_pieces_change_nothing(monkeypatch):
    q, k = pairs(300)
    whole = contrast.drawn(q, k, 200, TAU)
    monkeypatch.setattr(contrast, "CELLS", 1000)  # five rows at a time
    for one, other in zip(whole, contrast.drawn(q, k, 200, TAU), strict=True):
        assert torch.allclose(one, other, atol=1e-12)


def test_every_key_but_the_own_is_drawn_once():
    """With orthogonal keys all scores but the positive's are zero, so the repulsion counts the keys."""
    k = torch.eye(12, dtype=torch.float64)
    for count in (1, 4, 11):
        assert torch.allclose(
            contrast.drawn(k, k, count, TAU).repel.exp(), torch.full((12,), float(count)).double()
        )


@KINDS
def test_with_eqco_the_information_bounds_coincide_and_without_they_rise(kind):
    """Theorem 1: from K = 16 on the bound with the margin stays, while log(1+K) - loss rises with K."""
    q, k = pairs(1100, kind=kind)
    counts = [16, 64, 256, 1024]
    draws = [contrast.drawn(q, k, count, TAU) for count in counts]
    with_margin = [
        contrast.information(draw, count, 1024.0) for draw, count in zip(draws, counts, strict=True)
    ]
    without = [contrast.information(draw, count) for draw, count in zip(draws, counts, strict=True)]
    assert without == sorted(without) and without[-1] - without[0] > 0.3
    assert max(with_margin) - min(with_margin) < 0.3 * (without[-1] - without[0])
    assert with_margin[-1] == without[-1]  # alpha = K is no margin


@KINDS
def test_with_eqco_gradients_vary_less_over_k_and_stay_below_theorem_2(kind):
    q, k = pairs(1025, kind=kind)
    counts = [4, 16, 64, 256, 1024]
    draws = {count: contrast.drawn(q, k, count, TAU) for count in counts}
    limit = contrast.ceiling(draws[1024], 1024, TAU, 1024.0)
    means = {}
    for name, alpha in (("with", 1024.0), ("without", None)):
        norms = [contrast.gradient(draw, count, TAU, alpha) for count, draw in draws.items()]
        means[name] = torch.stack([norm.mean() for norm in norms])
        for norm, (count, draw) in zip(norms, draws.items(), strict=True):
            assert (
                norm <= contrast.ceiling(draw, count, TAU, alpha or count) + 1e-12
            ).all()  # eq. 12, each query
    assert (means["with"] <= limit.mean()).all()  # eq. 13, in the mean
    # from K = 16 on, where the paper claims it: four negatives are too few for a mean
    spread = {name: float(mean[1:].max() - mean[1:].min()) for name, mean in means.items()}
    assert spread["with"] < 0.5 * spread["without"]


def test_the_ceiling_is_theorem_2_written_out():
    q, k = pairs(9)
    found = contrast.ceiling(contrast.drawn(q, k, 8, TAU), 8, TAU, 50.0)
    for i in range(9):
        scores = [math.exp(float(q[i] @ k[j]) / TAU) for j in range(9)]
        mean = (sum(scores) - scores[i]) / 8
        assert float(found[i]) == pytest.approx(2 / TAU * (1 - scores[i] / (scores[i] + 50 * mean)))


def test_multipliers_are_the_naive_ones_of_disjoint_batches():
    z0, z1 = pairs(11)
    key = rng.key(0, "test")
    found, order = contrast.multipliers(z0, z1, 4, TAU, key), rng.permutation(key, 11)
    naive = [dcl.multiplier(z0[order[at : at + 4]], z1[order[at : at + 4]], TAU) for at in (0, 4)]
    assert torch.allclose(found, torch.cat(naive), atol=1e-12)
    assert torch.equal(found, contrast.multipliers(z0, z1, 4, TAU, key))
    assert not torch.equal(found, contrast.multipliers(z0, z1, 4, TAU, rng.key(1, "test")))


@KINDS
def test_the_multiplier_rises_to_one_and_varies_less_with_the_batch(kind):
    z0, z1 = pairs(1024, kind=kind)
    found = [
        contrast.multipliers(z0, z1, batch, 0.1, rng.key(0, batch))
        for batch in (4, 16, 64, 256, 1024)
    ]
    means = [float(one.mean()) for one in found]
    variation = [float(one.std() / one.mean()) for one in found]
    assert means == sorted(means) and means[0] < 0.2 and 0.7 < means[-1] < 1
    assert variation == sorted(variation, reverse=True) and variation[-1] < 0.3 < variation[0]
    assert torch.allclose(
        found[-1].sort().values, npc_multiplier(z0, z1, tau=0.1).sort().values
    )  # one batch of all


def test_negatives_come_in_powers_of_four():
    assert contrast.grid(4096) == [4, 16, 64, 256, 1024, 4096]
    assert contrast.grid(4095) == [4, 16, 64, 256, 1024]
    assert contrast.grid(1 << 20)[-1] == 65536
    assert contrast.grid(3) == [3]


@pytest.mark.parametrize(
    "rows", [[], [{"epoch": 0, "loss": 1.0}], [{"epoch": 0, "contrast": 1.0, "mi_bound": None}]]
)
def test_a_log_without_a_bound_is_said_to_have_none(rows):
    assert (
        contrast._logged_bound(rows)[:2] == ([], [])
        and "no bound" in contrast._logged_bound(rows)[2][0]
    )


def test_the_bound_over_training_is_the_mean_of_each_epoch_by_the_constant_that_the_log_tells():
    rows = [
        {"step": 0, "epoch": 0, "contrast": 4.0, "mi_bound": 1.0},
        {"step": 1, "epoch": 0, "contrast": 3.0},
        {"step": 2, "epoch": 1, "contrast": 2.0},
        {"step": 2, "epoch": 1, "knn": 50.0},
        {"step": 3, "epoch": 1, "contrast": None},
    ]
    assert contrast._logged_bound(rows) == ([1, 2], [1.5, 3.0], [])


@pytest.mark.parametrize(("count", "queries"), [(0, 5), (10, 5), (-1, 5), (5, 11)])
def test_draws_that_cannot_be_are_refused(count, queries):
    q, k = pairs(11)
    with pytest.raises(ValueError, match=r"cannot be drawn .* 10 keys"):
        contrast.drawn(q[:queries], k[:10], count, TAU)


@pytest.mark.parametrize("batch", [0, 1, 12])
def test_batches_that_cannot_be_are_refused(batch):
    z0, z1 = pairs(11)
    with pytest.raises(ValueError, match=f"batches of {batch} cannot be drawn from 11 images"):
        contrast.multipliers(z0, z1, batch, TAU, rng.key(0))
