"""A step that is not finite leaves everything as it was; a finite one is not changed by the check.

On a GPU the optimisers are fused and the step is captured. Fused optimisers run on a CPU, too, so
these tests take the same way.
"""

import copy
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from antipode import optim
from antipode.core.skip import Backup, Slot, changing
from antipode.papers import build as build_learner
from antipode.training import step as training
from antipode.training.build import build
from antipode.types import Batch
from tests.toys import MAIN, VARIANTS, Tiny, batch, make
from tests.training.runs import equal, small_recipe, small_splits

BAD = {"nan": float("nan"), "inf": float("inf")}
OPTIMISERS = {
    "sgd": dict(name="sgd", momentum=0.9),
    "sgd on a device": dict(name="sgd", momentum=0.9, capturable=True),
    "adamw": dict(name="adamw"),
    "adamw on a device": dict(name="adamw", capturable=True),
    "lars": dict(name="lars", momentum=0.9),
    "lars inside on a device": dict(name="lars", variant="inside", capturable=True),
    "lars nesterov": dict(name="lars", momentum=0.9, nesterov=True),
    "larc_clip": dict(name="lars", variant="larc_clip", momentum=0.9, nesterov=True),
}


def stepping(learner, accumulate=1, clips=None, **options):
    """Return a step with one optimiser for each group of the learner."""
    settings = {"lr": 0.05, "weight_decay": 1e-4, **(options or OPTIMISERS["sgd"])}
    optims = {name: optim.make(group, **settings) for name, group in learner.groups().items()}
    return training.Step(learner, optims, bf16=False, accumulate=accumulate, clips=clips)


def state(step):
    """Return a copy of everything that outlives a step, but the number of steps."""
    content = {
        "learner": step.learner.state_dict(),
        "optim": {name: one.state_dict() for name, one in step.optims.items()},
        "host": [
            {key: getattr(part, key) for key in ("count", "filling", "known") if hasattr(part, key)}
            for part in step.learner.modules()
        ],
    }
    content = copy.deepcopy(content)
    del content["learner"]["step"]
    return content


def spoiled(b, value=float("nan")):
    """Return a batch with one bad pixel."""
    views = [view.clone() for view in b.views]
    views[0][3, 1, 2, 2] = value
    return Batch(views, b.image_ids)


def take(step, steps, start=0):
    """Take steps on seeded batches, and return the losses."""
    losses = []
    for number in range(start, start + steps):
        step.learner.before_step(number / 10)
        out, _ = step(batch(step.learner.views, step=number))
        losses.append(out.loss.item())
    return losses


@pytest.mark.parametrize(
    "variant",
    [name if name in MAIN else pytest.param(name, marks=pytest.mark.slow) for name in VARIANTS],
)
def test_a_step_that_is_not_finite_changes_nothing_of_any_method(variant):
    """Also not in the first step, nor while AdCo's bank fills (two steps of eight images)."""
    step = stepping(make(variant))
    for number in range(3):
        step.learner.before_step(number / 10)
        before = state(step)
        out, norm = step(spoiled(batch(step.learner.views, step=number)))
        assert not (out.loss.isfinite() and norm.isfinite())
        assert equal(state(step), before), number
        assert int(step.learner.step) == 2 * number + 1  # noise is drawn by the number of steps
        take(step, 1, start=number)
        assert not equal(state(step), before)
    assert (int(step.skipped), int(step.streak)) == (3, 0)


@pytest.mark.parametrize("value", BAD)
@pytest.mark.parametrize("kind", OPTIMISERS)
def test_a_step_that_is_not_finite_changes_nothing_of_any_optimiser(kind, value):
    step = stepping(make("adco-paper"), **OPTIMISERS[kind])
    take(step, 2)
    before = state(step)
    step(spoiled(batch(step.learner.views, step=2), BAD[value]))
    assert equal(state(step), before)
    take(step, 1, start=2)
    assert not equal(state(step)["optim"], before["optim"])


# every optimiser with two methods, and every method with two optimisers
PAIRS = [
    pytest.param(
        variant,
        kind,
        marks=()
        if variant in ("simclr", "adco") or kind in ("sgd", "adamw on a device")
        else pytest.mark.slow,
    )
    for variant in ("simclr", "mocov2", "byol", "adco", "npid-nce", "jcl")
    for kind in OPTIMISERS
]


@pytest.mark.parametrize(("variant", "kind"), PAIRS)
def test_the_check_changes_no_bit_of_a_finite_step(variant, kind):
    accumulate = 1 + (len(variant) + len(kind)) % 2  # each method and optimiser has both
    ended = []
    for checks in (True, False):
        torch.manual_seed(3)
        step = stepping(make(variant), accumulate, **OPTIMISERS[kind])
        step.checks = checks
        ended.append((take(step, 3), state(step)))
    assert equal(*ended)


def test_the_check_changes_no_bit_in_double_precision(double):
    for kind, options in OPTIMISERS.items():
        ended = []
        for checks in (True, False):
            torch.manual_seed(3)
            step = stepping(make("mocov2"), **options)
            step.checks = checks
            ended.append((take(step, 4), state(step)))
        assert equal(*ended), kind


class Reads(TorchDispatchMode):
    """Counts how often a value is read back from a tensor, for which a GPU would have to wait."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, function, types, arguments=(), options=None):
        self.count += function is torch.ops.aten._local_scalar_dense.default
        return function(*arguments, **(options or {}))


@pytest.mark.parametrize("kind", [name for name in OPTIMISERS if "device" in name])
@pytest.mark.parametrize("variant", ["simclr", "mocov2", "byol", "adco-paper", "npid", "jcl"])
def test_the_host_does_not_wait_for_the_check(variant, kind):
    counts = []
    for checks in (True, False):
        step = stepping(make(variant), **OPTIMISERS[kind])
        step.checks = checks
        with Reads() as reads:
            step(batch(step.learner.views))
        counts.append(reads.count)
    assert counts[0] == counts[1]


def test_training_goes_on_after_a_skipped_step_as_if_it_had_not_been(double):
    """Only the number of steps differs, from which shuffles and noise are drawn."""
    plain = stepping(make("byol"))
    torch.manual_seed(0)
    spoilt = stepping(copy.deepcopy(plain.learner))
    expected = take(plain, 4)
    losses = take(spoilt, 2)
    spoilt(spoiled(batch(2, step=7)))
    assert losses + take(spoilt, 2, start=2) == expected


class Overflowing(torch.autograd.Function):
    """The identity, whose gradient is multiplied by a large number."""

    @staticmethod
    def forward(ctx, x, factor):
        ctx.factor = factor
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        return grad * ctx.factor, None


@pytest.mark.parametrize("factor", [float("inf"), 1e30])
@pytest.mark.parametrize("clips", [None, {"network": 1.0}])
def test_an_infinite_gradient_norm_of_a_finite_loss_is_skipped(clips, factor, monkeypatch):
    """With 1e30 all gradients are finite, and only their norm is infinite."""
    step = stepping(make("mocov2"), clips=clips)
    take(step, 1)
    before = state(step)
    forward = Tiny.forward
    overflowing = lambda self, x: Overflowing.apply(forward(self, x), factor)  # noqa: E731
    monkeypatch.setattr(Tiny, "forward", overflowing)
    out, norm = step(batch(2, step=1))
    assert out.loss.isfinite() and not norm.isfinite()
    assert equal(state(step), before) and int(step.skipped) == 1


def test_one_bad_part_of_an_accumulated_batch_skips_all_of_it():
    step = stepping(make("mocov2", groups=1), accumulate=2)
    before = state(step)
    step(spoiled(batch(2)))
    assert equal(state(step), before) and int(step.skipped) == 1


def test_skipped_steps_are_counted_in_all_and_in_a_row():
    step = stepping(make("simclr"))
    seen = []
    for bad in (0, 1, 1, 0, 0, 1, 0, 1, 1, 1):
        step(spoiled(batch(2)) if bad else batch(2))
        seen.append((int(step.skipped), int(step.streak)))
    assert seen == [
        *((0, 0), (1, 1), (2, 2), (2, 0), (2, 0)),
        *((3, 1), (3, 0), (4, 1), (5, 2), (6, 3)),
    ]


def test_trying_a_batch_changes_nothing_and_tells_whether_it_is_finite():
    setup = build(small_recipe("mocov2"), small_splits(), Tiny())
    before = state(setup.step)
    assert setup.is_finite_at(3) and equal(state(setup.step), before)
    with torch.no_grad():
        next(setup.learner.parameters()).fill_(float("nan"))
    assert not setup.is_finite_at(3)
    assert (int(setup.step.skipped), int(setup.step.streak), int(setup.learner.step)) == (0, 0, 0)
    assert all(p.grad is None for p in setup.learner.parameters())


class OwnTwin(nn.Module):
    """A twin of a user's own: it knows nothing of skipped steps."""

    own = False

    def __init__(self, online):
        super().__init__()
        self.net = copy.deepcopy(online).requires_grad_(False)
        self.register_buffer("count", torch.zeros(()))

    def forward(self, images, z, image_ids, noise):
        return [self.net(x) for x in images]

    def at(self, progress):
        pass

    @torch.no_grad()
    def follow(self, online, restart=False):
        self.count += 1
        for mine, theirs in zip(self.net.parameters(), online.parameters(), strict=True):
            mine.lerp_(theirs, 0.1)


def test_parts_that_know_nothing_of_skipped_steps_are_restored():
    learner = make("byol")
    step = stepping(learner.replace(twin=OwnTwin(learner.online)))
    take(step, 2)
    before = state(step)
    step(spoiled(batch(2, step=2)))
    assert equal(state(step), before) and float(step.learner.twin.count) == 2


class Replacing(Tiny):
    """A network that replaces a buffer by a new tensor in every pass, of a new shape."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(3))
        self.register_buffer("seen", torch.zeros(0))
        self.register_buffer("nothing", None)

    def forward(self, x):
        self.mean = 0.9 * self.mean + 0.1 * x.detach().mean((0, 2, 3))
        self.seen = torch.cat([self.seen, x.detach().mean()[None]])
        return super().forward(x)


def test_buffers_that_a_network_replaces_are_restored():
    step = stepping(build_learner("simclr", Replacing(), dim=8, hidden=16))
    take(step, 2)
    before = state(step)
    net = step.learner.backbone
    passes = len(net.seen)
    step(spoiled(batch(2, step=2)))
    assert equal(state(step), before) and int(step.skipped) == 1
    take(step, 1, start=3)
    assert len(net.seen) == passes + 1 and net.mean.isfinite().all() and net.mean.any()
    assert step.is_finite_on(batch(2, step=4)) and len(net.seen) == passes + 1


def test_a_compiled_step_that_fails_leaves_no_trace():
    """The forward pass has changed the running statistics before the backward pass fails."""
    plain, failing = (stepping(make("simclr")) for _ in range(2))
    failing.learner.load_state_dict(plain.learner.state_dict())

    class Fails(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, grad):
            raise RuntimeError("no such kernel")

    def broken(b):
        out = failing.learner(b)
        return out._replace(loss=Fails.apply(out.loss))

    failing.uncompiled = failing.passes
    failing.passes = replace(failing.passes, forward=broken)
    with pytest.warns(UserWarning, match="no such kernel"):
        assert take(failing, 2) == take(plain, 2)
    assert equal(state(failing), state(plain))


def test_every_buffer_is_either_restored_or_protects_itself():
    """What a backup leaves out is large, and written by a part that looks at the flag."""
    for variant in VARIANTS:
        learner = make(variant)
        kept = {id(slot.tensor) for slot in changing(learner)}
        left = [name for name, tensor in learner.named_buffers() if id(tensor) not in kept]
        known = ("seed", "step", "pace", "vectors", "cursor", "filled", "log_z")
        assert all(name.rsplit(".", 1)[-1] in known for name in left), (variant, left)


def test_a_backup_restores_any_shape_type_and_memory_format():
    tensors = [
        torch.rand(2, 3, 4, 4).to(memory_format=torch.channels_last),
        torch.rand(3, dtype=torch.float64),
        torch.tensor(5),
        torch.zeros(0),
        torch.tensor(True),
        torch.rand(4, 6).T,
    ]
    before = [tensor.clone() for tensor in tensors]
    backup = Backup([Slot({"x": tensor}, "x") for tensor in tensors])
    for finite in (True, False):
        copies = backup.copies()
        for tensor in tensors:
            tensor.fill_(0) if not tensor.is_floating_point() else tensor.fill_(float("nan"))
        backup.restore(copies, torch.tensor(finite))
        changed = [not torch.equal(a, b) for a, b in zip(tensors, before, strict=True)]
        assert changed == ([True, True, True, False, True, True] if finite else [False] * 6)
        for tensor, old in zip(tensors, before, strict=True):
            tensor.copy_(old)
