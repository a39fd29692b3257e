"""Tests of numerical stability and memory.

Losses are finite and equal float32 at extreme temperatures, in half precision and under autocast.
Peak memory stays below a limit.
"""

import weakref

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from antipode import functional as A
from antipode.core import streamed
from antipode.core.scores import product, unit
from antipode.papers import methods
from tests.toys import batch, make

N, D, K, M = 16, 32, 50, 4


def close_views(apart=0.1):
    """Return two views that are close to each other, as in a trained network."""
    z = torch.randn(N, D)
    return z, z + apart * torch.randn(N, D)


LOSSES = {
    "nt_xent": lambda a, b, n: A.nt_xent(a, b, tau=0.02),
    "nt_xent eqco": lambda a, b, n: A.nt_xent(a, b, tau=0.02, alpha=65536),
    "dcl": lambda a, b, n: A.dcl(a, b, tau=0.02),
    "dclw": lambda a, b, n: A.dclw(a, b, tau=0.02),
    "info_nce": lambda a, b, n: A.info_nce(a, b, n, tau=0.02),
    "info_nce eqco": lambda a, b, n: A.info_nce(a, b, n, tau=0.02, alpha=65536),
    "info_nce decoupled": lambda a, b, n: A.info_nce(a, b, n, tau=0.02, decoupled=True),
    "jcl": lambda a, b, n: A.jcl(a, torch.stack([b, a, -b, b.flip(0)]), n, tau=0.05, strength=10.0),
    "byol": lambda a, b, n: A.byol(a, b),
    "simsiam": lambda a, b, n: A.simsiam(a, b),
    "centroid": lambda a, b, n: A.centroid(torch.stack([a, b]), torch.stack([b, a])),
    "singular_value": lambda a, b, n: A.singular_value(a),
    "brownian": lambda a, b, n: A.brownian(a, torch.Generator().manual_seed(5)),
    "barlow_twins": lambda a, b, n: A.barlow_twins(a, b),
    "vicreg": lambda a, b, n: A.vicreg(a, b),
    "alignment": lambda a, b, n: A.alignment(a, b),
    "uniformity": lambda a, b, n: A.uniformity(a),
    "npc_multiplier": lambda a, b, n: A.npc_multiplier(a, b, tau=0.02).sum(),
}


def value_and_gradient(name, a, b, n, autocast=None):
    a = a.clone().requires_grad_()
    with torch.autocast("cpu", dtype=autocast or torch.bfloat16, enabled=autocast is not None):
        loss = LOSSES[name](a, b, n)
    loss.backward()
    return loss.detach(), a.grad


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", LOSSES)
def test_half_precision_and_autocast_equal_float32(name, dtype):
    # far enough apart for gradients that float16 can represent
    a, b = (x.to(dtype) for x in close_views(apart=3.0))
    n = unit(torch.randn(K, D)).to(dtype)
    loss, gradient = value_and_gradient(name, a.float(), b.float(), n.float())
    half, half_gradient = value_and_gradient(name, a, b, n, autocast=dtype)
    assert half.dtype == torch.float32 and half_gradient.dtype == dtype
    assert torch.allclose(half, loss, rtol=1e-3)
    assert gradient.isfinite().all()
    # the gradient is computed in float32 and rounded to half precision once, when it is returned
    tolerance = 1e-3 if dtype == torch.float16 else 4e-3
    assert (half_gradient.float() - gradient).norm() <= tolerance * gradient.norm()


@pytest.mark.parametrize("name", LOSSES)
def test_float32_equals_float64(name):
    a, b = close_views()
    n = unit(torch.randn(K, D))
    loss, gradient = value_and_gradient(name, a, b, n)
    exact, exact_gradient = value_and_gradient(name, a.double(), b.double(), n.double())
    assert exact.dtype == torch.float64 and loss.isfinite() and gradient.isfinite().all()
    assert torch.allclose(loss.double(), exact, rtol=1e-3, atol=1e-4)
    assert (gradient - exact_gradient).norm() <= 1e-3 * exact_gradient.norm() + 1e-6


def test_logits_of_a_thousand_stay_finite_and_exact():
    q, k = close_views()
    n = unit(torch.randn(K, D))
    for decoupled in (False, True):
        x = q.clone().requires_grad_()
        loss = A.info_nce(x, k, n, tau=1e-3, decoupled=decoupled)
        loss.backward()
        exact = A.info_nce(q.double(), k.double(), n.double(), tau=1e-3, decoupled=decoupled)
        assert x.grad.isfinite().all() and abs(loss - exact) <= 1e-3 * abs(exact) + 1e-30


def test_a_far_reaching_gaussian_stays_finite():
    """Lambda 10, tau .05 and opposite keys give a bound of hundreds; its exp overflows float32."""
    q = torch.randn(N, D).requires_grad_()
    n = unit(torch.randn(K, D))
    keys = torch.stack([q.detach(), -q.detach()])
    loss = A.jcl(q, keys, n, tau=0.05, strength=10.0)
    loss.backward()
    exact = A.jcl(q.detach().double(), keys.double(), n.double(), tau=0.05, strength=10.0)
    assert loss > 1000 and torch.allclose(loss.double(), exact, rtol=1e-5)
    assert q.grad.isfinite().all()


@pytest.mark.parametrize("name", LOSSES)
def test_zero_vectors_give_no_nan(name):
    a, b = close_views()
    a[3] = 0
    b[5] = 0
    loss, gradient = value_and_gradient(name, a, b, unit(torch.randn(K, D)))
    assert loss.isfinite() and gradient.isfinite().all()


def test_inv_spread_stays_finite_where_a_stranger_is_all_but_identical():
    """If the probability P of a wrong image rounds to 1, log(1 - P) must not become log(0)."""
    from antipode import rng
    from antipode.papers.invspread import Spread
    from antipode.types import Pair

    z = unit(torch.tensor([[1.0, 0.0, 1e-4], [1.0, 1e-4, 0.0], [-1.0, 0.2, 0.0]])).requires_grad_()
    other = unit(torch.tensor([[-1.0, 0.0, 0.1], [-1.0, 0.1, 0.0], [0.0, 1.0, 0.0]]))
    ids = torch.arange(3)
    pool = torch.cat([z, other]).detach()
    loss, _ = Spread(0.02)(Pair(z, other[None], ids, pool, ids.repeat(2), rng.key(0)))
    loss.backward()
    assert loss.isfinite() and z.grad.isfinite().all()


@pytest.mark.parametrize("scale", [1e-30, 1e-15, 1e15, 1e30])
def test_the_length_of_a_vector_does_not_matter(scale):
    a, b = close_views()
    assert torch.allclose(A.dcl(a * scale, b * scale, tau=0.1), A.dcl(a, b, tau=0.1), rtol=1e-5)


@pytest.mark.parametrize("method", methods())
def test_half_projections_are_raised(method):
    """All computations after the networks use float32, even if the networks use half precision.

    tests/test_gpu.py runs networks in half precision on a GPU.
    """
    learner = make(method)
    last_module = learner.predictor or learner.online.head
    last_module.register_forward_hook(lambda module, inputs, out: out.half())
    out = learner(batch(learner.views))
    assert out.loss.dtype == torch.float32 and out.loss.isfinite()
    assert out.keys.dtype == torch.float32


def test_products_ignore_the_callers_precision_settings():
    left, right = torch.randn(64, 64), torch.randn(64, 64)
    exact = product(left, right)
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    try:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            relaxed = product(left, right)
        assert torch.get_float32_matmul_precision() == "medium"  # restored
    finally:
        torch.set_float32_matmul_precision(before)
    assert torch.equal(exact, relaxed)


LEARNED = {
    "nt_xent": lambda a, b, n, tau: A.nt_xent(a, b, tau=tau),
    "dcl": lambda a, b, n, tau: A.dcl(a, b, tau=tau),
    "dclw": lambda a, b, n, tau: A.dclw(a, b, tau=tau),
    "npc_multiplier": lambda a, b, n, tau: A.npc_multiplier(a, b, tau=tau).mean(),
    "info_nce": lambda a, b, n, tau: A.info_nce(a, torch.stack([b, a]), n, tau=tau),
    "jcl": lambda a, b, n, tau: A.jcl(a, torch.stack([b, a]), n, tau=tau, strength=2.0),
}


@pytest.mark.parametrize("name", LEARNED)
def test_a_temperature_is_one_number_whatever_its_axes(name):
    vectors = (*close_views(3.0), unit(torch.randn(K, D)))
    loss = LEARNED[name]
    learned = torch.tensor(0.3, requires_grad=True)
    value = loss(*vectors, learned)
    (slope,) = torch.autograd.grad(value, learned)
    assert torch.allclose(value, loss(*vectors, 0.3), rtol=1e-5) and slope != 0
    for shape in ((1,), (1, 1), (1, 1, 1)):
        tau = torch.full(shape, 0.3, requires_grad=True)
        shaped_value = loss(*vectors, tau)
        (gradient,) = torch.autograd.grad(shaped_value, tau)
        assert torch.equal(shaped_value, value) and torch.equal(gradient, slope.expand(shape))


def test_uniformity_of_vectors_far_apart_is_their_distance():
    x = torch.tensor([[1.0, 0.0], [-1.0, 0.0]], requires_grad=True)
    for t in (2.0, 30.0, 300.0):
        value = A.uniformity(x, t=t)
        value.backward()
        assert value.item() == pytest.approx(-4 * t) and x.grad.isfinite().all()


def test_the_smallest_temperature_of_knn_gives_finite_votes():
    train, labels = torch.eye(4), torch.arange(4)
    votes = A.knn(train, labels, train, k=2, tau=1 / 700)
    assert votes.isfinite().all() and torch.equal(votes.argmax(1), labels)
    assert torch.allclose(votes.diagonal().log(), torch.tensor(700.0).double())


class Peak(TorchDispatchMode):
    """Track the memory of tensors that are created inside the context, in bytes.

    `peak` is the most memory in use at the same time, `largest` the largest single tensor.
    """

    def __init__(self):
        super().__init__()
        self.alive = 0
        self.peak = 0
        self.largest = 0
        self.storages = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for tensor in torch.utils._pytree.tree_leaves(out):
            if isinstance(tensor, torch.Tensor):
                self.count(tensor.untyped_storage())
        return out

    def count(self, storage):
        key = storage._cdata
        size = storage.nbytes()
        if key in self.storages:
            return
        self.storages.add(key)
        self.alive += size
        self.peak = max(self.peak, self.alive)
        self.largest = max(self.largest, size)
        weakref.finalize(storage, self.release, key, size)

    def release(self, key, size):
        self.storages.discard(key)
        self.alive -= size


def test_stored_scores_peak_below_four_and_a_half_matrices(monkeypatch):
    """This is the largest problem whose scores are stored on a GPU (core/streamed.py)."""
    monkeypatch.setitem(streamed.WHOLE, "cpu", streamed.WHOLE["cuda"])
    n, k, d = 256, 65536 + 256, 128
    assert not streamed.is_large(n, k, torch.device("cuda"))
    q = torch.randn(n, d).requires_grad_()
    key = torch.randn(n, d)
    queue = unit(torch.randn(k, d))
    with Peak() as peak:
        A.info_nce(q, key, queue, tau=0.2, alpha=256).backward()
    assert n * k * 4 < peak.peak <= 4.5 * n * k * 4


def test_the_learner_peaks_no_higher_than_the_function():
    n, k = 64, 16384
    learner = make("eqco", negatives=k, dim=128)
    b = batch(2, n=n)
    with Peak() as peak:
        learner(b).loss.backward()
    assert n * k * 4 < peak.peak <= 4.5 * n * k * 4


def test_jcl_builds_no_covariance():
    n, d, k = 64, 256, 32
    q = torch.randn(n, d).requires_grad_()
    keys = torch.randn(5, n, d)
    queue = unit(torch.randn(k, d))
    with Peak() as peak:
        A.jcl(q, keys, queue, tau=0.2, strength=4.0).backward()
    assert peak.largest < n * d * d * 4 / 10
