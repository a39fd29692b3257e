"""VICReg in the form of the authors' release (main_vicreg.py), entry by entry."""

import torch


def loss(z0, z1, invariance, variance, covariance):
    n, d = z0.shape
    distance = sum((z0[k, i] - z1[k, i]) ** 2 for k in range(n) for i in range(d)) / (n * d)
    hinge = 0.0
    correlated = 0.0
    for z in (z0, z1):
        centred = [z[:, i] - sum(z[:, i]) / n for i in range(d)]
        for i in range(d):
            deviation = torch.sqrt(sum(x**2 for x in centred[i]) / (n - 1) + 1e-4)
            hinge = hinge + torch.relu(1 - deviation) / d / 2
            for j in range(d):
                if i != j:
                    shared = sum(x * y for x, y in zip(centred[i], centred[j], strict=True))
                    correlated = correlated + (shared / (n - 1)) ** 2 / d
    return invariance * distance + variance * hinge + covariance * correlated
