"""Read a packed data set: a folder per split, with memory-mapped parts and an index. N images.

    meta.json            format, name, size, mean and std; for each split its classes, channels,
                         checksums, sizes of the parts and skipped images
    SPLIT/index.npy      (N,) records, see RECORD
    SPLIT/names.npy      (N,) names
    SPLIT/labels.npy     (N,) or (N,K), if there are labels
    SPLIT/part-00000.bin the images one after the other: encoded bytes as they were, or pixels
                         (H,W,C)

Any number of processes may read a packed data set at the same time. Reading writes nothing, and the
processes share the pages of the memory maps. Everything in these files is checked before it is used
(see pack_checks.py), since the folder may come from someone else.
"""

import hashlib
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from antipode.data.sources import decode
from antipode.data.sources.image_names import Names
from antipode.data.sources.pack_checks import (
    Part,
    check_index,
    check_labels,
    load_array,
    read_meta,
)
from antipode.data.sources.source import Decoded, Memory, Skip
from antipode.data.sources.splits import Splits
from antipode.names import printable
from antipode.paths import absolute

RESIDENT = 8 << 30  # up to this many bytes, images of equal size are loaded into one tensor


class Records:
    """A reader that returns the image at an index.

    Pixels are not copied, so that a crop reads only the pages that it needs.
    """

    def __init__(self, folder: Path, index: np.ndarray[Any, Any], channels: int) -> None:
        self.folder = folder
        self.index = index
        self.channels = channels
        self.maps: dict[int, np.memmap[Any, Any]] = {}

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"maps": {}}

    def stored(self, index: int) -> np.ndarray[Any, Any]:
        """Return the stored bytes uint8 (L,) of an image, encoded or pixels."""
        record = self.index[index]
        part = int(record["part"])
        if part not in self.maps:
            # copy on write: torch needs a writable array, and the file must not change
            self.maps[part] = np.memmap(self.folder / f"part-{part:05d}.bin", np.uint8, "c")
        return self.maps[part][int(record["offset"]) : int(record["offset"] + record["length"])]

    def marks(self, indices: np.ndarray[Any, Any]) -> dict[str, bytes]:
        """Return the checksums of the images."""
        return {"checksums": self.index["crc"][indices].tobytes()}

    def fingerprint(self) -> str:
        """Return a hash of the index, which contains the checksum of every image."""
        return hashlib.blake2b(self.index.tobytes(), digest_size=16).hexdigest()

    def encoded(self, index: int) -> bytes | None:
        """Return the bytes of the image file, or None if the pixels are stored."""
        return None if self.index[index]["height"] else self.stored(index).tobytes()

    def __call__(self, index: int) -> Tensor:
        """Return the image uint8 (C,H,W)."""
        data = self.stored(index)
        record = self.index[index]
        if not record["height"]:
            return decode.decode(data.tobytes(), channels=self.channels)
        pixels = torch.from_numpy(data).view(int(record["height"]), int(record["width"]), -1)
        return pixels.permute(2, 0, 1)


def packed(path: str | Path) -> Splits:
    """Load the data set that `pack` has written.

    This checks the sizes of the parts and the checksums of the indices. `verify` checks the images.
    Raises ValueError if anything is missing or damaged.
    """
    home = absolute(path)
    meta = read_meta(home)
    sources = {name: _read_split(home / name, part) for name, part in meta.splits.items()}
    train = sources["train"]
    pretrain = sources.get("pretrain", train)
    return Splits(meta.name, pretrain, train, sources.get("test"), meta.size, meta.mean, meta.std)


def verify(path: str | Path) -> list[Skip]:
    """Read every byte of a packed data set and return the images whose checksum is wrong."""
    home = absolute(path)
    wrong = []
    for name, part in read_meta(home).splits.items():
        records, names = _open_split(home / name, part)
        for index in range(len(records.index)):
            if zlib.crc32(records.stored(index).data) != records.index[index]["crc"]:
                wrong.append(Skip(f"{name}/{names[index]}", "has a wrong checksum"))
    return wrong


def _open_split(home: Path, meta: Part) -> tuple[Records, Names]:
    for number, size in enumerate(meta.parts):
        file = home / f"part-{number:05d}.bin"
        if not file.is_file() or file.stat().st_size != size:
            text = f"{file} is missing or not {size:,} bytes long; pack the data set again"
            raise ValueError(printable(text))
    names = load_array(home / "names.npy", meta)
    index = load_array(home / "index.npy", meta)
    check_index(home, index, names, meta)
    return Records(home, index, meta.channels), Names(names.tolist())


def _read_split(home: Path, meta: Part) -> Memory | Decoded:
    records, names = _open_split(home, meta)
    labels = None
    if "labels.npy" in meta.files:
        array = load_array(home / "labels.npy", meta)
        check_labels(home, array, len(names), meta)
        labels = torch.from_numpy(array)
    sizes = np.unique(records.index[["height", "width"]])
    equal_pixels = len(sizes) == 1 and sizes[0]["height"] > 0
    if equal_pixels and records.index["length"].sum() <= RESIDENT:
        images = torch.stack([records(index) for index in range(len(names))])
        return Memory(images.contiguous(), labels, meta.classes, meta.skipped)
    return Decoded(records, names, labels, meta.classes, meta.channels, meta.size, meta.skipped)
