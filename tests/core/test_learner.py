"""The learner: what enters its queue, its random draws, and the replacement of one part."""

import pytest
import torch

from antipode.core.learner import Learner
from antipode.core.loss import decoupled
from antipode.core.negatives import InBatch, Queue
from antipode.core.objective import Contrast
from antipode.core.pairing import crops
from antipode.core.scores import unit
from antipode.nets.heads import mlp
from antipode.nets.norm import convert
from antipode.types import Batch, Output
from tests.toys import VARIANTS, batch, make

PARTS = (
    *("online", "twin", "pairing", "objective", "predictor", "regularisers"),
    *("scale", "joint", "renormalise", "on", "remember", "options"),
)


def distinct(learner):
    """Return a batch of 8 images whose views differ strongly, and the unit key (8,D) of each view.

    The twin gets other weights than the online network. In eval mode, batch norm treats every image
    alone, so neither groups nor shuffles change the keys.
    """
    learner.eval()
    views = [3 * torch.randn(8, 3, 8, 8) for _ in range(learner.views)]
    with torch.no_grad():
        for parameter in learner.twin.net.parameters():
            parameter.add_(0.5 * torch.randn_like(parameter))
        keys = [unit(learner.twin.net(view)) for view in views]
    return Batch(views, torch.arange(8)), keys


def stored(learner, images):
    """Return the first 8 vectors of the queue or bank after a step."""
    learner.after_step(learner(images))
    [store] = [part for part in learner.objective.modules() if hasattr(part, "stored")]
    return store.stored()[:8]


# What enters the queue


@pytest.mark.parametrize("variant", ["jcl-each", "adco-symmetric", "mocov2"])
def test_the_keys_of_the_first_pair_enter_the_queue(variant):
    """The second view is the key of the first pair. In later pairs, other views are keys."""
    learner = make(variant)
    images, keys = distinct(learner)
    vectors = stored(learner, images)
    assert torch.allclose(vectors, keys[1], atol=1e-6)
    others = [key for view, key in enumerate(keys) if view != 1]
    assert all((vectors - key).abs().max() > 0.1 for key in others)


def test_the_mean_of_jcls_unit_keys_enters_the_queue_and_is_not_renormalised():
    learner = make("jcl")
    images, keys = distinct(learner)
    vectors = stored(learner, images)
    assert len(keys) == 4  # the first view is the query
    assert torch.allclose(vectors, (keys[1] + keys[2] + keys[3]) / 3, atol=1e-6)
    assert (vectors.norm(dim=1) < 0.99).any()


def test_npid_remembers_its_queries():
    learner = make("npid")
    learner.eval()
    images = batch(learner.views)
    with torch.no_grad():
        queries = unit(learner.online(images.views[0]))
        assert torch.allclose(learner(images).keys, queries, atol=1e-6)


def test_the_queries_of_the_first_pair_are_remembered():
    learner = make("simclr").replace(remember="query")
    learner.eval()
    (first,), (last,) = learner.pairing[0][0], learner.pairing[-1][0]
    images = Batch([3 * torch.randn(8, 3, 8, 8) for _ in range(2)], torch.arange(8))
    with torch.no_grad():
        queries = [unit(learner.online(view)) for view in images.views]
        assert torch.allclose(learner(images).keys, queries[first], atol=1e-6)
        assert not torch.allclose(queries[first], queries[last], atol=1e-2)


def test_the_scale_of_the_loss_begins_when_the_bank_is_full():
    """AdCo's authors fill the bank one way, whatever the pairing is."""
    learner = make("adco-symmetric")
    scaled = learner.replace(scale=7.0)
    images = batch(learner.views)
    with torch.no_grad():
        assert learner.objective.bank.filling and scaled(images).loss == learner(images).loss
        learner.objective.bank.filling = False  # both learners have the same bank
        torch.testing.assert_close(scaled(images).loss, 7 * learner(images).loss)


# Random draws


def kept(learner, steps):
    """Return the places of the keys that the queue keeps, for `steps` steps with the same keys."""
    keys = torch.arange(8.0)[:, None].repeat(1, 6)
    out = Output(torch.zeros(()), {}, keys, torch.arange(8))
    [queue] = [part for part in learner.modules() if isinstance(part, Queue)]
    places = []
    for _ in range(steps):
        learner.after_step(out)
        places.append(tuple(queue.vectors[:, 0].tolist()))
    return places


def test_the_draw_of_the_queue_depends_on_the_step_and_on_the_seed():
    """EqCo's queue of 5 keeps 5 random keys of a batch of 8."""
    first = kept(make("eqco"), 10)
    assert all(len(set(places)) == 5 and set(places) <= set(range(8)) for places in first)
    assert len({frozenset(places) for places in first}) > 5
    assert kept(make("eqco"), 10) == first
    assert kept(make("eqco").reseed(1), 10) != first


def test_a_learner_that_starts_at_a_later_step_draws_as_if_it_had_taken_the_earlier_ones():
    whole = kept(make("eqco"), 6)
    late = make("eqco")
    late.step.fill_(4)
    assert kept(late, 2) == whole[4:]


# Replacement


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_replacement_of_nothing_keeps_every_part_and_the_loss(variant):
    learner = make(variant)
    same = learner.replace()
    assert same is not learner
    for name in PARTS:
        old = getattr(learner, name)
        new = getattr(same, name)
        assert new is old if isinstance(old, torch.nn.Module) else new == old, name
    tensors = learner.state_dict(keep_vars=True)
    for name, tensor in same.state_dict(keep_vars=True).items():
        assert name in ("seed", "step") or tensor is tensors[name], name
    images = batch(learner.views)
    assert torch.equal(same.eval()(images).loss, learner.eval()(images).loss)


def test_a_replacement_changes_one_part_and_keeps_the_modules():
    learner = make("simclr")
    objective = Contrast(InBatch("all"), tau=0.7)
    other = learner.replace(objective=objective)
    assert isinstance(other, Learner) and other.objective is objective
    assert other.online is learner.online and other.twin is learner.twin
    assert learner.objective is not objective  # the original is unchanged
    assert learner.objective.tau == 0.1
    images = batch(2)
    assert torch.equal(other(images).loss, simclr_like(learner, 0.7)(images).loss)


def simclr_like(learner, tau):
    """Return SimCLR with another temperature and the weights of `learner`."""
    equal = make("simclr", tau=tau)
    equal.load_state_dict(learner.state_dict())
    return equal


def test_another_pairing_changes_the_number_of_views():
    learner = make("simclr")
    assert (learner.views, learner.query_views, learner.key_views) == (2, [0, 1], [0, 1])
    other = learner.replace(pairing=crops(2, 4))
    assert (other.views, other.query_views, other.key_views) == (4, [0, 1, 2, 3], [0, 1])
    assert other.seen == [0, 1, 2, 3]
    with pytest.raises(ValueError, match="needs 4 views of each image, got 2"):
        other(batch(2))


def test_another_predictor_and_another_twin_are_taken_into_account():
    learner = make("simclr")
    predictor = convert(mlp([6, 5, 6], norm="batch"), groups=1)
    other = learner.replace(predictor=predictor)
    assert set(other.norms) - set(learner.norms) == {
        layer for layer in predictor.modules() if hasattr(layer, "views_in_batch")
    }
    assert len(other.norms) == len(learner.norms) + 1
    slow = make("mocov2").twin
    one_sided = learner.replace(twin=slow, pairing=[((0,), (1,))])
    assert one_sided.seen == [0]  # the twin computes the keys, so the key view is not needed


# The contrast


def test_a_replaced_contrast_keeps_its_negatives_and_its_other_choices():
    old = make("jcl").objective
    new = old.replace(tau=0.5)
    assert list(new.negatives) == list(old.negatives)  # modules are compared by identity
    assert (new.tau, old.tau) == (0.5, 0.2)
    assert new.positives is old.positives
    assert new.coupling is old.coupling and new.margin is old.margin
    eqco = make("eqco").objective
    assert eqco.replace(tau=0.5).margin is eqco.margin
    dcl = make("dcl").objective
    assert dcl.replace(tau=0.5).coupling is decoupled
    assert dcl.replace(tau=0.5).pool == "all"


def test_a_decoupled_moco_is_the_difference_of_its_terms(double):
    learner = make("mocov2")
    learner.eval()
    images = batch(2)
    with torch.no_grad():
        query = unit(learner.online(images.views[0]))
        key = unit(learner.twin.net(images.views[1]))
    queue = learner.objective.negatives[0].vectors
    attract = (query * key).sum(1) / 0.2
    repel = torch.logsumexp(query @ queue.T / 0.2, 1)
    other = learner.replace(objective=learner.objective.replace(coupling=decoupled)).eval()
    assert torch.allclose(other(images).loss, (repel - attract).mean())


def test_a_replaced_contrast_is_checked_like_a_new_one():
    with pytest.raises(ValueError, match="a decoupled loss has no positive there"):
        make("jcl").objective.replace(coupling=decoupled)
    with pytest.raises(ValueError, match="tau must be positive, got 0"):
        make("mocov2").objective.replace(tau=0)


def test_a_replaced_part_keeps_seed_step_and_mode():
    learner = make("simclr").reseed(5).eval()
    learner.step += 3
    replaced = learner.replace(scale=2.0)
    assert replaced.seed == learner.seed and replaced.step == 3 and not replaced.training
    replaced.step += 1
    assert learner.step == 3
