"""Tests that two processes equal a single process on the whole batch, for every preset.

They compare losses, gradients, weights, queues and banks.
"""

from functools import partial

import pytest
import torch
import torch.distributed as process
import torch.nn.functional as F

from antipode import dist
from antipode import functional as A
from antipode.core import passes, streamed
from antipode.nets.norm import BatchNorm
from antipode.training.step import Step
from antipode.types import Batch
from tests.forks import Ranks
from tests.toys import MAIN, VARIANTS, batch, make, optimiser

# the group keeps these tests on one worker, so that the ranks are started only once
pytestmark = [pytest.mark.dist, pytest.mark.xdist_group("ranks")]

STEPS, N = 3, 8
LOSSES = {
    "nt_xent": lambda a, b, gather: A.nt_xent(a, b, tau=0.2, gather=gather),
    "eqco": lambda a, b, gather: A.nt_xent(a, b, tau=0.2, alpha=100.0, gather=gather),
    "dcl": lambda a, b, gather: A.dcl(a, b, tau=0.2, gather=gather),
    "dclw": lambda a, b, gather: A.dclw(a, b, tau=0.2, gather=gather),
    "barlow_twins": lambda a, b, gather: A.barlow_twins(a, b, gather=gather),
    "vicreg": lambda a, b, gather: A.vicreg(a, b, gather=gather),
}


def share(b, rank, world):
    rows = slice(rank * N // world, (rank + 1) * N // world)
    return Batch([view[rows] for view in b.views], b.image_ids[rows])


def averaged(x, world):
    if world > 1:
        process.all_reduce(x)
    return x / world


def run(variant, rank, world):
    """Train for three steps; each rank gets its share, and gradients are averaged as in DDP."""
    torch.manual_seed(11)
    learner = make(variant)
    optim = optimiser(learner)
    record = {}
    for step in range(STEPS):
        learner.before_step(step / STEPS)
        # ids that start at 17 show that masks compare image ids, not positions in the batch
        out = learner(share(batch(learner.views, n=N, step=step, start=17), rank, world))
        optim.zero_grad()
        out.loss.backward()
        for name, p in learner.named_parameters():
            if p.grad is not None:
                p.grad = averaged(p.grad, world)
                record[f"gradient {step} {name}"] = p.grad.clone()
        optim.step()
        learner.after_step(out)
        record[f"loss {step}"] = averaged(out.loss.detach().clone(), world)
    return record | {f"state {name}": value for name, value in learner.state_dict().items()}


def vectors():
    """Return two views of clustered vectors, for which negatives on other ranks matter."""
    generator = torch.Generator().manual_seed(2)
    centres = torch.randn(2, 5, generator=generator)[torch.arange(N) % 2]
    views = [centres + 0.3 * torch.randn(N, 5, generator=generator) for _ in range(2)]
    return [view.requires_grad_() for view in views]


def functional(name, rank, world):
    """Return loss and gradient of a functional loss.

    A weight matrix stands for a network, whose gradients are averaged over the ranks.
    """
    weight = torch.eye(5).requires_grad_()
    rows = slice(rank * N // world, (rank + 1) * N // world)
    loss = LOSSES[name](*(z[rows] @ weight for z in vectors()), world > 1)
    (gradient,) = torch.autograd.grad(loss, weight)
    return {"loss": averaged(loss.detach().clone(), world), "gradient": averaged(gradient, world)}


def gathered():
    """Return the gradients of two gathers whose backward passes receive the same tensor."""
    x, y = torch.ones(2, requires_grad=True), torch.ones(2, requires_grad=True)
    ((dist.gather(x) + dist.gather(y)) * torch.arange(4.0)).sum().backward()
    return {"x": x.grad, "y": y.grad}


def buckets(rank):
    """Return averaged gradients by bucket size; the second one is channels-last."""
    records = {}
    for size in (1, 10, dist.BUCKET):
        grid = torch.arange(48.0).view(2, 3, 2, 4).to(memory_format=torch.channels_last)
        grads = [torch.full((2, 3), 1.0 + rank), grid + rank, None, torch.full((5,), float(rank))]
        grads[3] = grads[3].float()
        weights = [torch.nn.Parameter(torch.zeros(2, 3)), torch.nn.Parameter(grid.clone())]
        weights += [torch.nn.Parameter(torch.zeros(4)), torch.nn.Parameter(torch.zeros(5).float())]
        for weight, grad in zip(weights, grads, strict=True):
            weight.grad = grad
        original, dist.BUCKET = dist.BUCKET, size
        dist.average_gradients(weights)
        dist.BUCKET = original
        records[size] = [weight.grad for weight in weights], weights[1].grad.stride()
    return records


def shared(rank):
    """Return the weight of a network that differed between the ranks."""
    net = torch.nn.Conv2d(2, 3, 2).to(memory_format=torch.channels_last)
    torch.nn.init.normal_(net.weight, mean=rank)
    dist.share_state(net)
    return net.weight.detach().contiguous()


def refused(rank):
    """Return the error message for ranks with different batch sizes."""
    z = torch.randn(3 + rank, 5)
    try:
        A.dcl(z, z, tau=0.2, gather=True)
    except ValueError as error:
        return str(error)


def under_ddp(variant):
    """Return the losses of three steps with torch's DDP.

    AdCo's bank has no gradient while it is being filled, so DDP needs find_unused_parameters.
    """
    torch.manual_seed(11)
    learner = make(variant)
    filling = any(getattr(part, "filling", False) for part in learner.modules())
    wrapped = torch.nn.parallel.DistributedDataParallel(learner, find_unused_parameters=filling)
    optim = optimiser(learner)
    losses = []
    for step in range(STEPS):
        learner.before_step(step / STEPS)
        out = wrapped(share(batch(learner.views, n=N, step=step, start=17), process.get_rank(), 2))
        optim.zero_grad()
        out.loss.backward()
        optim.step()
        learner.after_step(out)
        losses.append(averaged(out.loss.detach().clone(), 2))
    return {f"loss {step}": loss for step, loss in enumerate(losses)}


def at_once(variant, rank, world):
    """Do the same as `run`, with all views in one forward pass, as in a compiled step on a GPU.

    The batch statistics of the views stay separate.
    """
    original = passes.worth_it
    passes.worth_it = lambda images: True
    try:
        return run(variant, rank, world)
    finally:
        passes.worth_it = original


def streaming(work, *arguments):
    """Return the record of `work` with all scores streamed in tiles of 9 numbers."""
    whole, tile = streamed.WHOLE["cpu"], streamed.TILE["cpu"]
    streamed.WHOLE["cpu"], streamed.TILE["cpu"] = 0, 72
    try:
        return work(*arguments)
    finally:
        streamed.WHOLE["cpu"], streamed.TILE["cpu"] = whole, tile


def stepped(variant, rank, world, compiled=False):
    """Train with `Step` in two parts and the loss of the whole batch; return the end state.

    With `compiled`, the functions of the step are traced as one graph each, as on a GPU.
    """
    torch.manual_seed(11)
    learner = make(variant)
    taken = Step(learner, {"network": optimiser(learner)}, bf16=False, accumulate=2, whole=True)
    if compiled:
        taken.compile()
        taken.uncompiled = None  # a failure shall be an error
    losses = {}
    for step in range(STEPS):
        learner.before_step(step / STEPS)
        b = batch(learner.views, n=2 * N, step=step, start=17)
        rows = torch.arange(2 * N).view(2, world, -1)[:, rank].flatten()  # as the loader's
        out, norm = taken(Batch([view[rows] for view in b.views], b.image_ids[rows]))
        losses[f"loss {step}"] = averaged(out.loss.clone(), world)
        losses[f"norm {step}"] = norm
    return losses | learner.state_dict()


def traced(variant, rank, world):
    """Return the record of `stepped` with compiled functions, without generating code."""
    plain = torch.compile
    torch.compile = partial(plain, backend="aot_eager")
    try:
        return stepped(variant, rank, world, compiled=True)
    finally:
        torch.compile = plain


STREAMED = ["simclr", "eqco-simclr", "simo", "adco-paper", "custom-eqco-bank", "npid"]
GATHERED = ["nt_xent", "eqco", "dcl", "dclw"]
ONCE = ["byol", "msbreg", "adco-symmetric"]
STEPPED = ["simclr", "mocov2", "adco", "byol", "barlowtwins", "msbreg"]
TRACED = ["simclr", "mocov2"]
DDP = ["simclr", "mocov2", "adco", "jcl", "msbreg", "npid"]


def everything(rank, world):
    torch.set_default_dtype(torch.float64)
    torch.set_num_threads(1)
    records = {variant: run(variant, rank, world) for variant in MAIN}
    if world > 1:
        records |= {"gathered": gathered(), "refused": refused(rank)}
        records |= {"buckets": buckets(rank), "shared": shared(rank)}
        records |= {f"ddp {variant}": under_ddp(variant) for variant in DDP}
        records |= {f"at once {variant}": at_once(variant, rank, world) for variant in ONCE}
        for variant in STREAMED:
            records[f"streamed {variant}"] = streaming(run, variant, rank, world)
        for name in GATHERED:
            records[f"streamed functional {name}"] = streaming(functional, name, rank, world)
    records |= {f"stepped {variant}": stepped(variant, rank, world) for variant in STEPPED}
    return records | {f"functional {name}": functional(name, rank, world) for name in LOSSES}


def others(rank, world):
    torch.set_default_dtype(torch.float64)
    torch.set_num_threads(1)
    return {variant: run(variant, rank, world) for variant in VARIANTS if variant not in MAIN}


def compiled_steps(rank, world):
    torch.set_default_dtype(torch.float64)
    torch.set_num_threads(1)
    return {variant: traced(variant, rank, world) for variant in TRACED}


SPANNING = ["mocov2", "dcl-mocov2", "simo-shuffle", "custom-eqco-bank"]


def single_images():
    """Return features (4,3) of four images."""
    return torch.randn(4, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def spanning(rank, world):
    """Return the records of learners with two statistics groups, and gradients within teams."""
    torch.set_default_dtype(torch.float64)
    torch.set_num_threads(1)
    records = {variant: run(variant, rank, world) for variant in SPANNING}
    records["stepped mocov2"] = stepped("mocov2", rank, world)
    if world > 1:
        x, y = torch.arange(2.0).requires_grad_(), torch.tensor(rank + 1.0, requires_grad=True)
        rows, sums = dist.gather(x + rank, 2), dist.total(y, 2)
        ((rows * (1 + rank) * torch.arange(4.0)).sum() + sums * 10**rank).backward()
        records["teams"] = [rows.detach(), sums.detach(), x.grad, y.grad]
        # one image on each rank: two in each statistics group
        records["alone"] = BatchNorm(3, groups=2)(single_images()[rank : rank + 1]).detach()
    return records


@pytest.fixture(scope="module")
def records(tmp_path_factory):
    pair = Ranks(tmp_path_factory.mktemp("ranks"), everything, [(0, 2), (1, 2)])
    single = everything(0, 1)
    torch.set_default_dtype(torch.float32)
    return single, *pair.results()


@pytest.mark.parametrize("name", [*MAIN, *(f"functional {name}" for name in LOSSES)])
def test_two_processes_equal_one(records, name):
    check(*(record[name] for record in records))


@pytest.mark.slow
def test_two_processes_equal_one_for_the_other_variants(tmp_path):
    pair = Ranks(tmp_path, others, [(0, 2), (1, 2)])
    single = others(0, 1)
    torch.set_default_dtype(torch.float32)
    first, second = pair.results()
    for name, record in single.items():
        check(record, first[name], second[name])


def test_four_processes_in_two_groups_equal_one_with_two_groups(tmp_path):
    """Two ranks form a statistics group of batch norm. The teams of a gather are such groups."""
    four = Ranks(tmp_path, spanning, [(rank, 4) for rank in range(4)])
    single = spanning(0, 1)
    torch.set_default_dtype(torch.float32)
    ranks = four.results()
    for name, record in single.items():
        check(record, *(own[name] for own in ranks[:2]))
        check(record, *(own[name] for own in ranks[2:]))
    for rank, own in enumerate(ranks):
        rows, sums, of_rows, of_sums = own["teams"]
        first, last = rank // 2 * 2, rank // 2 * 2 + 1
        assert rows.tolist() == [first, first + 1, last, last + 1]
        assert sums == first + last + 2
        weights = [0, 1] if rank == first else [2, 3]
        assert of_rows.tolist() == [(first + last + 2) * weight for weight in weights]
        assert of_sums == 10**first + 10**last
        pair = single_images()[first : last + 1]
        normal = F.batch_norm(pair, None, None, training=True)
        assert torch.allclose(own["alone"], normal[rank - first], rtol=1e-9)


def check(single, first, second):
    """Assert that two ranks have the numbers of one process, and the same bits."""
    assert single.keys() == first.keys() == second.keys()
    for key, value in single.items():
        assert torch.allclose(value, first[key], rtol=1e-9, atol=1e-10), key
        assert torch.equal(first[key], second[key]), key  # the ranks are bit-identical


@pytest.mark.parametrize("name", [*STREAMED, *(f"functional {name}" for name in GATHERED)])
def test_streamed_scores_on_two_processes_equal_stored_scores_on_one(records, name):
    single, first, second = records
    for key, value in single[name].items():
        ours = first[f"streamed {name}"][key]
        assert torch.allclose(value, ours, rtol=1e-9, atol=1e-10), key
        assert torch.equal(ours, second[f"streamed {name}"][key]), key


@pytest.mark.parametrize("variant", ONCE)
def test_views_at_once_on_two_processes_equal_views_one_by_one_on_one(records, variant):
    single, first, second = records
    name = f"at once {variant}"
    for key, value in single[variant].items():
        assert torch.allclose(value, first[name][key], rtol=1e-9, atol=1e-10), key
        assert torch.equal(first[name][key], second[name][key]), key


@pytest.mark.parametrize("variant", STEPPED)
def test_two_processes_with_two_parts_each_equal_one_process_with_two_parts(records, variant):
    """The step averages the gradients over the ranks, and the loss is that of the whole batch."""
    single, first, second = (record[f"stepped {variant}"] for record in records)
    for key, value in single.items():
        assert torch.allclose(value, first[key], rtol=1e-9, atol=1e-10), key
        assert torch.equal(first[key], second[key]), key


@pytest.mark.slow
def test_a_step_of_two_processes_can_be_compiled_as_one_graph(records, tmp_path):
    """All collectives are part of the graph, and the compiled step equals the plain one."""
    first, second = Ranks(tmp_path, compiled_steps, [(0, 2), (1, 2)]).results()
    for variant in TRACED:
        for key, value in records[0][f"stepped {variant}"].items():
            assert torch.allclose(value, first[variant][key], rtol=1e-9, atol=1e-10), key
            assert torch.equal(first[variant][key], second[variant][key]), key


def test_gradients_are_averaged_in_buckets_of_any_size_and_memory_format(records):
    for record in records[1:]:
        for size, (mean, strides) in record["buckets"].items():
            assert torch.equal(mean[0], torch.full((2, 3), 1.5)), size
            expected = torch.arange(48.0, dtype=torch.float64).view(2, 3, 2, 4) + 0.5
            assert torch.equal(mean[1], expected) and strides == (24, 1, 12, 3), size
            assert mean[2] is None and mean[3].dtype == torch.float32, size
            assert torch.equal(mean[3], torch.full((5,), 0.5, dtype=torch.float32)), size


def test_all_ranks_start_from_the_weights_of_rank_0(records):
    _, first, second = records
    assert torch.equal(first["shared"], second["shared"])


@pytest.mark.parametrize("variant", DDP)
def test_torchs_own_ddp_gives_the_same_losses(records, variant):
    single, first, _ = records
    for key, value in first[f"ddp {variant}"].items():
        assert torch.allclose(value, single[variant][key], rtol=1e-9), key


def test_gathers_that_share_a_gradient_leave_it_alone(records):
    for rank, record in enumerate(records[1:]):
        # a factor of 2, because the losses of both ranks contribute
        expected = 2 * torch.arange(4.0, dtype=torch.float64).chunk(2)[rank]
        assert torch.equal(record["gathered"]["x"], expected)
        assert torch.equal(record["gathered"]["y"], expected)


def test_unequal_batches_are_refused_on_every_rank(records):
    sentence = (
        "all ranks must have the same number of vectors of the same size, "
        "but ranks 0 to 1 have 3 x 5, 4 x 5"
    )
    assert [record["refused"] for record in records[1:]] == [sentence, sentence]


def test_a_gather_without_gradient_would_be_noticed():
    """The test vectors are clustered enough to detect a missing gradient.

    Dropping the gradient through negatives on other ranks changes the total gradient noticeably.
    """
    weight = torch.eye(5, dtype=torch.float64).requires_grad_()
    z0, z1 = (z.double() @ weight for z in vectors())
    (whole,) = torch.autograd.grad(A.dcl(z0, z1, tau=0.2), weight)
    z0, z1 = (z.double() @ weight for z in vectors())
    half = N // 2
    pool = torch.cat([z0, z1]).detach()
    pool = pool / pool.norm(dim=1, keepdim=True)
    parts = []
    for rank in range(2):
        rows = torch.arange(rank * half, (rank + 1) * half)
        for queries, keys in ((z0, z1), (z1, z0)):
            for i in rows:
                negatives = pool[[j for j in range(2 * N) if j % N != i]]
                query, key = queries[i : i + 1], keys[i : i + 1]
                parts.append(A.info_nce(query, key, negatives, tau=0.2, decoupled=True))
    (detached,) = torch.autograd.grad(torch.stack(parts).mean(), weight)
    assert (whole - detached).norm() > 0.1 * whole.norm()
