"""Tests of the counter-based random numbers: distribution, independence and reproducibility."""

import torch

from antipode import rng


def test_uniform_numbers_are_uniform_and_uncorrelated():
    u = rng.uniform(rng.fold(rng.key(0), torch.arange(2000)), 500)
    assert u.dtype == torch.float32 and u.min() >= 0 and u.max() < 1
    assert abs(u.mean() - 0.5) < 2e-3 and abs(u.var() - 1 / 12) < 1e-3
    counts = torch.histc(u, 100)
    chi = ((counts - u.numel() / 100) ** 2 / (u.numel() / 100)).sum()
    assert 50 < chi < 160
    for rows in (u[:40], u.T[:40].contiguous()):  # consecutive keys, and consecutive counters
        off = torch.corrcoef(rows)[~torch.eye(40, dtype=torch.bool)]
        assert off.abs().max() < 5 / rows.shape[1] ** 0.5


def test_normal_numbers_have_the_moments_of_a_gaussian():
    x = rng.normal(rng.key(1), 200_000).double()
    assert x.isfinite().all()
    assert [round(float((x**n).mean()), 1) for n in (1, 2, 3, 4)] == [0.0, 1.0, 0.0, 3.0]


def test_permutations_are_permutations_and_differ():
    first, second = rng.permutation(rng.key(2), 50), rng.permutation(rng.key(3), 50)
    assert torch.equal(first.sort().values, torch.arange(50)) and not torch.equal(first, second)


def test_draws_depend_on_the_id_not_on_the_place():
    key, ids = rng.key(4), torch.randperm(100)
    assert torch.equal(
        rng.normal(rng.fold(key, ids), 3), rng.normal(rng.fold(key, torch.arange(100)), 3)[ids]
    )


def test_names_lead_to_streams_of_their_own():
    assert rng.number(0, "order", 1) == rng.number(0, "order", 1)
    names = ("init", "order", "noise")
    assert len({rng.number(seed, name) for seed in range(50) for name in names}) == 150
    assert rng.generator(0, "init").initial_seed() != rng.generator(0, "noise").initial_seed()


def test_numbers_never_change():
    """Old runs must stay resumable, so the random stream is part of the checkpoint format."""
    assert rng.number(0, "noise") == 6340466054589598036
    assert rng.permutation(rng.key(0, "a"), 10).tolist() == [8, 6, 9, 1, 4, 0, 2, 5, 3, 7]
