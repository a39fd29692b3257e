"""The names of the images of a data set, without one string object per image."""

import os
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np

from antipode import rng

Array: TypeAlias = np.ndarray[Any, Any]


class Names(Sequence[str]):
    """Relative paths, joined to one text.

    A list of a million strings would be copied to every worker. An array of strings of equal length
    would be as wide as the longest path.
    """

    def __init__(self, names: Iterable[str | bytes]) -> None:
        parts = [os.fsencode(name) for name in names]
        self._set(b"".join(parts), np.cumsum([0, *map(len, parts)], dtype=np.int64), None)

    def _set(self, joined: bytes, ends: Array, numbers: Array | None) -> None:
        self.joined = joined
        self.ends = ends
        self._numbers = numbers

    @classmethod
    def of(cls, joined: bytes, ends: Array, numbers: Array | None = None) -> "Names":
        """Return names from their joined bytes, the places (N+1,) of their ends, and `numbers`."""
        names = cls.__new__(cls)
        names._set(joined, ends, numbers)
        return names

    def __len__(self) -> int:
        return len(self.ends) - 1

    def __getitem__(self, index: Any) -> Any:
        at = _position(index, len(self))
        first, last = self.ends[at : at + 2].tolist()
        return os.fsdecode(self.joined[first:last])

    def __iter__(self) -> Iterator[str]:
        for first, last in pairwise(self.ends.tolist()):
            yield os.fsdecode(self.joined[first:last])

    def __getstate__(self) -> dict[str, Any]:
        """Return what a worker needs."""
        return {"joined": self.joined, "ends": self.ends, "_numbers": None}

    def at(self, positions: Array) -> "Names":
        """Return the names at some positions (n,)."""
        if len(positions) == len(self) and (positions == np.arange(len(self))).all():
            return self
        firsts, lasts = self.ends[positions], self.ends[positions + 1]
        pairs = zip(firsts.tolist(), lasts.tolist(), strict=True)
        joined = b"".join([self.joined[first:last] for first, last in pairs])
        ends = np.concatenate([np.zeros(1, np.int64), np.cumsum(lasts - firsts)])
        numbers = None if self._numbers is None else self._numbers[positions]
        return Names.of(joined, ends, numbers)

    def numbers(self) -> Array:
        """Return a random number (N,) for each name, int64, which depends on nothing else.

        They decide which images are held out, and are computed once.
        """
        if self._numbers is None:
            self._numbers = np.array([rng.number("held out", name) for name in self], np.int64)
        return self._numbers

    def folders(self) -> tuple[list[str], Array]:
        """Return the first folders of sorted paths, and for each path the place of its folder (N,).

        The place is -1 for a path without a folder.
        """
        slashes = np.append(np.flatnonzero(np.frombuffer(self.joined, np.uint8) == ord("/")), -1)
        first = slashes[np.searchsorted(slashes[:-1], self.ends[:-1])]
        inside = np.flatnonzero((first >= 0) & (first < self.ends[1:]))
        places = np.full(len(self), -1, np.int64)
        folders: list[str] = []
        start = 0
        while start < len(inside):
            folder = self[inside[start]].partition("/")[0]
            stop = self._end_of_run(inside, start, f"{folder}/")
            places[inside[start:stop]] = len(folders)
            folders.append(folder)
            start = stop
        return folders, places

    def _end_of_run(self, inside: Array, start: int, prefix: str) -> int:
        """Return the first place after `start` of a name that does not begin with a prefix.

        Sorted names with one prefix stand together. So a few of them are looked at, not all.
        """
        step = 1
        while start + step < len(inside) and self[inside[start + step]].startswith(prefix):
            step *= 2
        rest = range(start + step // 2, min(start + step, len(inside)))
        return rest.start + bisect_left(
            rest, True, key=lambda place: not self[inside[place]].startswith(prefix)
        )


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
