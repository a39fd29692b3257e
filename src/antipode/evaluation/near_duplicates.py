"""Near duplicates: pairs of images that differ by a crop, a mirror image, brightness or encoding.

Their backbone features are as similar as those of an image and a slightly changed copy of it, and
small thumbnails of them agree. N images, D features, P pairs, C channels.
"""

from collections.abc import Sequence
from itertools import islice
from typing import NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from antipode import rng
from antipode.core.scores import product, unit
from antipode.data.loader import Loader
from antipode.data.sources.source import Source, subset
from antipode.data.views.operation import Crop, Jitter
from antipode.data.views.policy import View
from antipode.data.views.views import Views
from antipode.evaluation.pixels import as_evaluated
from antipode.evaluation.task import Task

MOST = {"cpu": 20_000, "cuda": 100_000}  # images that are compared with each other
COPIES = 256  # images whose changed copies give the bound of the similarity
REACHED = 0.1  # the bound is the similarity that all but this share of the copies reach
LEAST = 0.9  # the bound is never lower
AGREE = 0.95  # the least correlation of the thumbnails of a pair
SIDE = 16  # pixels of a side of a thumbnail
NEAREST = 8  # neighbours of each image that are looked at
CHECKED = 5000  # pairs whose thumbnails are compared: those with the highest similarity
ROWS = 1 << 26  # similarities in memory at a time


class Images(Protocol):
    """A source, or anything else that has images."""

    def take(self, indices: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return images uint8 (N,C,H,W), and labels that are not used."""


class Pair(NamedTuple):
    """Two images by their position, the cosine of their features, and that of their thumbnails."""

    first: int
    second: int
    similarity: float
    agreement: float


@torch.no_grad()
def bound_for(task: Task, source: Source) -> float:
    """Return the least similarity of a near duplicate, from slightly changed copies of images.

    A copy is a crop of 80 to 100 % of the area, mirrored or not, with brightness, contrast and
    saturation changed by up to 10 %.
    """
    count = min(COPIES, len(source))
    chosen = rng.permutation(rng.key(task.seed, "near duplicates"), len(source))[:count]
    views = copies(task.eval_view, task.size).to(task.device)
    batch = min(64, count)
    part = subset(source, chosen[: count // batch * batch])
    loader = Loader(part, views, batch=batch, epochs=1, seed=task.seed, device=task.device)
    similarities = []
    for _, _, made in islice(loader.steps(), count // batch):
        first, second = (unit(task.backbone(view).float()) for view in made.views)
        similarities.append((first * second).sum(1).cpu())
    quantile = float(torch.cat(similarities).quantile(REACHED))
    return max(LEAST, quantile)


def copies(eval_view: Views, size: int) -> Views:
    """Return the views of an image and of a slightly changed copy of it."""
    normal = eval_view.normal
    changed = View(size, (Crop(size, (0.8, 1.0)), Jitter(0.1, 0.1, 0.1, 0.0, p=1.0), normal))
    made = as_evaluated([changed], eval_view).policy[0]
    return Views([eval_view.policy[0], made], normal)


@torch.no_grad()
def similar_pairs(x: Tensor, bound: float) -> list[tuple[int, int, float]]:
    """Return pairs of images whose features (N,D) have a cosine of at least `bound`.

    Only the NEAREST neighbours of each image are looked at. The pair of two images is listed once,
    and the most similar pairs come first. Memory grows with N and not with N^2.
    """
    z = unit(x)
    n = len(z)
    k = min(NEAREST + 1, n)
    best: dict[tuple[int, int], float] = {}
    for rows in torch.split(torch.arange(n, device=z.device), max(1, ROWS // max(1, n))):
        cosines = product(z[rows], z)
        cosines.scatter_(1, rows[:, None], -torch.inf)
        near = cosines.topk(k - 1, 1)
        row, column = (near.values >= bound).nonzero(as_tuple=True)
        ends = (rows[row].tolist(), near.indices[row, column].tolist())
        for a, b, value in zip(*ends, near.values[row, column].tolist(), strict=True):
            best[min(a, b), max(a, b)] = value
    return sorted(((*pair, value) for pair, value in best.items()), key=lambda found: -found[2])


def near_duplicates(
    x: Tensor, source: "Images", bound: float, groups: Sequence[int] | None = None
) -> list[Pair]:
    """Return the near duplicates among the images of a source with features (N,D).

    `groups` are numbers (N,) of groups of exact duplicates, which are left out; -1 is none. Of many
    similar pairs, the thumbnails of the CHECKED most similar ones are compared.
    """
    numbers = groups or [-1] * len(x)
    found = [
        pair
        for pair in similar_pairs(x, bound)
        if numbers[pair[0]] < 0 or numbers[pair[0]] != numbers[pair[1]]
    ][:CHECKED]
    if not found:
        return []
    wanted = sorted({at for first, second, _ in found for at in (first, second)})
    pieces = torch.split(torch.tensor(wanted), 256)
    small = torch.cat([thumbnails(source, piece) for piece in pieces])
    place = {at: position for position, at in enumerate(wanted)}
    first = torch.stack([small[place[pair[0]]] for pair in found])
    second = torch.stack([small[place[pair[1]]] for pair in found])
    return [
        Pair(*pair, agreement)
        for pair, agreement in zip(found, agreements(first, second).tolist(), strict=True)
        if agreement >= AGREE
    ]


def thumbnails(source: "Images", indices: Tensor) -> Tensor:
    """Return thumbnails (N,C,SIDE,SIDE) of images of a source, as evaluations see them."""
    images = source.take(indices)[0].cpu().float()
    return F.interpolate(images, (SIDE, SIDE), mode="bilinear", antialias=True)


def agreements(first: Tensor, second: Tensor) -> Tensor:
    """Return the correlation (P,) of pairs of thumbnails (P,C,SIDE,SIDE), over pixels and channels.

    It is the larger one of the correlations with the second thumbnail and with its mirror image.
    """

    def standard(images: Tensor) -> Tensor:
        flat = images.flatten(1)
        return unit(flat - flat.mean(1, keepdim=True))

    plain = (standard(first) * standard(second)).sum(1)
    mirrored = (standard(first) * standard(second.flip(3))).sum(1)
    return torch.maximum(plain, mirrored)
