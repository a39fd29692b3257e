"""Alignment and uniformity of pairs of augmented views (Wang & Isola, ICML 2020).

Shapes: N images, D features.
"""

from itertools import islice

import torch
from torch import Tensor

from antipode import measures
from antipode.core.scores import unit
from antipode.data.loader import Loader
from antipode.data.progress import bar
from antipode.data.views.policy import crop_and_colour
from antipode.data.views.views import Views
from antipode.evaluation.pixels import as_evaluated
from antipode.evaluation.score import Result
from antipode.evaluation.task import Task
from antipode.functional import alignment, uniformity

IMAGES = 4096  # the maximum number of images: uniformity compares all pairs of them
BATCH = 256


def alignment_uniformity(task: Task) -> Result:
    """Compute the alignment of backbone features.

    It is the mean squared distance between the features of two views of an image, scaled to unit
    length. The uniformity is added to the result: the mean of the values of both views. Alignment
    and uniformity of the projection head are added if there is a head, and spread, effective rank
    and mean similarity of the backbone features of first views. The views are those of MoCo
    v2, whatever the run was trained with, so that runs can be compared. No label is read.
    """
    _, split = task.images()
    features = pairs(task)
    more: dict[str, float] = {}
    for of, (x, y) in features.items():
        if not (x.isfinite().all() and y.isfinite().all()):
            raise ValueError(f"the {of} has features that are NaN or infinite")
        name = "" if of == "backbone" else f"{of} "
        more[f"{name}alignment"] = alignment(x, y).item()
        more[f"{name}uniformity"] = ((uniformity(x) + uniformity(y)) / 2).item()
    settings = {
        "value": "alignment of backbone features",
        "views": "two of MoCo v2, pixels as in evaluation",
        "alpha": 2,
        "t": 2,
        "uniformity": "mean of both views, pairs of different images",
        "dimensions": features["backbone"].shape[2],
    }
    more |= _geometry(features["backbone"][0])
    value = more.pop("alignment")
    count = features["backbone"].shape[1]
    return Result(value, "mean squared distance", settings, count, more, split=split)


def _geometry(x: Tensor) -> dict[str, float]:
    """Return spread, effective rank and mean similarity of features (N,D) at unit length."""
    z = unit(x)
    return {
        "spread": float(measures.spread(z)),
        "rank": measures.effective_rank(measures.singular_values(z)),
        "similarity": float(measures.mean_similarity(z)),
    }


@torch.no_grad()
def pairs(task: Task) -> dict[str, Tensor]:
    """Return features (2,N,D) of two views of each of N images.

    The keys are "backbone" and, if there is a projection head, "head". The seed of the task decides
    which images and which views are drawn.
    """
    source, _ = task.images()
    if len(source) < 2:
        raise ValueError(
            f"uniformity needs at least two images, but {task.splits.name} has {len(source)}"
        )
    count = min(IMAGES, len(source))
    steps = -(-count // BATCH)
    batch = count // steps  # equal batches: of 1,000 images at most three are left out
    loader = Loader(
        source, twice(task.eval_view), batch=batch, epochs=1, seed=task.seed, device=task.device
    )
    head = task.projection()
    rows: dict[str, list[Tensor]] = {}
    seen: set[int] = set()
    with bar(steps * batch, "views") as done:
        for _, _, made in islice(loader.steps(), steps):
            x = [task.backbone(view) for view in made.views]
            # an image that takes the place of one that cannot be read counts once
            new = [at for at, image in enumerate(made.image_ids.tolist()) if _added(image, seen)]
            rows.setdefault("backbone", []).append(torch.stack(x).float()[:, new])
            if head is not None:
                projections = torch.stack([head(features) for features in x])
                rows.setdefault("head", []).append(projections.float()[:, new])
            done(batch)
    return {of: torch.cat(parts, 1) for of, parts in rows.items()}


def _added(image: int, seen: set[int]) -> bool:
    """Add the id of an image to those that were seen; return True if it is a new one."""
    new = image not in seen
    seen.add(image)
    return new


def twice(eval_view: Views) -> Views:
    """Return MoCo v2's two views, with the pixel normalisation of the evaluation view."""
    return as_evaluated(crop_and_colour(eval_view.sizes[0], eval_view.normal), eval_view)
