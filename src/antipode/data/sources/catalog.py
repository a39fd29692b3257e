"""Data sets by name."""

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path, PurePath
from typing import Any, TypeAlias
from urllib.error import URLError

import torch
from torch import Tensor
from torch.utils.data import Dataset

from antipode.data.sources import annotated, large, small
from antipode.data.sources.folder import folder
from antipode.data.sources.hub import (
    Rows,
    Table,
    hub,
    is_table,
    is_table_dict,
    rows,
    train_and_test,
)
from antipode.data.sources.label_folders import Labels, check_labels
from antipode.data.sources.labels import align_labels
from antipode.data.sources.packed import packed
from antipode.data.sources.shards import webdataset
from antipode.data.sources.source import Source
from antipode.data.sources.splits import Splits, mean_and_std
from antipode.data.sources.wrap import wrap
from antipode.names import closest, printable
from antipode.wording import from_command_line, option

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
    "folder": "folder:PATH, your own images, in class folders or in a folder tree of any depth",
    "webdataset": (
        "webdataset:PATTERN, tar shards by path or URL, such as data/train-{000..099}.tar"
    ),
    "hf": "hf:NAME, a data set from the Hugging Face Hub (needs the extra `data`)",
    "packed": "packed:DIR, a folder that `antipode pack` has written",
}


# A name, a folder of images, your own Dataset, or your own pair (train, test) of Datasets. A
# Dataset is of torch or Hugging Face, and a DatasetDict of Hugging Face is a pair.
Own: TypeAlias = Dataset[Any] | Table
Given: TypeAlias = str | PurePath | Own | tuple[Own, Own] | Mapping[str, Table]


def from_path(data: Any) -> Any:
    """Return a path as `folder:PATH`, and any other data set as it is."""
    return f"folder:{data}" if isinstance(data, PurePath) else data


def load(
    name: Given | Splits,
    root: str | Path | None = None,
    download: bool = False,
    seed: int = 0,
    ask: bool = True,
    labels: Labels = "folders",
) -> Splits:
    """Load the splits of a data set, given by name, as a folder of images or as Datasets.

    Raises ValueError for an unknown name or unusable data, and FileNotFoundError for missing files.

    Args:
        name: a name from `summaries`, the path of a folder, a Dataset of torch or Hugging Face, a
            pair (train, test) of Datasets, or Splits, which are returned unchanged.
        root: the folder with data sets; by default the environment variable ANTIPODE_DATA.
        download: whether missing files may be downloaded.
        seed: the seed of generated images (`shapes`).
        ask: whether items of a Dataset may be read only to get their labels.
        labels: whether the subfolders of `folder:` are classes: "folders", "none" or "auto".
    """
    name = from_path(name)
    if isinstance(name, Splits):
        return name
    if not isinstance(name, str):
        return _from_datasets(*datasets(name), ask=ask)
    try:
        return _from_name(name, Path(root) if root else None, download, seed, labels)
    except (URLError, ConnectionError, TimeoutError) as error:
        cause = getattr(error, "reason", None) or error
        where = root or "the folder that ANTIPODE_DATA is set to"
        text = f"{name} could not be downloaded ({cause}); try again, or copy its files to {where}"
        raise FileNotFoundError(printable(text)) from error


def _passed_again() -> str:
    """Return how to give data in the place of a Dataset that only the Python program had."""
    if from_command_line():
        return f"name its images, for example with {option('data', 'folder:PATH')}"
    return "pass data= again, as a Dataset or a pair (train, test) of Datasets"


def _from_name(name: str, root: Path | None, download: bool, seed: int, labels: Labels) -> Splits:
    prefix, colon, rest = name.partition(":")
    if prefix == "folder" and rest:
        return folder(rest, check_labels(labels))
    if colon and prefix in PREFIXES and rest:
        return PREFIXES[prefix](rest, root, download)
    if prefix == "python":
        raise ValueError(
            f"{name} stands for a {rest} that was passed from Python; {_passed_again()}"
        )
    if name not in SETS:
        raise ValueError(unknown(name))
    return SETS[name](root, download, seed)


def unknown(name: str) -> str:
    """Return the error message for an unknown data set name."""
    # os.path, because pathlib raises an error for some odd names
    if name and os.path.isdir(os.path.expanduser(name)):  # noqa: PTH111, PTH112
        return printable(
            f"there is no data set {name}, but {name} is a folder: write folder:{name}"
        )
    known = [*SETS, *(f"{prefix}:..." for prefix in PREFIXES)]
    close = closest(name.lower(), known)
    hint = f"; did you mean {close}?" if close else ""
    return printable(f"there is no data set {name}{hint} (known data sets: {', '.join(known)})")


def summaries() -> dict[str, str]:
    """Return {name: one-line description} of every data set and prefix that `load` accepts."""
    lines = {name: (make.__doc__ or "").split("\n")[0] for name, make in SETS.items()}
    return lines | {f"{prefix}:": text for prefix, text in HELP.items()}


def python_name(given: Any) -> str:
    """Return the name that recipes and scores give to your own Datasets."""
    return f"python:{_title(datasets(given)[0])}"


def _title(dataset: Dataset[Any]) -> str:
    """Return the name of a Dataset's class. That of a table is Hugging Face's."""
    return type(dataset.table if isinstance(dataset, Rows) else dataset).__name__


def datasets(given: Any) -> list[Dataset[Any]]:
    """Return a Dataset, or a pair (train, test) of Datasets, as a list of one or two.

    Datasets of Hugging Face are wrapped as torch Datasets. Raises ValueError for anything else.
    """
    items = list(given) if isinstance(given, tuple | list) else [given]
    if is_table_dict(given):
        items = train_and_test(given, "the DatasetDict")
    items = [rows(item, "the Dataset") if is_table(item) else item for item in items]
    if len(items) not in (1, 2) or not all(isinstance(item, Dataset) for item in items):
        types = " and ".join(dict.fromkeys(type(item).__name__ for item in items)) or "nothing"
        count = f"{len(items)} objects of type " if len(items) > 2 else ""
        raise ValueError(
            "data must be a name, the path of a folder, a Dataset of torch or Hugging Face, or a "
            f"pair (train, test) of Datasets, not {count}{types}; subclass "
            "torch.utils.data.Dataset with __len__ and a __getitem__ that returns an image or "
            "(image, label)"
        )
    return items


def _from_datasets(
    train: Dataset[Any], test: Dataset[Any] | None = None, *, ask: bool = True
) -> Splits:
    """Return the splits of your own Datasets; without `test`, the evaluation makes the split."""
    source: Source = wrap(train, ask=ask)
    test_source: Source | None = None if test is None else wrap(test, ask=ask)
    if test_source is not None and test_source.channels != source.channels:
        raise ValueError(
            f"train images have {source.channels} channels, "
            f"but test images have {test_source.channels}"
        )
    size = source.size  # type: ignore[attr-defined]  # Memory and Decoded both have a size
    sources = (source,) if test_source is None else align_labels(source, test_source)
    first, *more = _without_gaps(*sources)
    statistics = mean_and_std(first)
    return Splits(_title(train), first, first, next(iter(more), None), size, *statistics)


def _without_gaps(*sources: Source) -> list[Source]:
    """Renumber the classes as 0, 1, ... if the labels skip numbers.

    The labels stay as they are if `classes` names every class up to the largest label.
    """
    known = [source.labels for source in sources if source.labels is not None]
    if not known or any(labels.ndim != 1 for labels in known):
        return [*sources]
    used = torch.unique(torch.cat(known))
    used = used[used >= 0]  # -1: not labelled
    named = (len(source.classes or ()) for source in sources)
    if not len(used) or int(used[-1]) < max(len(used), *named):
        return [*sources]
    names = [str(int(label)) for label in used]
    return [_renumber(source, used, names) for source in sources]


def _renumber(source: Source, used: Tensor, names: list[str]) -> Source:
    if source.labels is None:
        return source
    position = torch.searchsorted(used, source.labels.clamp(min=0))
    labels = torch.where(source.labels < 0, source.labels, position)
    # mypy: every Source here is a dataclass, Memory or Decoded
    return replace(source, labels=labels, classes=names)  # type: ignore[type-var]
