"""One training step: accumulation, clipping, precision, compilation, and its error messages."""

import contextlib
import copy
import math
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
import torch
from safetensors.torch import load_file

from antipode import api, dist
from antipode.nets.norm import BatchNorm
from antipode.recipe.resolve import resolve
from antipode.runs.folder import RunFolder
from antipode.training import graph, health, step, whole_batch
from antipode.training import loop as train
from antipode.training.build import bf16, build, double
from antipode.training.pretrain import knn_monitor
from antipode.types import Batch
from tests.toys import Tiny, batch, make, optimiser
from tests.toys import train as steps
from tests.training.runs import BATCH, last, pretrain, small_recipe, small_splits


def make_step(learner, **options):
    """Return a step with a learning rate of zero."""
    return step.Step(learner, {"network": optimiser(learner, lr=0.0)}, bf16=False, **options)


def test_parts_divide_the_share_of_each_rank(monkeypatch):
    """One rank can divide its 16 images into 8 parts; four ranks have 4 images each and cannot."""
    recipe = small_recipe("simclr", **{"train.accumulate": 8})
    build(recipe, small_splits(), Tiny())
    monkeypatch.setattr(dist, "world", lambda: 4)
    with pytest.raises(
        ValueError, match=r"train.accumulate=8 does not divide the 4 images of each of 4 ranks"
    ):
        build(recipe, small_splits(), Tiny())


def test_statistics_groups_fit_the_number_of_ranks(monkeypatch):
    """Training says so when it is built. An evaluation builds such learners on any number."""
    recipe = small_recipe("mocov2", **{"method.groups": 4})
    build(recipe, small_splits(), Tiny())
    for world in (2, 8):
        monkeypatch.setattr(dist, "world", lambda world=world: world)
        build(recipe, small_splits(), Tiny())
    with pytest.raises(ValueError, match="6 batch-norm groups cannot be shared among 8 ranks"):
        build(small_recipe("mocov2", **{"method.groups": 6}), small_splits(), Tiny())


def test_what_a_recipe_asks_of_torch_does_not_outlast_its_run(tmp_path):
    search = torch.backends.cudnn.benchmark
    recipe = small_recipe("simclr", 1, **{"train.deterministic": True})
    train.train(recipe, RunFolder(tmp_path), splits=small_splits(), backbone=Tiny(), quiet=True)
    assert not torch.are_deterministic_algorithms_enabled()
    assert torch.backends.cudnn.benchmark == search


def test_accumulated_gradients_are_the_mean_over_parts_and_the_queue_takes_all_keys(double):
    learner = make("mocov2", groups=1)
    whole = copy.deepcopy(learner)
    b = batch(2)
    out, _ = make_step(learner, accumulate=2)(b)
    assert len(out.keys) == 8 and torch.equal(learner.objective.negatives[0].vectors[:8], out.keys)
    for part in step.parts(b, 2):
        (whole(part).loss / 2).backward()
    for mine, theirs in zip(learner.online.parameters(), whole.online.parameters(), strict=True):
        assert torch.allclose(mine.grad, theirs.grad, atol=1e-14)


def test_accumulated_loss_and_metrics_are_the_mean_over_parts(double):
    learner = make("mocov2", groups=1)
    reference = copy.deepcopy(learner)
    b = batch(2)
    out, _ = make_step(learner, accumulate=4)(b)
    parts = [reference(part) for part in step.parts(b, 4)]
    assert out.loss.item() == pytest.approx(sum(part.loss.item() for part in parts) / 4, rel=1e-12)
    assert out.metrics.keys() == parts[0].metrics.keys()
    for name, value in out.metrics.items():
        values = [part.metrics[name].item() for part in parts]
        assert value.item() == pytest.approx(sum(values) / 4, rel=1e-12), name
        # the mean is not the value of any one part
        assert min(abs(value.item() - other) for other in values) > 1e-6, name


@pytest.mark.parametrize("method", ["mocov2", "adco", "msbreg", "npid"])
@pytest.mark.parametrize("parts", [1, 2])
def test_no_node_of_a_step_lives_on(method, parts):
    """No autograd node may outlive its step.

    A CUDA graph is captured on a stream of its own, and a node of an earlier step belongs to the
    stream of that step.
    """
    learner = make(method)

    def collector():
        # the node that accumulates the gradient of a weight: it lives as long as a graph ends in it
        weight = next(learner.online.parameters())
        return weight.expand_as(weight).grad_fn.next_functions[0][0]

    mark = collector()
    mark.metadata["step"] = 1
    views = len(learner.key_views) if method == "npid" else learner.views
    out = make_step(learner, accumulate=parts)(batch(views))
    del mark
    assert out[0].loss.ndim == 0 and "step" not in collector().metadata


def test_a_batch_falls_into_equal_parts():
    parts = step.parts(batch(2), 4)
    assert [len(part.image_ids) for part in parts] == [2] * 4
    assert torch.equal(torch.cat([part.image_ids for part in parts]), torch.arange(8))


def test_clipping_bounds_the_network_and_reports_the_norm_before():
    learner = make("simclr")
    _, norm = make_step(learner, clips={"network": 0.01})(batch(2))
    clipped = torch.cat([p.grad.flatten() for p in learner.online.parameters()]).norm()
    assert norm > 0.01 and abs(clipped - 0.01) < 1e-4


def gradient_norms(learner):
    """Return the norm of the gradient of each group of parameters."""
    return {
        name: torch.cat([p.grad.flatten() for p in parameters]).norm().item()
        for name, parameters in learner.groups().items()
    }


@pytest.mark.parametrize(("method", "other"), [("byol", "predictor"), ("adco", "bank")])
def test_each_group_is_clipped_with_its_own_clip(double, method, other):
    """A clip of one group changes no other group, and a group without a clip keeps its norm."""
    learner = make(method)
    steps(learner, 3)  # AdCo's bank of 12 is full after 2
    b = batch(2, step=5)

    def norms(**clips):
        clipped = copy.deepcopy(learner)
        make_step(clipped, clips=clips)(b)
        return gradient_norms(clipped)

    whole = norms()
    assert whole.keys() == {"network", other}
    network = 0.5 * whole["network"]
    rest = 0.1 * whole[other]
    # torch's clipping adds 1e-6 to the norm that it divides by
    both = {"network": network, other: rest}
    assert norms(**both) == pytest.approx(both, rel=1e-3)
    assert norms(network=network) == pytest.approx(whole | {"network": network}, rel=1e-3)
    assert norms(**{other: rest}) == pytest.approx(whole | {other: rest}, rel=1e-3)


def test_a_step_has_the_clip_of_each_group_of_the_recipe():
    clips = {"optim.network.clip": 0.3, "optim.bank.clip": 0.7}
    setup = build(small_recipe("adco", **clips), small_splits(), Tiny())
    assert setup.step.clips == {"network": 0.3, "bank": 0.7}


@pytest.mark.parametrize("rule", ["fixed", "linear", "sqrt", "views"])
def test_the_learning_rate_of_a_step_follows_the_batch_and_the_views_by_its_rule(rule):
    values = {"optim.network.lr": 0.5, "optim.network.rule": rule, "optim.network.warmup": 0}
    setup = build(small_recipe("msbreg", **values), small_splits(), Tiny())
    assert setup.learner.views == 4
    factors = {"fixed": 1, "linear": BATCH / 256, "sqrt": BATCH**0.5, "views": 4 * BATCH / 256}
    assert setup.prepare(0)["network"] == pytest.approx(0.5 * factors[rule])
    (group, *_) = setup.optims["network"].param_groups
    assert float(group["lr"]) == pytest.approx(0.5 * factors[rule])


def test_the_momentum_of_a_step_is_that_of_the_share_of_steps_before_it():
    """BYOL's momentum in step s of S is 1 - (1 - m) (cos(pi s/S) + 1)/2, so m in the first step."""
    setup = build(small_recipe("byol", 5, **{"method.momentum": 0.9}), small_splits(), Tiny())
    assert setup.loader.total == 10
    paces = [setup.learner.twin.pace.tolist() for _ in setup.run(0)]
    momenta = [1 - 0.1 * (math.cos(math.pi * at / 10) + 1) / 2 for at in range(10)]
    assert [pace[0] for pace in paces] == pytest.approx(momenta, rel=1e-6)
    assert [pace[1] for pace in paces] == pytest.approx([1 - m for m in momenta], rel=1e-5)
    assert momenta[0] == 0.9 and momenta[-1] < 0.998  # the momentum of 1 is never reached


def test_the_strength_of_jcl_rises_at_the_start_of_each_epoch_and_on_resuming():
    """With one stair per epoch, lambda in epoch e of E, counted from 1, is strength * e/E."""
    values = {"method.ramp": 5, "method.strength": 2.0}
    setup = build(small_recipe("jcl", 5, **values), small_splits(), Tiny())
    assert setup.loader.per_epoch == 2 and setup.loader.total == 10
    gaussian = setup.learner.objective.positives
    strengths = [gaussian.now.item() for _ in setup.run(0)]
    expected = [0.4, 0.4, 0.8, 0.8, 1.2, 1.2, 1.6, 1.6, 2.0, 2.0]
    assert strengths == pytest.approx(expected)
    assert [gaussian.now.item() for _ in setup.run(3)] == pytest.approx(expected[3:])


def test_a_compiler_that_fails_is_named_and_done_without(monkeypatch):
    def broken(function, **options):
        def call(*arguments):
            raise RuntimeError("no such kernel\nand a long trace")

        return call

    monkeypatch.setattr(torch, "compile", broken)
    taken = make_step(make("simclr"))
    taken.compile()
    sentence = r"compiling the learner failed \(no such kernel\); training continues without it"
    with pytest.warns(graph.Slower, match=sentence):
        out, _ = taken(batch(2))
    assert out.loss.isfinite() and taken(batch(2))[0].loss.isfinite()
    render = graph.compiled(lambda x: x + 1, "the views")
    with pytest.warns(graph.Slower, match="compiling the views failed"):
        assert render(1) == 2


def test_a_failure_in_a_worker_of_the_compiler_is_told_by_its_cause():
    trace = "An exception occurred in a subprocess:\n\nName=triton_red_1\n"
    trace += "Traceback (most recent call last):\n  File x\n"
    trace += "ValueError: numel 2097152 exceeds 1048576\n\nSet X=1"
    sentence = r"subprocess: ValueError: numel 2097152 exceeds 1048576\); training continues"
    with pytest.warns(graph.Slower, match=sentence):
        graph.warn_slower("compiling the learner", RuntimeError(trace))


def test_a_wrong_batch_is_no_compiler_failure(monkeypatch):
    monkeypatch.setattr(torch, "compile", lambda function, **options: function)
    taken = make_step(make("simclr"))
    taken.compile()
    with pytest.raises(ValueError, match="needs 2 views"):
        taken(Batch(batch(1).views, torch.arange(8)))


def test_a_full_gpu_ends_in_a_sentence_with_the_batch():
    def steps():
        raise torch.OutOfMemoryError("CUDA out of memory")
        yield

    sentence = "memory is too small for a batch of 256 images of 32 px: try a smaller batch"
    with pytest.raises(MemoryError, match=sentence):
        list(train.out_of_memory(steps(), resolve("cifar10.simclr")))


def test_half_precision_is_never_chosen_on_a_cpu():
    assert not bf16(resolve("cifar10.simclr"), torch.device("cpu"))
    assert bf16(
        resolve("cifar10.simclr", overrides={"train.precision": "bf16"}), torch.device("cpu")
    )


def test_double_precision_reaches_everything_but_the_weights_that_are_handed_on(tmp_path):
    """Views and state are float64; the first loss is close to that of float32."""
    runs = {}
    for precision in ("fp32", "fp64"):
        runs[precision] = pretrain(
            tmp_path / precision, "mocov2", 2, {"train.precision": precision}
        )
    state = last(tmp_path / "fp64")
    floats = [*state["learner"].values(), *state["optim"]["network"]["state"][0].values()]
    assert {value.dtype for value in floats if value.is_floating_point()} == {torch.float64}
    weights = load_file(tmp_path / "fp64" / "backbone.safetensors")
    assert {value.dtype for value in weights.values()} <= {torch.float32, torch.int64}
    first, exact = (run.metrics()[0]["loss"] for run in runs.values())
    assert first == pytest.approx(exact, rel=1e-5) and first != exact


@pytest.mark.parametrize("policy", ["shapes", "mocov2"])
def test_the_monitor_looks_in_the_precision_of_the_network(policy):
    recipe = small_recipe("mocov2", **{"monitor.knn_every": 1, "views.policy": policy})
    monitor = knn_monitor(recipe, small_splits())
    single, exact = (
        monitor(learner, 0)["knn"] for learner in (make("mocov2").float(), make("mocov2").double())
    )
    assert 0 <= single <= 100 and 0 <= exact <= 100


def test_double_precision_is_refused_where_there_is_none():
    recipe = resolve("cifar10.simclr", flags={"train.precision": "fp64"})
    assert double(recipe, torch.device("cpu")) and not bf16(recipe, torch.device("cuda"))
    with pytest.raises(ValueError, match="fp64 needs a CPU or a CUDA device: mps has no float64"):
        double(recipe, torch.device("mps"))


def test_health_tells_a_sphere_from_a_point():
    learner = make("simclr")
    even = health.measure(learner, torch.randn(256, 16))
    flat = health.measure(learner, torch.ones(256, 16) + 1e-3 * torch.randn(256, 16))
    assert abs(even["spread"] - 1) < 0.05 and even["rank"] > 14 and even["similarity"] < 0.05
    assert flat["spread"] < 0.01 and flat["rank"] < 2 and flat["similarity"] > 0.99
    assert health.measure(learner, torch.full((4, 4), torch.nan)) == {}


@pytest.mark.parametrize(
    ("row", "word"),
    [
        ({"step": 300, "loss": 1.0, "spread": 0.01}, "collapsed"),
        ({"step": 300, "loss": 1.0, "spread": 0.9, "rank": 1.1}, "1.1 of 128 dimensions"),
    ],
)
def test_what_is_wrong_is_said_with_its_likely_cause(row, word):
    assert word in health.complaint(row, 128).sentence
    assert health.complaint({"step": 300, "loss": 1.0, "spread": 0.9, "rank": 90.0}, 128) is None


def test_the_bound_on_mutual_information_is_eqcos_and_only_for_coupled_losses():
    assert health.bound(make("mocov2"), 1.0, 20) == pytest.approx(
        torch.tensor(21.0).log().item() - 1
    )
    assert health.bound(make("eqco", alpha=100.0), 1.0, 5) == pytest.approx(
        torch.tensor(101.0).log().item() - 1
    )
    assert health.bound(make("dcl"), 1.0, 14) is None
    assert health.bound(make("jcl"), 1.0, 16) is None  # its loss has lambda's variance term in it
    assert health.bound(make("jcl", form="each", strength=None, ramp=None), 1.0, 16) is not None


def test_ranks_ask_each_other_after_every_step_that_is_slow(monkeypatch):
    """torchrun kills ranks after 30 seconds, and ten slow steps could take longer."""
    now = [0.0]
    asked = []
    monkeypatch.setattr(train.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(dist, "world", lambda: 2)
    monkeypatch.setattr(dist, "any_rank", lambda flag, device: asked.append(at) or flag)
    halt = train.Halt(torch.device("cpu"))
    for at, seconds in enumerate([5.0] * 3 + [0.1] * 30):
        now[0] += seconds
        assert halt(False, at) is False
    assert sorted(set(asked)) == [0, 1, 2, 3, 9, 19, 29]
    # slow again, which the ranks find out at the next tenth step
    for at, seconds in enumerate([5.0] * 10, 33):
        now[0] += seconds
        assert halt(at == 41, at) is (at == 41)
    assert sorted(set(asked))[-4:] == [39, 40, 41, 42]


class Gone:
    """A stream whose reader has ended."""

    def isatty(self):
        return False

    def write(self, text):
        raise BrokenPipeError

    def flush(self):
        raise BrokenPipeError


@pytest.mark.parametrize("stream", [None, Gone()], ids=["closed", "gone"])
def test_nobody_to_tell_is_no_reason_to_stop(stream, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "stderr", stream)
    train.train(
        small_recipe("simclr", 1), RunFolder(tmp_path), splits=small_splits(), backbone=Tiny()
    )
    monkeypatch.undo()
    assert (tmp_path / "backbone.safetensors").exists()


def test_runs_in_threads_start_from_the_weights_of_their_seeds(tmp_path):
    ask = {"epochs": 1, "batch": 500, "quiet": True, "overrides": {"optim.network.lr": 1e-12}}
    folders = [tmp_path / str(at) for at in range(4)]
    with ThreadPoolExecutor(2) as pool:
        runs = list(pool.map(lambda out: api.pretrain("digits.simclr", out=out, **ask), folders))
    weights = [run.backbone().conv1.weight for run in runs]
    assert all(torch.allclose(weights[0], other, atol=1e-9) for other in weights[1:])


def test_a_caller_without_gradients_trains_all_the_same(tmp_path):
    ended = []
    for place, mode in enumerate((torch.enable_grad, torch.no_grad, torch.inference_mode)):
        torch.manual_seed(5)
        net = Tiny()
        with mode():
            train.train(
                small_recipe("simclr", 1),
                RunFolder(tmp_path / str(place)),
                splits=small_splits(),
                backbone=net,
                quiet=True,
            )
        ended.append(load_file(tmp_path / str(place) / "backbone.safetensors"))
    assert all(torch.equal(ended[0][name], other[name]) for other in ended for name in other)


def test_a_step_that_cannot_be_captured_is_taken_without(monkeypatch):
    """Such as that of a network that reads values back; the capture is tried and reported once."""
    taken = make_step(make("simclr"))
    b = batch(2)
    captured = graph.CapturedStep(lambda image_ids, key: None, what="the step")
    attempts = []
    eager = []

    @contextlib.contextmanager
    def refuses(cuda_graph, **options):
        attempts.append(cuda_graph)
        yield
        raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr(torch.cuda, "CUDAGraph", object)
    monkeypatch.setattr(torch.cuda, "graph", refuses)
    monkeypatch.setattr(captured, "_eager", lambda: eager.append(1) or taken(b))
    sentence = "capturing the step as a CUDA graph failed .*not permitted.*; training continues"
    with pytest.warns(graph.Slower, match=sentence) as caught:
        results = [captured(torch.arange(8), torch.tensor(0)) for _ in range(graph.WARM + 3)]
    warned = [warning for warning in caught if warning.category is graph.Slower]
    assert len(attempts) == 1 and len(warned) == 1
    assert len(eager) == len(results) and all(out.loss.isfinite() for out, _ in results)


def test_a_step_is_captured_only_after_the_compiler_saw_it_as_it_will_stay(monkeypatch):
    """While AdCo's bank fills, the step is compiled as another network.

    The compiler must not run during a capture, so some steps with the full bank come before it.
    """
    monkeypatch.setattr(torch, "compile", lambda function, **options: function)
    setup = build(small_recipe("adco", **{"method.fill": True}), small_splits(), Tiny())
    setup.device = torch.device("cuda")  # the tensors stay on the CPU, where nothing is captured
    captured = setup._whole_step()
    order = []

    def eager():
        order.append(step.filling(setup.learner))
        return captured.body(*captured.inputs)

    monkeypatch.setattr(captured, "_eager", eager)
    monkeypatch.setattr(captured, "_capture", lambda: order.append("capture"))
    for _ in range(20):
        captured(torch.arange(BATCH), torch.tensor(0))
        if "capture" in order:
            break
    assert order[0] is True
    assert order[-graph.WARM - 1 :] == [False] * graph.WARM + ["capture"]


def saved_for_backward(net, x, wrap):
    """Return the types of the large tensors that a compiled network saves for its backward pass."""
    from functorch.compile import min_cut_rematerialization_partition
    from torch._dynamo.backends.common import aot_autograd
    from torch._inductor.decomposition import decompositions

    saved = []

    def keep(graph_module, inputs):
        [output] = [node for node in graph_module.graph.nodes if node.op == "output"]
        values = [node.meta["val"] for node in output.args[0] if node is not None]
        saved.append([value.dtype for value in values if value.numel() >= x.numel()])
        return graph_module.forward

    backend = aot_autograd(
        fw_compiler=keep,
        bw_compiler=lambda graph_module, inputs: graph_module.forward,
        partition_fn=min_cut_rematerialization_partition,
        decompositions=decompositions,
    )
    wrap(torch.compile(net, backend=backend, fullgraph=True))(x)
    return saved[0]


@pytest.mark.slow
@pytest.mark.dist
def test_batch_norm_over_ranks_saves_no_float32_activations(tmp_path):
    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = BatchNorm(8)

        def forward(self, x):
            return torch.relu(self.norm(x.sin())).float().mean()

    x = torch.randn(16, 8, 6, 6, dtype=torch.bfloat16, requires_grad=True)
    store = f"file://{tmp_path / 'store'}"
    torch.distributed.init_process_group("gloo", init_method=store, rank=0, world_size=1)
    try:
        plain = saved_for_backward(Net(), x, wrap=lambda fast: fast)
        torch.compiler.reset()
        ours = saved_for_backward(Net(), x, wrap=graph.with_half_precision_saved)
    finally:
        torch.distributed.destroy_process_group()
    assert torch.float32 in plain  # what the setting is for
    assert torch.float32 not in ours and torch.bfloat16 in ours


@pytest.mark.parametrize("channels", [3, 8])
def test_a_network_that_crashes_a_cpu_in_channels_last_format_keeps_its_format(channels):
    """A strided 1 x 1 convolution of an image corrupts the memory of the process on some CPUs."""

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.first = torch.nn.Conv2d(3, channels, 3, padding=1)
            self.shortcut = torch.nn.Conv2d(channels, 16, 1, stride=2)

        def forward(self, x):
            return self.shortcut(self.first(x)).mean((2, 3))

    recipe = small_recipe("simclr", **{"train.channels_last": True})
    net = build(recipe, small_splits(), Net()).learner.backbone
    [weight] = [p for p in net.parameters() if p.shape[2:] == (3, 3)]
    assert weight.is_contiguous() == (channels == 3)


@pytest.mark.slow
def test_every_one_of_many_runs_in_a_process_is_compiled(monkeypatch):
    """The compiler refuses a ninth version of one function, here for a ninth temperature."""
    refused = []
    traced = partial(torch.compile, fullgraph=True, dynamic=False, backend="eager")
    monkeypatch.setattr(whole_batch, "compile_graph", traced)
    monkeypatch.setattr(step, "warn_slower", lambda what, error: refused.append(error))
    for number in range(10):
        recipe = small_recipe("simclr", 1, **{"method.tau": 0.1 + number / 100})
        setup = build(recipe, small_splits(), Tiny())
        setup.compile()
        _, _, images = next(setup.loader.steps())
        setup.step(images)
    assert not refused
