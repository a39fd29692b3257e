"""The names of the images of a data set, without one string object per image."""

import os
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np


class Names(Sequence[str]):
    """Relative paths, joined to one text.

    A list of a million strings would be copied to every worker. An array of strings of equal length
    would be as wide as the longest path.
    """

    def __init__(self, names: Iterable[str | bytes]) -> None:
        parts = [os.fsencode(name) for name in names]
        self.joined = b"".join(parts)
        self.ends = np.cumsum([0, *map(len, parts)], dtype=np.int64)

    def __len__(self) -> int:
        return len(self.ends) - 1

    def __getitem__(self, index: Any) -> Any:
        at = _position(index, len(self))
        first, last = self.ends[at : at + 2].tolist()
        return os.fsdecode(self.joined[first:last])

    def __iter__(self) -> Iterator[str]:
        for first, last in pairwise(self.ends.tolist()):
            yield os.fsdecode(self.joined[first:last])


class Numbered(Sequence[str]):
    """The names "image 0", "image 1", ... without a list of them in memory."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: Any) -> Any:
        return f"image {_position(index, self.length)}"


def _position(index: int, length: int) -> int:
    """Return an index from 0; a for loop needs the IndexError to end."""
    if not -length <= index < length:
        raise IndexError(f"the index {index} is out of range for {length} images")
    return index % length
