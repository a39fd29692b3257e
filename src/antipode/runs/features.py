"""Features on the disk: .npz, or .parquet with one row per image. N images, D features, K classes."""

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from antipode.data.sources.source import Decoded, Source
from antipode.files import atomic_write
from antipode.types import Features

SUFFIXES = (".npz", ".parquet")


def check(path: Path) -> None:
    """Refuse a file that could not be written, before the work is done."""
    if path.suffix not in SUFFIXES or path.is_dir():
        raise ValueError(f"features go into *{' or *'.join(SUFFIXES)}, not into {path.name!r}")
    if path.suffix == ".parquet":
        _arrow()


def write(path: Path, features: Features, split: Sequence[str], names: Sequence[str] | None) -> None:
    """x (N,D), y (N,) or (N,K), the split of each image, and its name where the data set has names."""
    check(path)
    columns: dict[str, Any] = {"x": features.x.numpy(), "y": features.y.numpy(), "split": np.array(split)}
    if names is not None:
        columns["names"] = np.array(names)
    with atomic_write(path) as file:
        if path.suffix == ".npz":
            np.savez(file, **columns)
        else:
            arrow, parquet = _arrow()
            table = arrow.table({name: _column(arrow, column) for name, column in columns.items()})
            parquet.write_table(table, file)


def names_of(source: Source) -> list[str] | None:
    """The name of each image in order, where the source has names; a broken one's is that of what took its place."""
    if not isinstance(source, Decoded):
        return None
    own, broken = list(source.names), source.failed
    count, names = len(own), list(own)
    for at in [at for at, name in enumerate(own) if name in broken]:
        names[at] = next(own[(at + step) % count] for step in range(count) if own[(at + step) % count] not in broken)
    return [name.encode("utf-8", "backslashreplace").decode() for name in names]


def _column(arrow: Any, values: "np.ndarray[Any, Any]") -> Any:
    """A matrix is a column of lists of one length."""
    if values.ndim == 1:
        return arrow.array(values)
    return arrow.FixedSizeListArray.from_arrays(arrow.array(values.reshape(-1)), values.shape[1])


def _arrow() -> tuple[Any, Any]:
    try:
        return import_module("pyarrow"), import_module("pyarrow.parquet")
    except ImportError:
        raise ValueError("a .parquet file needs pyarrow (pip install 'antipode[data]'); .npz needs nothing") from None
