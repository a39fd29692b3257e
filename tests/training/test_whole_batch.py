"""The loss of a whole batch, while one part at a time passes the networks (train.negatives=batch).

The gradient must be that of one pass in which batch norm has as many groups as there are parts.
"""

import copy

import pytest
import torch
from torch import nn

from antipode.nets.norm import convert
from antipode.papers import build
from antipode.recipe.resolve import resolve
from antipode.training import loop, whole_batch
from antipode.training.record import Interrupted
from antipode.training.step import Step, ready
from antipode.types import Batch
from tests.toys import VARIANTS, Tiny, batch, make
from tests.training.runs import equal, last, pretrain

STEPS, N = 3, 16
# all views of a batch share their statistics, so that a group of a whole batch is not a part
JOINT = {name for name in VARIANTS if make(name).joint or getattr(make(name).twin, "joint", False)}


def grouped(learner, groups):
    """Return a copy of a learner with this many batch-norm groups, and without a shuffle.

    A shuffle of a whole batch would mix images of different parts.
    """
    learner = convert(copy.deepcopy(learner), groups)
    if hasattr(learner.twin, "shuffle"):
        learner.twin.shuffle = False
    return learner


def step_of(learner, **options):
    optims = {
        name: torch.optim.SGD(weights, lr=0.05, momentum=0.9)
        for name, weights in learner.groups().items()
    }
    return Step(learner, optims, bf16=False, **options)


def trained(learner, **options):
    """Return losses, gradients and state of some steps."""
    taken = step_of(learner, **options)
    record = {}
    for at in range(STEPS):
        learner.before_step(at / STEPS)
        out, norm = taken(batch(learner.views, n=N, step=at, start=17))
        record |= {f"loss {at}": out.loss, f"norm {at}": norm, f"keys {at}": out.keys}
        record |= {f"{name} {at}": value for name, value in out.metrics.items()}
        for name, weight in learner.named_parameters():
            if weight.grad is not None:
                record[f"gradient {at} {name}"] = weight.grad.clone()
    assert taken.skipped == 0
    return record | {f"state {name}": value for name, value in learner.state_dict().items()}


@pytest.mark.parametrize("parts", [pytest.param(2, marks=pytest.mark.slow), 4])
@pytest.mark.parametrize("variant", [name for name in VARIANTS if name not in JOINT])
def test_parts_give_the_gradient_of_the_whole_batch(double, variant, parts):
    """Losses, metrics, gradients, weights, queue, bank and running statistics are equal."""
    learner = make(variant)
    whole = trained(grouped(learner, parts))
    ours = trained(grouped(learner, 1), accumulate=parts, whole=True)
    assert whole.keys() == ours.keys()
    for name, value in whole.items():
        assert torch.allclose(value.double(), ours[name].double(), rtol=1e-9, atol=1e-11), name


@pytest.mark.parametrize("variant", sorted(JOINT))
def test_parts_of_joint_views_give_the_gradient_of_one_graph(double, variant):
    """The reference keeps the graphs of all parts, and computes one loss and one backward pass."""
    learner = grouped(make(variant), 1)
    whole = copy.deepcopy(learner)
    b = batch(learner.views, n=N, start=17)
    out, _ = step_of(learner, accumulate=4, whole=True)(b)
    parts = [part() for part in ready(b, 4)]
    z, p = (torch.cat(part, 1) for part in zip(*map(whole.project, parts), strict=True))
    keys = [torch.cat(views) for views in zip(*map(whole.keys, parts), strict=True)]
    expected = whole.compare(z, p, keys, b.image_ids)
    expected.loss.backward()
    assert out.loss.item() == pytest.approx(expected.loss.item(), rel=1e-12)
    gradients = dict(learner.named_parameters())
    for name, weight in whole.named_parameters():
        if weight.grad is not None:
            assert torch.allclose(gradients[name].grad, weight.grad, rtol=1e-9, atol=1e-11), name


def test_the_loss_of_parts_is_another_one(double):
    """Without `whole`, a query meets only the negatives of its part."""
    learner = make("simclr")
    whole = trained(learner)
    parts = trained(make("simclr"), accumulate=2)
    assert (whole["loss 0"] - parts["loss 0"]).abs() > 0.1


class Noisy(nn.Module):
    """A network with dropout, a counter, and an argument that records what passes through it."""

    def __init__(self):
        super().__init__()
        self.net = Tiny()
        self.drop = nn.Dropout(0.5)
        self.width = self.net.width
        self.seen = []

    def forward(self, x):
        self.seen.append((len(x), torch.is_grad_enabled()))
        return self.drop(self.net(x))


def noisy(method="simclr", **arguments):
    """Return a learner with dropout, whose network has not seen anything yet."""
    learner = build(method, Noisy(), dim=6, **arguments)
    learner.backbone.seen.clear()
    if method != "simclr":
        learner.twin.net.backbone.seen.clear()
    return learner


def test_both_passes_draw_the_same_random_numbers(double):
    """The gradient equals that of one pass in which each part has its own dropout masks."""
    learner = noisy()
    reference = copy.deepcopy(learner)
    b = batch(2)
    torch.manual_seed(9)
    taken = step_of(learner, accumulate=2, whole=True)
    out, _ = taken(b)
    after = torch.get_rng_state()
    assert taken.whole.draws and not taken.settled
    torch.manual_seed(9)
    vectors = [reference.project(part())[0] for part in ready(b, 2)]
    assert torch.equal(after, torch.get_rng_state())  # the second pass moves no generator
    joined = torch.cat(vectors, 1)
    expected = reference.compare(joined, joined, [], b.image_ids)
    expected.loss.backward()
    assert out.loss.item() == pytest.approx(expected.loss.item(), rel=1e-12)
    for (name, ours), theirs in zip(
        learner.online.named_parameters(), reference.online.parameters(), strict=True
    ):
        assert torch.allclose(ours.grad, theirs.grad, rtol=1e-9, atol=1e-12), name


def test_only_one_part_at_a_time_passes_the_network_and_once_with_a_graph():
    learner = noisy()
    step_of(learner, accumulate=4, whole=True)(batch(2))
    seen = learner.backbone.seen
    assert seen == [(4, False)] * 4 + [(4, True)] * 4  # two views of two images


def test_keys_are_computed_once():
    learner = noisy("mocov2", queue=20)
    step_of(learner, accumulate=4, whole=True)(batch(2))
    assert learner.twin.net.backbone.seen == [(2, False)] * 4


def test_views_are_made_again_if_they_take_much_memory(monkeypatch):
    made = []
    for kept, times in ((whole_batch.KEPT, 1), (0, 2)):
        monkeypatch.setattr(whole_batch, "KEPT", kept)
        made.clear()
        b = batch(2)
        parts = [
            lambda part=part: made.append(1) or part()  # count how often a part is made
            for part in ready(b, 4)
        ]
        step_of(make("simclr"), accumulate=4, whole=True).on_parts(parts)
        assert len(made) == 4 * times


@pytest.mark.parametrize("variant", ["mocov2", "adco", "byol", "npid"])
def test_a_step_that_is_not_finite_changes_nothing(variant):
    learner = make(variant)
    taken = step_of(learner, accumulate=2, whole=True)
    for at in range(3):
        learner.before_step(0.0)
        taken(batch(learner.views, step=at))
    before = {name: value.clone() for name, value in learner.state_dict().items()}
    bad = batch(learner.views)
    bad.views[0][5] = torch.nan  # in the second part
    out, _ = taken(bad)
    assert taken.skipped == 1 and not out.loss.isfinite()
    for name, value in learner.state_dict().items():
        assert name == "step" or torch.equal(value, before[name]), name
    assert taken.is_finite_on(batch(learner.views)) and not taken.is_finite_on(bad)


def test_no_node_of_a_step_lives_on():
    learner = make("msbreg")

    def collector():
        weight = next(learner.online.parameters())
        return weight.expand_as(weight).grad_fn.next_functions[0][0]

    mark = collector()
    mark.metadata["step"] = 1
    out = step_of(learner, accumulate=2, whole=True)(batch(learner.views))
    del mark
    assert out[0].loss.ndim == 0 and "step" not in collector().metadata


def test_steps_of_many_parts_are_not_captured():
    for parts, settled in ((1, True), (16, True), (17, False)):
        assert step_of(make("simclr"), accumulate=parts, whole=True).settled is settled


def test_a_wrong_batch_is_reported_before_anything_is_trained():
    taken = step_of(make("simclr"), accumulate=2, whole=True)
    with pytest.raises(ValueError, match="needs 2 views"):
        taken(Batch(batch(1).views, torch.arange(8)))


WHOLE = {"train.accumulate": 2, "train.negatives": "batch"}


def test_a_cut_run_continues_bit_for_bit(tmp_path, monkeypatch):
    """The run stops in the middle of an epoch and resumes."""
    pretrain(tmp_path / "whole", "mocov2", 4, WHOLE)
    with monkeypatch.context() as patch, pytest.raises(Interrupted):
        patch.setattr(loop.Halt, "__call__", lambda self, asked, step: step == 4)
        pretrain(tmp_path / "cut", "mocov2", 4, WHOLE)
    pretrain(tmp_path / "cut", "mocov2", 4, WHOLE)
    assert equal(last(tmp_path / "whole"), last(tmp_path / "cut"))


def test_the_recipe_key_has_the_two_values():
    assert resolve("shapes.simclr").train.negatives == "part"
    assert resolve("shapes.simclr", overrides=WHOLE).train.negatives == "batch"
    with pytest.raises(ValueError, match=r"train\.negatives"):
        resolve("shapes.simclr", overrides={"train.negatives": "all"})
