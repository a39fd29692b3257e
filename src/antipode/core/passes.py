"""How the views of a batch pass through a network: one at a time, or together as one batch.

Large kernels use a GPU better than small ones. In a compiled step on a GPU, views of one size
therefore pass through the network together. Where a paper gives each view batch-norm statistics of
its own, the layers get the number of views in the batch and keep the statistics separate.
"""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn


class SeparateStatistics:
    """Context in which batch-norm layers treat a batch as `views` equal parts.

    Each part has its own statistics, as if it had passed through the network alone. `layers` are
    the layers that `view_norms` returns.
    """

    def __init__(self, layers: Sequence[nn.Module], views: int) -> None:
        self.layers = layers
        self.views = views

    def __enter__(self) -> None:
        if self.views > 1:
            for layer in self.layers:
                layer.views_in_batch = self.views  # type: ignore[assignment]

    def __exit__(self, *_: object) -> None:
        if self.views > 1:
            for layer in self.layers:
                layer.views_in_batch = 1  # type: ignore[assignment]


def view_norms(*nets: nn.Module | None) -> list[nn.Module]:
    """Return the batch-norm layers that can keep the statistics of several views separate."""
    modules = [module for net in nets if net is not None for module in net.modules()]
    return [module for module in modules if hasattr(module, "views_in_batch")]


def has_only_grouped_norm(*nets: nn.Module | None) -> bool:
    """Return True if the networks hold none of torch's own batch-norm layers.

    Those take statistics over the whole batch and cannot keep views separate.
    """
    modules = [module for net in nets if net is not None for module in net.modules()]
    return not any(isinstance(module, nn.modules.batchnorm._BatchNorm) for module in modules)


def worth_it(images: list[Tensor]) -> bool:
    """Return True if views that could pass one at a time are faster together: compiled, on a GPU.

    Without compilation, grouped batch norm takes many kernels where torch's takes one: BYOL's step
    took 41 ms instead of 14.
    """
    return images[0].is_cuda and torch.compiler.is_compiling()


def passes(images: list[Tensor], joint: bool, separable: bool) -> Iterator[tuple[Tensor, int, int]]:
    """Yield the batches (B,C,H,W) that pass through a network, one after the other.

    With each batch come the number of views in it and how many of them have statistics of their
    own. Consecutive views of one size form one batch if `joint` (with common statistics), and also
    if they are `separable` and that is faster; the result is then the same as for one view at a
    time.
    """
    together = joint or (separable and worth_it(images))
    start = 0
    while start < len(images):  # not itertools.groupby: torch 2.11 cannot compile it here
        end = start + 1
        while together and end < len(images) and images[end].shape == images[start].shape:
            end += 1
        views = images[start:end]
        batch = torch.cat(views) if len(views) > 1 else views[0]
        yield batch, len(views), 1 if joint else len(views)
        start = end
