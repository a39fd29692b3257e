"""Small data sets whose classes are easy to tell apart, and tasks on them. N images, C classes."""

import torch
from torch import nn

from antipode.data.sources.source import Memory
from antipode.data.sources.splits import Splits
from antipode.data.views.views import views
from antipode.evaluation.task import Task

CPU = torch.device("cpu")


def brightness(n, seed, classes=4, size=8, spread=20):
    """Return noisy grey images (N,3,size,size) whose brightness is their class, and labels (N,).

    Every class has the same number of images.
    """
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(n)[torch.randperm(n, generator=generator)] % classes
    level = 30 + 195 * labels / (classes - 1)
    noise = spread * torch.randn(n, 3, size, size, generator=generator)
    return (level.view(-1, 1, 1, 1) + noise).round().clamp(0, 255).to(torch.uint8), labels


def bright(train=64, test=40, **options):
    """Return splits of `brightness`, with its options."""
    parts = [Memory(*brightness(n, seed, **options), None) for n, seed in ((train, 1), (test, 2))]
    return Splits("bright", parts[0], *parts, 8, (0.5,), (0.25,))


class Levels(nn.Module):
    """Fixed features (N,24) of images: the means of patches and their squares.

    The squares make classes of medium brightness linearly separable from darker and brighter ones.
    """

    def __init__(self, scale=1.0):
        super().__init__()
        self.scale = scale

    def forward(self, x):
        patches = nn.functional.avg_pool2d(x, x.shape[2] // 2).flatten(1)  # (N,12)
        return self.scale * torch.cat([patches, patches**2], 1)


class Net(nn.Module):
    """A small network with batch norm. Its running statistics are not the initial ones."""

    def __init__(self, channels=3, width=16):
        super().__init__()
        self.conv = nn.Conv2d(channels, width, 3, 2, 1)
        self.bn = nn.BatchNorm2d(width)
        self.bn.running_mean.normal_()
        self.bn.running_var.uniform_(0.5, 2)

    def forward(self, x):
        return torch.relu(self.bn(self.conv(x))).flatten(2).mean(2)


def task(splits=None, backbone=None, seed=0, size=8, **keys):
    """Return a task on the CPU with the view `eval`."""
    splits = bright() if splits is None else splits
    backbone = (Levels() if backbone is None else backbone).eval().requires_grad_(False)
    return Task(
        backbone,
        splits,
        size,
        views("eval", size=size, mean=splits.mean, std=splits.std),
        CPU,
        seed,
        **keys,
    )
