"""Data sets of Hugging Face: from the Hub by name, or a Dataset or DatasetDict of its package.

The package `datasets` is optional. Its tables are recognised by their interface.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from socket import create_connection
from typing import Any, Protocol
from urllib.parse import urlsplit
from urllib.request import getproxies

import torch
from torch import Tensor
from torch.utils.data import Dataset

from antipode.data.sources.folder import held_out
from antipode.data.sources.source import Decoded, Memory
from antipode.data.sources.splits import Splits, mean_and_std
from antipode.data.sources.wrap import wrap
from antipode.names import printable

PATIENCE = 5.0  # seconds until the Hub counts as out of reach
TESTS = ("test", "validation", "valid", "val")  # names of test splits, in order of preference


# names of label columns, for tables without a column of the type ClassLabel
LABELS = ("label", "labels", "class", "target", "fine_label")


class Table(Protocol):
    """What antipode uses of a Dataset of Hugging Face."""

    features: Any  # by column: Image, ClassLabel, Value ...
    column_names: Any

    def __len__(self) -> int:
        """Return the number of rows."""

    def __getitem__(self, key: Any) -> Any:
        """Return a row by its number, or a column by its name."""


@dataclass(frozen=True, eq=False)
class Rows(Dataset[Any]):
    """The image column of a table as a torch Dataset, with its labels as `targets`.

    Args:
        table: a Dataset of Hugging Face, or anything with its interface.
        column: the name of the image column.
        targets: labels (N,) as numbers or names, None if there are none; -1 is an unknown label.
        classes: the names of the classes, None if the table does not state them.
    """

    table: Any
    column: str
    targets: Tensor | list[Any] | None = None
    classes: list[str] | None = None

    def __len__(self) -> int:
        return len(self.table)

    def __getitem__(self, index: int) -> Any:
        return self.table[index][self.column]

    @property
    def _fingerprint(self) -> str | None:
        """The table's own fingerprint, which is part of the key of cached features."""
        table = getattr(self.table, "_fingerprint", None)
        return None if table is None else f"{table} {self.column}"


def is_table(item: Any) -> bool:
    """Return True for a Dataset of Hugging Face, which is not a torch Dataset."""
    return all(hasattr(item, name) for name in ("features", "column_names", "__getitem__"))


def is_table_dict(item: Any) -> bool:
    """Return True for a DatasetDict of Hugging Face: splits by name."""
    return isinstance(item, dict) and bool(item) and all(map(is_table, item.values()))


def train_and_test(tables: Mapping[str, Any], name: str) -> list[Any]:
    """Return the train split, and the first that exists of test and validation."""
    if "train" not in tables:
        raise ValueError(f"{name} has no train split, only {', '.join(tables)}")
    test = next((part for part in TESTS if part in tables), None)
    return [tables["train"]] if test is None else [tables["train"], tables[test]]


def rows(table: Any, name: str) -> Rows:
    """Return the images of a table, from its first image column, and their labels.

    Labels are the first column of the type ClassLabel, or a column with a name of `LABELS`.
    """
    if not hasattr(table, "__len__"):
        raise ValueError(f"{name} is streamed, so it has no order to shuffle: load it whole")
    kinds = {column: type(kind).__name__ for column, kind in (table.features or {}).items()}
    image = next((column for column, kind in kinds.items() if kind == "Image"), None)
    if image is None:
        raise ValueError(f"{name} has no image column, only {', '.join(kinds) or 'none'}")
    label = next((column for column, kind in kinds.items() if kind == "ClassLabel"), None)
    if label is not None:
        return Rows(table, image, *_numbered(table, label, name))
    plain = next((one for one in LABELS if kinds.get(one) == "Value"), None)
    return Rows(table, image, None if plain is None else list(table[plain]))


def _numbered(table: Any, label: str, name: str) -> tuple[Tensor, list[str]]:
    """Return the labels (N,) and the names of the classes of a ClassLabel column."""
    classes = [str(item) for item in table.features[label].names]
    labels = torch.tensor([-1 if number is None else int(number) for number in table[label]])
    if len(labels) and not -1 <= int(labels.min()) <= int(labels.max()) < len(classes):
        text = f"{name} has labels from {int(labels.min())} to {int(labels.max())}, but only "
        raise ValueError(printable(f"{text}{len(classes)} classes"))
    return labels, classes


def hub(name: str) -> Splits:
    """Return the splits of `hf:NAME` or `hf:NAME@CONFIG`.

    The test split is the first that exists of test and validation. Without one, a tenth of each
    class is held out.
    """
    tables = _tables(name)
    sources = [wrap(rows(table, f"hf:{name}")) for table in train_and_test(tables, f"hf:{name}")]
    train: Memory | Decoded = sources[0]
    test: Memory | Decoded | None
    train, test = sources if len(sources) > 1 else held_out(train)
    return Splits(f"hf:{name}", train, train, test, train.size, *mean_and_std(train))


def _tables(name: str) -> Mapping[str, Any]:
    """Return the tables of `hf:NAME`, from the Hub or, if that cannot be reached, from the cache.

    The package would try to reach the Hub six times, and print a line each time.
    """
    try:
        import datasets  # noqa: PLC0415
    except ImportError as error:
        raise ValueError(
            f"hf:{name} needs the datasets package: pip install 'antipode[data]'"
        ) from error
    path, _, config = name.partition("@")
    usual = datasets.config.HF_HUB_OFFLINE
    offline = usual or not _reachable(datasets.config.HF_ENDPOINT)
    datasets.config.HF_HUB_OFFLINE = offline
    try:
        tables: Mapping[str, Any] = datasets.load_dataset(path, config or None)
    except Exception as error:
        why = " ".join(str(error).split())[:200]
        if offline and isinstance(error, ConnectionError):
            server = datasets.config.HF_ENDPOINT
            why = "HF_HUB_OFFLINE is set" if usual else f"{server} cannot be reached"
            why += f", and there is no copy in {datasets.config.HF_DATASETS_CACHE}"
        raise FileNotFoundError(
            printable(
                f"hf:{name} cannot be loaded ({why}); it needs a network connection or a copy in "
                "the cache folder HF_HOME (use folder:PATH for your own image files)"
            )
        ) from error
    finally:
        datasets.config.HF_HUB_OFFLINE = usual
    return tables


def _reachable(endpoint: str) -> bool:
    """Return True if a server accepts connections, or if a proxy stands between it and us."""
    if getproxies():
        return True
    address = urlsplit(endpoint)
    port = address.port or (80 if address.scheme == "http" else 443)
    try:
        create_connection((address.hostname, port), PATIENCE).close()
    except OSError:
        return False
    return True
