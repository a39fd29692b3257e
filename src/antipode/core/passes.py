"""How the views of a batch go through a network: one by one, or at once with or without common statistics.

Large kernels keep a GPU busier than small ones, so in a compiled step on a GPU views of one size go through as one
batch. Where the paper gives each view statistics of its own, batch norm asks `views_apart` and keeps to it.
"""

from collections.abc import Iterator

import torch
from torch import Tensor, nn

_APART = [1]


class Apart:
    """Inside, a batch is `views` equal parts, and batch norm treats each as the batch of a pass of its own."""

    def __init__(self, views: int) -> None:
        self.views = views

    def __enter__(self) -> None:
        _APART[0] = self.views

    def __exit__(self, *_: object) -> None:
        _APART[0] = 1


def views_apart() -> int:
    """How many views with statistics of their own the batch in flight consists of, one after the other."""
    return _APART[0]


def ours(net: nn.Module | None) -> bool:
    """Whether no batch norm of torch's own is inside, which would not ask."""
    return net is None or not any(
        isinstance(part, nn.modules.batchnorm._BatchNorm) for part in net.modules()
    )


def worth_it(images: list[Tensor]) -> bool:
    """Whether views that could go one by one had better go at once: on a GPU, compiled.

    Not compiled, batch norm in groups is many kernels where torch's own is one: BYOL's step took 41 ms for 14.
    """
    return images[0].is_cuda and torch.compiler.is_compiling()


def passes(images: list[Tensor], joint: bool, together: bool) -> Iterator[tuple[Tensor, int, int]]:
    """What goes through a network at once, how many views it is, and how many of them have statistics of their own.

    Neighbours of one size go through at once if `joint`, with common statistics, and if `together` also where that is
    worth it: the same numbers as one by one.
    """
    at_once, start = joint or (together and worth_it(images)), 0
    while start < len(
        images
    ):  # spelt out: torch 2.11's compiler does not take itertools.groupby here
        end = start + 1
        while at_once and end < len(images) and images[end].shape == images[start].shape:
            end += 1
        views = images[start:end]
        yield (
            (torch.cat(views) if len(views) > 1 else views[0]),
            len(views),
            1 if joint else len(views),
        )
        start = end
