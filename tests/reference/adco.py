"""AdCo: the contrast against a bank, and the authors' hand-written update of the bank."""

import torch


def loss(q, k, bank, tau, in_batch):
    d = bank / bank.norm(dim=1, keepdim=True)
    total = 0.0
    for i in range(len(q)):
        whole = torch.exp(q[i] @ k[i] / tau) + sum(torch.exp(q[i] @ v / tau) for v in d)
        if in_batch:
            whole = whole + sum(torch.exp(q[i] @ k[j] / tau) for j in range(len(k)) if j != i)
        total = total - torch.log(torch.exp(q[i] @ k[i] / tau) / whole)
    return total / len(q)


def bank_gradient(q, k, bank, tau_bank, in_batch):
    """dL/dW at the bank's own temperature, (K,D): tangent to the sphere at every vector."""
    norm = bank.norm(dim=1, keepdim=True)
    d = bank / norm
    others = q @ k.T if in_batch else (q * k).sum(1, keepdim=True)
    p = torch.softmax(torch.cat([others, q @ d.T], 1) / tau_bank, 1)[:, others.shape[1] :]
    pulled = p.T @ q / len(q)
    along = (p * (q @ d.T)).mean(0)[:, None] * d
    return (pulled - along) / (tau_bank * norm)


class Ascent:
    """v <- m v - grad + wd W;  W <- W - lr v."""

    def __init__(self, bank, lr, momentum, decay):
        self.w, self.v, self.lr, self.momentum, self.decay = (
            bank.clone(),
            torch.zeros_like(bank),
            lr,
            momentum,
            decay,
        )

    def step(self, gradient):
        self.v = self.momentum * self.v - gradient + self.decay * self.w
        self.w = self.w - self.lr * self.v
