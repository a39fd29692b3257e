"""Tests of EqCo's two theorems and DCL's figure 1, on embeddings with known results."""

import math
import statistics
from types import SimpleNamespace

import pytest
import torch

from antipode import rng
from antipode.analysis import contrast, formulas
from antipode.analysis.embeddings import ViewEmbeddings
from antipode.functional import npc_multiplier
from tests.analysis.vectors import pairs
from tests.reference import dcl, eqco

TAU = 0.2
KINDS = pytest.mark.parametrize("kind", ["random", "clustered"])


def circle(keys, count, queries):
    """Return the negatives of each query, which are the next `count` keys, as lists."""
    return [[keys[(i + 1 + j) % len(keys)] for j in range(count)] for i in range(queries)]


@pytest.mark.parametrize("alpha", [None, 50.0])
@pytest.mark.parametrize("count", [1, 5, 19])
def test_the_bound_is_that_of_the_naive_loss(count, alpha):
    q, k = pairs(20)
    found = formulas.information(formulas.query_terms(q[:7], k, count, TAU), count, alpha)
    loss = eqco.loss(q[:7], k, circle(k, count, 7), TAU, alpha or count)
    assert found == pytest.approx(math.log(1 + (alpha or count)) - float(loss), abs=1e-12)


@pytest.mark.parametrize("alpha", [None, 50.0])
@pytest.mark.parametrize("count", [1, 5, 19])
def test_the_gradient_is_the_naive_one_and_autograd_s(count, alpha):
    q, k = pairs(20)
    found = formulas.gradient(formulas.query_terms(q[:7], k, count, TAU), count, TAU, alpha)
    naive = eqco.query_gradient(q[:7], k, circle(k, count, 7), TAU, alpha or count)
    assert torch.allclose(found, naive.norm(dim=1), atol=1e-12)
    query = q[:7].clone().requires_grad_()
    (7 * eqco.loss(query, k, circle(k, count, 7), TAU, alpha or count)).backward()
    assert torch.allclose(found, query.grad.norm(dim=1), atol=1e-12)


def test_pieces_change_nothing(monkeypatch):
    q, k = pairs(300)
    whole = formulas.query_terms(q, k, 200, TAU)
    monkeypatch.setattr(formulas, "CELLS", 1000)  # five rows at a time
    for one, other in zip(whole, formulas.query_terms(q, k, 200, TAU), strict=True):
        assert torch.allclose(one, other, atol=1e-12)


def test_every_key_but_the_own_is_drawn_once():
    """With orthogonal keys all negative scores are zero, so the repulsion counts the keys."""
    k = torch.eye(12, dtype=torch.float64)
    for count in (1, 4, 11):
        assert torch.allclose(
            formulas.query_terms(k, k, count, TAU).repel.exp(),
            torch.full((12,), float(count)).double(),
        )


@KINDS
def test_with_eqco_the_information_bounds_coincide_and_without_they_rise(kind):
    """Theorem 1: from K = 16 on, the bound is constant with the margin and rises with K without."""
    q, k = pairs(1100, kind=kind)
    counts = [16, 64, 256, 1024]
    draws = [formulas.query_terms(q, k, count, TAU) for count in counts]
    with_margin = [
        formulas.information(draw, count, 1024.0) for draw, count in zip(draws, counts, strict=True)
    ]
    without = [formulas.information(draw, count) for draw, count in zip(draws, counts, strict=True)]
    assert without == sorted(without) and without[-1] - without[0] > 0.3
    assert max(with_margin) - min(with_margin) < 0.3 * (without[-1] - without[0])
    assert with_margin[-1] == without[-1]  # with alpha = K the margin is 0


@KINDS
def test_with_eqco_gradients_vary_less_over_k_and_stay_below_theorem_2(kind):
    q, k = pairs(1025, kind=kind)
    counts = [4, 16, 64, 256, 1024]
    draws = {count: formulas.query_terms(q, k, count, TAU) for count in counts}
    limit = formulas.ceiling(draws[1024], 1024, TAU, 1024.0)
    means = {}
    for name, alpha in (("with", 1024.0), ("without", None)):
        norms = [formulas.gradient(draw, count, TAU, alpha) for count, draw in draws.items()]
        means[name] = torch.stack([norm.mean() for norm in norms])
        for norm, (count, draw) in zip(norms, draws.items(), strict=True):
            assert (
                norm <= formulas.ceiling(draw, count, TAU, alpha or count) + 1e-12
            ).all()  # eq. 12, for each query
    assert (means["with"] <= limit.mean()).all()  # eq. 13, for the mean
    # the paper's claim starts at K = 16: four negatives are too few to estimate a mean
    spread = {name: float(mean[1:].max() - mean[1:].min()) for name, mean in means.items()}
    assert spread["with"] < 0.5 * spread["without"]


def test_the_ceiling_is_theorem_2_written_out():
    q, k = pairs(9)
    found = formulas.ceiling(formulas.query_terms(q, k, 8, TAU), 8, TAU, 50.0)
    for i in range(9):
        scores = [math.exp(float(q[i] @ k[j]) / TAU) for j in range(9)]
        mean = (sum(scores) - scores[i]) / 8
        assert float(found[i]) == pytest.approx(2 / TAU * (1 - scores[i] / (scores[i] + 50 * mean)))


def test_multipliers_are_the_naive_ones_of_disjoint_batches():
    z0, z1 = pairs(11)
    key = rng.key(0, "test")
    found, order = formulas.multipliers(z0, z1, 4, TAU, key), rng.permutation(key, 11)
    naive = [dcl.multiplier(z0[order[at : at + 4]], z1[order[at : at + 4]], TAU) for at in (0, 4)]
    assert torch.allclose(found, torch.cat(naive), atol=1e-12)
    assert torch.equal(found, formulas.multipliers(z0, z1, 4, TAU, key))
    assert not torch.equal(found, formulas.multipliers(z0, z1, 4, TAU, rng.key(1, "test")))


@KINDS
def test_the_multiplier_rises_to_one_and_varies_less_with_the_batch(kind):
    z0, z1 = pairs(1024, kind=kind)
    found = [
        formulas.multipliers(z0, z1, batch, 0.1, rng.key(0, batch))
        for batch in (4, 16, 64, 256, 1024)
    ]
    means = [float(one.mean()) for one in found]
    variation = [float(one.std() / one.mean()) for one in found]
    assert means == sorted(means) and means[0] < 0.2 and 0.7 < means[-1] < 1
    assert variation == sorted(variation, reverse=True) and variation[-1] < 0.3 < variation[0]
    assert torch.allclose(
        found[-1].sort().values, npc_multiplier(z0, z1, tau=0.1).sort().values
    )  # one batch with all images


def subject(n=40, alpha=50.0):
    """Return the parts of a run that the figures read, with two views of n images."""
    z = torch.stack(pairs(n, kind="clustered"))
    run = SimpleNamespace(
        tau=TAU,
        alpha=alpha,
        stored=None,
        seed=3,
        device=torch.device("cpu"),
        cache={},
        recipe=SimpleNamespace(views=SimpleNamespace(policy="none")),
        pairs=lambda: (torch.arange(n), ViewEmbeddings(z, z, z, z)),
        rows=list,
        settings=lambda **settings: settings,
    )
    run.history = lambda most: [run]
    return run, *z


def test_the_figure_of_gradients_has_mean_and_standard_deviation_over_queries():
    run, q, k = subject()
    curves = contrast.gradient_norm(run)["curves"]
    for name, alpha in (("with EqCo", 50.0), ("without EqCo", None)):
        for place, count in enumerate((4, 16)):
            naive = eqco.query_gradient(q, k, circle(k, count, 40), TAU, alpha or count)
            norms = naive.norm(dim=1).tolist()
            assert curves[f"mean {name}"]["x"][place] == count
            assert curves[f"mean {name}"]["y"][place] == pytest.approx(statistics.fmean(norms))
            assert curves[f"std {name}"]["y"][place] == pytest.approx(statistics.pstdev(norms))


def test_the_figure_of_q_b_has_its_mean_and_coefficient_of_variation():
    """The coefficient of variation is the standard deviation over the mean."""
    run, z0, z1 = subject()
    figure = contrast.npc(run)
    mean, variation = (figure["curves"][name] for name in ("mean", "coefficient of variation"))
    assert mean["x"] == variation["x"] == [4, 8, 16, 32]
    for place, size in enumerate(mean["x"]):
        order = rng.permutation(rng.key(3, "npc", size), 40)
        batches = [order[at : at + size] for at in range(0, 40 - size + 1, size)]
        naive = torch.cat([dcl.multiplier(z0[ids], z1[ids], TAU) for ids in batches]).tolist()
        expected = statistics.pstdev(naive) / statistics.fmean(naive)
        assert mean["y"][place] == pytest.approx(statistics.fmean(naive))
        assert variation["y"][place] == pytest.approx(expected)
    assert figure["values"] == {
        "mean at batch 32": mean["y"][-1],
        "coefficient of variation at batch 32": variation["y"][-1],
    }


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
        formulas.query_terms(q[:queries], k[:10], count, TAU)


@pytest.mark.parametrize("batch", [0, 1, 12])
def test_batches_that_cannot_be_are_refused(batch):
    z0, z1 = pairs(11)
    with pytest.raises(ValueError, match=f"batches of {batch} cannot be drawn from 11 images"):
        formulas.multipliers(z0, z1, batch, TAU, rng.key(0))
