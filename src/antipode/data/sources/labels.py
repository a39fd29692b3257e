"""Labels of a torch Dataset, from its attributes or from its items. N images, K classes.

Training does not need labels.
"""

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

# the most items that are read only for their labels; reading an item also decodes its image
MAX_READS = 10_000
BROKEN = object()  # stands for the label of an item that cannot be read


def stored_labels(dataset: Dataset[Any], count: int) -> Sequence[Any] | Tensor | None:
    """Return the labels that a Dataset stores as `targets` or `labels`, unconverted, or None.

    No item is read.
    """
    if isinstance(dataset, Subset):
        whole = stored_labels(dataset.dataset, len(dataset.dataset))  # type: ignore[arg-type]
        return None if whole is None else [whole[index] for index in dataset.indices]
    if isinstance(dataset, ConcatDataset):
        parts = [
            stored_labels(part, len(part))  # type: ignore[arg-type]
            for part in dataset.datasets
        ]
        known = [part for part in parts if part is not None]
        return list(itertools.chain.from_iterable(known)) if len(known) == len(parts) else None
    for name in ("targets", "labels"):
        labels: Any = getattr(dataset, name, None)
        sized = (
            hasattr(labels, "__len__")
            and getattr(labels, "ndim", 1) > 0
            and not isinstance(labels, dict)
        )
        if sized and len(labels) == count:
            return labels if _is_numeric(labels) else list(labels)
    return None


def read_labels(dataset: Dataset[Any], count: int) -> list[Any] | None:
    """Return the labels of all items, by reading every item.

    Returns None, with a warning, if there are more than MAX_READS items.
    """
    if count > MAX_READS:
        warnings.warn(
            f"{type(dataset).__name__} has no `targets`, and {count} items are too many to read "
            f"for their labels (at most {MAX_READS}); the labels are unknown",
            stacklevel=3,
        )
        return None
    labels: list[Any] = []
    for index in track(range(count), count, "reading labels", least=500):
        try:
            item = dataset[index]
        except Exception:  # the failure is counted and listed later, when the image is needed
            item = None, BROKEN
        labels.append(item[1] if isinstance(item, (tuple, list)) and len(item) > 1 else None)
    # the next image replaces a broken one, so its label does too
    for index in reversed(range(count)):
        if labels[index] is BROKEN:
            after = labels[(index + 1) % count]
            labels[index] = None if after is BROKEN else after
    return labels


def to_numbers(given: Any, classes: list[str] | None) -> tuple[Tensor | None, list[str] | None]:
    """Return labels int64 (N,) or (N,K) and the class names.

    `given` may be integers, one-hot or multi-hot rows, or class names. A missing label becomes -1.
    Other labels cause a warning and are not used.
    """
    if given is None or (not _is_numeric(given) and all(label is None for label in given)):
        return None, classes
    if not _is_numeric(given) and all(label is None or isinstance(label, str) for label in given):
        classes = _class_order(given, classes)
        number = {name: index for index, name in enumerate(classes)}
        return torch.tensor([-1 if label is None else number[label] for label in given]), classes
    try:
        return _integers(given), classes
    except (TypeError, ValueError, RuntimeError):
        odd = next(
            (label for label in given if label is not None and not isinstance(label, int)), given[0]
        )
        warnings.warn(
            "labels must be integers from 0, rows with a 0 or 1 for each class, or class names, "
            f"but one is the {type(odd).__name__} {str(odd)[:40]!r}; the labels are not used",
            stacklevel=4,
        )
        return None, classes


def _is_numeric(given: Any) -> bool:
    """Return whether the labels are one tensor or one numeric array."""
    return isinstance(given, Tensor) or (
        isinstance(given, np.ndarray) and given.dtype.kind in "biuf"
    )


def _class_order(given: Sequence[str | None], classes: list[str] | None) -> list[str]:
    """Return `classes` if they cover all given names, else the given names in sorted order."""
    names = {label for label in given if label is not None}
    return list(classes) if classes is not None and names <= set(classes) else sorted(names)


def _integers(given: Any) -> Tensor:
    """Return numbers or rows as int64 (N,) or (N,K); one-hot rows become class indices (N,).

    Raises an error if they are neither.
    """
    try:
        # one call for all: a tensor for each of a million labels takes seconds and a gigabyte
        values = torch.as_tensor(given)
    except (TypeError, ValueError, RuntimeError):
        each = [torch.as_tensor(-1 if label is None else label) for label in given]
        values = torch.stack([label.reshape(()) if label.numel() == 1 else label for label in each])
    integers = values.to(torch.int64)
    if values.ndim > 2 or not torch.equal(integers.to(values.dtype), values):
        raise ValueError("the labels are neither integers nor rows of integers")
    if integers.ndim == 2 and integers.shape[1] == 1:
        return integers[:, 0]
    one_hot = integers.ndim == 2 and bool(
        ((integers == 0) | (integers == 1)).all() and (integers.sum(1) == 1).all()
    )
    return integers.argmax(1) if one_hot else integers


def align_labels(train: Source, test: Source) -> tuple[Source, Source]:
    """Return train and test with labels of the same meaning.

    The same class name gets the same number. If one source has rows (N,K), both get rows.
    """
    if train.labels is None or test.labels is None:
        return train, test
    if train.labels.ndim != test.labels.ndim:
        rows, indices = (
            (train.labels, test.labels) if train.labels.ndim == 2 else (test.labels, train.labels)
        )
        columns = rows.shape[1]
        largest = int(indices.max())
        if largest >= columns:
            raise ValueError(
                f"the labels of train and test do not match: one has rows of {columns} classes, "
                f"the other has the class index {largest}"
            )
        return _to_rows(train, columns), _to_rows(test, columns)
    train_names, test_names = train.classes or [], test.classes or []
    if (
        train.labels.ndim > 1
        or train_names == test_names
        or not (_names_all(train_names, train.labels) and _names_all(test_names, test.labels))
    ):
        return train, test
    names = [*train_names, *(name for name in test_names if name not in train_names)]
    number = torch.tensor([names.index(name) for name in test_names])
    labels = torch.where(test.labels < 0, test.labels, number[test.labels.clamp(min=0)])
    # mypy: every Source here is a dataclass, Memory or Decoded
    train = replace(train, classes=names)  # type: ignore[type-var]
    test = replace(test, labels=labels, classes=names)  # type: ignore[type-var]
    return train, test


def _names_all(classes: list[str], labels: Tensor) -> bool:
    """Return whether `classes` has a distinct name for every label."""
    return len({*classes}) == len(classes) > int(labels.max())


def _to_rows(source: Source, columns: int) -> Source:
    """Return a source with labels as one-hot rows (N,K) instead of class indices (N,)."""
    if source.labels is None or source.labels.ndim == 2:
        return source
    rows = (source.labels[:, None] == torch.arange(columns)).to(torch.int64)
    # mypy: every Source here is a dataclass, Memory or Decoded
    return replace(source, labels=rows)  # type: ignore[type-var]
