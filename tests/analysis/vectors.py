"""Embeddings for tests of analyses: spread over the sphere, or in clusters like trained ones."""

import torch

from antipode.core.scores import unit


def pairs(n=600, d=16, *, kind="random", noise=0.3, seed=0, dtype=torch.float64):
    """Return two unit views (N,D) of n images."""
    chance = torch.Generator().manual_seed(seed)
    centre = torch.randn(n, d, generator=chance, dtype=dtype)
    if kind == "clustered":
        kinds = torch.randn(8, d, generator=chance, dtype=dtype)
        centre = 1.5 * unit(kinds[torch.randint(8, (n,), generator=chance)]) + unit(centre)
    centre = unit(centre)
    return [
        unit(centre + noise * unit(torch.randn(centre.shape, generator=chance, dtype=dtype)))
        for _ in range(2)
    ]


def rotation(d, seed=1):
    """Return a random orthogonal matrix (D,D)."""
    chance = torch.Generator().manual_seed(seed)
    return torch.linalg.qr(torch.randn(d, d, generator=chance, dtype=torch.float64)).Q
