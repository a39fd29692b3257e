"""Small networks, data sets and batches that all tests share."""

from dataclasses import replace

import torch
from torch import nn

from antipode.data.sources.catalog import load
from antipode.papers import build
from antipode.types import Batch


class Tiny(nn.Module):
    """Two convolutions, one of them with batch norm: enough for statistics to matter."""

    def __init__(self, channels=3, width=8):
        super().__init__()
        self.conv = nn.Conv2d(channels, width, 3, 2, 1, bias=False)
        self.bn = nn.BatchNorm2d(width)
        self.last = nn.Conv2d(width, width, 3, 2, 1)
        self.width = width

    def forward(self, x):
        return torch.tanh(self.last(torch.relu(self.bn(self.conv(x))))).mean((2, 3))


# what makes each preset small enough for a test; everything else is the paper's default
SMALL = {
    "simclr": dict(dim=6),
    "mocov1": dict(dim=6, queue=20, groups=2),
    "mocov2": dict(dim=6, queue=20, groups=2),
    "byol": dict(dim=6, hidden=10),
    "simsiam": dict(dim=6, hidden=10, bottleneck=4),
    "npid": dict(dim=6, images=40),
    "invspread": dict(dim=6),
    "adco": dict(dim=6, bank=12, groups=2),
    "eqco": dict(dim=6, negatives=5, groups=2),
    "simo": dict(dim=6, negatives=5),
    "dcl": dict(dim=6),
    "dclw": dict(dim=6),
    "jcl": dict(dim=6, queue=20, keys=3, groups=2, ramp=4),
    "msbreg": dict(dim=6, hidden=10),
    "barlowtwins": dict(dim=6, hidden=10),
    "vicreg": dict(dim=6, hidden=10),
    "mocov3": dict(dim=6, hidden=10),
    "custom": dict(dim=6),
}

# the papers' other forms, each a method of its own to every law
VARIANTS = {
    **{name: (name, {}) for name in SMALL},
    "adco-symmetric": ("adco", dict(symmetric=True)),
    "adco-crops": ("adco", dict(crops=3)),
    "adco-symmetric-crops": ("adco", dict(symmetric=True, crops=3)),
    "adco-paper": ("adco", dict(in_batch=False, fill=False)),
    "eqco-mocov1": ("eqco", dict(base="mocov1")),
    "eqco-simclr": ("eqco", dict(base="simclr", groups=None)),
    "simo-shuffle": ("simo", dict(groups=2)),
    "simo-own": ("simo", dict(shared=False)),
    "dcl-mocov1": ("dcl", dict(base="mocov1", queue=20, groups=2)),
    "dcl-mocov2": ("dcl", dict(base="mocov2", queue=20, groups=2)),
    "dcl-crops": ("dcl", dict(crops=2)),
    "dclw-mocov2": ("dclw", dict(base="mocov2", queue=20, groups=2)),
    "dclw-crops": ("dclw", dict(crops=2)),
    "dclw-mocov2-crops": ("dclw", dict(base="mocov2", queue=20, groups=2, crops=2)),
    "jcl-each": ("jcl", dict(form="each", ramp=None)),
    "npid-nce": ("npid", dict(negatives=7, tau=0.07)),
    "msbreg-two": ("msbreg", dict(views=2)),
    "msbreg-leave-one-out": (
        "msbreg",
        dict(centroid="leave-one-out", singular_form="nuclear", brownian_form="view"),
    ),
    "msbreg-all": (
        "msbreg",
        dict(centroid="all", singular_form="correlation", brownian_form="gaussian"),
    ),
    "msbreg-repeat": ("msbreg", dict(centroid="repeat", uniform=0.5, on="projection")),
    "msbreg-layer": ("msbreg", dict(norm="layer")),
    "msbreg-weight": ("msbreg", dict(norm="weight", renormalise=False)),
    "custom-eqco-bank": (
        "custom",
        dict(negatives="in-batch-keys+bank", bank=12, alpha=50.0, twin="ema", groups=2),
    ),
    "custom-dcl-queue": (
        "custom",
        dict(negatives="queue", queue=20, coupling="decoupled", twin="ema", groups=2),
    ),
    "custom-jcl-batch": (
        "custom",
        dict(
            negatives="in-batch-keys",
            strength=4.0,
            pairing="many-keys",
            views=4,
            twin="ema",
            subset=5,
        ),
    ),
    "custom-align": (
        "custom",
        dict(
            negatives="none",
            predictor=True,
            twin="stop-gradient",
            brownian=0.1,
            singular_value=0.01,
            uniform=0.1,
        ),
    ),
}


# every method, and the variants whose state or graph has parts that no method has by default; the
# others put the same parts together, and where a law takes long they are marked slow
MAIN = (
    *SMALL,
    *("adco-symmetric", "adco-paper", "eqco-simclr", "dclw-mocov2-crops", "npid-nce"),
    *("msbreg-leave-one-out", "msbreg-weight", "custom-eqco-bank", "custom-jcl-batch"),
)


def make(variant, **changes):
    """Return a small learner of a variant; the same torch seed gives the same weights."""
    method, choices = VARIANTS[variant]
    merged = {**SMALL[method], **choices, **changes}
    return build(
        method, Tiny(), **{name: value for name, value in merged.items() if value is not None}
    )


def fewer(name, train, test):
    """Return a function for `SETS` that loads the first images of an embedded data set."""
    whole = load(name)
    parts = (
        replace(part, images=part.images[:count], labels=part.labels[:count])
        for part, count in ((whole.train, train), (whole.test, test))
    )
    first, second = parts
    return lambda *_: replace(whole, pretrain=first, train=first, test=second)


def batch(views, n=8, size=8, step=0, start=0):
    """Return clustered images of four kinds, so that a missing gather changes the result."""
    generator = torch.Generator().manual_seed(1000 + step)
    dtype = torch.get_default_dtype()
    kinds = torch.rand(4, 3, size, size, generator=torch.Generator().manual_seed(1), dtype=dtype)
    base = kinds[torch.arange(n) % 4] + 0.3 * torch.rand(
        n, 3, size, size, generator=generator, dtype=dtype
    )
    images = [
        base + 0.2 * torch.rand(base.shape, generator=generator, dtype=dtype) for _ in range(views)
    ]
    return Batch(images, torch.arange(start, start + n))


def optimiser(learner, lr=0.05):
    return torch.optim.SGD(learner.param_groups(), lr=lr, momentum=0.9, weight_decay=1e-4)


def train(learner, steps, *, start=0, total=10, optim=None, n=8):
    """Return the losses of some training steps, as in a user's own training loop."""
    optim = optim or optimiser(learner)
    losses = []
    for step in range(start, start + steps):
        learner.before_step(step / total)
        out = learner(batch(learner.views, n=n, step=step))
        optim.zero_grad()
        out.loss.backward()
        optim.step()
        learner.after_step(out)
        losses.append(out.metrics.get("contrast", out.loss.detach()).item())
    return losses
