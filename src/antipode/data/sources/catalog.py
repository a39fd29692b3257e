"""Data sets by name."""

import difflib
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias
from urllib.error import URLError

import torch
from torch import Tensor
from torch.utils.data import Dataset

from antipode.data.sources import annotated, large, small
from antipode.data.sources.folder import folder
from antipode.data.sources.hub import hub
from antipode.data.sources.labels import together
from antipode.data.sources.packed import packed
from antipode.data.sources.shards import webdataset
from antipode.data.sources.source import Source
from antipode.data.sources.splits import Splits, normal
from antipode.data.sources.wrap import wrap

Make = Callable[[Path | None, bool, int], Splits]

SETS: dict[str, Make] = {
    "shapes": small.shapes,
    "digits": small.digits,
    "cifar10": small.cifar10,
    "cifar100": small.cifar100,
    "stl10": small.stl10,
    "fashionmnist": small.fashionmnist,
    "imagenet": large.imagenet,
    "imagenet100": large.imagenet100,
    "tinyimagenet": large.tinyimagenet,
    "places205": large.places205,
    "inat18": large.inat18,
    "voc07": annotated.voc07,
    "voc07+12": annotated.voc0712,
    "coco": annotated.coco,
}

PREFIXES: dict[str, Callable[[str, Path | None, bool], Splits]] = {
    "folder": lambda rest, root, download: folder(rest),
    "webdataset": webdataset,
    "hf": lambda rest, root, download: hub(rest),
    "packed": lambda rest, root, download: packed(rest),
}

HELP = {
    "folder": "folder:PATH, images of one's own in class folders or a flat tree, any depth",
    "webdataset": "webdataset:PATTERN, tar shards by path or address, such as data/train-{000..099}.tar",
    "hf": "hf:NAME, a data set of the Hugging Face hub (extra `data`)",
    "packed": "packed:DIR, what `antipode pack` has written",
}


Given: TypeAlias = (
    str | Dataset[Any] | tuple[Dataset[Any], Dataset[Any]]
)  # by name, one's own, one's own (train, test)


def load(
    name: Given | Splits,
    root: str | Path | None = None,
    download: bool = False,
    seed: int = 0,
    ask: bool = True,
) -> Splits:
    """The splits of a data set by name or of torch Datasets; ValueError or FileNotFoundError says what is wrong.

    `ask`: items of a Dataset may be read for their labels alone.
    """
    if isinstance(name, Splits):
        return name
    if not isinstance(name, str):
        return _own(*datasets(name), ask=ask)
    try:
        return _named(name, Path(root) if root else None, download, seed)
    except (URLError, ConnectionError, TimeoutError) as error:
        cause = getattr(error, "reason", None) or error
        where = f"put its files into {root or 'the folder that ANTIPODE_DATA names'} by hand"
        raise FileNotFoundError(
            f"{name} cannot be downloaded ({cause}): try again, or {where}"
        ) from error


def _named(name: str, where: Path | None, download: bool, seed: int) -> Splits:
    prefix, colon, rest = name.partition(":")
    if colon and prefix in PREFIXES and rest:
        return PREFIXES[prefix](rest, where, download)
    if prefix == "python":
        raise ValueError(
            f"these images came from Python, as a {rest}: give data= again, a Dataset or (train, test)"
        )
    if name not in SETS:
        raise ValueError(unknown(name))
    return SETS[name](where, download, seed)


def unknown(name: str) -> str:
    """The sentence for a name that is none."""
    if name and os.path.isdir(os.path.expanduser(name)):  # noqa: PTH111, PTH112  (pathlib raises on odd names)
        return f"there is no data set {name}, but a folder: write folder:{name}"
    known = [*SETS, *(f"{prefix}:..." for prefix in PREFIXES)]
    close = difflib.get_close_matches(name.lower(), known, 1, 0.4)
    hint = f"did you mean {close[0]}? " if close else ""
    return f"there is no data set {name}; {hint}known are {', '.join(known)}"


def summaries() -> dict[str, str]:
    """One line for each name that `load` takes."""
    lines = {name: (make.__doc__ or "").split("\n")[0] for name, make in SETS.items()}
    return lines | {f"{prefix}:": text for prefix, text in HELP.items()}


def datasets(given: Any) -> list[Dataset[Any]]:
    """A Dataset, or train and test, as a list; a sentence for anything else."""
    found = list(given) if isinstance(given, tuple | list) else [given]
    if len(found) not in (1, 2) or not all(isinstance(one, Dataset) for one in found):
        kinds = " and ".join(dict.fromkeys(type(one).__name__ for one in found)) or "nothing"
        many = f"{len(found)} of " if len(found) > 2 else ""
        own = "a class with __len__ and __getitem__, which gives an image or (image, label), is one"
        raise ValueError(
            f"data is a name, a torch Dataset or a pair (train, test) of them, not {many}{kinds}: {own}"
        )
    return found


def _own(train: Dataset[Any], test: Dataset[Any] | None = None, *, ask: bool = True) -> Splits:
    """Labelled Datasets of one's own; without `test` the split is left to whoever scores."""
    source: Source = wrap(train, ask=ask)
    held: Source | None = None if test is None else wrap(test, ask=ask)
    if held is not None and held.channels != source.channels:
        raise ValueError(
            f"train images have {source.channels} channels and test images {held.channels}"
        )
    size = source.size  # type: ignore[attr-defined]  # both kinds have one
    first, *more = _without_gaps(*((source,) if held is None else together(source, held)))
    return Splits(type(train).__name__, first, first, next(iter(more), None), size, *normal(first))


def _without_gaps(*sources: Source) -> list[Source]:
    """The sources with classes 0, 1, ... where labels leave numbers out and nobody has named the classes in between."""
    known = [source.labels for source in sources if source.labels is not None]
    if not known or any(labels.ndim != 1 for labels in known):
        return [*sources]
    there = torch.unique(torch.cat(known))
    there = there[there >= 0]  # -1: not labelled
    if not len(there) or int(there[-1]) < max(
        len(there), *(len(source.classes or ()) for source in sources)
    ):
        return [*sources]
    names = [str(int(label)) for label in there]
    return [_renumbered(source, there, names) for source in sources]


def _renumbered(source: Source, there: Tensor, names: list[str]) -> Source:
    if source.labels is None:
        return source
    place = torch.searchsorted(there, source.labels.clamp(min=0))
    labels = torch.where(source.labels < 0, source.labels, place)
    return replace(source, labels=labels, classes=names)  # type: ignore[type-var]  # both kinds are dataclasses
