"""MoCo v3: each prediction against the keys of the other view, of its own and of other images."""

import torch


def one_way(q, k, tau):
    total = 0.0
    for i in range(len(q)):
        share = torch.exp(q[i] @ k[i] / tau) / sum(torch.exp(q[i] @ key / tau) for key in k)
        total = total - torch.log(share)
    return 2 * tau * total / len(q)


def loss(p0, p1, k0, k1, tau):
    return one_way(p0, k1, tau) + one_way(p1, k0, tau)
