"""MoCo: the key of the image against a queue, as the cross-entropy of class 0."""

import torch
import torch.nn.functional as F


def loss(q, k, queue, tau):
    total = 0.0
    for i in range(len(q)):
        logits = torch.stack([q[i] @ k[i], *[q[i] @ v for v in queue]]) / tau
        total = total + F.cross_entropy(logits[None], torch.zeros(1, dtype=torch.long))
    return total / len(q)
