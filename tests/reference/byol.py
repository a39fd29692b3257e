"""BYOL and SimSiam: two views, each prediction towards the other view's target."""

import torch


def byol(p0, p1, t0, t1):
    return sum(
        ((p0[i] - t1[i]) ** 2).sum() + ((p1[i] - t0[i]) ** 2).sum() for i in range(len(p0))
    ) / len(p0)


def simsiam(p0, p1, z0, z1):
    z0, z1 = z0.detach(), z1.detach()
    return -sum(torch.dot(p0[i], z1[i]) + torch.dot(p1[i], z0[i]) for i in range(len(p0))) / (
        2 * len(p0)
    )
