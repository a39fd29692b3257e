"""Scores that are streamed in tiles: the numbers of the stored matrix, in linear memory."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import TorchDispatchMode

from antipode import functional as A
from antipode import rng
from antipode.analysis.cost import kept_bytes
from antipode.core import streamed
from antipode.core.loss import eqco
from antipode.core.negatives import Bank, InBatch, Queue
from antipode.core.objective import Adversarial, Contrast
from antipode.core.scores import unit
from antipode.core.streamed import Candidates, is_large, repulsion
from antipode.types import Pair
from tests.test_references import CASES
from tests.toys import VARIANTS, batch, make

STORED = 1 << 62


@pytest.fixture
def sides(monkeypatch):
    """Return a function that selects a side: tiles of some numbers, or the stored matrix (None)."""

    def choose(numbers, size=8):
        monkeypatch.setitem(streamed.WHOLE, "cpu", STORED if numbers is None else 0)
        if numbers is not None:
            monkeypatch.setitem(streamed.TILE, "cpu", numbers * size)

    return choose


# Numbers


CONTRASTIVE = [name for name in CASES if name.split()[0] in ("nt_xent", "dcl", "dclw", "jcl")]
CONTRASTIVE += [name for name in CASES if name.startswith("info_nce")]


@pytest.mark.parametrize("numbers", [1, 6, 35, 10_000])
@pytest.mark.parametrize("name", CONTRASTIVE)
def test_a_streamed_loss_and_its_gradient_equal_the_paper(sides, name, numbers):
    """The problems have 5 x 7 or 10 x 10 scores, which the tiles do not divide."""
    ours, paper, shapes = CASES[name]
    inputs = [torch.randn(*shape, dtype=torch.float64).requires_grad_() for shape in shapes]
    sides(numbers)
    mine, theirs = ours(*inputs), paper(*inputs)
    assert abs(mine - theirs) < 1e-10
    found = torch.autograd.grad(mine, inputs)
    expected = torch.autograd.grad(theirs, inputs)
    for x, y in zip(found, expected, strict=True):
        assert (x - y).abs().max() < 1e-10


def test_a_streamed_multiplier_and_learned_temperatures_equal_the_stored_ones(sides):
    a, b, n = (torch.randn(6, 5, dtype=torch.float64) for _ in range(3))
    tau = torch.tensor(0.3, dtype=torch.float64, requires_grad=True)
    losses = {
        "multiplier": lambda: A.npc_multiplier(a, b, tau=tau).sum(),
        "nt_xent": lambda: A.nt_xent(a, b, tau=tau, alpha=50.0),
        "dclw": lambda: A.dclw(a, b, tau=tau),
        "info_nce": lambda: A.info_nce(a, torch.stack([b, a]), n, tau=tau),
    }
    for loss in losses.values():
        values = []
        for numbers in (None, 7):
            sides(numbers)
            value = loss()
            values.append((value, *torch.autograd.grad(value, tau)))
        for x, y in zip(*values, strict=True):
            assert abs(x - y) < 1e-12


def naive(query, vectors, image_ids=None):
    """Return repel, count and total of the whole matrix."""
    scores = query @ vectors.T
    own = torch.zeros(scores.shape, dtype=torch.bool)
    if image_ids is not None:
        own = image_ids[0][:, None] == image_ids[1]
    repel = torch.logsumexp(scores.masked_fill(own, -math.inf), 1)
    return repel, (~own).sum(1), scores.masked_fill(own, 0).sum(1)


@settings(max_examples=60, deadline=None)
@given(
    n=st.integers(1, 9),
    k=st.integers(1, 12),
    kinds=st.integers(1, 6),
    numbers=st.integers(1, 60),
    scale=st.sampled_from([0.1, 10.0, 1000.0]),
    seed=st.integers(0, 99),
)
def test_tiles_of_any_size_equal_the_whole_matrix(n, k, kinds, numbers, scale, seed):
    """With few kinds of ids, some queries lose most of their vectors, and some all of them."""
    generator = torch.Generator().manual_seed(seed)
    query = (scale * torch.randn(n, 3, generator=generator).double()).requires_grad_()
    vectors = torch.randn(k, 3, generator=generator).double().requires_grad_()
    image_ids = tuple(torch.randint(kinds, (x,), generator=generator) for x in (n, k))
    weight = torch.randn(n, generator=generator).double()
    before = streamed.TILE["cpu"]
    streamed.TILE["cpu"] = 8 * numbers
    try:
        found = repulsion(query, [Candidates(vectors, image_ids)], summed=True)
        repel, count, total = naive(query, vectors, image_ids)
        assert torch.equal(found.counts, count.double())
        assert torch.allclose(found.total, total, rtol=1e-12, atol=1e-12 * scale)
        assert not found.total.requires_grad and not found.counts.requires_grad
        assert torch.allclose(found.repel, repel, rtol=1e-12, atol=1e-12)
        some = repel.isfinite()
        if not some.any():
            return
        ours = torch.autograd.grad(found.repel[some] @ weight[some], (query, vectors))
        theirs = torch.autograd.grad(repel[some] @ weight[some], (query, vectors))
    finally:
        streamed.TILE["cpu"] = before
    for x, y in zip(ours, theirs, strict=True):
        assert (x - y).abs().max() < 1e-10 * max(scale, 1)


def test_all_vectors_but_one_are_masked(sides):
    """The log-sum-exp of one score is that score, and its gradient is the one vector."""
    query = torch.randn(4, 3, dtype=torch.float64).requires_grad_()
    vectors = torch.randn(9, 3, dtype=torch.float64).requires_grad_()
    owners = torch.zeros(9, dtype=torch.int64)
    owners[7] = 1
    for numbers in (1, 5, 100):
        sides(numbers)
        part = Candidates(vectors, (torch.zeros(4, dtype=torch.int64), owners))
        found = repulsion(query, [part])
        assert torch.allclose(found.repel, query @ vectors[7])
        assert found.counts.tolist() == [1.0] * 4
        to_query, to_vectors = torch.autograd.grad(found.repel.sum(), (query, vectors))
        assert torch.allclose(to_query, vectors[7].expand(4, 3))
        others = torch.arange(9) != 7
        assert (to_vectors[others] == 0).all() and torch.allclose(to_vectors[7], query.sum(0))


def test_two_images_and_one_negative_are_enough(sides):
    a, b, n = torch.randn(2, 3), torch.randn(2, 3), torch.randn(1, 3)
    for loss in (lambda: A.dcl(a, b, tau=0.2), lambda: A.info_nce(a, b, n, tau=0.2)):
        values = []
        for numbers in (None, 1):
            sides(numbers, size=4)
            values.append(loss())
        assert torch.allclose(*values)


def pair_of(n, views=1, dim=4, ids=None):
    """Return a pair of unit vectors in float64; the keys of all views are the pool."""
    query = unit(torch.randn(n, dim, dtype=torch.float64)).requires_grad_()
    pool = unit(torch.randn(n * views, dim, dtype=torch.float64)).requires_grad_()
    ids = torch.arange(n) if ids is None else ids
    return Pair(query, pool[None, :n], ids, pool, ids.repeat(views), rng.key(3))


REPEATED = torch.tensor([3, 3, 5, 8, 8, 8, 1, 0, 2])
PARTS = {
    "pair": lambda: [InBatch("pair")],
    "all": lambda: [InBatch("all")],
    "shared subset": lambda: [InBatch("all", subset=4)],
    "own subsets": lambda: [InBatch("all", subset=4, shared=False)],
    "queue": lambda: [Queue(11, 4).double()],
    "bank": lambda: [Bank(11, 4, fill=False).double()],
    "batch and bank": lambda: [InBatch("pair"), Bank(11, 4, fill=False).double()],
    "subset and queue": lambda: [InBatch("all", subset=3, shared=False), Queue(11, 4).double()],
}


CASES_OF_PARTS = [(name, None) for name in PARTS]
# copies of an image have equal lots, and the stored matrix may take any of them for a subset
CASES_OF_PARTS += [(name, REPEATED) for name in PARTS if "subset" not in name]


@pytest.mark.parametrize(("name", "ids"), CASES_OF_PARTS)
def test_a_streamed_contrast_equals_the_stored_one(sides, name, ids):
    """Three numbers per query, their gradients, EqCo's count and the mean score."""
    parts = PARTS[name]()
    contrast = Contrast(*parts, tau=0.2, margin=eqco(64.0))
    pair = pair_of(9, views=2 if name != "pair" and "batch" not in name else 1, ids=ids)
    inputs = [pair.query, pair.pool, *contrast.parameters()]
    results = []
    for numbers in (None, 13):
        sides(numbers)
        terms = contrast.terms(pair, live=True)
        _, metrics = contrast(pair)
        gradients = torch.autograd.grad(
            (terms.repel**2).sum(), inputs, allow_unused=True, materialize_grads=True
        )
        results.append([*terms, *gradients, metrics["negative"]])
    for x, y in zip(*results, strict=True):
        assert (x - y).abs().max() < 1e-10
    assert results[0][3].abs().max() > 0.1


@pytest.mark.parametrize("ids", [torch.arange(9), REPEATED], ids=["distinct", "repeated"])
def test_a_subset_is_as_large_as_asked_for(sides, ids):
    """If all scores are 0, repel is log(count). A query of 9 - m other images has 2 (9 - m)."""
    sides(50)
    pair = pair_of(9, views=2, ids=ids)
    others = 2 * (ids[:, None] != ids).sum(1).double()
    for shared in (True, False):
        for count in (1, 5, 13, 16):
            part = InBatch("all", subset=count, shared=shared).candidates(pair)
            found = repulsion(torch.zeros(9, 4, dtype=torch.float64), [part])
            assert torch.equal(found.counts, others.clamp(max=count))
            assert torch.allclose(found.repel.exp(), found.counts)


CONTRASTS = [name for name in VARIANTS if isinstance(make(name).objective, Contrast | Adversarial)]


@pytest.mark.parametrize("variant", CONTRASTS)
def test_a_streamed_learner_equals_the_stored_one(double, sides, variant):
    learner = make(variant)
    for part in learner.modules():
        if isinstance(part, Bank):
            part.filling = False
    images = batch(learner.views)
    weights = [p for p in learner.parameters() if p.requires_grad]
    results = []
    for numbers in (None, 9):
        sides(numbers)
        torch.manual_seed(1)
        out = learner(images)
        gradients = torch.autograd.grad(out.loss, weights, allow_unused=True)
        results.append((out, gradients))
    (stored, expected), (ours, found) = results
    for name, value in stored.metrics.items():
        assert abs(ours.metrics[name] - value) < 1e-9, name
    for x, y in zip(found, expected, strict=True):
        assert (x is None) == (y is None)
        assert x is None or (x - y).abs().max() < 1e-9


# Choice


def test_small_problems_are_stored_and_keep_their_bits(sides, monkeypatch):
    a, b, n = torch.randn(64, 16), torch.randn(64, 16), torch.randn(256, 16)
    losses = [
        lambda: A.nt_xent(a, b, tau=0.1),
        lambda: A.jcl(a, b[None], n, tau=0.1, strength=2.0),
        lambda: make("mocov2")(batch(2)).loss,
    ]
    default = []
    for loss in losses:
        torch.manual_seed(2)
        default.append(loss())
    sides(None)
    monkeypatch.delattr(streamed, "_streamed")  # a streamed loss would now raise NameError
    for loss, value in zip(losses, default, strict=True):
        torch.manual_seed(2)
        assert torch.equal(loss(), value)


def test_the_largest_stored_problems():
    gpu, cpu = torch.device("cuda"), torch.device("cpu")
    assert not is_large(256, 65536 + 256, gpu) and is_large(256, 65536 + 257, gpu)
    assert not is_large(256, 4096, cpu) and is_large(257, 4096, cpu)


def test_negatives_without_candidates_are_stored(sides):
    """Your own negatives may return scores only."""

    class OnlyScores(torch.nn.Module):
        pool = None
        masked = False

        def forward(self, pair, live=False):
            return pair.query @ torch.eye(4, dtype=torch.float64)

    pair = pair_of(6)
    sides(5)
    repel = Contrast(OnlyScores(), tau=0.5).terms(pair).repel
    assert torch.allclose(repel, torch.logsumexp(pair.query / 0.5, 1))


# Memory


def peak_bytes(work):
    """Return the most bytes of torch's allocator in use during a call, beyond those before it."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as record:
        work()
    alive = largest = 0
    for event in record.profiler.kineto_results.events():
        if event.name() == "[memory]":
            alive += event.nbytes()
            largest = max(largest, alive)
    return largest


def nt_xent(n):
    a, b = torch.randn(n, 4).requires_grad_(), torch.randn(n, 4)
    return lambda: A.nt_xent(a, b, tau=0.1), [a, b]


def info_nce(n):
    q, k, v = torch.randn(n, 4).requires_grad_(), torch.randn(n, 4), torch.randn(2 * n, 4)
    return lambda: A.info_nce(q, k, v, tau=0.1, alpha=256.0), [q, k, v]


def bank(n):
    q, k, v = torch.randn(n, 4), torch.randn(n, 4), torch.randn(2 * n, 4).requires_grad_()
    return lambda: A.info_nce(q, k, v, tau=0.1), [v, q, k]


def subset(n):
    pair = pair_of(n, views=2, dim=4)
    contrast = Contrast(InBatch("all", subset=n, shared=False), tau=0.1)
    return lambda: contrast(pair)[0], [pair.query, pair.pool]


@pytest.mark.parametrize("case", [nt_xent, info_nce, bank, subset])
def test_memory_is_linear(sides, case):
    """Twice the queries and twice the negatives take at most twice the memory; stored, four times.

    Both the peak of forward and backward pass and what is kept in between are measured.
    """
    peaks, kept = {}, {}
    for numbers in (None, 8192):
        sides(numbers, size=4)
        for n in (128, 256):
            loss, inputs = case(n)

            def work(loss=loss, wanted=inputs[0]):
                torch.autograd.grad(loss(), wanted)

            work()
            peaks[numbers, n] = peak_bytes(work)
            kept[numbers, n] = kept_bytes(loss, *inputs)
    for measured in (peaks, kept):
        assert measured[8192, 256] < 2.1 * measured[8192, 128]
        assert measured[None, 256] > 3.3 * measured[None, 128]
        assert measured[8192, 256] < measured[None, 256] / 3


# Precision and other properties


@pytest.mark.parametrize("tau", [0.5, 0.02, 1e-3])
def test_the_error_of_float32_is_that_of_the_stored_matrix(sides, tau):
    """The error of a score is about eps/tau, whether it is stored or not."""
    z = torch.randn(64, 32)
    inputs = z, z + 0.3 * torch.randn(64, 32), unit(torch.randn(300, 32))

    def measure(dtype):
        q, k, n = (x.to(dtype).requires_grad_() for x in inputs)
        loss = A.info_nce(q, k, n, tau=tau, decoupled=True) + A.nt_xent(q, k, tau=tau)
        return loss.detach(), torch.cat(torch.autograd.grad(loss, (q, k, n)))

    sides(None)
    exact, exact_gradient = measure(torch.float64)
    eps = torch.finfo(torch.float32).eps
    for numbers in (None, 500):
        sides(numbers, size=4)
        loss, gradient = measure(torch.float32)
        assert abs(loss - exact) < 4 * eps / tau
        assert (gradient - exact_gradient).norm() < 8 * eps / tau * exact_gradient.norm()


class Precisions(TorchDispatchMode):
    """Record the precision setting of the CPU at each product inside the context."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.overloadpacket in (torch.ops.aten.mm, torch.ops.aten.addmm, torch.ops.aten.addmm_):
            self.seen.append(torch.backends.mkldnn.matmul.fp32_precision)
        return func(*args, **(kwargs or {}))


def test_streamed_products_ignore_the_callers_precision_settings(sides):
    """The setting is checked and not its effect, which not every CPU has."""
    sides(100, size=4)
    query, vectors = torch.randn(20, 8), torch.randn(30, 8)
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    try:
        with Precisions() as products:
            repel, pull, _, _ = streamed._forward(query, vectors, [], 0, True, False)
            streamed._backward(repel, query, vectors, repel, pull, [], True, True)
        assert torch.get_float32_matmul_precision() == "medium"  # restored
    finally:
        torch.set_float32_matmul_precision(before)
    # 3 pieces of queries and 3 of vectors, with two products each, forward and backward
    assert len(products.seen) == 36 and set(products.seen) == {"ieee"}


def test_half_precision_is_raised(sides):
    sides(50, size=4)
    q = torch.randn(8, 16, dtype=torch.bfloat16).requires_grad_()
    k, n = torch.randn(8, 16, dtype=torch.bfloat16), torch.randn(20, 16, dtype=torch.bfloat16)
    loss = A.info_nce(q, k, n, tau=0.02)
    loss.backward()
    exact = A.info_nce(q.detach().double(), k.double(), n.double(), tau=0.02)
    assert loss.dtype == torch.float32 and q.grad.dtype == torch.bfloat16
    assert torch.allclose(loss.double(), exact, rtol=1e-5)


def test_a_query_that_is_not_a_number_gives_no_number(sides):
    """A step with such a loss is skipped, so it must not be hidden."""
    sides(10, size=4)
    q, n = torch.randn(5, 4), torch.randn(7, 4)
    q[2, 1] = math.nan
    q.requires_grad_()
    loss = A.info_nce(q, torch.randn(5, 4), n, tau=0.1)
    loss.backward()
    assert loss.isnan() and q.grad[2].isnan().any() and q.grad[0].isfinite().all()


def test_the_tiles_never_read_a_value():
    """They run on tensors without data, so nothing waits for a GPU and all shapes are static."""
    with FakeTensorMode():
        query, vectors = torch.empty(70, 8), torch.empty(90, 8)
        ids, owners = torch.arange(70), torch.arange(90)
        rule = [ids, owners, ids, owners]
        repel, pull, total, limits = streamed._forward(query, vectors, rule, 5, True, True)
        assert repel.shape == total.shape == limits.shape == (70,) and pull.shape == (70, 8)
        found = streamed._backward(repel, query, vectors, repel, pull, [*rule, limits], True, True)
        assert [x.shape for x in found] == [query.shape, vectors.shape]


def test_a_second_derivative_is_refused(sides):
    q, k, n = torch.randn(4, 3).requires_grad_(), torch.randn(4, 3), torch.randn(6, 3)
    sides(5, size=4)
    for decoupled in (False, True):
        loss = A.info_nce(q, k, n, tau=0.5, decoupled=decoupled)
        (slope,) = torch.autograd.grad(loss, q, create_graph=True)
        with pytest.raises(ValueError, match="4 queries and 6 negatives has no second derivative"):
            slope.sum().backward()


def test_forward_mode_is_refused(sides):
    sides(5, size=4)
    q, k, n = torch.randn(4, 3), torch.randn(4, 3), torch.randn(6, 3)
    with pytest.raises(ValueError, match="no forward-mode derivative"):
        torch.func.jvp(lambda x: A.info_nce(x, k, n, tau=0.5), (q,), (torch.ones_like(q),))


def test_gradients_equal_finite_differences(sides):
    sides(7)
    q, k, n = (torch.randn(x, 3, dtype=torch.float64).requires_grad_() for x in (4, 4, 6))
    assert torch.autograd.gradcheck(lambda q, k, n: A.info_nce(q, k, n, tau=0.5), (q, k, n))
    assert torch.autograd.gradcheck(lambda q, k: A.dcl(q, k, tau=0.5), (q, k))
    assert torch.autograd.gradcheck(lambda q: A.jcl(q, k[None], n, tau=0.5, strength=2.0), q)


@pytest.mark.slow
@pytest.mark.parametrize("variant", ["simclr", "simo-own", "adco-paper"])
def test_a_compiled_learner_equals_an_eager_one(double, sides, variant):
    torch.compiler.reset()
    sides(9)
    learner = make(variant)
    images = batch(learner.views)
    weights = [p for p in learner.parameters() if p.requires_grad]
    compiled = torch.compile(learner, fullgraph=True, dynamic=False)
    eager, fast = (
        torch.autograd.grad(f(images).loss, weights, allow_unused=True) for f in (learner, compiled)
    )
    for x, y in zip(eager, fast, strict=True):
        assert (x is None) == (y is None)
        assert x is None or torch.allclose(x, y, rtol=1e-8, atol=1e-10)


def test_a_compiled_graph_holds_one_node_for_all_tiles(sides):
    torch.compiler.reset()
    sides(20, size=4)
    nodes = []

    def count(graph, inputs):
        nodes.extend(node.target for node in graph.graph.nodes if node.op == "call_function")
        return graph

    a, b = torch.randn(16, 4).requires_grad_(), torch.randn(16, 4)
    loss = torch.compile(
        lambda a, b: A.nt_xent(a, b, tau=0.1), fullgraph=True, dynamic=False, backend=count
    )
    assert torch.allclose(loss(a, b), A.nt_xent(a, b, tau=0.1))
    assert sum("antipode.repel" in str(target) for target in nodes) == 1
