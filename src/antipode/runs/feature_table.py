"""Features as a table in a .parquet file, with one row per image, for other software.

Columns: `path`, `label` (name of the class), `label_id` (its number, -1 for none), `split`,
`vector` (the features), `x` and `y` (a place in two dimensions) and `neighbours` (`ids`, the rows
of the nearest images, and `distances`, 1 - cosine). Shapes: N images, D features, K classes.
"""

from collections.abc import Iterator, Sequence
from importlib import import_module
from typing import Any, BinaryIO

import numpy as np
import torch

from antipode.evaluation.layout import neighbours, places
from antipode.types import Features

GROUP = 1 << 16  # rows that are in memory together
NEAR = 10  # neighbours of each image

Array = np.ndarray[Any, Any]


def write_table(
    file: BinaryIO,
    features: Features,
    split: Sequence[str],
    paths: Sequence[str],
    classes: Sequence[str] | None,
) -> None:
    """Write features with places, neighbours and names of classes, in groups of rows."""
    arrow, parquet = import_arrow()
    xy = places(features.x, 0).numpy()
    ids, cosines = neighbours(features.x, 0, NEAR)
    writer = None
    for rows in groups(len(features.x)):
        near = {"ids": ids[rows], "distances": 1 - cosines[rows]}
        columns = {
            "path": arrow.array(paths[rows], arrow.string()),
            "label": label_column(arrow, features.y[rows], classes),
            "label_id": column(arrow, features.y[rows].numpy()),
            "split": arrow.array(split[rows], arrow.string()),
            "vector": column(arrow, features.x[rows].numpy()),
            "x": arrow.array(xy[rows, 0]),
            "y": arrow.array(xy[rows, 1]),
            "neighbours": arrow.StructArray.from_arrays(
                [list_column(arrow, values.numpy()) for values in near.values()], list(near)
            ),
        }
        table = arrow.table(columns)
        writer = writer or parquet.ParquetWriter(file, table.schema)
        writer.write_table(table)
    if writer is not None:
        writer.close()


def read_table(file: BinaryIO) -> Features:
    """Return the features and labels of a .parquet file, of this or of the earlier layout.

    The earlier layout had the features in the column `x` and the labels in the column `y`.
    """
    _, parquet = import_arrow()
    opened = parquet.ParquetFile(file)
    names = ("vector", "label_id") if "vector" in opened.schema_arrow.names else ("x", "y")
    table = opened.read(columns=list(names))
    return Features(*(torch.from_numpy(matrix(table[name])) for name in names))


def groups(count: int) -> Iterator[slice]:
    """Yield slices of rows that are written together; an empty one if there is no row."""
    for first in range(0, max(1, count), GROUP):
        yield slice(first, first + GROUP)


def label_column(arrow: Any, labels: torch.Tensor, classes: Sequence[str] | None) -> Any:
    """Return the names of classes, null for none. Labels (N,K) become lists of names."""
    if labels.ndim == 1:
        names = [class_text(int(label), classes) for label in labels]
        return arrow.array(names, arrow.string())
    present = [[class_text(int(at), classes) for at in row.gt(0).nonzero()] for row in labels]
    return arrow.array(present, arrow.list_(arrow.string()))


def class_text(label: int, classes: Sequence[str] | None) -> str | None:
    """Return the name of a class, or its number if it has no name. None for a negative number."""
    if label < 0:
        return None
    return classes[label] if classes and label < len(classes) else str(label)


def column(arrow: Any, values: Array) -> Any:
    """Return an array as a column of a table. A matrix becomes a column of equally long lists."""
    if values.ndim == 1:
        return arrow.array(values)
    return arrow.FixedSizeListArray.from_arrays(arrow.array(values.reshape(-1)), values.shape[1])


def list_column(arrow: Any, values: Array) -> Any:
    """Return a matrix (N,k) as a column of lists, which more software reads than fixed lists."""
    offsets = np.arange(len(values) + 1, dtype=np.int32) * values.shape[1]
    return arrow.ListArray.from_arrays(offsets, arrow.array(values.reshape(-1)))


def matrix(values: Any) -> Array:
    """Return a column of a table as an array, of lists as a matrix."""
    if not hasattr(values.type, "list_size"):
        return np.array(values.to_numpy())
    flat = np.concatenate([chunk.flatten().to_numpy() for chunk in values.chunks])
    return flat.reshape(-1, values.type.list_size)


def import_arrow(other: str = "an .npz file") -> tuple[Any, Any]:
    """Return the modules pyarrow and pyarrow.parquet, which are optional.

    `other` is what needs neither of them, for the message if they are missing.
    """
    try:
        return import_module("pyarrow"), import_module("pyarrow.parquet")
    except ImportError:
        raise ValueError(
            f"a .parquet file needs pyarrow (pip install 'antipode[data]'); {other} needs "
            "nothing else"
        ) from None
