"""Retrieval: how often the nearest neighbour of a view is the other view of the same image.

It judges a backbone without labels. Shapes: N images, D features.
"""

from itertools import islice

import numpy as np
import torch
from torch import Tensor, nn

from antipode import rng
from antipode.core.scores import product, unit
from antipode.data.loader import Loader
from antipode.data.progress import bar
from antipode.data.sources.source import Source, subset
from antipode.data.views.policy import policies
from antipode.evaluation.accuracy import bootstrap
from antipode.evaluation.pixels import as_evaluated
from antipode.evaluation.score import Result
from antipode.evaluation.task import Task

IMAGES = 2000  # the maximum number of images
BATCH = 250
# The other view must be nearer than every further view by more than this difference of cosines. The
# rounding errors of equal features are smaller.
TIE = 1e-12
ROWS = 1024  # views whose similarities are computed at a time


def retrieval(task: Task, *, policy: str) -> Result:
    """Compute how often a view finds the other view of its image, in percent of the views.

    Two random views of each image are drawn. A view finds the other one if that is its nearest
    neighbour by cosine similarity of backbone features, among all views but itself. A tie is not a
    hit, so constant features score 0. The images are test images, or train images if there are no
    test images. The same score of the network before training is added. No label is read.
    """
    source, split = task.images()
    networks = [task.backbone]
    untrained = task.untrained()
    if untrained is not None and untrained is not task.backbone:
        networks.append(untrained)
    hits = [found(x) for x in pairs(task, source, networks, policy)]
    shares = [100 * rows.double().mean(1) for rows in hits]  # (N,) of each network
    value = shares[0].mean().item()
    low, high = bootstrap(shares[0], task.seed)
    n = len(shares[0])
    settings = {
        "views": f"two of the policy {policy}, pixels as in evaluation",
        "features": "backbone",
        "similarity": "cosine",
        "ties": "not a hit",
        "candidates": 2 * n - 1,
    }
    more = {} if untrained is None else {"untrained": shares[-1].mean().item()}
    chance = 100 / (2 * n - 1)
    return Result(
        value, "% of views", settings, n, more, split=split, low=low, high=high, chance=chance
    )


@torch.no_grad()
def pairs(task: Task, source: Source, networks: list[nn.Module], policy: str) -> list[Tensor]:
    """Return features (2,N,D) of two views of each of N images, for each network.

    The seed of the task decides which images and which views are drawn.
    """
    if len(source) < 2:
        raise ValueError(
            f"retrieval needs at least two images, but {task.splits.name} has {len(source)}"
        )
    count = min(IMAGES, len(source))
    steps = -(-count // BATCH)
    batch = -(-count // steps)
    chosen = rng.permutation(rng.key(task.seed, "retrieval"), len(source))[:count]
    # The loader drops the rest of an incomplete batch, so the first images fill the last one.
    padded = subset(source, chosen.repeat(2)[: steps * batch])
    random = policies()[policy](task.size, task.eval_view.normal)
    views = as_evaluated(random, task.eval_view).to(task.device)
    loader = Loader(padded, views, batch=batch, epochs=1, seed=task.seed, device=task.device)
    rows: list[list[Tensor]] = [[] for _ in networks]
    ids = []
    with bar(steps * batch, "views") as done:
        for _, _, made in islice(loader.steps(), steps):
            for net, parts in zip(networks, rows, strict=True):
                parts.append(torch.stack([net(view).float() for view in made.views]))
            ids.append(made.image_ids.cpu())
            done(batch)
    # An image that fills the last batch is there twice, and so is one that replaces a broken image.
    first = np.unique((torch.cat(ids) % count).numpy(), return_index=True)[1]
    return [torch.cat(parts, 1)[:, first] for parts in rows]


def found(x: Tensor) -> Tensor:
    """Return which views find the other view of their image, bool (N,2) on the CPU.

    x (2,N,D) are the features of two views of N images. The cosines are computed in float64,
    because the features of an untrained network point in almost the same direction.
    """
    if not x.isfinite().all():
        raise ValueError("the backbone has features that are NaN or infinite")
    if x.shape[1] < 2:
        raise ValueError(f"retrieval needs at least two readable images, but got {x.shape[1]}")
    x = x.cpu() if x.device.type == "mps" else x  # mps has no float64
    n = x.shape[1]
    z = unit(x.double()).flatten(0, 1)  # (2N,D)
    hits = []
    for rows in torch.split(torch.arange(2 * n, device=z.device), ROWS):
        cosines = product(z[rows], z)
        other = ((rows + n) % (2 * n))[:, None]
        nearest = cosines.gather(1, other)
        cosines.scatter_(1, torch.cat([rows[:, None], other], 1), -torch.inf)
        hits.append(nearest[:, 0] > cosines.amax(1) + TIE)
    return torch.cat(hits).view(2, n).T.cpu()
