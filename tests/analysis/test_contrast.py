"""Tests of EqCo's two theorems and DCL's figure 1, on embeddings with known results."""

import math
import statistics
from itertools import pairwise
from types import SimpleNamespace

import pytest
import torch

from antipode import rng
from antipode.analysis import contrast, formulas
from antipode.analysis.embeddings import ViewEmbeddings
from antipode.core.scores import unit
from antipode.functional import npc_multiplier
from tests.analysis.vectors import pairs
from tests.reference import dcl, eqco

TAU = 0.2
KINDS = pytest.mark.parametrize("kind", ["random", "clustered"])


def circle(keys, count, queries):
    """Return the negatives of each query: the next `count` keys (V,N,D) of other images.

    The views follow each other, and after the last key of the last view comes the first key.
    """
    views, images = keys.shape[:2]
    places = [(view, image) for view in range(views) for image in range(images)]
    lists = []
    for i in range(queries):
        others = [place for place in places[i + 1 :] + places[:i] if place[1] != i]
        lists.append([keys[place] for place in others[:count]])
    return lists


def several(images, views):
    """Return queries (N,D) and keys (V,N,D) of an image's views."""
    seen = [side for seed in range(views) for side in pairs(images, seed=seed)]
    return seen[0], torch.stack(seen[1 : views + 1])


# views, images, numbers of negatives: below, at and above the number of other images
DRAWS = [
    (1, 20, 1),
    (1, 20, 5),
    (1, 20, 19),
    (3, 8, 6),
    (3, 8, 7),
    (3, 8, 8),
    (3, 8, 15),
    (3, 8, 21),
]


@pytest.mark.parametrize("alpha", [None, 50.0])
@pytest.mark.parametrize(("views", "images", "count"), DRAWS)
def test_the_bound_is_that_of_the_naive_loss(views, images, count, alpha):
    q, k = several(images, views)
    found = formulas.information(formulas.query_terms(q[:7], k, count, TAU), count, alpha)
    loss = eqco.loss(q[:7], k[0], circle(k, count, 7), TAU, alpha or count)
    assert found == pytest.approx(math.log(1 + (alpha or count)) - float(loss), abs=1e-12)


@pytest.mark.parametrize("alpha", [None, 50.0])
@pytest.mark.parametrize(("views", "images", "count"), DRAWS)
def test_the_gradient_is_the_naive_one_and_autograd_s(views, images, count, alpha):
    q, k = several(images, views)
    found = formulas.gradient(formulas.query_terms(q[:7], k, count, TAU), count, TAU, alpha)
    naive = eqco.query_gradient(q[:7], k[0], circle(k, count, 7), TAU, alpha or count)
    assert torch.allclose(found, naive.norm(dim=1), atol=1e-12)
    query = q[:7].clone().requires_grad_()
    (7 * eqco.loss(query, k[0], circle(k, count, 7), TAU, alpha or count)).backward()
    assert torch.allclose(found, query.grad.norm(dim=1), atol=1e-12)


@pytest.mark.parametrize("count", [200, 700])
def test_pieces_change_nothing(count, monkeypatch):
    q, k = several(300, 3)
    whole = formulas.query_terms(q, k, count, TAU)
    monkeypatch.setattr(formulas, "CELLS", 1000)  # five rows at a time, and one row
    for one, other in zip(whole, formulas.query_terms(q, k, count, TAU), strict=True):
        assert torch.allclose(one, other, atol=1e-12)


@pytest.mark.parametrize("views", [1, 3])
def test_keys_of_other_images_are_drawn_once_and_those_of_the_own_image_never(views):
    """With tau = 1 and orthogonal keys, the repulsion of a query along its keys counts the keys.

    Keys of the query's own image would add e^9, and any other key adds 1.
    """
    k = torch.eye(views * 12, dtype=torch.float64).unflatten(0, (views, 12))
    q = 9 * k.sum(0)
    for count in (1, 4, 11, 12, 22, 23, 33):
        if count <= 11 * views:
            found = formulas.query_terms(q, k, count, 1.0).repel.exp()
            assert torch.allclose(found, torch.full((12,), float(count)).double()), count


def test_65536_negatives_come_from_two_views_of_40000_images():
    """As on CIFAR-10, which has fewer images than MoCo v2 has negatives on ImageNet."""
    torch.manual_seed(0)
    k = unit(torch.randn(2, 40_000, 8, dtype=torch.float64))
    q = unit(torch.randn(2, 8, dtype=torch.float64))
    found = formulas.query_terms(q, k, 65536, TAU)
    for i in range(2):
        first = torch.cat([k[0, i + 1 :], k[1, :i]])  # up to the second key of the own image
        negatives = torch.cat([first, k[1, i + 1 :], k[0, :i]])[:65536]
        scores = negatives @ q[i] / TAU
        assert float(found.repel[i]) == pytest.approx(float(scores.logsumexp(0)), abs=1e-10)
        centre = scores.softmax(0) @ negatives
        assert float(found.distance[i]) == pytest.approx(float((centre - k[0, i]).norm()))


def test_a_larger_draw_contains_a_smaller_one():
    """Key j has a weight of 2^j, so that a sum of weights tells which keys were drawn."""
    places = torch.arange(24, dtype=torch.float64)
    k = (places * math.log(2)).reshape(3, 8, 1)  # not unit length: the score is the weight's log
    q = torch.ones(8, 1, dtype=torch.float64)
    drawn = [
        [int(x) for x in formulas.query_terms(q, k, count, 1.0).repel.exp().round()]
        for count in range(1, 22)
    ]
    for smaller, larger in pairwise(drawn):
        for a, b in zip(smaller, larger, strict=True):
            assert a & b == a and (b - a).bit_count() == 1


@KINDS
def test_with_eqco_the_information_bounds_coincide_and_without_they_rise(kind):
    """Theorem 1: from K = 16 on, the bound is constant with the margin and rises with K without."""
    q, k = pairs(1100, kind=kind)
    counts = [16, 64, 256, 1024]
    draws = [formulas.query_terms(q, k[None], count, TAU) for count in counts]
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
    draws = {count: formulas.query_terms(q, k[None], count, TAU) for count in counts}
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
    found = formulas.ceiling(formulas.query_terms(q, k[None], 8, TAU), 8, TAU, 50.0)
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
        keys=lambda: z[1:],
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
            naive = eqco.query_gradient(q, k, circle(k[None], count, 40), TAU, alpha or count)
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
    with pytest.raises(ValueError, match=r"cannot be drawn .* 1 x 10 keys.* 1 to 9 negatives"):
        formulas.query_terms(q[:queries], k[None, :10], count, TAU)


@pytest.mark.parametrize("batch", [0, 1, 12])
def test_batches_that_cannot_be_are_refused(batch):
    z0, z1 = pairs(11)
    with pytest.raises(ValueError, match=f"batches of {batch} cannot be drawn from 11 images"):
        formulas.multipliers(z0, z1, batch, TAU, rng.key(0))
