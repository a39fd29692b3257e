"""Every loss and its gradient equal the paper's, written naively, in float64 to 1e-10."""

import pytest
import torch
from torch import Tensor

from antipode import functional as A
from antipode.core import regularise
from tests.reference import barlowtwins, byol, dcl, eqco, jcl, moco, msbreg, simclr, vicreg

N, D, K, M = 5, 4, 7, 3


def rand(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64)


def unit(x: Tensor) -> Tensor:
    return x / x.norm(dim=-1, keepdim=True)


def rows(negatives: Tensor) -> list[Tensor]:
    return [negatives] * N


# name -> (ours, the paper's, inputs); inputs are raw and normalised by each side on its own
CASES = {
    "nt_xent": (
        lambda a, b: A.nt_xent(a, b, tau=0.3),
        lambda a, b: simclr.loss(unit(a), unit(b), 0.3),
        [(N, D), (N, D)],
    ),
    "nt_xent eqco": (
        lambda a, b: A.nt_xent(a, b, tau=0.3, alpha=50.0),
        lambda a, b: eqco.loss(
            torch.cat([unit(a), unit(b)]),
            torch.cat([unit(b), unit(a)]),
            [
                torch.cat([unit(a), unit(b)])[[j for j in range(2 * N) if j % N != i % N]]
                for i in range(2 * N)
            ],
            0.3,
            50.0,
        ),
        [(N, D), (N, D)],
    ),
    "dcl": (
        lambda a, b: A.dcl(a, b, tau=0.3),
        lambda a, b: dcl.loss(unit(a), unit(b), 0.3),
        [(N, D), (N, D)],
    ),
    "dclw": (
        lambda a, b: A.dclw(a, b, tau=0.3, sigma=0.4),
        lambda a, b: dcl.loss(unit(a), unit(b), 0.3, 0.4),
        [(N, D), (N, D)],
    ),
    "info_nce": (
        lambda q, k, n: A.info_nce(q, k, n, tau=0.3),
        lambda q, k, n: moco.loss(unit(q), unit(k), n, 0.3),
        [(N, D), (N, D), (K, D)],
    ),
    "info_nce eqco": (
        lambda q, k, n: A.info_nce(q, k, n, tau=0.3, alpha=50.0),
        lambda q, k, n: eqco.loss(unit(q), unit(k), rows(n), 0.3, 50.0),
        [(N, D), (N, D), (K, D)],
    ),
    "info_nce eqco as a margin": (
        lambda q, k, n: A.info_nce(q, k, n, tau=0.3, alpha=50.0),
        lambda q, k, n: eqco.loss_with_margin(unit(q), unit(k), rows(n), 0.3, 50.0),
        [(N, D), (N, D), (K, D)],
    ),
    "info_nce decoupled": (
        lambda q, k, n: A.info_nce(q, k, n, tau=0.3, decoupled=True),
        lambda q, k, n: dcl.with_queue(unit(q), unit(k), n, 0.3),
        [(N, D), (N, D), (K, D)],
    ),
    "info_nce of many keys": (
        lambda q, k, n: A.info_nce(q, k, n, tau=0.3),
        lambda q, k, n: jcl.vanilla(unit(q), unit(k), n, 0.3),
        [(N, D), (M, N, D), (K, D)],
    ),
    "jcl": (
        lambda q, k, n: A.jcl(q, k, n, tau=0.3, strength=4.0),
        lambda q, k, n: jcl.loss(unit(q), unit(k), n, 0.3, 4.0),
        [(N, D), (M, N, D), (K, D)],
    ),
    "byol": (
        lambda p, q, s, t: A.byol(p, t) + A.byol(q, s),
        lambda p, q, s, t: byol.byol(unit(p), unit(q), unit(s), unit(t)),
        [(N, D)] * 4,
    ),
    "simsiam": (
        lambda p, q, s, t: (A.simsiam(p, t) + A.simsiam(q, s)) / 2,
        lambda p, q, s, t: byol.simsiam(unit(p), unit(q), unit(s), unit(t)),
        [(N, D)] * 4,
    ),
    "centroid": (
        A.centroid,
        lambda p, t: msbreg.halves(unit(p), unit(t)),
        [(4, N, D), (4, N, D)],
    ),
    "barlow_twins": (
        lambda a, b: A.barlow_twins(a, b, weight=0.02),
        lambda a, b: barlowtwins.loss(a, b, 0.02),
        [(N, D), (N, D)],
    ),
    "barlow_twins of few": (
        A.barlow_twins,
        lambda a, b: barlowtwins.loss(a, b, 0.0051),
        [(2, D), (2, D)],
    ),
    "vicreg": (
        A.vicreg,
        lambda a, b: vicreg.loss(a, b, 25.0, 25.0, 1.0),
        [(N, D), (N, D)],
    ),
    "vicreg with other weights": (
        lambda a, b: A.vicreg(0.3 * a, b, invariance=2.0, variance=3.0, covariance=4.0),
        lambda a, b: vicreg.loss(0.3 * a, b, 2.0, 3.0, 4.0),
        [(N, D), (N, D)],
    ),
    "singular_value": (A.singular_value, lambda z: msbreg.gram(unit(z)), [(N, D)]),
    "singular_value of few": (A.singular_value, lambda z: msbreg.gram(unit(z)), [(3, D)]),
    "singular_value of views": (
        A.singular_value,
        lambda z: (msbreg.gram(unit(z[0])) + msbreg.gram(unit(z[1]))) / 2,
        [(2, N, D)],
    ),
    "nuclear": (
        lambda z: regularise.nuclear(unit(z)[None], torch.arange(N), torch.tensor(0)),
        lambda z: msbreg.nuclear(unit(z)),
        [(N, D)],
    ),
    "correlation": (
        lambda z: regularise.correlation(unit(z)[None], torch.arange(N), torch.tensor(0)),
        lambda z: msbreg.correlation(unit(z)),
        [(N, D)],
    ),
    "uniform": (
        lambda z: regularise.uniform(unit(z)[None], torch.arange(N), torch.tensor(0)),
        lambda z: msbreg.uniform(unit(z)),
        [(N, D)],
    ),
    "uniformity": (A.uniformity, lambda z: msbreg.uniform(unit(z)), [(N, D)]),
    "alignment": (
        A.alignment,
        lambda a, b: sum(((unit(a)[i] - unit(b)[i]) ** 2).sum() for i in range(N)) / N,
        [(N, D), (N, D)],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_loss_and_gradient_equal_the_paper(name):
    ours, paper, shapes = CASES[name]
    inputs = [rand(*shape).requires_grad_() for shape in shapes]
    mine, theirs = ours(*inputs), paper(*inputs)
    assert mine.shape == () and abs(mine - theirs) < 1e-10
    gradients = torch.autograd.grad(mine, inputs, allow_unused=True, materialize_grads=True)
    expected = torch.autograd.grad(theirs, inputs, allow_unused=True, materialize_grads=True)
    for x, y in zip(gradients, expected, strict=True):
        assert (x - y).abs().max() < 1e-10
    assert any(x.abs().max() > 1e-3 for x in gradients)


# DCLW's weight and SimSiam's target are detached by definition, so their finite differences are
# those of another loss
@pytest.mark.parametrize("name", [name for name in CASES if name not in ("dclw", "simsiam")])
def test_gradcheck(name):
    ours, _, shapes = CASES[name]
    assert torch.autograd.gradcheck(ours, [rand(*shape).requires_grad_() for shape in shapes])


def test_gradcheck_of_the_detached_ones():
    """With the detached part held fixed they are ordinary functions."""
    fixed = rand(N, D)
    assert torch.autograd.gradcheck(lambda p: A.simsiam(p, fixed), rand(N, D).requires_grad_())
    from antipode.core.loss import weighted
    from antipode.types import Terms

    free = weighted(0.5, detach=False)
    attract, repel = rand(N).requires_grad_(), rand(N).requires_grad_()
    assert torch.autograd.gradcheck(lambda a, r: free(Terms(a, a, r)), (attract, repel))


def test_multiplier_equals_the_paper():
    a, b = rand(N, D), rand(N, D)
    assert (
        A.npc_multiplier(a, b, tau=0.3) - dcl.multiplier(unit(a), unit(b), 0.3)
    ).abs().max() < 1e-12


def test_brownian_is_the_mean_dot_with_one_unit_direction_per_image():
    z = rand(2, N, D)
    draw = torch.randn(N, D, generator=torch.Generator().manual_seed(3)).double()
    expected = sum(unit(z)[v, i] @ unit(draw)[i] for v in range(2) for i in range(N)) / (2 * N)
    assert abs(A.brownian(z, generator=torch.Generator().manual_seed(3)) - expected) < 1e-12


def test_query_gradient_equals_theorem_2_and_its_bound():
    q, k, negatives = unit(rand(N, D)).requires_grad_(), unit(rand(N, D)), unit(rand(K, D))
    tau, alpha = 0.3, 50.0
    (gradient,) = torch.autograd.grad(N * eqco.loss(q, k, rows(negatives), tau, alpha), q)
    closed = eqco.query_gradient(q.detach(), k, rows(negatives), tau, alpha)
    assert (gradient - closed).abs().max() < 1e-12
    pull = torch.exp((q * k).sum(1) / tau)
    p0 = pull / (pull + alpha / K * torch.exp(q @ negatives.T / tau).sum(1))
    assert (closed.norm(dim=1) <= 2 / tau * (1 - p0)).all()


def test_knn_equals_a_loop():
    train, labels, test = rand(30, D), torch.randint(3, (30,)), rand(11, D)
    for tau in (0.07, None):
        votes = A.knn(train, labels, test, k=4, tau=tau, classes=3)
        for i in range(11):
            similarity = unit(train) @ unit(test)[i]
            expected = torch.zeros(3, dtype=torch.float64)
            for j in similarity.argsort(descending=True)[:4]:
                expected[labels[j]] += 1 if tau is None else torch.exp(similarity[j] / tau)
            assert torch.allclose(votes[i], expected, rtol=1e-12)
