"""Tests on a GPU: the CPU's numbers, no TF32 in logits, a whole step in one CUDA graph."""

import pytest
import torch

from antipode import functional as A
from antipode.core import streamed
from antipode.core.negatives import InBatch
from antipode.core.objective import Contrast
from antipode.core.scores import product, unit
from antipode.types import Batch, Pair
from tests.toys import VARIANTS, batch, make

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device"),
    pytest.mark.xdist_group("gpu"),
]


def moved(b):
    return Batch([view.cuda() for view in b.views], b.image_ids.cuda())


@pytest.mark.parametrize("variant", VARIANTS)
def test_gpu_equals_cpu(double, variant):
    learner = make(variant)
    b = batch(learner.views)
    expected = learner(b)
    out = learner.cuda()(moved(b))
    assert torch.allclose(out.loss.cpu(), expected.loss, rtol=1e-9)
    learner.after_step(out)
    assert learner(moved(b)).loss.isfinite()


@pytest.mark.parametrize("variant", VARIANTS)
def test_autocast_changes_the_networks_only(variant):
    learner = make(variant).cuda()
    b = moved(batch(learner.views))
    exact = learner(b).loss
    with torch.autocast("cuda", dtype=torch.bfloat16):
        out = learner(b)
    assert out.loss.dtype == out.keys.dtype == torch.float32
    assert torch.allclose(
        out.loss, exact, rtol=0.1, atol=0.1
    )  # bfloat16 projections of a three-layer network


def test_logits_are_never_tf32():
    left, right = torch.randn(512, 128, device="cuda"), torch.randn(512, 128, device="cuda")
    exact = (left.double() @ right.double().T).float()
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        assert (left @ right.T - exact).abs().max() > 1e-3  # the setting does something
        ours = left.clone().requires_grad_()
        scores = product(ours, right)
        scores.sum().backward()
    finally:
        torch.set_float32_matmul_precision(before)
    assert (scores - exact).abs().max() < 1e-4
    assert (ours.grad - right.sum(0)).abs().max() < 1e-3


def test_losses_equal_float64_whatever_the_settings():
    q, k, n = torch.randn(64, 128), torch.randn(64, 128), unit(torch.randn(4096, 128))
    exact = A.info_nce(q.double(), k.double(), n.double(), tau=0.02)
    torch.set_float32_matmul_precision("high")
    try:
        with torch.autocast("cuda", dtype=torch.bfloat16):
            ours = A.info_nce(q.cuda(), k.cuda(), n.cuda(), tau=0.02)
    finally:
        torch.set_float32_matmul_precision("highest")
    assert abs(ours.cpu() - exact) < 1e-4 * exact


@pytest.mark.parametrize("variant", ["mocov2", "byol", "adco-symmetric", "jcl", "msbreg", "simo"])
def test_a_compiled_step_has_the_gradient_of_an_eager_one(double, variant):
    """Compiled, views pass together; eager, one by one. torch 2.11 once lost gradients here."""
    torch.compiler.reset()
    learner = make(variant).cuda()
    b, weights = moved(batch(learner.views)), [p for p in learner.parameters() if p.requires_grad]
    compiled = torch.compile(learner, fullgraph=True, dynamic=False)
    eager, fast = (
        torch.autograd.grad(f(b).loss, weights, allow_unused=True) for f in (learner, compiled)
    )
    for plain, ours in zip(eager, fast, strict=True):
        assert (plain is None) == (ours is None)
        assert plain is None or torch.allclose(plain, ours, rtol=1e-6, atol=1e-9)


@pytest.fixture
def streaming(monkeypatch):
    """Stream all scores, in tiles of at most 100 numbers in float64."""
    monkeypatch.setitem(streamed.WHOLE, "cuda", 0)
    monkeypatch.setitem(streamed.TILE, "cuda", 800)


@pytest.mark.parametrize("variant", ["simclr", "simo-own", "dclw", "jcl", "adco-paper", "npid"])
def test_streamed_scores_equal_stored_ones(double, monkeypatch, variant):
    learner = make(variant).cuda()
    b, weights = moved(batch(learner.views)), [p for p in learner.parameters() if p.requires_grad]

    def measure():
        out = learner(b)
        gradients = torch.autograd.grad(out.loss, weights, allow_unused=True)
        return [out.loss, *(x for x in gradients if x is not None)]

    stored = measure()
    monkeypatch.setitem(streamed.WHOLE, "cuda", 0)
    for size in (8, 800, 1 << 20):
        monkeypatch.setitem(streamed.TILE, "cuda", size)
        for x, y in zip(measure(), stored, strict=True):
            assert torch.allclose(x, y, rtol=1e-9, atol=1e-11)


def test_streamed_scores_do_not_wait_for_the_device(streaming):
    q, k, n = (torch.randn(64, 32, device="cuda").requires_grad_() for _ in range(3))
    part = InBatch("all", subset=20, shared=False)
    ids = torch.arange(64, device="cuda")
    pair = Pair(q, k[None], ids, k, ids, torch.zeros((), dtype=torch.int64, device="cuda"))
    losses = [
        lambda: A.nt_xent(q, k, tau=0.1, alpha=64.0),
        lambda: A.info_nce(q, k, n, tau=0.1),
        lambda: Contrast(part, tau=0.1)(pair)[0],
    ]
    for loss in losses:
        loss().backward()  # the first call loads kernels
    torch.cuda.set_sync_debug_mode("error")
    try:
        for loss in losses:
            loss().backward()
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_streamed_scores_are_never_tf32(streaming):
    vectors = torch.randn(64, 128), torch.randn(64, 128), unit(torch.randn(512, 128))

    def measure(inputs):
        q, k, n = (x.detach().clone().requires_grad_() for x in inputs)
        loss = A.info_nce(q, k, n, tau=0.02, decoupled=True)
        return loss.detach().cpu(), torch.cat(torch.autograd.grad(loss, (q, n))).cpu()

    exact, gradient = measure([x.double() for x in vectors])
    torch.set_float32_matmul_precision("high")
    try:
        ours, found = measure([x.cuda() for x in vectors])
    finally:
        torch.set_float32_matmul_precision("highest")
    assert abs(ours - exact) < 2e-5 * exact
    assert (found - gradient).norm() < 5e-5 * gradient.norm()


def errors(query, vectors, ids):
    """Return the largest errors of kernels in units of float32's precision times the largest score.

    They are those of repel, of the gradient of queries and of that of vectors, which are relative
    to the largest entry.
    """
    grad = torch.randn(len(query), device="cuda")

    def measure(dtype):
        x, y = (v.detach().to(dtype).requires_grad_() for v in (query, vectors))
        found = streamed.repulsion(x, [streamed.Candidates(y, ids)]).repel
        return found.detach(), *torch.autograd.grad(found @ grad.to(dtype), (x, y))

    ours, exact = measure(torch.float32), measure(torch.float64)
    unit_of = torch.finfo(torch.float32).eps * float(query.norm(dim=1).max())
    largest = [1.0, float(exact[1].abs().max()), float(exact[2].abs().max())]
    return [
        float((x - y).abs().max()) / scale / unit_of
        for x, y, scale in zip(ours, exact, largest, strict=True)
    ]


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize(
    ("n", "k", "dim"),
    [(1, 1, 1), (5, 300, 3), (1000, 1030, 64), (700, 9000, 128), (512, 4096, 200), (90, 500, 256)],
)
def test_kernels_have_the_error_of_float32(monkeypatch, n, k, dim, masked):
    """Twice that of torch's own IEEE products, at most."""
    monkeypatch.setitem(streamed.WHOLE, "cuda", 0)
    query = 10 * unit(torch.randn(n, dim, device="cuda"))
    vectors = unit(torch.randn(k, dim, device="cuda"))
    ids = [torch.arange(x, device="cuda") % 97 for x in (n, k + 1)]
    pair = (ids[0], ids[1][1:]) if masked else None  # no query loses its only vector
    ours = errors(query, vectors, pair)
    monkeypatch.setitem(streamed.KERNELS, "cuda", False)
    tiles = errors(query, vectors, pair)
    assert all(x < 2 * y + 2 for x, y in zip(ours, tiles, strict=True)), (ours, tiles)


def test_kernels_give_the_same_bits_each_time(monkeypatch):
    monkeypatch.setitem(streamed.WHOLE, "cuda", 0)
    z = [torch.randn(3000, 128, device="cuda").requires_grad_() for _ in range(2)]
    first, second = (torch.autograd.grad(A.nt_xent(*z, tau=0.1), z) for _ in range(2))
    assert all(torch.equal(x, y) for x, y in zip(first, second, strict=True))


@pytest.mark.slow
def test_a_bank_of_more_than_two_to_the_31_numbers():
    """Its offsets do not fit into 32 bits."""
    query = 10 * unit(torch.randn(16, 128, device="cuda"))
    vectors = torch.randn((1 << 24) + 100, 128, device="cuda")
    vectors /= vectors.norm(dim=1, keepdim=True)
    vectors[-1] = query[3] / 2  # a score of 50, far above the others
    found = streamed.repulsion(query.requires_grad_(), [streamed.Candidates(vectors)]).repel
    (gradient,) = torch.autograd.grad(found.sum(), query)
    assert abs(found[3] - 50) < 1e-4
    assert torch.allclose(gradient[3], vectors[-1], atol=1e-4)


def test_memory_of_streamed_scores_is_linear():
    """A batch of 8,192 has a matrix of 1 GiB; its loss takes less than a quarter of that."""
    z = [torch.randn(8192, 128, device="cuda").requires_grad_() for _ in range(2)]
    A.nt_xent(*z, tau=0.1).backward()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    A.nt_xent(*z, tau=0.1).backward()
    assert torch.cuda.max_memory_allocated() - before < 1 << 28


# an SVD waits for the host, and so cannot be captured; a filling bank counts on the host
CAPTURED = [name for name in VARIANTS if name != "msbreg-leave-one-out"]


@pytest.mark.parametrize("variant", CAPTURED)
def test_a_whole_step_is_one_cuda_graph(variant):
    """Three replayed steps equal three eager ones: networks, twin, queue, bank and noise."""
    check_captured_steps(variant)


@pytest.mark.parametrize("variant", ["simclr", "simo-own", "dcl-mocov2", "adco-paper"])
def test_a_step_with_streamed_scores_is_one_cuda_graph(streaming, variant):
    check_captured_steps(variant)


def check_captured_steps(variant):
    """Assert that three replayed steps equal three eager ones."""

    def built():
        torch.manual_seed(6)
        learner = make(variant)
        for part in learner.modules():
            if hasattr(part, "filling"):
                part.filling = False
        learner.cuda()
        optim = torch.optim.SGD(learner.param_groups(), lr=0.05, momentum=0.9)
        b = moved(batch(learner.views, step=3))

        def step():
            out = learner(b)
            optim.zero_grad(set_to_none=False)
            out.loss.backward()
            optim.step()
            learner.after_step(out)
            return out.loss

        return step

    eager, expected = built(), []
    for _ in range(6):
        expected.append(eager().item())

    step = built()
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        seen = [step().item() for _ in range(3)]
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = step()
    for _ in range(3):
        graph.replay()
        seen.append(loss.item())
    assert seen == pytest.approx(expected, rel=1e-3, abs=1e-4)
