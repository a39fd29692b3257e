"""The slow copy: how it starts, moves and stays out of the gradient."""

import math

import pytest
import torch

from antipode import rng
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
