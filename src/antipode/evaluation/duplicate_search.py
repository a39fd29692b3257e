"""All duplicates of a data set: exact ones by content, near ones by a trained backbone.

N images, D features.
"""

import csv
import io
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from antipode import rng
from antipode.data.loader import cores
from antipode.data.sources.source import Decoded, Source, subset
from antipode.evaluation.duplicates import BUDGET, Exact, Image, exact_duplicates, sources_of
from antipode.evaluation.features import extract
from antipode.evaluation.near_duplicates import CHECKED, MOST, bound_for, near_duplicates
from antipode.evaluation.task import Task
from antipode.files import atomic_write
from antipode.names import printable

FILE = "duplicates.csv"
HEADINGS = (
    *("kind", "similarity", "agreement", "split", "image", "label"),
    *("other split", "other image", "other label"),
)


class NearPair(NamedTuple):
    """Two images that look alike: the cosine of their features and of their thumbnails."""

    first: Image
    second: Image
    similarity: float
    agreement: float


class Duplicates(NamedTuple):
    """The duplicates of a data set.

    Args:
        exact: the images with the same content.
        near: pairs of images that look alike, the most similar first.
        images: number of images of the data set.
        compared: number of images among which near duplicates were searched.
        bound: the least similarity of a near duplicate, None if none were searched.
    """

    exact: Exact
    near: list[NearPair]
    images: int
    compared: int
    bound: float | None

    def notes(self) -> list[str]:
        """Return sentences on what was not compared."""
        notes = []
        if self.exact.unread:
            notes.append(
                f"{self.exact.unread:,} images that might be exact duplicates were not read; "
                "antipode analyse RUN --what duplicates reads them"
            )
        if self.compared < self.images:
            notes.append(
                f"near duplicates were searched among {self.compared:,} of the {self.images:,} "
                "images, drawn at random"
            )
        if len(self.near) >= CHECKED:
            notes.append(f"only the {CHECKED:,} most similar pairs were looked at")
        return notes


def search(task: Task, *, budget: float = BUDGET, most: int | None = None) -> Duplicates:
    """Return the duplicates of a task's data set.

    Args:
        task: the trained backbone and its data set. Features are read from its cache.
        budget: maximum number of bytes to read for exact duplicates.
        most: maximum number of images among which near duplicates are searched.
    """
    sources = sources_of(task.splits)
    exact = exact_duplicates(task.splits, task.cache, budget)
    limit = most or MOST["cpu" if task.device.type == "cpu" else "cuda"]
    images = [Image(name, at) for name, part in sources.items() for at in range(len(part))]
    if len(images) <= limit:
        x = torch.cat([_features(task, part) for part in sources.values()])
        return with_near(task, exact, images, x)
    order = rng.permutation(rng.key(task.seed, "duplicates"), len(images))[:limit].tolist()
    chosen = [images[at] for at in sorted(order)]
    parts = {name: [image.at for image in chosen if image.split == name] for name in sources}
    x = torch.cat(
        [
            extract(task.backbone, task.eval_view, subset(sources[name], torch.tensor(indices))).x
            for name, indices in parts.items()
            if indices
        ]
    )
    return with_near(task, exact, chosen, x)


def _features(task: Task, source: Source) -> Tensor:
    return extract(task.backbone, task.eval_view, source, cache=task.cache).x


def with_near(task: Task, exact: Exact, images: Sequence[Image], x: Tensor) -> Duplicates:
    """Return exact duplicates together with the near duplicates among images with features (N,D).

    Images that are exact duplicates of each other are no near duplicates.
    """
    sources = sources_of(task.splits)
    total = sum(map(len, sources.values()))
    if len(images) < 2:
        return Duplicates(exact, [], total, 0, None)
    bound = bound_for(task, task.splits.train)
    groups = {image: at for at, group in enumerate(exact.groups) for image in group}
    numbers = [groups.get(image, -1) for image in images]
    found = near_duplicates(x.to(task.device), Joined(sources, images), bound, numbers)
    near = [
        NearPair(images[pair.first], images[pair.second], pair.similarity, pair.agreement)
        for pair in found
    ]
    return Duplicates(exact, near, total, len(images), bound)


class Joined:
    """Images of several sources as one; only what thumbnails need."""

    def __init__(self, sources: Mapping[str, Source], images: Sequence[Image]) -> None:
        self.sources = sources
        self.images = images

    def take(self, indices: Tensor) -> tuple[Tensor, None]:
        """Return images uint8 (N,C,S,S); the splits of a data set have images of one size."""
        return torch.stack(self.each(indices.tolist())), None

    def each(self, positions: Sequence[int]) -> list[Tensor]:
        """Return images uint8 (C,S,S), read by several threads."""
        with ThreadPoolExecutor(cores(1)) as pool:
            return list(pool.map(lambda at: self._one(self.images[at]), positions))

    def _one(self, image: Image) -> Tensor:
        source = self.sources[image.split]
        device = getattr(getattr(source, "images", None), "device", None)
        return source.take(torch.tensor([image.at], device=device))[0][0].cpu()


def name_of(sources: Mapping[str, Source], image: Image) -> str:
    """Return the name of an image: its file, or its number if it has none."""
    source = sources[image.split]
    return str(source.names[image.at]) if isinstance(source, Decoded) else f"image {image.at}"


def label_of(sources: Mapping[str, Source], image: Image) -> str:
    """Return the class of an image as text; empty without a label, or with several."""
    source = sources[image.split]
    if source.labels is None or source.labels.ndim != 1 or int(source.labels[image.at]) < 0:
        return ""
    label = int(source.labels[image.at])
    classes = source.classes
    return classes[label] if classes and label < len(classes) else str(label)


def rows(task: Task, found: Duplicates) -> list[tuple[Any, ...]]:
    """Return the lines of the file: a pair of images each, exact duplicates first.

    Each exact copy is listed beside the first image of its group.
    """
    sources = sources_of(task.splits)

    def columns(image: Image) -> tuple[str, str, str]:
        name = printable(name_of(sources, image))
        return image.split, name, printable(label_of(sources, image))

    exact = [
        ("exact", 1.0, 1.0, *columns(group[0]), *columns(copy))
        for group in found.exact.groups
        for copy in group[1:]
    ]
    near = [
        (
            "near",
            round(pair.similarity, 4),
            round(pair.agreement, 4),
            *columns(pair.first),
            *columns(pair.second),
        )
        for pair in found.near
    ]
    return [*exact, *near]


def write_list(folder: Path, task: Task, found: Duplicates) -> Path:
    """Write the duplicates to duplicates.csv in a run folder, and return the file."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(HEADINGS)
    writer.writerows(rows(task, found))
    file = folder / FILE
    with atomic_write(file) as handle:
        handle.write(text.getvalue().encode("utf-8", "backslashreplace"))
    return file


def counts(found: Duplicates) -> dict[str, int]:
    """Return the numbers of duplicates by name."""
    across = sum(pair.first.split != pair.second.split for pair in found.near)
    return {
        "exact copies": found.exact.copies,
        "test images in train": len(found.exact.overlap),
        "near pairs": len(found.near),
        "near pairs of train and test": across,
        "images": found.images,
        "images compared for near pairs": found.compared,
    }
