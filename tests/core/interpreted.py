"""The kernels of core/fused.py in Triton's interpreter, which runs them on CPU tensors.

tests/core/test_fused.py runs this file in a process of its own: the interpreter has to be chosen
before Triton is imported.
"""

import math

import pytest
import torch
from torch.nn.functional import normalize

from antipode import functional as A
from antipode.core import fused, streamed
from tests.core.test_streamed import naive

EPS = torch.finfo(torch.float32).eps
TOLERANCE = 2


@pytest.fixture(autouse=True)
def on_the_cpu(monkeypatch):
    """Stream every problem through the kernels."""
    monkeypatch.setitem(streamed.WHOLE, "cpu", 0)
    monkeypatch.setattr(streamed, "_kernels", lambda *_: fused)


def drawn(n, k, dim, kinds=0, length=5.0):
    """Return queries (n,dim) of a length, unit vectors (k,dim), and ids of few kinds or none."""
    query = length * normalize(torch.randn(n, dim))
    ids = tuple(torch.randint(kinds, (x,)) for x in (n, k)) if kinds else None
    return query, normalize(torch.randn(k, dim)), ids


def check(query, vectors, ids=None):
    """Compare all results with those of the whole matrix in float64.

    Errors may be as large as those of float32, times TOLERANCE: each score has an error of
    |query| |vector|, in units of the precision, and each exponential has that of its score and of
    the log-sum-exp. An exponential whose score has an error above 1 may be anything up to 1.
    Gradients also have an error of 2^-50 of the largest contribution of a query (core/fused.py).
    """
    grad = torch.randn(len(query))
    rule = list(ids or ())
    repel, pull, total = fused.forward(query, vectors, rule, True, True)
    gradient = fused.backward(query, vectors, rule, grad, repel)
    assert gradient.shape == vectors.shape and pull.shape == query.shape
    q, v, g = query.double(), vectors.double(), grad.double()
    wanted, _, sums = naive(q, v, ids)
    some = wanted.isfinite()
    assert torch.equal(repel == -math.inf, ~some) and (pull[~some] == 0).all()
    own = torch.zeros(len(q), len(v)) if ids is None else ids[0][:, None] == ids[1]
    exponents = (q @ v.T - wanted[:, None]).masked_fill(own.bool(), -math.inf)
    weights = torch.exp(exponents)
    lengths = q.norm(dim=1)[:, None] * v.norm(dim=1)
    unsure = 1 + wanted.abs()[:, None] + lengths + (weights * lengths).sum(1, keepdim=True)
    relative = TOLERANCE * EPS * unsure
    most = torch.exp((exponents + relative).clamp(max=0))
    unsure = torch.maximum(most - weights, relative * weights).masked_fill(~some[:, None], 0)
    assert ((repel - wanted)[some].abs() <= (relative * weights).sum(1)[some]).all()
    assert ((total - sums).abs() <= TOLERANCE * EPS * lengths.sum(1) + 1e-44).all()
    errors = (pull - weights @ v).norm(dim=1)
    assert (errors <= unsure @ v.norm(dim=1) + 1e-44).all()
    errors = (gradient - weights.T @ (g[:, None] * q)).norm(dim=1)
    pulls = g.abs() * q.norm(dim=1)
    assert (errors <= unsure.T @ pulls + 2**-50 * pulls.max() + 1e-44).all()


def test_lengths_are_powers_of_two():
    rows = torch.tensor([[1.0], [1.99], [-2.0], [1e-3], [3e38], [1e-30], [5.0]])
    scaled = rows.abs() / fused._length(rows)[:, None]
    assert ((scaled >= 2**13) & (scaled < 2**14)).all()
    odd = fused._length(torch.tensor([[0.0], [1e-45], [math.inf], [math.nan]]))
    assert odd.isfinite().all() and odd.reciprocal().isfinite().all()


# neither queries nor vectors fill their blocks of 128 and 64; 257 vectors are several parts
@pytest.mark.parametrize(
    ("n", "k", "dim", "kinds"),
    [(1, 1, 1, 0), (5, 7, 3, 2), (129, 64, 16, 0), (70, 257, 20, 3), (128, 128, 64, 128)],
)
def test_the_kernels_equal_the_whole_matrix(n, k, dim, kinds):
    check(*drawn(n, k, dim, kinds))


@pytest.mark.parametrize("passes", ["tf32x3", "ieee"])
def test_other_passes_equal_the_whole_matrix(monkeypatch, passes):
    """The interpreter computes both of them in float32."""
    monkeypatch.setattr(fused, "PASSES", passes)
    check(*drawn(5, 70, 3, 4))


def test_all_but_one_and_all_vectors_are_masked():
    """Padded rows have the id 0, and must not be taken for an image with that id."""
    query, vectors, _ = drawn(3, 70, 4)
    owners = torch.zeros(70, dtype=torch.int64)
    owners[69] = 1
    check(query, vectors, (torch.tensor([0, 1, 2]), owners))
    check(query, vectors, (torch.tensor([0, 0, 0]), torch.zeros(70).long()))
    repel, pull, _ = fused.forward(query, vectors, [torch.zeros(3).long(), owners], True, False)
    assert torch.allclose(repel, query @ vectors[69]) and torch.allclose(pull, vectors[69:])


@pytest.mark.parametrize(("of_query", "of_vectors"), [(1e-6, 1e6), (1e9, 1e-9), (1e-30, 1e-30)])
def test_numbers_of_any_size(of_query, of_vectors):
    """float16 ends at 65,504 and at 6e-8; scales of powers of two keep all digits."""
    query, vectors, ids = drawn(6, 70, 5, 3)
    check(of_query * query, of_vectors * vectors, ids)


def test_rows_of_unequal_length():
    """Masked or far below the others, a long vector takes no digits from the short ones."""
    query, vectors, _ = drawn(6, 70, 5)
    lengths = 10.0 ** torch.arange(-6, 7, 2)
    lengths = lengths.repeat(10)
    # scores of up to 5e6: of larger ones float32 does not even have the digits before the point
    check(1e-4 * query * lengths[:6, None], vectors * lengths[:70, None])
    owners = (lengths[:70] > 1e-5).long()
    check(query * 1e5, vectors * lengths[:70, None], (torch.ones(6).long(), owners))
    below = torch.where(lengths[:70, None] > 1, -query[:1].expand(70, 5), vectors)
    check(query[:1] * 1e5, below * lengths[:70, None])


def test_vectors_of_extreme_lengths():
    query, vectors, _ = drawn(6, 70, 5)
    owners = torch.arange(70) % 2
    vectors = torch.where(owners[:, None] == 1, 1e18 * vectors, 1e-18 * vectors)
    check(1e15 * query, vectors, (torch.ones(6).long(), owners))


def test_gradients_of_unequal_size():
    """A vector that only matters to queries of small gradient has all digits.

    Padded queries have the id 0. No vector has it, so none of them is masked.
    """
    query, vectors, _ = drawn(6, 70, 5)
    grad = 10.0 ** -torch.arange(0, 24, 4)
    grad[3] = 0
    owners = 1 + torch.arange(70) % 6
    ids = [torch.ones(6).long(), owners]
    ids[0][3:5] = 2
    repel, _, _ = fused.forward(query, vectors, ids, False, False)
    found = fused.backward(query, vectors, ids, grad, repel)
    x = vectors.double().requires_grad_()
    (exact,) = torch.autograd.grad(naive(query.double(), x, ids)[0] @ grad.double(), x)
    assert ((found - exact).norm(dim=1) < 100 * EPS * exact.norm(dim=1)).all()
    assert exact[owners == 1].norm() < 1e-12  # they repel no query of a larger gradient


def test_a_score_far_above_the_others():
    """The others have weights of exp(-200), which are no float32 numbers, or just below 2^-50."""
    for length in (100.0, 17.0):
        query = torch.zeros(2, 4)
        query[:, 0] = length
        vectors = torch.zeros(65, 4)
        vectors[:, 0] = -1
        vectors[64, 0] = 1
        check(query, vectors, None)


def test_strides_and_slices():
    query, vectors, ids = drawn(6, 70, 8, 3)
    wide = torch.randn(140, 16)
    wide[::2, ::2] = vectors
    apart = torch.stack([ids[1], ids[1]], 1)[:, 0]
    check(query.T.contiguous().T, wide[::2, ::2], (ids[0], apart))
    check(query[:1].expand(6, 8), vectors, ids)


def test_the_same_bits_each_time():
    query, vectors, ids = drawn(6, 300, 5, 3)
    first, second = (fused.forward(query, vectors, list(ids), True, True) for _ in range(2))
    assert all(torch.equal(x, y) for x, y in zip(first, second, strict=True))


def test_a_query_that_is_not_a_number_gives_no_number():
    query, vectors, _ = drawn(5, 7, 4)
    query[2, 1] = math.nan
    repel, pull, _ = fused.forward(query, vectors, [], True, False)
    others = torch.arange(5) != 2
    assert repel[2].isnan() and pull[2].isnan().any()
    assert repel[others].isfinite().all() and pull[others].isfinite().all()


def test_losses_and_their_gradients():
    """Through the operators, forward and backward, for a queue, a bank and a batch."""
    inputs = [torch.randn(x, 6) for x in (5, 5, 70)]

    def measure(dtype):
        q, k, n = (x.to(dtype).requires_grad_() for x in inputs)
        loss = A.info_nce(q, k, n, tau=0.1) + A.nt_xent(q, k, tau=0.2, alpha=9.0)
        return loss.detach(), torch.cat(torch.autograd.grad(loss, (q, k, n)))

    ours = measure(torch.float32)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(streamed, "_kernels", lambda *_: None)
        exact = measure(torch.float64)
    for x, y in zip(ours, exact, strict=True):
        assert x.dtype == torch.float32
        assert (x - y).abs().max() < 40 * EPS * y.abs().max()


def test_kernels_that_cannot_be_built_are_a_warning(monkeypatch):
    def fail(*_):
        raise RuntimeError("no C compiler")

    monkeypatch.setattr(fused, "forward", fail)
    monkeypatch.setitem(streamed.KERNELS, "cpu", True)
    query, vectors, _ = drawn(3, 7, 4)
    with pytest.warns(UserWarning, match="without kernels, and slower .RuntimeError: no C comp"):
        found = streamed.repulsion(query, [streamed.Candidates(vectors)])
    assert torch.allclose(found.repel, naive(query, vectors)[0])
    assert streamed.KERNELS["cpu"] is False
