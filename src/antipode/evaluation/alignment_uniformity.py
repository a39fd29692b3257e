"""Alignment and uniformity of pairs of augmented views (Wang & Isola, ICML 2020). N images, D features."""

from itertools import islice

import torch
from torch import Tensor

from antipode.data.loader import Loader
from antipode.data.progress import bar
from antipode.data.views.operation import Centre
from antipode.data.views.policy import View, mocov2
from antipode.data.views.views import Views
from antipode.evaluation.score import Result
from antipode.evaluation.task import Task
from antipode.functional import alignment, uniformity

IMAGES = 4096  # uniformity compares all with all
BATCH = 256


def spread(task: Task) -> Result:
    """Alignment of backbone features: the mean squared distance of two views of an image, at length one.

    With it uniformity, the mean of both views', and both of the head where there is one. Views are MoCo v2's whatever
    the run was trained with, so that runs compare; labels are not read.
    """
    split = "train" if task.splits.test is None else "test"
    found = pairs(task)
    more: dict[str, float] = {}
    for of, (x, y) in found.items():
        if not (x.isfinite().all() and y.isfinite().all()):
            raise ValueError(f"the {of} has features that are infinite or not a number")
        name = "" if of == "backbone" else f"{of} "
        more[f"{name}alignment"] = alignment(x, y).item()
        more[f"{name}uniformity"] = ((uniformity(x) + uniformity(y)) / 2).item()
    settings = {
        "value": "alignment of backbone features",
        "views": "two of mocov2, pixels as in evaluation",
        "alpha": 2,
        "t": 2,
        "uniformity": "mean of both views, pairs of different images",
    }
    value = more.pop("alignment")
    return Result(
        value, "mean squared distance", settings, len(found["backbone"][0]), more, split=split
    )


@torch.no_grad()
def pairs(task: Task) -> dict[str, Tensor]:
    """Features (2,N,D) of two views each of seeded images, of the backbone and of the head where there is one."""
    source = task.splits.train if task.splits.test is None else task.splits.test
    if len(source) < 2:
        raise ValueError(
            f"uniformity compares images with each other, and {task.splits.name} has {len(source)}"
        )
    count = min(IMAGES, len(source))
    steps = -(-count // BATCH)
    batch = count // steps  # equal batches: of 1,000 images no more than three are left out
    loader = Loader(
        source, twice(task.eval_view), batch=batch, epochs=1, seed=task.seed, device=task.device
    )
    rows: dict[str, list[Tensor]] = {}
    with bar(steps * batch, "views") as done:
        for _, _, made in islice(loader.steps(), steps):
            x = [task.backbone(view) for view in made.views]
            rows.setdefault("backbone", []).append(torch.stack(x).float())
            if task.head is not None:
                rows.setdefault("head", []).append(
                    torch.stack([task.head(each) for each in x]).float()
                )
            done(batch)
    return {of: torch.cat(parts, 1) for of, parts in rows.items()}


def twice(eval_view: Views) -> Views:
    """MoCo v2's two views, then the pixels as the backbone has always seen them."""
    view = eval_view.policy[0]
    chance = mocov2(view.size, eval_view.normal)[0].operations[:-1]
    rest = [operation for operation in view.operations if not isinstance(operation, Centre)]
    return Views(2 * [View(view.size, (*chance, *rest))], eval_view.normal)
