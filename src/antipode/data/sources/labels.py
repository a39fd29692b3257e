"""Labels of a Dataset: as it tells them, or as its items have them. Training needs none. N images, K classes."""

import itertools
import warnings
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import ConcatDataset, Dataset, Subset

from antipode.data.progress import track
from antipode.data.sources.source import Source

ASKED = 10_000  # items that are read for their labels alone, at most: their images are decoded on the way
BROKEN = object()  # in the place of the label of an item that cannot be read


def stored_labels(dataset: Dataset[Any], count: int) -> Sequence[Any] | Tensor | None:
    """The labels that a Dataset tells without being read, as it has them."""
    if isinstance(dataset, Subset):
        whole = stored_labels(dataset.dataset, len(dataset.dataset))  # type: ignore[arg-type]
        return None if whole is None else [whole[index] for index in dataset.indices]
    if isinstance(dataset, ConcatDataset):
        parts = [stored_labels(part, len(part)) for part in dataset.datasets]  # type: ignore[arg-type]
        known = [part for part in parts if part is not None]
        return list(itertools.chain.from_iterable(known)) if len(known) == len(parts) else None
    for name in ("targets", "labels"):
        found: Any = getattr(dataset, name, None)
        sized = (
            hasattr(found, "__len__")
            and getattr(found, "ndim", 1) > 0
            and not isinstance(found, dict)
        )
        if sized and len(found) == count:
            return found if _at_once(found) else list(found)
    return None


def read_labels(dataset: Dataset[Any], count: int) -> list[Any] | None:
    """The labels of all items, each of which is read for it; None, with a warning, where that would take long."""
    if count > ASKED:
        text = f"{type(dataset).__name__} has no `targets`, and {count} items are too many to read for their labels"
        warnings.warn(f"{text}: they are not known", stacklevel=3)
        return None
    found: list[Any] = []
    for index in track(range(count), count, "reading labels", least=500):
        try:
            item = dataset[index]
        except Exception:  # counted and listed when its image is wanted
            item = None, BROKEN
        found.append(item[1] if isinstance(item, (tuple, list)) and len(item) > 1 else None)
    for index in reversed(range(count)):  # as the next image takes the place of a broken one
        if found[index] is BROKEN:
            after = found[(index + 1) % count]
            found[index] = None if after is BROKEN else after
    return found


def numbers(given: Any, classes: list[str] | None) -> tuple[Tensor | None, list[str] | None]:
    """Labels int64 (N,) or (N,K), -1 where there is none, and class names, from numbers, one-hot rows or names.

    What is neither is told in a warning, and not used.
    """
    if given is None or (not _at_once(given) and all(label is None for label in given)):
        return None, classes
    if not _at_once(given) and all(label is None or isinstance(label, str) for label in given):
        classes = _order(given, classes)
        place = {name: number for number, name in enumerate(classes)}
        return torch.tensor([-1 if label is None else place[label] for label in given]), classes
    try:
        return _whole(given), classes
    except (TypeError, ValueError, RuntimeError):
        odd = next(
            (label for label in given if label is not None and not isinstance(label, int)), given[0]
        )
        kind = f"the {type(odd).__name__} {str(odd)[:40]!r}"
        text = f"labels are whole numbers from 0 on, one-hot rows or names, one for each class; {kind} is none"
        warnings.warn(f"{text}, and the labels are not used", stacklevel=4)
        return None, classes


def _at_once(given: Any) -> bool:
    """Whether labels are numbers in one piece."""
    return isinstance(given, Tensor) or (
        isinstance(given, np.ndarray) and given.dtype.kind in "biuf"
    )


def _order(given: Sequence[str | None], classes: list[str] | None) -> list[str]:
    there = {label for label in given if label is not None}
    return list(classes) if classes is not None and there <= set(classes) else sorted(there)


def _whole(given: Any) -> Tensor:
    """Numbers or rows as int64 (N,) or (N,K); rows with a single 1 are numbers. An error where they are neither."""
    try:
        rows = torch.as_tensor(
            given
        )  # at once: a million tensors of one number take seconds and a gigabyte
    except (TypeError, ValueError, RuntimeError):
        each = [torch.as_tensor(-1 if label is None else label) for label in given]
        rows = torch.stack([label.reshape(()) if label.numel() == 1 else label for label in each])
    found = rows.to(torch.int64)
    if rows.ndim > 2 or not torch.equal(found.to(rows.dtype), rows):
        raise ValueError("neither")
    if found.ndim == 2 and found.shape[1] == 1:
        return found[:, 0]
    one_hot = found.ndim == 2 and bool(
        ((found == 0) | (found == 1)).all() and (found.sum(1) == 1).all()
    )
    return found.argmax(1) if one_hot else found


def together(train: Source, test: Source) -> tuple[Source, Source]:
    """Two sources with one meaning of their labels: the same number for the same name, rows beside rows."""
    ours, theirs = train.labels, test.labels
    if ours is None or theirs is None:
        return train, test
    if ours.ndim != theirs.ndim:
        columns, most = (
            (ours if ours.ndim == 2 else theirs).shape[1],
            int((theirs if ours.ndim == 2 else ours).max()),
        )
        if most >= columns:
            text = f"the labels of train and test do not go together: rows of {columns} classes and a number {most}"
            raise ValueError(text)
        return _rows(train, columns), _rows(test, columns)
    mine, other = train.classes or [], test.classes or []
    clear = len({*mine}) == len(mine) > int(ours.max()) and len({*other}) == len(other) > int(
        theirs.max()
    )
    if ours.ndim > 1 or mine == other or not clear:
        return train, test
    names = [*mine, *(name for name in other if name not in mine)]
    place = torch.tensor([names.index(name) for name in other])
    moved = torch.where(theirs < 0, theirs, place[theirs.clamp(min=0)])
    return replace(train, classes=names), replace(test, labels=moved, classes=names)  # type: ignore[type-var]


def _rows(source: Source, columns: int) -> Source:
    """Numbers (N,) as rows (N,K) with a single 1."""
    if source.labels is None or source.labels.ndim == 2:
        return source
    rows = (source.labels[:, None] == torch.arange(columns)).to(torch.int64)
    return replace(source, labels=rows)  # type: ignore[type-var]  # both kinds are dataclasses
