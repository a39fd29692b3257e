"""DCL eq. (5) and DCLW eq. (6): the positive is struck from the denominator, then weighed."""

import torch


def loss(z0, z1, tau, sigma=None):
    views, n = (z0, z1), len(z0)
    weights = [1.0] * n
    if sigma is not None:
        closeness = [torch.exp(z0[i] @ z1[i] / sigma).detach() for i in range(n)]
        weights = [2 - c / (sum(closeness) / n) for c in closeness]
    total = 0.0
    for k in (0, 1):
        for i in range(n):
            push = 0.0
            for view in (0, 1):
                for j in range(n):
                    if j != i:
                        push = push + torch.exp(views[k][i] @ views[view][j] / tau)
            total = total - weights[i] * (z0[i] @ z1[i]) / tau + torch.log(push)
    return total / (2 * n)


def with_queue(q, k, queue, tau):
    total = 0.0
    for i in range(len(q)):
        total = total - q[i] @ k[i] / tau + torch.log(sum(torch.exp(q[i] @ v / tau) for v in queue))
    return total / len(q)


def multiplier(z0, z1, tau):
    """q_B of every anchor: the negatives' share of the whole denominator."""
    views, n, rows = (z0, z1), len(z0), []
    for k in (0, 1):
        for i in range(n):
            pull = torch.exp(z0[i] @ z1[i] / tau)
            push = sum(
                torch.exp(views[k][i] @ view[j] / tau) for view in views for j in range(n) if j != i
            )
            rows.append(1 - pull / (pull + push))
    return torch.stack(rows)


def multi_crop(crops, large, tau, sigma=None):
    """Compare every crop with the large views of its image; those of other images repel."""
    n, total, pairs = len(crops[0]), 0.0, 0
    for g in range(large):
        for c in range(len(crops)):
            if c == g:
                continue
            scores = [crops[c][i] @ crops[g][i] for i in range(n)]
            mean = sum(torch.exp(s / sigma).detach() for s in scores) / n if sigma else None
            for i in range(n):
                push = sum(
                    torch.exp(crops[c][i] @ crops[v][j] / tau)
                    for v in range(large)
                    for j in range(n)
                    if j != i
                )
                weight = 2 - torch.exp(scores[i] / sigma).detach() / mean if sigma else 1.0
                total = total - weight * scores[i] / tau + torch.log(push)
            pairs += 1
    return total / (n * pairs)
