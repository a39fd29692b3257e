"""SimCLR: for each of 2N anchors, -log of its positive's share among all views but itself."""

import torch


def loss(z0, z1, tau):
    z, n = torch.cat([z0, z1]), len(z0)
    total = 0.0
    for i in range(2 * n):
        positive = (i + n) % (2 * n)
        denominator = sum(torch.exp(z[i] @ z[j] / tau) for j in range(2 * n) if j != i)
        total = total - torch.log(torch.exp(z[i] @ z[positive] / tau) / denominator)
    return total / (2 * n)
