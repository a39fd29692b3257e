"""NPID: the full softmax over a memory, and noise-contrastive estimation with m draws."""

import math

import torch


def full(q, image_ids, memory, tau):
    total = 0.0
    for i in range(len(q)):
        whole = sum(torch.exp(q[i] @ v / tau) for v in memory)
        total = total - torch.log(torch.exp(q[i] @ memory[image_ids[i]] / tau) / whole)
    return total / len(q)


def nce(q, image_ids, memory, draws, tau):
    """`draws[i]` are the m memory indices drawn for query i; Z from this batch."""
    n, m = len(memory), len(draws[0])
    rows = [[int(image_ids[i]), *map(int, draws[i])] for i in range(len(q))]
    with torch.no_grad():
        z = (
            n
            * torch.stack(
                [torch.exp(q[i] @ memory[j] / tau) for i in range(len(q)) for j in rows[i]]
            ).mean()
        )
    total = 0.0
    for i in range(len(q)):
        p = [torch.exp(q[i] @ memory[j] / tau) / z for j in rows[i]]
        total = total - torch.log(p[0] / (p[0] + m / n))
        total = total - sum(torch.log((m / n) / (x + m / n)) for x in p[1:])
    return total / len(q)


def updated(memory, image_ids, q, momentum):
    memory = memory.clone()
    for i in range(len(q)):
        mixed = momentum * memory[image_ids[i]] + (1 - momentum) * q[i]
        memory[image_ids[i]] = mixed / math.sqrt(float(mixed @ mixed))
    return memory
