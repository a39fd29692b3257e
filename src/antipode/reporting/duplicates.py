"""The duplicates of a data set for the page, with small copies of the images."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from antipode.data.sources.source import Source
from antipode.evaluation.duplicate_search import (
    FILE,
    Duplicates,
    counts,
    label_of,
    name_of,
    with_near,
    write_list,
)
from antipode.evaluation.duplicates import Image, exact_duplicates, sources_of
from antipode.evaluation.near_duplicates import AGREE, MOST
from antipode.evaluation.task import Task
from antipode.reporting.images import centre, side_of
from antipode.reporting.thumbnails import tile
from antipode.runs.run import Run

SHOWN = 12  # pairs of each kind on the page


def duplicates(
    run: Run, task: Task, images: Sequence[Image], x: Tensor, pictures: bool
) -> dict[str, Any]:
    """Return the duplicates of a run's data set, and list them in its folder.

    Near duplicates are searched among the given images with features (N,D). A list that the
    analysis `duplicates` has written is kept, because it covers all images.
    """
    limit = MOST["cpu" if task.device.type == "cpu" else "cuda"]
    if len(images) > limit:
        kept = torch.randperm(len(images), generator=torch.Generator().manual_seed(run.seed))
        chosen = kept[:limit].sort().values
        images = [images[at] for at in chosen.tolist()]
        x = x[chosen]
    found = with_near(task, exact_duplicates(task.splits, task.cache), images, x)
    listed = _write(run, task, found)
    return {
        "counts": counts(found),
        "bound": found.bound,
        "agreement": AGREE,
        "notes": found.notes(),
        "file": FILE if listed else None,
        "conflicts": conflicts(task, found),
        "pairs": _pairs(task, found) if pictures else [],
    }


def _write(run: Run, task: Task, found: Duplicates) -> bool:
    """Write the list to the run folder; return whether there is one."""
    if "duplicates" in run.analysis:
        return (run.path / FILE).exists()
    if not (found.near or found.exact.groups):
        return False
    try:
        write_list(run.path, task, found)
    except OSError:  # the page says so by not naming the file
        return False
    return True


def conflicts(task: Task, found: Duplicates) -> int:
    """Return the number of exact copies whose label differs from that of the first image."""
    sources = sources_of(task.splits)
    return sum(
        label_of(sources, copy) != label_of(sources, group[0])
        for group in found.exact.groups
        for copy in group[1:]
        if label_of(sources, copy) and label_of(sources, group[0])
    )


def _pairs(task: Task, found: Duplicates) -> list[dict[str, Any]]:
    """Return the first pairs of each kind; those of train and test images come first."""
    exact = [(group[0], copy, 1.0) for group in found.exact.groups for copy in group[1:]]
    near = [(pair.first, pair.second, pair.similarity) for pair in found.near]
    sources = sources_of(task.splits)
    return [
        {
            "kind": kind,
            "similarity": round(similarity, 4),
            "images": [_one(sources, first), _one(sources, second)],
        }
        for kind, pairs in (("exact", exact), ("near", near))
        for first, second, similarity in sorted(pairs, key=lambda p: p[0].split == p[1].split)[
            :SHOWN
        ]
    ]


def _one(sources: Mapping[str, Source], image: Image) -> dict[str, str]:
    source = sources[image.split]
    return {
        "src": tile(centre(source, image.at), side_of(source)),
        "name": name_of(sources, image),
        "split": image.split,
        "label": label_of(sources, image),
    }
