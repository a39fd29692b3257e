"""Data sets from the Hugging Face Hub, loaded by the optional `datasets` package."""

from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data import Dataset

from antipode.data.sources.folder import held_out
from antipode.data.sources.source import Decoded, Memory
from antipode.data.sources.splits import Splits, mean_and_std
from antipode.data.sources.wrap import wrap
from antipode.names import printable

TESTS = ("test", "validation", "valid", "val")  # names of test splits, in order of preference


@dataclass(frozen=True)
class Rows(Dataset[Any]):
    """The image column of a table as a torch Dataset."""

    table: Any
    column: str

    def __len__(self) -> int:
        return len(self.table)

    def __getitem__(self, index: int) -> Any:
        return self.table[index][self.column]

    @property
    def _fingerprint(self) -> str | None:
        """The table's own fingerprint, which is part of the key of cached features."""
        table = getattr(self.table, "_fingerprint", None)
        return None if table is None else f"{table} {self.column}"


def hub(name: str) -> Splits:
    """Return the splits of `hf:NAME` or `hf:NAME@CONFIG`.

    The test split is the first that exists of test and validation. Without one, a tenth of each
    class is held out.
    """
    try:
        import datasets  # noqa: PLC0415
    except ImportError as error:
        raise ValueError(
            f"hf:{name} needs the datasets package: pip install 'antipode[data]'"
        ) from error
    path, _, config = name.partition("@")
    try:
        tables = datasets.load_dataset(path, config or None)
    except Exception as error:
        text = f"hf:{name} cannot be loaded ({' '.join(str(error).split())[:200]}); it needs a "
        text += (
            "network connection or a copy in the cache folder HF_HOME (use folder:PATH for your "
        )
        raise FileNotFoundError(printable(text + "own image files)")) from error
    if "train" not in tables:
        raise ValueError(f"hf:{name} has no train split, only {', '.join(tables)}")
    train = _source(name, tables["train"])
    test_name = next((part for part in TESTS if part in tables), None)
    if test_name:
        test: Memory | Decoded | None = _source(name, tables[test_name])
    else:
        train, test = held_out(train)
    return Splits(f"hf:{name}", train, train, test, train.size, *mean_and_std(train))


def _source(name: str, table: Any) -> Memory | Decoded:
    """Return a split, from its first image column and its first column of class labels."""
    kinds = {column: type(feature).__name__ for column, feature in table.features.items()}
    image = next((column for column, kind in kinds.items() if kind == "Image"), None)
    if image is None:
        raise ValueError(f"hf:{name} has no image column, only {', '.join(kinds)}")
    label = next((column for column, kind in kinds.items() if kind == "ClassLabel"), None)
    if label is None:
        return wrap(Rows(table, image))
    classes = [str(item) for item in table.features[label].names]
    labels = torch.tensor([-1 if number is None else number for number in table[label]])
    if len(labels) and not -1 <= int(labels.min()) <= int(labels.max()) < len(classes):
        text = f"hf:{name} has labels from {int(labels.min())} to {int(labels.max())}, but only "
        raise ValueError(printable(f"{text}{len(classes)} classes"))
    return wrap(Rows(table, image), given=labels, classes=classes)
