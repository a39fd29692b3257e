"""Tests of gradients: which parts receive one, and AdCo's two objectives in one backward pass."""

import copy

import pytest
import torch

import antipode.functional as A
from antipode.core.negatives import Bank, InBatch
from antipode.core.objective import Adversarial, Contrast
from antipode.types import Pair
from tests.reference import adco
from tests.toys import VARIANTS, batch, make, optimiser

N, D, K, TAU, TAU_BANK = 6, 5, 8, 0.12, 0.05


def unit(x):
    return x / x.norm(dim=-1, keepdim=True)


def pair_of(query, key):
    ids = torch.arange(len(query))
    return Pair(query, key[None], ids, key, ids, torch.tensor(0))


def adversarial(in_batch):
    bank = Bank(K, D, fill=False)
    parts = [InBatch("pair")] if in_batch else []
    return Adversarial(Contrast(*parts, bank, tau=TAU), tau=TAU_BANK), bank


@pytest.mark.parametrize("in_batch", [True, False])
def test_bank_receives_the_negated_closed_form_and_the_query_the_plain_contrast(double, in_batch):
    objective, bank = adversarial(in_batch)
    query, key = unit(torch.randn(N, D)).requires_grad_(), unit(torch.randn(N, D))
    loss, metrics = objective(pair_of(query, key))
    loss.backward()
    expected = adco.bank_gradient(query.detach(), key, bank.weight.detach(), TAU_BANK, in_batch)
    assert (bank.weight.grad + expected).abs().max() < 1e-12
    plain = query.detach().requires_grad_()
    contrast = adco.loss(plain, key, bank.weight.detach(), TAU, in_batch)
    contrast.backward()
    assert (query.grad - plain.grad).abs().max() < 1e-12
    assert abs(metrics["contrast"] - contrast.detach()) < 1e-12


def test_bank_gradient_is_tangent_to_the_sphere(double):
    objective, bank = adversarial(True)
    objective(pair_of(unit(torch.randn(N, D)), unit(torch.randn(N, D))))[0].backward()
    assert (bank.weight.grad * bank.weight).sum(1).abs().max() < 1e-12


@pytest.mark.parametrize("in_batch", [True, False])
def test_plain_sgd_on_the_bank_equals_the_authors_update_over_steps(double, in_batch):
    objective, bank = adversarial(in_batch)
    lr, momentum, decay = 3.0, 0.9, 1e-4
    sgd = torch.optim.SGD([bank.weight], lr=lr, momentum=momentum, weight_decay=decay)
    theirs = adco.Ascent(bank.weight.detach(), lr, momentum, decay)
    for _ in range(5):
        query, key = unit(torch.randn(N, D)), unit(torch.randn(N, D))
        sgd.zero_grad()
        objective(pair_of(query, key))[0].backward()
        sgd.step()
        theirs.step(adco.bank_gradient(query, key, theirs.w, TAU_BANK, in_batch))
        assert (bank.weight - theirs.w).abs().max() < 1e-12


def test_bank_climbs_the_loss_of_fixed_queries(double):
    objective, bank = adversarial(False)
    query, key = unit(torch.randn(N, D)), unit(torch.randn(N, D))
    sgd = torch.optim.SGD([bank.weight], lr=0.1)
    losses = []
    for _ in range(20):
        sgd.zero_grad()
        loss, metrics = objective(pair_of(query, key))
        loss.backward()
        sgd.step()
        losses.append(metrics["contrast"].item())
    assert losses == sorted(losses) and losses[-1] > losses[0] + 0.5


def test_adco_hands_its_bank_the_papers_settings():
    groups = {
        group["name"]: group for group in optimiser(make("adco", bank_decay=2e-4)).param_groups
    }
    assert (groups["bank"]["lr"], groups["bank"]["momentum"], groups["bank"]["weight_decay"]) == (
        3.0,
        0.9,
        2e-4,
    )
    assert groups["network"]["lr"] == 0.05


def test_a_filling_bank_takes_keys_trains_on_itself_alone_and_restarts_the_key_encoder(double):
    learner = make("adco", bank=20)
    bank, optim = learner.objective.bank, optimiser(learner)
    start, filled = bank.weight.detach().clone(), []
    for step in range(3):  # 8 + 8 + 4 of 20 places
        assert bank.filling
        out = learner(batch(2, step=step))
        query = learner.online(batch(2, step=step).views[0])
        expected = adco.loss(unit(query), out.keys, bank.weight, 0.12, in_batch=False)
        assert abs(expected - out.loss) < 1e-10  # in-batch keys do not repel yet
        optim.zero_grad()
        out.loss.backward()
        assert (
            bank.weight.grad is None
        )  # so that SGD leaves it alone, weight decay and momentum included
        optim.step()
        learner.after_step(out)
        filled.append(out.keys)
        assert torch.equal(bank.weight[bank.count :], start[bank.count :])
    assert not bank.filling and torch.equal(bank.weight, torch.cat(filled)[:20])
    for mine, online in zip(
        learner.twin.net.parameters(), learner.online.parameters(), strict=True
    ):
        assert torch.equal(mine, online)


def test_a_symmetric_bank_is_filled_one_way_as_the_authors_do(double):
    """Bank, both networks and their running statistics equal those of the authors' init_memory."""
    learner = make("adco-symmetric", bank=20, groups=1, momentum=0.5)
    optim = optimiser(learner)
    query_net, key_net = copy.deepcopy(learner.online), copy.deepcopy(learner.twin.net)
    # filling leaves the bank without gradient, so this trains the query network alone
    theirs = torch.optim.SGD(query_net.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)
    start = learner.objective.bank.weight.detach()
    batches = [batch(2, step=step) for step in range(3)]  # 8 + 8 + 4 of 20 places
    views = [one.views for one in batches]
    expected = adco.fill(query_net, key_net, start, views, theirs, tau=0.12, momentum=0.5)
    for one in batches:
        out = learner(one)
        optim.zero_grad()
        out.loss.backward()
        optim.step()
        learner.after_step(out)
    assert not learner.objective.bank.filling
    assert (learner.objective.bank.weight - expected).abs().max() < 1e-12
    for mine, other in ((learner.online, query_net), (learner.twin.net, key_net)):
        state = other.state_dict()
        for name, value in mine.state_dict().items():
            assert torch.allclose(value, state[name], rtol=0, atol=1e-12), name


@pytest.mark.parametrize("variant", ["adco-crops", "adco-symmetric-crops"])
def test_a_bank_is_filled_by_one_pair_also_with_several_crops(double, variant):
    """The loss of a step that fills is that of one query, and not the sum over the crops."""
    learner = make(variant, groups=1)
    images = batch(learner.views)
    out = learner(images)
    query = unit(learner.online(images.views[1]))
    expected = adco.loss(query, out.keys, learner.objective.bank.weight, 0.12, in_batch=False)
    assert abs(expected - out.loss) < 1e-10


@pytest.mark.parametrize("variant", VARIANTS)
def test_trained_weights_receive_gradient_and_the_twin_none(variant):
    learner = make(variant, **({"fill": False} if variant.startswith("adco") else {}))
    for bank in [part for part in learner.modules() if isinstance(part, Bank)]:
        bank.filling = False
    learner(batch(learner.views)).loss.backward()
    for name, parameters in learner.groups().items():
        assert any(p.grad is not None and p.grad.abs().max() > 0 for p in parameters), name
    assert all(p.grad is None and not p.requires_grad for p in learner.twin.parameters())


@pytest.mark.parametrize("variant", ["simclr", "dcl", "dclw", "dcl-crops"])
def test_a_shared_network_is_moved_by_its_keys_too(double, variant):
    """Detaching the keys changes the gradient: negatives receive a gradient, too."""
    learner = make(variant)
    learner(batch(learner.views)).loss.backward()
    with_keys = [p.grad.clone() for p in learner.online.parameters()]
    learner.zero_grad()
    learner.twin.stop = True
    learner(batch(learner.views)).loss.backward()
    assert (
        max(
            (a - p.grad).abs().max()
            for a, p in zip(with_keys, learner.online.parameters(), strict=True)
        )
        > 1e-4
    )


LEARNED = {
    "nt_xent": lambda z, tau: A.nt_xent(z[0], z[1], tau=tau),
    "nt_xent with EqCo's rule": lambda z, tau: A.nt_xent(z[0], z[1], tau=tau, alpha=64.0),
    "dcl": lambda z, tau: A.dcl(z[0], z[1], tau=tau),
    "dclw": lambda z, tau: A.dclw(z[0], z[1], tau=tau),
    "info_nce": lambda z, tau: A.info_nce(z[0], z[1], z[2], tau=tau),
    "jcl": lambda z, tau: A.jcl(z[0], z[1:3], z[3], tau=tau, strength=2.0),
}


@pytest.mark.parametrize("name", LEARNED)
def test_a_temperature_can_be_learned(double, name):
    """The gradient equals finite differences, and a tensor gives the loss of its value."""
    loss, z = LEARNED[name], torch.randn(4, N, D)
    tau = torch.tensor(0.3, requires_grad=True)
    found = loss(z, tau)
    (slope,) = torch.autograd.grad(found, tau)
    assert abs(slope - (loss(z, 0.3 + 1e-6) - loss(z, 0.3 - 1e-6)) / 2e-6) < 1e-6
    assert abs(found - loss(z, 0.3)) < 1e-12


@pytest.mark.parametrize(
    "tau", [torch.tensor(0.0), torch.tensor(-0.1), torch.tensor([0.1, 0.2]), torch.tensor(1)]
)
def test_a_tensor_that_is_no_temperature_is_refused(tau):
    for loss in LEARNED.values():
        with pytest.raises(ValueError, match=r"tau (must be positive and finite|is one positive)"):
            loss(torch.randn(4, N, D), tau)
