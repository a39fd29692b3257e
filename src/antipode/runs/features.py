"""Features of a data set as a file: .npz, or .parquet with one row per image.

Shapes: N images, D features, K classes.
"""

from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from torch import nn

from antipode.data.sources.catalog import Given
from antipode.data.sources.source import Decoded, Source
from antipode.data.sources.splits import Splits
from antipode.data.views.views import Views
from antipode.devices import pick_device
from antipode.evaluation import storage
from antipode.evaluation.features import extract
from antipode.files import atomic_write
from antipode.runs.run import Run
from antipode.types import Features

SUFFIXES = (".npz", ".parquet")
GROUP = 1 << 16  # rows of a .parquet file that are in memory together


def embed(run: Run, data: Given, out: Path | None = None) -> Features:
    """Return the features of a data set, and write them to `out` if it is given."""
    if out is not None:
        check(out)
    splits = run.splits(data)
    net, eval_view = prepared(run, splits)
    return collected(splits, lambda _, source: extract(net, eval_view, source), out)


def prepared(run: Run, splits: Splits) -> tuple[nn.Module, Views]:
    """Return the network of a run and its evaluation view, on the device."""
    device = pick_device("auto")
    return run.frozen_backbone.to(device), run.eval_view(splits).to(device)


def parts_of(splits: Splits) -> dict[str, Source]:
    """Return the images to embed, by the name of their split."""
    sources = {"train": splits.train, "test": splits.test}
    return {part: source for part, source in sources.items() if source is not None}


def collected(
    splits: Splits, compute: Callable[[str, Source], Features], out: Path | None
) -> Features:
    """Return the features of all splits, and write them to `out` if it is given.

    `compute` returns the features of a split, given its name and images.
    """
    present = parts_of(splits)
    parts = {part: compute(part, source) for part, source in present.items()}
    features = _joined(list(parts.values()))
    if out is not None:
        by_part = [names_of(source) for source in present.values()]
        names = None if None in by_part else [name for part in by_part for name in part or ()]
        write(out, features, [part for part, rows in parts.items() for _ in rows.x], names)
    return features


def _joined(parts: list[Features]) -> Features:
    """Return the features of several splits, one after the other.

    They are a memory map if they do not fit into memory.
    """
    if len(parts) == 1:
        return parts[0]
    x = storage.empty((sum(len(part.x) for part in parts), parts[0].x.shape[1]), parts[0].x.dtype)
    start = 0
    for part in parts:
        x[start : start + len(part.x)] = part.x
        start += len(part.x)
    return Features(x, torch.cat([part.y for part in parts]))


def check(path: Path) -> None:
    """Raise ValueError if features cannot be written to a file of this name.

    It is called before the features are computed.
    """
    if path.suffix not in SUFFIXES or path.is_dir():
        raise ValueError(
            f"features are written to *{' or *'.join(SUFFIXES)} files, not to {path.name!r}"
        )
    if path.suffix == ".parquet":
        _arrow()


def write(
    path: Path, features: Features, split: Sequence[str], names: Sequence[str] | None
) -> None:
    """Write features to a file.

    The columns are x (N,D), y (N,) or (N,K), the split of each image, and the name of each image if
    the data set has names.
    """
    check(path)
    columns: dict[str, Any] = {
        "x": features.x.numpy(),
        "y": features.y.numpy(),
        "split": np.array(split),
    }
    if names is not None:
        columns["names"] = np.array(names)
    with atomic_write(path) as file:
        if path.suffix == ".npz":
            np.savez(file, **columns)
        else:
            _write_parquet(file, columns)


def _write_parquet(file: BinaryIO, columns: dict[str, "np.ndarray[Any, Any]"]) -> None:
    """Write columns as a table, in groups of rows that fit into memory."""
    arrow, parquet = _arrow()

    def table(first: int) -> Any:
        return arrow.table(
            {name: _column(arrow, rows[first : first + GROUP]) for name, rows in columns.items()}
        )

    start = table(0)
    with parquet.ParquetWriter(file, start.schema) as writer:
        writer.write_table(start)
        for first in range(GROUP, len(columns["x"]), GROUP):
            writer.write_table(table(first))


def names_of(source: Source) -> list[str] | None:
    """Return the name of each image in order, or None if the source has no names.

    An image that could not be read has the name of the next readable image, which replaces it.
    """
    if not isinstance(source, Decoded):
        return None
    listed = list(source.names)
    broken = source.failed
    count = len(listed)
    names = list(listed)
    for at in [at for at, name in enumerate(listed) if name in broken]:
        following = (listed[(at + step) % count] for step in range(count))
        names[at] = next(name for name in following if name not in broken)
    return [name.encode("utf-8", "backslashreplace").decode() for name in names]


def _column(arrow: Any, values: "np.ndarray[Any, Any]") -> Any:
    """Return an array as a column of a table. A matrix becomes a column of equally long lists."""
    if values.ndim == 1:
        return arrow.array(values)
    return arrow.FixedSizeListArray.from_arrays(arrow.array(values.reshape(-1)), values.shape[1])


def _arrow() -> tuple[Any, Any]:
    """Return the modules pyarrow and pyarrow.parquet, which are optional."""
    try:
        return import_module("pyarrow"), import_module("pyarrow.parquet")
    except ImportError:
        raise ValueError(
            "a .parquet file needs pyarrow (pip install 'antipode[data]'); an .npz file needs "
            "nothing else"
        ) from None
