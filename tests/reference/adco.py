"""AdCo: the contrast against a bank, the authors' update of the bank, and how they fill it."""

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


def fill(query_net, key_net, bank, batches, optim, tau, momentum):
    """Fill a bank (K,D) with keys as the authors' init_memory does; return it.

    Each batch is a pair of views. One step trains the first view as query against the key of the
    second view and the bank as it is, at one label per image; then the keys enter the bank. With a
    symmetric loss, both views pass through both networks, but the rest is the same.
    """
    bank = bank.clone()
    start = 0
    for first, second in batches:
        outputs = [net(view) for net in (query_net, key_net) for view in (first, second)]
        q = outputs[0] / outputs[0].norm(dim=1, keepdim=True)
        k = (outputs[3] / outputs[3].norm(dim=1, keepdim=True)).detach()
        optim.zero_grad()
        loss(q, k, bank, tau, in_batch=False).backward()
        optim.step()
        end = min(start + len(k), len(bank))
        bank[start:end] = k[: end - start]
        start = end
        with torch.no_grad():
            for slow, fast in zip(key_net.parameters(), query_net.parameters(), strict=True):
                slow.copy_(momentum * slow + (1 - momentum) * fast)
        if start == len(bank):
            break
    key_net.load_state_dict({**key_net.state_dict(), **dict(query_net.named_parameters())})
    return bank
