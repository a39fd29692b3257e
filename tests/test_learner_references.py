"""The loss of every learner equals its naive reference on the learner's own vectors."""

import pytest
import torch

from antipode import rng
from antipode.types import Pair
from tests.reference import (
    adco,
    barlowtwins,
    byol,
    dcl,
    eqco,
    invspread,
    jcl,
    moco,
    mocov3,
    msbreg,
    npid,
    simclr,
    vicreg,
)
from tests.toys import batch, make

PLAIN = dict(
    groups=1
)  # no groups, no shuffling: those have laws of their own in tests/nets/test_norm.py


def unit(x):
    return x / x.norm(dim=-1, keepdim=True)


def online(learner, views, joint=False):
    """Return unit outputs of each view: one pass with common statistics, or one pass each."""
    if joint:
        sizes = sorted({view.shape[-1] for view in views}, reverse=True)
        passes = [torch.cat([view for view in views if view.shape[-1] == size]) for size in sizes]
        return [z for x in passes for z in unit(learner.online(x)).split(len(views[0]))]
    return [unit(learner.online(view)) for view in views]


def keys(learner, views):
    return [unit(learner.twin.net(view)).detach() for view in views]


def predictions(learner, views):
    z = [learner.online(view) for view in views]
    return [unit(learner.predictor(x)) for x in z], [unit(x) for x in z]


def queue(learner):
    return learner.objective.negatives[-1].vectors


def expect_simclr(learner, b):
    return simclr.loss(*online(learner, b.views, joint=True), 0.1)


def expect_dcl(learner, b):
    return dcl.loss(*online(learner, b.views, joint=True), 0.1)


def expect_dclw(learner, b):
    return dcl.loss(*online(learner, b.views, joint=True), 0.1, 0.5)


def expect_crops(learner, b):
    return dcl.multi_crop(online(learner, b.views, joint=True), 2, 0.1)


def expect_weighted_crops(learner, b):
    return dcl.multi_crop(online(learner, b.views, joint=True), 2, 0.1, 0.5)


def expect_moco(tau):
    def loss(learner, b):
        return moco.loss(
            online(learner, b.views[:1])[0], keys(learner, b.views[1:])[0], queue(learner), tau
        )

    return loss


def expect_eqco(learner, b):
    q, k = online(learner, b.views[:1])[0], keys(learner, b.views[1:])[0]
    return eqco.loss(q, k, [queue(learner)] * len(q), 0.2, 65536)


def expect_dcl_moco(learner, b):
    return dcl.with_queue(
        online(learner, b.views[:1])[0], keys(learner, b.views[1:])[0], queue(learner), 0.2
    )


def expect_simo(learner, b):
    """All N-1 other keys of the batch repel."""
    q, k = online(learner, b.views[:1])[0], keys(learner, b.views[1:])[0]
    others = [[k[j] for j in range(len(k)) if j != i] for i in range(len(k))]
    return eqco.loss(q, k, others, 0.2, 256)


def expect_barlowtwins(learner, b):
    return barlowtwins.loss(learner.online(b.views[0]), learner.online(b.views[1]), 0.0051)


def expect_vicreg(learner, b):
    return vicreg.loss(learner.online(b.views[0]), learner.online(b.views[1]), 25.0, 25.0, 1.0)


def expect_jcl(learner, b):
    q = online(learner, b.views[:1])[0]
    ks = unit(learner.twin.net(torch.cat(b.views[1:]))).detach().view(3, len(q), -1)
    return jcl.loss(q, ks, queue(learner), 0.2, 2.0 / 4)  # first of four stairs


def expect_jcl_each(learner, b):
    q = online(learner, b.views[:1])[0]
    ks = unit(learner.twin.net(torch.cat(b.views[1:]))).detach().view(3, len(q), -1)
    return jcl.vanilla(q, ks, queue(learner), 0.2)


def bank(learner):
    return learner.objective.bank.weight.detach()


def expect_adco(in_batch):
    def loss(learner, b):
        q, k = online(learner, b.views[:1])[0], keys(learner, b.views[1:])[0]
        return adco.loss(q, k, bank(learner), 0.12, in_batch)

    return loss


def expect_adco_symmetric(learner, b):
    q, k = online(learner, b.views), keys(learner, b.views)
    one, two = (adco.loss(q[i], k[1 - i], bank(learner), 0.12, True) for i in (0, 1))
    return 0.5 * one + 0.5 * two


def expect_adco_crops(learner, b):
    k = keys(learner, b.views[:1])[0]
    return sum(adco.loss(q, k, bank(learner), 0.12, True) for q in online(learner, b.views[1:]))


def expect_byol(learner, b):
    (p0, p1), _ = predictions(learner, b.views)
    return byol.byol(p0, p1, *keys(learner, b.views))


def expect_mocov3(learner, b):
    (p0, p1), _ = predictions(learner, b.views)
    return mocov3.loss(p0, p1, *keys(learner, b.views), 0.2)


def expect_simsiam(learner, b):
    (p0, p1), (z0, z1) = predictions(learner, b.views)
    return byol.simsiam(p0, p1, z0, z1)


def expect_msbreg(form, regulariser):
    def loss(learner, b):
        p, _ = predictions(learner, b.views)
        p, t = torch.stack(p), torch.stack(keys(learner, b.views))
        noise = rng.fold(rng.fold(learner.seed, learner.step), 3)
        eta = unit(rng.normal(rng.fold(noise, b.image_ids), p.shape[-1]).to(p))
        kick = sum(p[v, i] @ eta[i] for v in range(len(p)) for i in range(p.shape[1])) / (
            len(p) * p.shape[1]
        )
        return form(p, t) + 0.004 * sum(regulariser(view) for view in p) / len(p) + 0.5 * kick

    return loss


def drawn(learner, b, pool, views):
    """Return the rows of the pool that each query drew, from the package's own draws."""
    part, ids = learner.objective.negatives[0], b.image_ids.repeat(views)
    noise = rng.fold(rng.fold(learner.seed, learner.step), 2)
    rows = []
    for number in range(len(learner.pairing)):
        pair = Pair(
            pool[: len(b.image_ids)], pool[None], b.image_ids, pool, ids, rng.fold(noise, number)
        )
        lots = part._lots(pair).expand(len(b.image_ids), -1)
        for i in range(len(b.image_ids)):
            others = [j for j in range(len(pool)) if ids[j] != b.image_ids[i]]
            rows.append(sorted(others, key=lambda j, i=i, lots=lots: lots[i, j])[: part.subset])
    return rows


def expect_eqco_simclr(learner, b):
    """Each query draws its own K of the views of other images."""
    z0, z1 = online(learner, b.views, joint=True)
    pool = torch.cat([z0, z1])
    negatives = [pool[row] for row in drawn(learner, b, pool, 2)]
    return eqco.loss(pool, torch.cat([z1, z0]), negatives, 0.1, 256)


def expect_simo_subset(learner, b):
    q, k = online(learner, b.views[:1])[0], keys(learner, b.views[1:])[0]
    return eqco.loss(q, k, [k[row] for row in drawn(learner, b, k, 1)], 0.2, 256)


def expect_dclw_moco(learner, b):
    q, k = online(learner, b.views[:1])[0], keys(learner, b.views[1:])[0]
    return weighted_queue(q, k, queue(learner))


def weighted_queue(q, k, memory, tau=0.2, sigma=0.5):
    closeness = torch.exp((q * k).sum(1) / sigma).detach()
    weight, total = 2 - closeness / closeness.mean(), 0.0
    for i in range(len(q)):
        total = (
            total
            - weight[i] * (q[i] @ k[i]) / tau
            + torch.log(sum(torch.exp(q[i] @ v / tau) for v in memory))
        )
    return total / len(q)


def expect_dclw_moco_crops(learner, b):
    """The first view is the key of all others; the loss is the mean over them."""
    k = keys(learner, b.views[:1])[0]
    rest = online(learner, b.views[1:])
    return sum(weighted_queue(q, k, queue(learner)) for q in rest) / len(rest)


def expect_adco_symmetric_crops(learner, b):
    """Two large views are keys: the sum over queries, the mean over the two."""
    q, k = online(learner, b.views), keys(learner, b.views[:2])
    pairs = [
        adco.loss(q[c], k[g], bank(learner), 0.12, True)
        for g in (0, 1)
        for c in range(len(q))
        if c != g
    ]
    return sum(pairs) / 2


def expect_kick(per_view, scaled):
    """Return the loss with MSBReg's other kicks, without renormalised centroids."""

    def loss(learner, b):
        p, z = (torch.stack(x) for x in predictions(learner, b.views))
        t = torch.stack(keys(learner, b.views))
        noise = rng.fold(rng.fold(learner.seed, learner.step), 3)
        views = [rng.fold(noise, v) if per_view else noise for v in range(len(p))]
        eta = torch.stack(
            [rng.normal(rng.fold(view, b.image_ids), p.shape[-1]).to(p) for view in views]
        )
        kick = (z * (unit(eta) if scaled else eta)).sum(-1).mean()
        spread = sum(msbreg.uniform(view) for view in z) / len(z)
        return msbreg.halves(p, t, renormalise=False) + 0.5 * kick + 0.3 * spread

    return loss


def expect_npid(learner, b):
    return npid.full(online(learner, b.views)[0], b.image_ids, learner.twin.memory.vectors, 0.1)


def expect_invspread(learner, b):
    return invspread.loss(*online(learner, b.views, joint=True), 0.1)


BARE = dict(singular_value=0.0, uniform=0.3, on="projection", renormalise=False)

CASES = {
    "simclr": (expect_simclr, {}),
    "dcl": (expect_dcl, {}),
    "dclw": (expect_dclw, {}),
    "dcl-crops": (expect_crops, {}),
    "dclw-crops": (expect_weighted_crops, {}),
    "mocov1": (expect_moco(0.07), PLAIN),
    "mocov2": (expect_moco(0.2), PLAIN),
    "eqco": (expect_eqco, PLAIN),
    "dcl-mocov2": (expect_dcl_moco, PLAIN),
    "simo": (expect_simo, dict(negatives=None)),
    "barlowtwins": (expect_barlowtwins, {}),
    "vicreg": (expect_vicreg, {}),
    "jcl": (expect_jcl, PLAIN),
    "jcl-each": (expect_jcl_each, PLAIN),
    "adco": (expect_adco(True), dict(groups=1, fill=False)),
    "adco-paper": (expect_adco(False), dict(groups=1)),
    "adco-symmetric": (expect_adco_symmetric, dict(groups=1, fill=False)),
    "adco-crops": (expect_adco_crops, dict(groups=1, fill=False)),
    "byol": (expect_byol, {}),
    "simsiam": (expect_simsiam, {}),
    "mocov3": (expect_mocov3, {}),
    "msbreg": (expect_msbreg(msbreg.halves, msbreg.gram), {}),
    "msbreg-leave-one-out": (
        expect_msbreg(msbreg.leave_one_out, msbreg.nuclear),
        dict(brownian_form="image"),
    ),
    "msbreg-all": (
        expect_msbreg(msbreg.everything, msbreg.correlation),
        dict(brownian_form="image"),
    ),
    "msbreg-repeat": (
        expect_msbreg(msbreg.repeat, msbreg.gram),
        dict(uniform=0.0, on="prediction"),
    ),
    "eqco-simclr": (expect_eqco_simclr, {}),
    "simo-shuffle": (expect_simo_subset, dict(groups=1)),
    "simo-own": (expect_simo_subset, {}),
    "dclw-mocov2": (expect_dclw_moco, PLAIN),
    "dclw-mocov2-crops": (expect_dclw_moco_crops, PLAIN),
    "adco-symmetric-crops": (expect_adco_symmetric_crops, dict(groups=1, fill=False)),
    "msbreg-weight": (expect_kick(per_view=True, scaled=True), dict(brownian_form="view", **BARE)),
    "msbreg-layer": (
        expect_kick(per_view=False, scaled=False),
        dict(brownian_form="gaussian", **BARE),
    ),
    "npid": (expect_npid, {}),
    "invspread": (expect_invspread, {}),
}


@pytest.mark.parametrize("variant", CASES)
def test_learner_equals_the_paper_in_loss_and_gradient(double, variant):
    expected, changes = CASES[variant]
    learner = make(variant, **changes)
    learner.before_step(0.0)
    # move away from the start, where twin and online network are equal and queues random
    for step in range(2):
        out = learner(batch(learner.views, step=step))
        out.loss.backward()
        with torch.no_grad():
            for p in learner.online.parameters():
                p.sub_(0.05 * p.grad)
        learner.zero_grad()
        learner.after_step(out)
    b = batch(learner.views, step=9)
    if "crops" in variant:  # small crops after the large ones
        large = 1 if variant == "adco-crops" else 2
        b = b._replace(views=b.views[:large] + [view[..., :6, :6] for view in b.views[large:]])
    out = learner(b)
    out.loss.backward()
    ours = [p.grad.clone() for p in learner.online.parameters()]
    learner.zero_grad()
    theirs = expected(learner, b)
    theirs.backward()
    # AdCo's loss carries the bank's term too: its contrast is the one to read
    loss = learner.scale * out.metrics["contrast"] if variant.startswith("adco") else out.loss
    assert abs(loss - theirs) < 1e-10
    for mine, p in zip(ours, learner.online.parameters(), strict=True):
        assert (mine - p.grad).abs().max() < 1e-10


def test_npid_by_noise_contrast_equals_the_paper(double):
    learner = make("npid-nce")
    b = batch(1)
    noise = rng.fold(rng.fold(rng.fold(learner.seed, learner.step), 2), 0)
    draws = rng.integers(rng.fold(noise, b.image_ids), 7, 40)
    out = learner(b)
    out.loss.backward()
    ours = [p.grad.clone() for p in learner.online.parameters()]
    learner.zero_grad()
    expected = npid.nce(
        online(learner, b.views)[0], b.image_ids, learner.twin.memory.vectors, draws, 0.07
    )
    expected.backward()
    assert abs(out.loss - expected) < 1e-10
    for mine, p in zip(ours, learner.online.parameters(), strict=True):
        assert (mine - p.grad).abs().max() < 1e-10


def test_npid_remembers_each_image_under_its_own_id(double):
    learner = make("npid")
    b = batch(1, start=11)
    before = learner.twin.memory.vectors.clone()
    out = learner(b)
    learner.after_step(out)
    assert (
        learner.twin.memory.vectors - npid.updated(before, b.image_ids, out.keys, 0.5)
    ).abs().max() < 1e-12


def test_moco_in_its_own_order_is_the_same_training(double):
    """The paper updates the key encoder before the keys; updating after the step is the same."""
    learner = make("mocov2", groups=1, queue=16)
    ours = [p.detach().clone() for p in learner.online.parameters()]
    from copy import deepcopy

    query, key, memory = deepcopy(learner.online), deepcopy(learner.online), queue(learner).clone()
    place, optim = 0, torch.optim.SGD(learner.parameters(), lr=0.1, momentum=0.9)
    theirs = torch.optim.SGD(query.parameters(), lr=0.1, momentum=0.9)
    for step in range(20):
        b = batch(2, step=step)
        out = learner(b)
        optim.zero_grad()
        out.loss.backward()
        optim.step()
        learner.after_step(out)

        q = unit(query(b.views[0]))
        with torch.no_grad():
            for a, o in zip(key.parameters(), query.parameters(), strict=True):
                a.copy_(0.999 * a + 0.001 * o)
            k = unit(key(b.views[1]))
        loss = moco.loss(q, k, memory.clone(), 0.2)
        memory[place : place + 8], place = k, (place + 8) % 16
        theirs.zero_grad()
        loss.backward()
        theirs.step()
        assert abs(loss - out.loss) < 1e-10
    assert (
        max((a - p).abs().max() for a, p in zip(ours, learner.online.parameters(), strict=True))
        > 1e-2
    )
    assert (
        max(
            (a - b).abs().max()
            for a, b in zip(query.parameters(), learner.online.parameters(), strict=True)
        )
        < 1e-10
    )
