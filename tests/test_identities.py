"""Tests that methods of different papers are equal where they must be."""

import math

import torch

from antipode import functional as A
from antipode.core.loss import Gaussian, coupled, decoupled, gaussian, multiplier, weighted
from antipode.types import Terms
from tests.toys import batch, make

N, D, K, M, TAU = 6, 5, 9, 4, 0.2


def rand(*shape):
    return torch.randn(*shape, dtype=torch.float64)


def gradient(f, x):
    return torch.autograd.grad(f(x), x)[0]


def test_eqco_with_alpha_k_is_infonce():
    q, k, n = rand(N, D), rand(N, D), rand(K, D)
    assert abs(A.info_nce(q, k, n, tau=TAU, alpha=K) - A.info_nce(q, k, n, tau=TAU)) < 1e-12
    assert abs(A.nt_xent(q, k, tau=TAU, alpha=2 * N - 2) - A.nt_xent(q, k, tau=TAU)) < 1e-12


def test_eqco_with_endless_alpha_is_dcl_up_to_its_constant():
    q, k, n = rand(N, D), rand(N, D), rand(K, D)
    alpha = 1e14
    shifted = A.info_nce(q, k, n, tau=TAU, alpha=alpha) - math.log(alpha / K)
    assert abs(shifted - A.info_nce(q, k, n, tau=TAU, decoupled=True)) < 1e-10
    x = q.requires_grad_()
    far = gradient(lambda q: A.info_nce(q, k, n, tau=TAU, alpha=alpha), x)
    assert (
        far - gradient(lambda q: A.info_nce(q, k, n, tau=TAU, decoupled=True), x)
    ).abs().max() < 1e-10


def test_jcl_of_one_key_is_moco_whatever_its_strength():
    q, k, n = rand(N, D), rand(N, D), rand(K, D)
    for strength in (0.0, 4.0):
        assert (
            abs(A.jcl(q, k[None], n, tau=TAU, strength=strength) - A.info_nce(q, k, n, tau=TAU))
            < 1e-12
        )


def test_jcl_splits_into_cross_entropy_and_the_quadratic_term():
    """The authors' code adds mean lambda/(2 tau^2) q' Sigma q to a larger cross-entropy."""
    q, keys, n, strength = rand(N, D), rand(M, N, D), rand(K, D), 4.0
    unit, ks = q / q.norm(dim=1, keepdim=True), keys / keys.norm(dim=2, keepdim=True)
    quadratic = strength / (2 * TAU**2) * torch.einsum("nd,mnd->nm", unit, ks).var(1, correction=0)
    positive = (unit * ks.mean(0)).sum(1) / TAU + quadratic
    logits = torch.cat([positive[:, None], unit @ n.T / TAU], 1)
    split = (
        torch.nn.functional.cross_entropy(logits, torch.zeros(N, dtype=torch.long))
        + quadratic.mean()
    )
    assert abs(A.jcl(q, keys, n, tau=TAU, strength=strength) - split) < 1e-12


def test_jcl_bounds_the_mean_loss_over_its_keys_from_above_to_second_order():
    """Jensen: E log(..) <= log E(..); both are equal in the limit of close keys."""
    q, n, apart = rand(N, D), 0.1 * rand(K, D), 1e-2 * rand(M, N, D)
    keys = q + torch.cat([apart, -apart])
    joint, mean = A.jcl(q, keys, n, tau=TAU, strength=1.0), A.info_nce(q, keys, n, tau=TAU)
    assert 0 < joint - mean < 1e-3


def test_dclw_with_endless_sigma_is_dcl():
    a, b = rand(N, D), rand(N, D)
    assert abs(A.dclw(a, b, tau=TAU, sigma=1e12) - A.dcl(a, b, tau=TAU)) < 1e-10


def test_mean_weight_of_dclw_is_one():
    attract = rand(50)
    # without repulsion the loss is -w a
    terms = Terms(attract, attract, torch.zeros(50, dtype=torch.float64))
    weight = -weighted(0.7)(terms) / attract
    assert abs(weight.mean() - 1) < 1e-12 and weight.std() > 0.1


def test_gradient_of_simclr_is_the_multiplier_times_that_of_dcl_anchor_by_anchor():
    a, b = rand(N, D), rand(N, D).requires_grad_(False)
    factors = A.npc_multiplier(a, b, tau=TAU)
    views = torch.cat([a, b])
    views = views / views.norm(dim=1, keepdim=True)
    for i in range(2 * N):
        others = [j for j in range(2 * N) if j % N != i % N]
        anchor = views[i : i + 1].clone().requires_grad_()
        key, negatives = views[(i + N) % (2 * N)][None], views[others]
        coupled_pull = gradient(lambda q, k=key, n=negatives: A.info_nce(q, k, n, tau=TAU), anchor)
        decoupled_pull = gradient(
            lambda q, k=key, n=negatives: A.info_nce(q, k, n, tau=TAU, decoupled=True), anchor
        )
        assert (coupled_pull - factors[i] * decoupled_pull).abs().max() < 1e-12


def test_gradient_of_jcls_negatives_is_the_multiplier_times_that_of_dcl():
    """With several keys, the positive in JCL's denominator is the bound, not the mean score."""
    attract, bound = gaussian(rand(N, M), 4.0)
    assert (bound - attract).min() > 0.1
    negatives = rand(N, K).requires_grad_()

    def terms(scores):
        return Terms(attract, bound, torch.logsumexp(scores, 1))

    factors = multiplier(terms(negatives)).detach()
    weights = negatives.detach().exp().sum(1)
    assert (factors - weights / (weights + bound.exp())).abs().max() < 1e-12
    coupled_push = gradient(lambda scores: coupled(terms(scores)).sum(), negatives)
    decoupled_push = gradient(lambda scores: decoupled(terms(scores)).sum(), negatives)
    assert (coupled_push - factors[:, None] * decoupled_push).abs().max() < 1e-12


def test_centroid_of_two_views_is_byol():
    p, t = rand(2, N, D), rand(2, N, D)
    assert abs(A.centroid(p, t) - (A.byol(p[0], t[1]) + A.byol(p[1], t[0]))) < 1e-12


def test_msbreg_of_two_views_without_regularisers_is_byol(double):
    torch.manual_seed(5)
    ours = make("msbreg", views=2, singular_value=0.0, brownian=0.0)
    torch.manual_seed(5)
    byol = make("byol")
    assert torch.equal(ours(batch(2)).loss, byol(batch(2)).loss)


def test_isotropic_embeddings_have_no_singular_value_loss():
    orthonormal = torch.linalg.qr(rand(32, 8))[0]
    rows = orthonormal * math.sqrt(32 / 8)
    from antipode.core.regularise import isotropy

    assert isotropy(rows.T @ rows, 32) < 1e-20
    assert A.singular_value(torch.eye(8).repeat(4, 1).double()) < 1e-20


def test_singular_value_loss_of_a_collapse_is_its_largest():
    assert abs(A.singular_value(torch.ones(64, 16)) - (16 - 1) ** 2 - 15) < 1e-3


def test_mi_bound_counts_alpha_as_negatives():
    loss = torch.tensor(2.0)
    assert abs(A.mi_lower_bound(loss, 100) - (math.log(101) - 2)) < 1e-6
    assert A.mi_lower_bound(loss, 100, alpha=300) == A.mi_lower_bound(loss, 300)


def test_mean_variance_of_unit_vectors_is_one_minus_their_mean_similarity():
    """Supplement, figure M.3: both panels carry the same information."""
    x = rand(32, D)
    x = x / x.norm(dim=1, keepdim=True)
    assert abs(x.var(0, correction=0).mean() - (1 - (x @ x.T).mean()) / D) < 1e-12


def test_ramp_reaches_full_strength_in_the_last_epoch():
    gaussian, seen = Gaussian(4.0, stairs=5), []
    assert gaussian.now == 4.0
    for step in range(15):  # 3 steps an epoch
        gaussian.at(step / 15)
        seen.append(round(gaussian.now.item(), 6))
    assert seen == [round(4.0 * (step // 3 + 1) / 5, 6) for step in range(15)]


def test_coupled_is_exact_where_plain_log_sum_exp_is_not():
    """softplus(-50) = 2e-22 is lost against a score of 1000 in float32."""
    terms = Terms(torch.tensor([1000.0]), torch.tensor([1000.0]), torch.tensor([950.0]))
    assert 1e-22 < coupled(terms).item() < 1e-21


def test_barlow_twins_does_not_see_scale_and_shift_of_a_dimension(double):
    z0, z1 = torch.randn(64, 5), torch.randn(64, 5)
    scale, shift = 100 * torch.rand(5) + 10, torch.randn(5)  # large beside the eps
    moved = A.barlow_twins(100 * z0 * scale + shift, 100 * z1, weight=0.1)
    assert torch.allclose(moved, A.barlow_twins(100 * z0, 100 * z1, weight=0.1), rtol=1e-5)


def test_barlow_twins_of_equal_decorrelated_views_is_zero_and_of_copied_dimensions_is_not(double):
    z = torch.linalg.qr(torch.randn(64, 4) - 0.0)[0]
    z = torch.linalg.qr(z - z.mean(0))[0] * 100
    assert A.barlow_twins(z, z, weight=1.0) < 1e-6
    copied = torch.cat([z, z], 1)
    # every dimension is correlated with one other: 8 off-diagonal ones
    assert torch.allclose(A.barlow_twins(copied, copied, weight=1.0), torch.tensor(8.0), rtol=1e-6)


def test_vicreg_is_the_sum_of_its_terms_and_is_zero_for_equal_spread_decorrelated_views(double):
    z0, z1 = torch.randn(16, 5), torch.randn(16, 5)
    terms = [
        A.vicreg(
            z0, z1, **dict(dict.fromkeys(("invariance", "variance", "covariance"), 0.0), **one)
        )
        for one in (dict(invariance=1.0), dict(variance=1.0), dict(covariance=1.0))
    ]
    whole = A.vicreg(z0, z1, invariance=2.0, variance=3.0, covariance=4.0)
    assert torch.allclose(whole, 2 * terms[0] + 3 * terms[1] + 4 * terms[2])
    z = torch.linalg.qr(torch.randn(64, 4))[0]
    z = torch.linalg.qr(z - z.mean(0))[0] * 63**0.5
    assert A.vicreg(z, z) < 1e-12
    collapsed = torch.ones(16, 5)
    assert torch.allclose(A.vicreg(collapsed, collapsed), torch.tensor(25.0 * 0.99))
