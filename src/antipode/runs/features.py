"""Features of a data set as a file: .npz, or .parquet with one row per image (feature_table.py).

Shapes: N images, D features, K classes.
"""

from collections.abc import Callable, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from antipode.data.sources.catalog import Given
from antipode.data.sources.source import Decoded, Source, leaving_out, left_out
from antipode.data.sources.splits import Splits
from antipode.data.views.views import Views
from antipode.devices import pick_device
from antipode.evaluation import storage
from antipode.evaluation.features import extract
from antipode.files import atomic_write
from antipode.runs.feature_table import import_arrow, read_table, write_table
from antipode.runs.run import Run
from antipode.types import Embedded, Features

SUFFIXES = (".npz", ".parquet")
PIECE = 1 << 14  # rows that are copied at a time


def embed(run: Run, data: Given, out: Path | None = None) -> Features:
    """Return the features of a data set, and write them to `out` if it is given.

    Images that cannot be read are left out.
    """
    if out is not None:
        check(out)
    splits = run.splits(data)
    net, eval_view = prepared(run, splits)
    return collected(splits, data, lambda _, source: extract(net, eval_view, source), out)


def prepared(run: Run, splits: Splits) -> tuple[nn.Module, Views]:
    """Return the network of a run and its evaluation view, on the device."""
    device = pick_device("auto")
    return run.frozen_backbone.to(device), run.eval_view(splits).to(device)


def parts_of(splits: Splits) -> dict[str, Source]:
    """Return the images to embed, by the name of their split."""
    sources = {"train": splits.train, "test": splits.test}
    return {part: leaving_out(source) for part, source in sources.items() if source is not None}


def collected(
    splits: Splits, data: Given, compute: Callable[[str, Source], Features], out: Path | None
) -> Features:
    """Return the features of all splits, and write them to `out` if it is given.

    `data` is what the splits were opened from. `compute` returns the features of a split, given its
    name and images.
    """
    present = parts_of(splits)
    parts = {part: _readable(compute(part, source), source) for part, source in present.items()}
    features = Embedded(*_joined(list(parts.values())))
    features.left_out = sum(map(left_out, present.values()))
    if out is not None:
        split = [part for part, rows in parts.items() for _ in rows.x]
        if out.suffix == ".npz":
            write_arrays(out, features, split, all_names(list(present.values())))
        else:
            listed = [paths_of(data, part, source) for part, source in present.items()]
            with atomic_write(out) as file:
                write_table(
                    file, features, split, list(chain.from_iterable(listed)), splits.classes
                )
    return features


def read(path: Path) -> Features:
    """Return the features and labels of a file that `embed` has written.

    This includes .parquet files of earlier versions, whose columns had other names.
    """
    if path.suffix == ".parquet":
        with path.open("rb") as file:
            return read_table(file)
    with np.load(path) as content:
        return Features(torch.from_numpy(content["x"]), torch.from_numpy(content["y"]))


def _readable(features: Features, source: Source) -> Features:
    """Return the features of the images that could be read. The others have those of the next."""
    rows = readable(source)
    if len(rows) == len(features.x):
        return features
    x = storage.empty((len(rows), features.x.shape[1]), features.x.dtype)
    for first in range(0, len(rows), PIECE):  # in pieces, since the features may be a memory map
        x[first : first + PIECE] = features.x[rows[first : first + PIECE]]
    return Features(x, features.y[rows])


def readable(source: Source) -> list[int]:
    """Return the rows of the images that could be read, once the features are computed."""
    if not isinstance(source, Decoded) or not source.failed:
        return [*range(len(source))]
    return [row for row, name in enumerate(source.names) if name not in source.failed]


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
        import_arrow()


def write_arrays(
    path: Path, features: Features, split: Sequence[str], names: Sequence[str] | None
) -> None:
    """Write features to an .npz file.

    The arrays are x (N,D), y (N,) or (N,K), the split of each image, and the name of each image if
    the data set has names.
    """
    arrays: dict[str, Any] = {
        "x": features.x.numpy(),
        "y": features.y.numpy(),
        "split": np.array(split),
    }
    if names is not None:
        arrays["names"] = np.array(names)
    with atomic_write(path) as file:
        np.savez(file, **arrays)


def all_names(sources: Sequence[Source]) -> list[str] | None:
    """Return the names of the images of several sources, or None if one has no names."""
    by_source = [names_of(source) for source in sources]
    return None if None in by_source else [name for names in by_source for name in names or ()]


def paths_of(data: Given, split: str, source: Source) -> list[str]:
    """Return the path of each image that could be read.

    It is that of its file, or the name of an image inside a larger file, or DATA/SPLIT/INDEX.
    """
    names = names_of(source)
    if names is None or not isinstance(source, Decoded):
        prefix = data if isinstance(data, str) else type(data).__name__
        return [f"{prefix}/{split}/{index}" for index in range(len(source))]
    root = folder_of(source.read)
    return names if root is None else [str(Path(root, name)) for name in names]


def folder_of(read: Any) -> Path | None:
    """Return the folder of a reader's files, or None if it does not read files of one folder."""
    root = getattr(read, "root", None)
    inner = getattr(read, "read", None)
    return Path(root).absolute() if root else None if inner is None else folder_of(inner)


def names_of(source: Source) -> list[str] | None:
    """Return the name of each image that could be read, or None if the source has no names."""
    if not isinstance(source, Decoded):
        return None
    names = list(source.names)
    chosen = (names[row] for row in readable(source))
    return [name.encode("utf-8", "backslashreplace").decode() for name in chosen]
