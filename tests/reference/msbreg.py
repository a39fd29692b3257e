"""MSBReg: centroid losses and regularisers, in the forms derived from what the paper states."""

import math

import torch


def _mean(vectors, renormalise):
    mean = sum(vectors) / len(vectors)
    return mean / mean.norm() if renormalise else mean


def halves(p, t, renormalise=True):
    half, total = len(p) // 2, 0.0
    for i in range(p.shape[1]):
        a, b = [p[v, i] for v in range(half)], [p[v, i] for v in range(half, len(p))]
        ta, tb = [t[v, i] for v in range(half)], [t[v, i] for v in range(half, len(p))]
        total = total + ((_mean(a, renormalise) - _mean(tb, renormalise)) ** 2).sum()
        total = total + ((_mean(b, renormalise) - _mean(ta, renormalise)) ** 2).sum()
    return total / p.shape[1]


def leave_one_out(p, t, renormalise=True):
    views, total = len(p), 0.0
    for i in range(p.shape[1]):
        for v in range(views):
            rest = _mean([t[w, i] for w in range(views) if w != v], renormalise)
            total = total + 2 / views * ((p[v, i] - rest) ** 2).sum()
    return total / p.shape[1]


def everything(p, t, renormalise=True):
    total = 0.0
    for i in range(p.shape[1]):
        total = (
            total
            + ((_mean(list(p[:, i]), renormalise) - _mean(list(t[:, i]), renormalise)) ** 2).sum()
        )
    return total / p.shape[1]


def repeat(p, t, renormalise=True):
    """V/2 independent BYOL pairs."""
    total = 0.0
    for v in range(0, len(p), 2):
        total = total + halves(p[v : v + 2], t[v : v + 2])
    return total / (len(p) // 2)


def gram(z):
    n, d = z.shape
    s = torch.linalg.svdvals(z)
    padded = torch.cat([s, s.new_zeros(d - len(s))])
    return ((d * padded**2 / n - 1) ** 2).sum()


def nuclear(z):
    n, d = z.shape
    s = torch.linalg.svdvals(z)
    return ((torch.cat([s, s.new_zeros(d - len(s))]) - math.sqrt(n / d)) ** 2).sum()


def correlation(z):
    c = torch.corrcoef(z.T)
    return sum(c[i, j] ** 2 for i in range(len(c)) for j in range(len(c)) if i != j)


def uniform(z):
    n = len(z)
    pairs = [torch.exp(-2 * ((z[i] - z[j]) ** 2).sum()) for i in range(n) for j in range(i)]
    return torch.log(sum(pairs) / len(pairs))
