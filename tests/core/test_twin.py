"""The slow copy: how it starts, moves and stays out of the gradient."""

import itertools
import math

import pytest
import torch
from torch import nn

from antipode import rng
from antipode.core import passes
from antipode.core.twin import Ema, constant, cosine
from tests.toys import Tiny


def test_it_starts_as_a_copy_and_moves_by_one_minus_the_momentum(double):
    online = Tiny()
    twin = Ema(online, constant(0.9))
    before = [p.detach().clone() for p in online.parameters()]
    with torch.no_grad():
        for p in online.parameters():
            p.add_(torch.randn_like(p))
    twin.follow(online)
    for old, new, mine in zip(before, online.parameters(), twin.net.parameters(), strict=True):
        assert torch.allclose(mine, 0.9 * old + 0.1 * new, atol=1e-15)
    twin.follow(online, restart=True)
    assert all(
        torch.equal(a, b) for a, b in zip(twin.net.parameters(), online.parameters(), strict=True)
    )


def test_float32_momentum_keeps_the_small_share():
    """1 - float32(0.999) is 0.000999987: the copy would lag by a part in 10^5."""
    online = torch.nn.Linear(1, 1, bias=False)
    twin = Ema(online, constant(0.999))
    with torch.no_grad():
        twin.net.weight.fill_(0.0), online.weight.fill_(1.0)
    twin.follow(online)
    assert abs(twin.net.weight.item() / 0.001 - 1) < 1e-7
    twin.at(0.5)
    assert abs(twin.pace[1].item() / 0.001 - 1) < 1e-7


def test_its_batch_norm_statistics_are_its_own():
    online = Tiny()
    twin = Ema(online, constant(0.5))
    online(torch.randn(8, 3, 8, 8) + 5)
    twin.follow(online)
    assert twin.net.bn.running_mean.abs().max() == 0
    twin([torch.randn(8, 3, 8, 8)], [], torch.arange(8), rng.key(0))
    assert twin.net.bn.running_mean.abs().max() > 0


@pytest.mark.parametrize("progress", [0.0, 0.25, 1.0])
def test_byols_momentum_rises_along_a_cosine_to_one(progress):
    expected = 1 - 0.01 * (math.cos(math.pi * progress) + 1) / 2
    twin = Ema(Tiny(), cosine(0.99))
    twin.at(progress)
    assert abs(twin.pace[0].item() - expected) < 1e-7 and cosine(0.99)(1.0) == 1.0


class Recorder(nn.Module):
    """Return the images (N,1,1,1) as vectors (N,1), and keep the numbers of every batch."""

    def __init__(self):
        super().__init__()
        self.batches = []

    def forward(self, x):
        self.batches.append(x.flatten().tolist())
        return x.flatten(1)


def shuffled(views, noise, *, joint=False):
    """Return the batches that pass through a shuffled twin, and its keys by view."""
    twin = Ema(Recorder(), constant(0.9), shuffle=True, joint=joint)
    images = [torch.tensor(view, dtype=torch.float32).view(-1, 1, 1, 1) for view in views]
    keys = twin(images, [], torch.arange(len(views[0])), noise)
    return twin.net.batches, [key.flatten().tolist() for key in keys]


IDS = list(range(12))


def test_each_view_and_each_step_has_a_shuffle_order_of_its_own():
    first, keys = shuffled([IDS, IDS, IDS], rng.key(0))
    second, _ = shuffled([IDS, IDS, IDS], rng.key(1))
    orders = [*first, *second]
    assert all(sorted(order) == IDS for order in orders)
    assert len({tuple(order) for order in [IDS, *orders]}) == 7
    assert keys == [IDS, IDS, IDS]  # every key returns to the place of its image


def test_views_in_one_batch_with_separate_statistics_keep_their_shuffle_orders(monkeypatch):
    separate, _ = shuffled([IDS, IDS, IDS], rng.key(0))
    monkeypatch.setattr(passes, "worth_it", lambda images: True)
    [together], keys = shuffled([IDS, IDS, IDS], rng.key(0))
    assert together == [number for order in separate for number in order]
    assert keys == [IDS, IDS, IDS]


def test_a_joint_shuffle_mixes_the_views():
    other = [number + 100 for number in IDS]
    [order], keys = shuffled([IDS, other], rng.key(0), joint=True)
    assert sorted(order) == IDS + other and keys == [IDS, other]
    in_first_half = sum(number < 100 for number in order[:12])
    assert 0 < in_first_half < 12
    # the two views of an image are drawn independently, so they do not follow each other
    followers = sum(abs(a - b) == 100 for a, b in itertools.pairwise(order))
    assert followers < 4
