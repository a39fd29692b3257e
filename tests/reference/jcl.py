"""JCL, supplement eq. (M.8), with the covariance matrix of each image's keys written out."""

import torch


def loss(q, keys, queue, tau, strength):
    total = 0.0
    for i in range(len(q)):
        k = keys[:, i]  # (M,D)
        mu = k.mean(0)
        sigma = sum(torch.outer(row - mu, row - mu) for row in k) / len(k)
        pull = torch.exp(q[i] @ mu / tau + strength / (2 * tau**2) * (q[i] @ sigma @ q[i]))
        push = sum(torch.exp(q[i] @ v / tau) for v in queue)
        total = total + torch.log(pull + push) - q[i] @ mu / tau
    return total / len(q)


def vanilla(q, keys, queue, tau):
    """Supplement section 2: the mean of ordinary InfoNCE over M explicit keys."""
    total = 0.0
    for k in keys:
        for i in range(len(q)):
            pull = torch.exp(q[i] @ k[i] / tau)
            total = total - torch.log(pull / (pull + sum(torch.exp(q[i] @ v / tau) for v in queue)))
    return total / (len(keys) * len(q))
