"""A packed data set: one folder per split with its images in memory-mapped parts, and an index of them. N images.

    meta.json            format, mean, and per split: classes, channels, checksums, sizes of parts, what was left out
    SPLIT/index.npy      (N,) records, see RECORD
    SPLIT/names.npy      (N,) names; labels.npy (N,) or (N,K) where there are labels
    SPLIT/part-00000.bin images in a row: encoded bytes as they were, or pixels (H,W,C)

Any number of processes may read it: nothing is written, and the pages of the maps are shared.
"""

import hashlib
import json
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from antipode.data.sources import decode
from antipode.data.sources.folder import Names
from antipode.data.sources.source import Decoded, Memory, Skip
from antipode.data.sources.splits import Splits

FORMAT = 1
RECORD = np.dtype(
    [
        ("part", "<i4"),
        ("offset", "<i8"),
        ("length", "<i8"),
        ("height", "<i4"),  # 0: encoded bytes
        ("width", "<i4"),
        ("crc", "<u4"),  # of the bytes
        ("at", "<i8"),  # index in the data set that was packed
    ]
)
RESIDENT = 8 << 30  # pixels of one size up to this many bytes become one tensor in memory


class Records:
    """Reads the image at an index; pixels are not copied, so that a crop touches no more than its own pages."""

    def __init__(self, folder: Path, index: np.ndarray[Any, Any], channels: int) -> None:
        self.folder, self.index, self.channels = folder, index, channels
        self.maps: dict[int, np.memmap[Any, Any]] = {}

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"maps": {}}

    def stored(self, index: int) -> np.ndarray[Any, Any]:
        """The bytes uint8 (L,) of an image as they lie in its part."""
        record = self.index[index]
        part = int(record["part"])
        if part not in self.maps:
            # copy on write: torch wants an array it may write to, the file stays as it is
            self.maps[part] = np.memmap(self.folder / f"part-{part:05d}.bin", np.uint8, "c")
        return self.maps[part][int(record["offset"]) : int(record["offset"] + record["length"])]

    def stamp(self) -> str:
        """The index, which has the checksum of every image."""
        return hashlib.blake2b(self.index.tobytes(), digest_size=16).hexdigest()

    def encoded(self, index: int) -> bytes | None:
        """The bytes of the image file, or None where the pixels themselves are stored."""
        return None if self.index[index]["height"] else self.stored(index).tobytes()

    def __call__(self, index: int) -> Tensor:
        """The image uint8 (C,H,W)."""
        data, record = self.stored(index), self.index[index]
        if not record["height"]:
            return decode.decode(data.tobytes(), channels=self.channels)
        return (
            torch.from_numpy(data)
            .view(int(record["height"]), int(record["width"]), -1)
            .permute(2, 0, 1)
        )


def packed(path: str | Path) -> Splits:
    """What `pack` has written. Sizes and the checksums of indices are checked here, those of the images by `verify`."""
    home = Path(path).expanduser()
    meta = _meta(home)
    found: dict[str, Memory | Decoded] = {
        name: _split(home / name, part) for name, part in meta["splits"].items()
    }
    train = found["train"]
    mean, std = tuple(meta["mean"]), tuple(meta["std"])
    return Splits(
        meta["name"],
        found.get("pretrain", train),
        train,
        found.get("test"),
        meta["size"],
        mean,
        std,
    )


def verify(path: str | Path) -> list[Skip]:
    """Read every byte of a packed data set and name the images whose checksum is wrong."""
    home, wrong = Path(path).expanduser(), []
    for name, part in _meta(home)["splits"].items():
        records, names = _open(home / name, part)
        for index in range(len(records.index)):
            if zlib.crc32(records.stored(index).data) != records.index[index]["crc"]:
                wrong.append(Skip(f"{name}/{names[index]}", "has a wrong checksum"))
    return wrong


def _meta(home: Path) -> dict[str, Any]:
    """What describes a pack."""
    try:
        meta: dict[str, Any] = json.loads((home / "meta.json").read_text())
    except (OSError, ValueError) as error:
        raise FileNotFoundError(
            f"{home} holds no packed data set: there is no meta.json that can be read"
        ) from error
    if meta.get("format") != FORMAT:
        raise ValueError(
            f"{home} is packed in format {meta.get('format')}, but this version reads {FORMAT}"
        )
    return meta


def checksum(file: Path) -> int:
    """CRC-32 of a file."""
    return zlib.crc32(file.read_bytes())


def _open(home: Path, meta: dict[str, Any]) -> tuple[Records, Names]:
    for name, crc in meta["files"].items():
        if not (home / name).is_file() or checksum(home / name) != crc:
            raise ValueError(f"{home / name} is missing or damaged; pack the data set again")
    for number, size in enumerate(meta["parts"]):
        file = home / f"part-{number:05d}.bin"
        if not file.is_file() or file.stat().st_size != size:
            raise ValueError(
                f"{file} is missing or not {size:,} bytes long; pack the data set again"
            )
    names = Names(())
    names.bytes = np.load(home / "names.npy")
    return Records(home, np.load(home / "index.npy"), meta["channels"]), names


def _split(home: Path, meta: dict[str, Any]) -> Memory | Decoded:
    records, names = _open(home, meta)
    labels = (
        torch.from_numpy(np.load(home / "labels.npy")) if "labels.npy" in meta["files"] else None
    )
    skipped = tuple(Skip(*skip) for skip in meta["skipped"])
    sizes = np.unique(records.index[["height", "width"]])
    alike = len(sizes) == 1 and sizes[0]["height"] > 0
    if alike and records.index["length"].sum() <= RESIDENT:
        images = torch.stack([records(index) for index in range(len(names))])
        return Memory(images.contiguous(), labels, meta["classes"], skipped)
    return Decoded(records, names, labels, meta["classes"], meta["channels"], meta["size"], skipped)
