"""Check the files of a packed data set before they are used. N images, K classes.

Any content gives a value or a ValueError of one sentence with the name of the file. A checksum does
not help against a pack that someone else has written, so every number is checked, too.
"""

import math
import zlib
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import numpy as np

from antipode import json_text
from antipode.data.sources import headers
from antipode.data.sources.source import Skip
from antipode.names import brief, printable

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
SPLITS = ("train", "pretrain", "test")
TABLES = ("index.npy", "names.npy", "labels.npy")
META_BYTES = 1 << 28  # the largest meta.json, which names every skipped image
CHANNELS = 1024  # the most channels of an image
CLASSES = 100_000  # the most classes without names, if there are fewer images


class Part(NamedTuple):
    """The entry of a split in meta.json."""

    classes: list[str] | None
    channels: int
    size: int
    files: dict[str, int]  # CRC-32 of each table
    parts: list[int]  # bytes of each part
    skipped: tuple[Skip, ...]


class Meta(NamedTuple):
    """The content of meta.json."""

    name: str
    size: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    splits: dict[str, Part]


def read_meta(home: Path) -> Meta:
    """Return the content of meta.json in a packed data set.

    Raises FileNotFoundError if there is none that can be read, and ValueError if it is damaged or
    was written by another version.
    """
    file = home / "meta.json"
    try:
        if file.stat().st_size > META_BYTES:
            raise ValueError(f"{file} has more than {META_BYTES:,} bytes")
        content = json_text.parse(file.read_bytes(), str(file))
    except (OSError, ValueError) as error:
        text = f"{home} is not a packed data set: it has no meta.json that can be read"
        raise FileNotFoundError(printable(text)) from error
    if not isinstance(content, dict):
        _damaged(file, "it is not an object")
    if content.get("format") != FORMAT:
        text = f"{home} is packed in format {brief(content.get('format'))}, but this version reads "
        raise ValueError(printable(f"{text}only format {FORMAT}"))
    splits = content.get("splits")
    if not isinstance(splits, dict) or "train" not in splits or set(splits) - set(SPLITS):
        _damaged(file, "its splits must be train and, if there are more, pretrain and test")
    parts = {name: _part(file, name, part) for name, part in splits.items()}
    channels = parts["train"].channels
    if any(part.channels != channels for part in parts.values()):
        _damaged(file, "the splits have different numbers of channels")
    mean, std = (_numbers(file, content, key, channels) for key in ("mean", "std"))
    if min(std) <= 0:
        _damaged(file, "std is not positive")
    name = content.get("name")
    if not isinstance(name, str):
        _damaged(file, "name is not a text")
    return Meta(name, _integer(file, content, "size", 1, 1 << 16), mean, std, parts)


def _part(file: Path, name: str, content: Any) -> Part:
    """Return the checked entry of a split."""
    if not isinstance(content, dict):
        _damaged(file, f"the split {name} is not an object")
    classes = content.get("classes")
    if classes is not None and not _is_list_of(classes, str):
        _damaged(file, f"the classes of {name} are not texts")
    files = content.get("files")
    if (
        not isinstance(files, dict)
        or not {"index.npy", "names.npy"} <= set(files) <= set(TABLES)
        or not _is_list_of(list(files.values()), int)
    ):
        _damaged(file, f"the files of {name} are not index.npy, names.npy and labels.npy")
    parts = content.get("parts")
    if not isinstance(parts, list) or any(type(size) is not int or size < 0 for size in parts):
        _damaged(file, f"the parts of {name} are not sizes in bytes")
    skipped = content.get("skipped")
    if not isinstance(skipped, list) or any(
        not _is_list_of(skip, str) or len(skip) != 2 for skip in skipped
    ):
        _damaged(file, f"the skipped images of {name} are not pairs of name and reason")
    channels = _integer(file, content, "channels", 1, CHANNELS)
    size = _integer(file, content, "size", 1, 1 << 16)
    return Part(classes, channels, size, files, parts, tuple(Skip(*skip) for skip in skipped))


def load_array(file: Path, meta: Part) -> np.ndarray[Any, Any]:
    """Return a table of a split.

    Raises ValueError if its checksum is wrong, or if its length is not that which its header
    states: numpy would take the memory for it first.
    """
    crc = meta.files[file.name]
    if not file.is_file() or checksum(file) != crc:
        text = f"{file} is missing or damaged; pack the data set again"
        raise ValueError(printable(text))
    try:
        with file.open("rb") as handle:
            if np.lib.format.read_magic(handle) != (1, 0):
                raise ValueError("another version of the format")
            shape, _, dtype = np.lib.format.read_array_header_1_0(handle)
            length = file.stat().st_size - handle.tell()
            if dtype.hasobject or min(shape, default=0) < 0:
                raise ValueError("objects or negative sizes")
            if math.prod(shape) * dtype.itemsize != length:
                raise ValueError(f"{length:,} bytes do not fit the shape {brief(shape)}")
            handle.seek(0)
            array: np.ndarray[Any, Any] = np.load(handle, allow_pickle=False)
            return array
    except Exception as error:  # a damaged header can raise almost anything
        _damaged(file, " ".join(str(error).split())[:120] or type(error).__name__)


def check_index(
    home: Path, index: np.ndarray[Any, Any], names: np.ndarray[Any, Any], meta: Part
) -> None:
    """Raise ValueError unless every record of an index lies in its part and fits its image."""
    file = home / "index.npy"
    if names.dtype.kind != "S" or names.ndim != 1:
        _damaged(home / "names.npy", "it does not contain names")
    if index.dtype != RECORD or index.shape != names.shape:
        _damaged(file, f"it does not contain {len(names)} records")
    if not len(index):
        _damaged(file, "it has no image")
    part = index["part"].astype(np.int64)
    offset, length = index["offset"], index["length"]
    if part.min() < 0 or part.max() >= len(meta.parts):
        _damaged(file, f"an image is not in one of the {len(meta.parts)} parts")
    sizes = np.array(meta.parts, np.int64)[part]
    if (offset < 0).any() or (length < 1).any() or (length > sizes - offset).any():
        _damaged(file, "an image is outside its part")
    # images may not overlap: a small file could otherwise stand for gigabytes
    if sum(length.tolist()) > sum(meta.parts):
        _damaged(file, "its images are longer than the parts")
    height, width = index["height"].astype(np.int64), index["width"].astype(np.int64)
    if (height < 0).any() or (width < 0).any() or ((height == 0) != (width == 0)).any():
        _damaged(file, "an image has a height or a width that is not possible")
    pixels = height > 0
    if (height * width * meta.channels != length)[pixels].any():
        _damaged(file, "the height and width of an image do not fit its length")
    if (length[~pixels] > headers.BYTES).any():
        _damaged(file, "an image " + headers.too_long(int(length.max())))


def check_labels(home: Path, labels: np.ndarray[Any, Any], count: int, meta: Part) -> None:
    """Raise ValueError unless there is a class index or a row of K numbers for every image."""
    file = home / "labels.npy"
    if labels.dtype != np.int64 or labels.ndim not in (1, 2) or len(labels) != count:
        _damaged(file, f"it does not contain labels of {count} images")
    if labels.size == 0:
        _damaged(file, "it has no label")
    if labels.ndim == 2:
        if meta.classes is not None and labels.shape[1] != len(meta.classes):
            _damaged(file, f"its rows do not fit {len(meta.classes)} classes")
        return
    low, high = int(labels.min()), int(labels.max())
    known = max(count, CLASSES) if meta.classes is None else len(meta.classes)
    if low < -1 or high >= known:
        _damaged(file, f"its labels from {low} to {high} do not fit {known} classes")


def checksum(file: Path) -> int:
    """Return the CRC-32 of a file."""
    return zlib.crc32(file.read_bytes())


def _damaged(file: Path, what: str) -> NoReturn:
    raise ValueError(printable(f"{file} is damaged ({what}); pack the data set again"))


def _is_list_of(value: Any, kind: type) -> bool:
    # True is an int for isinstance
    return isinstance(value, list) and all(type(item) is kind for item in value)


def _integer(file: Path, content: dict[str, Any], key: str, least: int, most: int) -> int:
    value = content.get(key)
    if type(value) is not int or not least <= value <= most:
        _damaged(file, f"{key} is {brief(value)}, but must be from {least} to {most}")
    return value


def _numbers(file: Path, content: dict[str, Any], key: str, count: int) -> tuple[float, ...]:
    """Return `count` finite numbers."""
    values = content.get(key)
    if (
        not isinstance(values, list)
        or len(values) != count
        or any(type(value) not in (int, float) or not math.isfinite(value) for value in values)
    ):
        _damaged(file, f"{key} is not a list of {count} numbers")
    return tuple(float(value) for value in values)
