"""All pictures of a run, each there or absent for a reason that the page can print."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from antipode.data.progress import bar
from antipode.data.sources.catalog import load
from antipode.data.sources.source import Source, place, subset
from antipode.data.sources.splits import Splits
from antipode.data.views.views import Views
from antipode.data.views.views import views as make_views
from antipode.evaluation.features import extract, key
from antipode.evaluation.task import Task
from antipode.recipe.resolve import Recipe
from antipode.reporting.geometry import embedding_map, similarity, spectrum
from antipode.reporting.images import neighbours, view_sheet

PARTS = ("views", "neighbours", "map", "similarity", "spectrum")
QUERIES = 1000  # images of the map and of the search for neighbours
BANK = {True: 5000, False: 2000}  # images that are searched: small ones, large ones
SMALL = 64  # pixels
TROUBLE = (
    ValueError,
    OSError,
    ImportError,
    RuntimeError,
)  # a picture that fails is no reason to have no page


@dataclass
class Album:
    """Pictures by name, the reason for each that is absent, how many images there are, and which were left out."""

    found: dict[str, Any] = field(default_factory=dict)
    absent: dict[str, str] = field(default_factory=dict)
    images: int | None = None
    skipped: list[str] = field(default_factory=list)

    def put(self, part: str, make: Callable[[], Any]) -> None:
        """A picture, or the sentence that says why there is none."""
        try:
            self.found[part] = make()
        except TROUBLE as error:
            self.absent[part] = str(error) or type(error).__name__


def nothing(why: str) -> Album:
    """No pictures at all."""
    return Album(absent=dict.fromkeys(PARTS, why))


def pictures(path: Path, name: str, open_task: Callable[[Path], Task]) -> Album:
    """Views need only the run's images, the other pictures its backbone too; all draws are the run's own seed's."""
    task, why = _try(lambda: open_task(path), lambda text: text.replace(str(path), name))
    try:
        recipe = Recipe.read(path / "recipe.json")
        splits = task.splits if task is not None else _images(recipe)
        make = make_views(
            recipe.views.policy,
            size=recipe.views.size,
            mean=splits.mean,
            std=splits.std,
            **recipe.views.arguments,
        )
    except TROUBLE as error:
        return nothing(str(error))
    album, seed = Album(images=len(splits.pretrain)), recipe.train.seed
    todo: dict[str, Callable[[], Any]] = {
        "views": lambda: view_sheet(splits.pretrain, make, seed, recipe.train.epochs)
    }
    if task is not None:
        try:
            todo |= _of_backbone(task, make, seed)
        except TROUBLE as error:
            why = str(error)
    album.absent = {part: why for part in PARTS if part not in todo}
    with bar(len(todo), f"pictures of {name}", least=1) as done:
        for part, draw in todo.items():
            album.put(part, draw)
            done(1)
    album.skipped = skipped(splits)
    return album


def _try(make: Callable[[], Task], worded: Callable[[str], str]) -> tuple[Task | None, str]:
    try:
        return make(), ""
    except TROUBLE as error:
        return None, worded(
            str(error)
        )  # a page is shown around: it names the run, not where it lay


def _images(recipe: Recipe) -> Splits:
    if recipe.data.name.startswith("python:"):
        raise ValueError(
            f"the images were a {recipe.data.name[7:]} handed over in Python, which no name opens again"
        )
    return load(recipe.data.name, recipe.data.root)


def _of_backbone(task: Task, make: Views, seed: int) -> dict[str, Callable[[], Any]]:
    """What it takes to draw the pictures that need features; these are made first, with bars of their own."""
    shown, bank, mapped, part = drawn(task.splits, BANK[task.size <= SMALL], seed)
    kept = (
        task.cache is not None
        and (task.cache / f"{key(task.backbone, task.eval_view, task.splits.train)}.npz").exists()
    )
    if kept and part == "test":  # an evaluation has left the features of all train images
        bank = task.splits.train
    queries = extract(task.backbone, task.eval_view, shown).x
    held = extract(task.backbone, task.eval_view, bank, cache=task.cache if kept else None).x
    classes, x = task.splits.classes, torch.cat([queries, held])[: len(mapped)]
    return {
        "neighbours": lambda: neighbours(queries, shown, held, bank, classes) | {"part": part},
        "map": lambda: embedding_map(x, mapped, seed, classes) | {"part": part},
        "similarity": lambda: similarity(task, make, seed),
        "spectrum": lambda: spectrum(x) | {"part": part},
    }


def drawn(splits: Splits, most: int, seed: int) -> tuple[Source, Source, Source, str]:
    """Query images, the bank they are searched in, those of the map, and the split of queries and map.

    No query is in the bank. The map has the queries, and where these are few of the bank's images after them.
    """
    train, test = splits.train, splits.test
    order = _order(len(train), seed + 1)
    if test is not None:
        queries = subset(test, _order(len(test), seed)[:QUERIES])
        return queries, subset(train, order[:most]), queries, "test"
    if len(train) < 2:
        raise ValueError(f"neighbours need two images at least, and {splits.name} has {len(train)}")
    asked = max(1, min(QUERIES, len(train) // 5))
    cuts = order[:asked], order[asked : asked + most], order[: min(QUERIES, asked + most)]
    queries, bank, mapped = (subset(train, ids) for ids in cuts)
    return queries, bank, mapped, "train"


def _order(n: int, seed: int) -> Tensor:
    return torch.randperm(n, generator=torch.Generator().manual_seed(seed))


def skipped(splits: Splits) -> list[str]:
    """Images that were left out when the data were opened, or could not be read since, by name and reason."""
    found: dict[tuple[str, str], str] = {}
    for source in (splits.pretrain, splits.train, splits.test):
        where = place(getattr(source, "read", None))  # two splits may have a file of one name
        found |= {(where, skip.name): skip.reason for skip in getattr(source, "skipped", ())}
        found |= {(where, name): reason for name, reason in getattr(source, "failed", {}).items()}
    return [f"{where}{name} {reason}" for (where, name), reason in found.items()]
