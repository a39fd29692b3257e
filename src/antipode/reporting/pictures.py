"""The pictures of a run. If one cannot be drawn, the page shows the reason."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from antipode.data.loader import cores
from antipode.data.progress import bar
from antipode.data.sources.source import Memory, Source, folder_prefix, subset
from antipode.data.sources.splits import Splits
from antipode.data.views.views import Views
from antipode.devices import pick_device
from antipode.evaluation.duplicate_search import Joined
from antipode.evaluation.duplicates import Image, sources_of
from antipode.evaluation.evaluate import task_for
from antipode.evaluation.features import extract, key
from antipode.evaluation.task import Task
from antipode.names import printable
from antipode.reporting.duplicates import duplicates
from antipode.reporting.embedding_map import embedding_map
from antipode.reporting.geometry import similarity, spectrum
from antipode.reporting.images import neighbours, view_sheet
from antipode.runs.own_images import NotFound, OtherImages
from antipode.runs.run import Run

PARTS = ("views", "neighbours", "map", "duplicates", "similarity", "spectrum")
QUERIES = 1000  # queries of the neighbour search, and images of the spectrum
# Images of the map, if an evaluation has stored their features: in memory, and in files, whose
# thumbnails take time to decode. Otherwise the map has the queries and the images searched.
MAPPED = {True: 50_000, False: 10_000}
CORES = 8  # with as many cores, files are decoded quickly enough for the larger number
BANK = {True: 5000, False: 2000}  # images that are searched: small ones, large ones
SMALL = 64  # largest side of a small image, in pixels
WITH_IMAGES = ("views", "neighbours")  # these show nothing else
NO_IMAGES = "the page was written without images (--no-images)"
# If a picture raises one of these, the page is written without it.
EXPECTED = (ValueError, OSError, ImportError, RuntimeError)


@dataclass
class Album:
    """The pictures of a run.

    Args:
        pictures: pictures by name.
        absent: reasons by name, for the pictures that could not be drawn.
        images: number of training images, None if unknown.
        skipped: images that could not be used, each with the reason.
        error: why the images could not be opened, with the paths that a page does not show.
    """

    pictures: dict[str, Any] = field(default_factory=dict)
    absent: dict[str, str] = field(default_factory=dict)
    images: int | None = None
    skipped: list[str] = field(default_factory=list)
    error: str = ""

    @property
    def has_images(self) -> bool:
        """True if some picture contains images of the data set."""
        shown = [part in self.pictures for part in WITH_IMAGES]
        parts = (("map", "sheets"), ("duplicates", "pairs"))
        return any(shown) or any(self.pictures.get(part, {}).get(key) for part, key in parts)

    def add(self, part: str, draw: Callable[[], Any]) -> None:
        """Add a picture, or the reason why it could not be drawn."""
        try:
            self.pictures[part] = draw()
        except EXPECTED as error:
            self.absent[part] = str(error) or type(error).__name__


def no_pictures(reason: str) -> Album:
    """Return an album in which all pictures are absent for one reason."""
    return Album(absent=dict.fromkeys(PARTS, reason))


def pictures(run: Run, images: bool = True) -> Album:
    """Return the pictures of a run, drawn with its own seed.

    The views need only the run's images. All other pictures need its backbone, too. If `images` is
    False, no picture contains an image of the data set.
    """
    task, reason = _task(run)
    try:
        splits = task.splits if task is not None else _images(run)
        make = run.training_views(splits)
    except EXPECTED as error:
        return replace(no_pictures(_reason(run, error)), error=str(error))
    album = Album(images=len(splits.pretrain))
    todo: dict[str, Callable[[], Any]] = {
        "views": lambda: view_sheet(splits.pretrain, make, run.seed, run.recipe.train.epochs)
    }
    if task is not None:
        try:
            todo |= _backbone_pictures(run, task, make, images)
        except EXPECTED as error:
            reason = str(error)
    album.absent = {part: reason for part in PARTS if part not in todo}
    if not images:
        album.absent |= dict.fromkeys(WITH_IMAGES, NO_IMAGES)
        todo = {part: draw for part, draw in todo.items() if part not in WITH_IMAGES}
    with bar(len(todo), f"pictures of {printable(run.label)}", least=1) as done:
        for part, draw in todo.items():
            album.add(part, draw)
            done(1)
    album.skipped = skipped(splits)
    return album


def _task(run: Run) -> tuple[Task | None, str]:
    """Return the run's backbone on its own images, or None and the reason why there is none."""
    try:
        return task_for(run, None, pick_device("auto"), run.seed), ""
    except EXPECTED as error:
        return None, _reason(run, error)


def _reason(run: Run, error: BaseException) -> str:
    """Return why there are no pictures.

    Pages are shared with others, so it names no folder, except for those in the recipe.
    """
    if isinstance(error, NotFound):
        return f"the images of {run.data_name} were not found on the machine that wrote this page"
    if isinstance(error, OtherImages):
        return f"the images that {run.data_name} has now are not those that the run was trained on"
    return str(error).replace(str(run.path), run.label)


def _images(run: Run) -> Splits:
    """Return the images of a run. Raises ValueError if they were passed in Python."""
    name = run.recipe.data.name
    if name.startswith("python:"):
        raise ValueError(
            f"the images were a {name[7:]} passed in Python, which cannot be opened by name"
        )
    return run.own_splits()


def _backbone_pictures(
    run: Run, task: Task, make: Views, images: bool
) -> dict[str, Callable[[], Any]]:
    """Return functions that draw the pictures that need features, by name.

    The features are extracted at once, with a progress bar.
    """
    seed = run.seed
    query_images, bank_images, part = sample(task.splits, BANK[task.size <= SMALL], seed)
    stored = is_stored(task, "train")
    if stored and part == "test":  # an evaluation has stored the features of all train images
        bank_images = task.splits.train
    queries = extract(task.backbone, task.eval_view, query_images).x
    cache = task.cache if stored else None
    bank = extract(task.backbone, task.eval_view, bank_images, cache=cache).x
    classes = task.splits.classes
    places, x = mapped(task, queries, bank, seed)
    some = torch.cat([queries, bank])[:QUERIES]
    return {
        "neighbours": lambda: (
            neighbours(queries, query_images, bank, bank_images, classes) | {"part": part}
        ),
        "map": lambda: _map(task, places, x, seed, images),
        "duplicates": lambda: duplicates(run, task, places, x, images),
        "similarity": lambda: similarity(task, make, seed),
        "spectrum": lambda: spectrum(some) | {"part": part},
    }


def is_stored(task: Task, part: str) -> bool:
    """Return True if an evaluation has stored the features of all images of a split."""
    source = task.splits.train if part == "train" else task.splits.test
    if task.cache is None or source is None:
        return False
    return (task.cache / f"{key(task.backbone, task.eval_view, source)}.npz").exists()


def mapped(task: Task, queries: Tensor, bank: Tensor, seed: int) -> tuple[list[Image], Tensor]:
    """Return the images of the map and their features (N,D); test images come first.

    They are all images if their features are stored, or a random part of them if there are many.
    Otherwise they are the queries and the images of the bank, in the order of `sample`.
    """
    splits = task.splits
    tests = 0 if splits.test is None else len(splits.test)
    if not is_stored(task, "train") or (tests and not is_stored(task, "test")):
        return _sampled(splits, len(queries), len(bank), seed), torch.cat([queries, bank])
    parts = {
        name: source
        for name, source in (("test", splits.test), ("train", splits.train))
        if source is not None
    }
    in_memory = all(isinstance(source, Memory) for source in parts.values())
    most = MAPPED[in_memory or cores(1) >= CORES]
    total = sum(map(len, parts.values()))
    chosen = _order(total, seed + 2)[:most].sort().values if total > most else torch.arange(total)
    images: list[Image] = []
    x = []
    start = 0
    for name, source in parts.items():
        indices = chosen[(chosen >= start) & (chosen < start + len(source))] - start
        images += [Image(name, at) for at in indices.tolist()]
        x.append(extract(task.backbone, task.eval_view, source, cache=task.cache).x[indices])
        start += len(source)
    return images, torch.cat(x)


def _sampled(splits: Splits, queries: int, bank: int, seed: int) -> list[Image]:
    """Return the images of `sample`: the queries, then those of the bank."""
    order = _order(len(splits.train), seed + 1)
    if splits.test is None:
        return [Image("train", at) for at in order[: queries + bank].tolist()]
    tests = _order(len(splits.test), seed)[:queries].tolist()
    return [Image("test", at) for at in tests] + [
        Image("train", at) for at in order[:bank].tolist()
    ]


def _map(task: Task, places: list[Image], x: Tensor, seed: int, thumbnails: bool) -> dict[str, Any]:
    """Return the map of images, with thumbnails or without."""
    sources = sources_of(task.splits)
    labels = _labels_of(sources, places)
    joined = Joined(sources, places)
    read = (lambda positions: joined.each(positions.tolist())) if thumbnails else None
    return embedding_map(x, places, labels, task.splits.classes, seed, read=read)


def _labels_of(sources: dict[str, Source], images: list[Image]) -> Tensor | None:
    """Return the class (N,) of each image, or None if the images do not have one label each."""
    lists: dict[str, list[int]] = {}
    for name in {image.split for image in images}:
        labels = sources[name].labels
        if labels is None or labels.ndim != 1:
            return None
        lists[name] = labels.tolist()
    return torch.tensor([lists[image.split][image.at] for image in images])


def sample(splits: Splits, most: int, seed: int) -> tuple[Source, Source, str]:
    """Return query images, bank images, and the split of the queries.

    The queries are searched in the bank, which has at most `most` images. No query is in the bank.
    """
    train = splits.train
    order = _order(len(train), seed + 1)
    if splits.test is not None:
        queries = subset(splits.test, _order(len(splits.test), seed)[:QUERIES])
        return queries, subset(train, order[:most]), "test"
    if len(train) < 2:
        raise ValueError(f"neighbours need at least two images, and {splits.name} has {len(train)}")
    count = max(1, min(QUERIES, len(train) // 5))
    queries, bank = (subset(train, ids) for ids in (order[:count], order[count : count + most]))
    return queries, bank, "train"


def _order(n: int, seed: int) -> Tensor:
    return torch.randperm(n, generator=torch.Generator().manual_seed(seed))


def skipped(splits: Splits) -> list[str]:
    """Return the images that could not be used, each with its name and the reason.

    They were left out when the data set was opened, or could not be read later.
    """
    reasons: dict[tuple[str, str], str] = {}
    for source in (splits.pretrain, splits.train, splits.test):
        # the folder is part of the key, because two splits may have files of the same name
        folder = folder_prefix(getattr(source, "read", None))
        reasons |= {(folder, skip.name): skip.reason for skip in getattr(source, "skipped", ())}
        reasons |= {
            (folder, name): reason for name, reason in getattr(source, "failed", {}).items()
        }
    return [f"{folder}{name} {reason}" for (folder, name), reason in reasons.items()]
