"""LARS one tensor at a time, in Python numbers: a tensor is a list of its entries."""

import math


def length(x):
    return math.sqrt(sum(a * a for a in x))


def ratio(w, g, *, decay, trust, variant, lr):
    if trust is None:
        return 1.0
    if variant in ("inside", "after"):
        u = [b + decay * a for a, b in zip(w, g, strict=True)]
        return trust * length(w) / length(u) if length(w) > 0 and length(u) > 0 else 1.0
    if length(w) == 0:
        return 1.0
    if length(g) == 0:
        return 0.0
    local = trust * length(w) / (length(g) + decay * length(w) + 1e-8)
    return min(local / lr, 1.0) if variant == "larc_clip" else local


class Lars:
    """The weights (list of lists) that each call of step moves along the gradients it is given."""

    def __init__(self, weights, *, momentum, decay, trust, variant, nesterov):
        self.w, self.v = [list(w) for w in weights], [[0.0] * len(w) for w in weights]
        self.momentum, self.decay, self.trust = momentum, decay, trust
        self.variant, self.nesterov = variant, nesterov

    def step(self, grads, lr):
        before, behind = (lr, 1.0) if self.variant == "inside" else (1.0, lr)
        for w, v, g in zip(self.w, self.v, grads, strict=True):
            r = ratio(w, g, decay=self.decay, trust=self.trust, variant=self.variant, lr=lr)
            for i in range(len(w)):
                push = before * r * (g[i] + self.decay * w[i])
                v[i] = self.momentum * v[i] + push
                w[i] -= behind * (push + self.momentum * v[i] if self.nesterov else v[i])
