"""EqCo eq. (5), (6): every negative exponential is multiplied by alpha/K."""

import math

import torch


def loss(q, k, negatives, tau, alpha):
    """`negatives[i]` are the vectors that repel query i."""
    total = 0.0
    for i in range(len(q)):
        pull = torch.exp(q[i] @ k[i] / tau)
        push = sum(torch.exp(q[i] @ v / tau) for v in negatives[i])
        total = total - torch.log(pull / (pull + alpha / len(negatives[i]) * push))
    return total / len(q)


def loss_with_margin(q, k, negatives, tau, alpha):
    """EqCo as the paper first writes it: m = tau log(alpha/K) is subtracted from the positive."""
    total = 0.0
    for i in range(len(q)):
        m = tau * math.log(alpha / len(negatives[i]))
        pull = torch.exp((q[i] @ k[i] - m) / tau)
        push = sum(torch.exp(q[i] @ v / tau) for v in negatives[i])
        total = total - torch.log(pull / (pull + push))
    return total / len(q)


def query_gradient(q, k, negatives, tau, alpha):
    """d loss_i / d q_i in closed form (Theorem 2's proof, eq. 12), one row per query."""
    rows = []
    for i in range(len(q)):
        pull = torch.exp(q[i] @ k[i] / tau)
        push = (
            torch.stack([torch.exp(q[i] @ v / tau) for v in negatives[i]])
            * alpha
            / len(negatives[i])
        )
        whole = pull + push.sum()
        p0 = pull / whole
        rows.append((-(1 - p0) * k[i] + (push / whole) @ torch.stack(list(negatives[i]))) / tau)
    return torch.stack(rows)
