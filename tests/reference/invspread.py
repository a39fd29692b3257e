"""Inv. Spread: a softmax over the batch; the other side of each product has no gradient."""

import torch


def loss(z0, z1, tau):
    z, n = torch.cat([z0, z1]), len(z0)
    other, total = z.detach(), 0.0
    for i in range(2 * n):
        positive = (i + n) % (2 * n)
        whole = sum(torch.exp(z[i] @ other[j] / tau) for j in range(2 * n) if j != i)
        total = total - torch.log(torch.exp(z[i] @ other[positive] / tau) / whole)
        for j in range(2 * n):
            if j not in (i, positive):
                total = total - torch.log(1 - torch.exp(z[i] @ other[j] / tau) / whole)
    return total / (2 * n)
