"""Data sets of the Hugging Face hub through their `datasets` package, an extra."""

from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data import Dataset

from antipode.data.sources.folder import held_out
from antipode.data.sources.source import Decoded, Memory
from antipode.data.sources.splits import Splits, normal
from antipode.data.sources.wrap import wrap

TESTS = ("test", "validation", "valid", "val")


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
        """The table's own, by which features are kept."""
        found = getattr(self.table, "_fingerprint", None)
        return None if found is None else f"{found} {self.column}"


def hub(name: str) -> Splits:
    """`hf:NAME` or `hf:NAME@CONFIG`: the train split, and the first of test and validation."""
    try:
        import datasets  # noqa: PLC0415
    except ImportError as error:
        raise ValueError(
            f"hf:{name} needs the datasets package: pip install 'antipode[data]'"
        ) from error
    path, _, config = name.partition("@")
    try:
        found = datasets.load_dataset(path, config or None)
    except Exception as error:
        reason = " ".join(str(error).split())[:200]
        way = "with a network, or once it is in the cache that HF_HOME names, it is found; folder:PATH reads files"
        raise FileNotFoundError(f"hf:{name} cannot be loaded ({reason}): {way}") from error
    if "train" not in found:
        raise ValueError(f"hf:{name} has no train split, only {', '.join(found)}")
    train = _source(name, found["train"])
    test_name = next((part for part in TESTS if part in found), None)
    if test_name:
        test: Memory | Decoded | None = _source(name, found[test_name])
    else:
        train, test = held_out(train)
    return Splits(f"hf:{name}", train, train, test, train.size, *normal(train))


def _source(name: str, table: Any) -> Memory | Decoded:
    """A split by its first image column and its first column of class labels."""
    kinds = {column: type(feature).__name__ for column, feature in table.features.items()}
    image = next((column for column, kind in kinds.items() if kind == "Image"), None)
    if image is None:
        raise ValueError(f"hf:{name} has no image column, only {', '.join(kinds)}")
    label = next((column for column, kind in kinds.items() if kind == "ClassLabel"), None)
    labels = torch.tensor(table[label]) if label else None
    return wrap(
        Rows(table, image),
        given=labels,
        classes=list(table.features[label].names) if label else None,
    )
