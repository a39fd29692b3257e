"""How several ranks share the images of an evaluation. N images, W ranks.

Collectives need shares of equal size. The last image is therefore repeated, and the results of its
copies are removed.
"""

from typing import Any

import torch
from torch import Tensor, nn

from antipode import dist
from antipode.data.sources.source import AnySource, subset
from antipode.nets.norm import convert


def share(n: int) -> Tensor:
    """Return the ids of this rank's share of N images, in order."""
    size = -(-n // dist.world())
    return (torch.arange(size) + dist.rank() * size).clamp(max=n - 1)


def shared(source: AnySource) -> AnySource:
    """Return this rank's share of a source; with one rank, the source itself."""
    return source if dist.world() == 1 else subset(source, share(len(source)))


def joined(rows: Tensor, n: int) -> Tensor:
    """Return the rows (N,...) of all images from the rows of this rank's share, on every rank."""
    if dist.world() == 1:
        return rows
    # not every backend gathers booleans
    numbers = rows.to(torch.uint8) if rows.dtype == torch.bool else rows
    return dist.gather(dist.movable(numbers))[:n].to(rows)


def places(batch: int) -> dict[str, Any]:
    """Return the rank and the number of ranks for a loader of batches of a classifier.

    If the batch cannot be divided equally, every rank processes all of it.
    """
    return {"rank": dist.rank(), "world": dist.world()} if divides(batch) else {}


def divides(batch: int) -> bool:
    """Return True if the ranks can share a batch equally."""
    return batch % dist.world() == 0


def mine(ids: Tensor) -> Tensor:
    """Return the part of the ids (N,) of a batch that this rank processes."""
    return dist.mine(ids) if divides(len(ids)) else ids


def over_ranks(net: nn.Module, batch: int) -> nn.Module:
    """Return a network whose batch norm has the statistics of the batches of all ranks.

    With one rank, and if every rank processes whole batches, it is the network itself.
    """
    return convert(net, 1) if dist.world() > 1 and divides(batch) else net
