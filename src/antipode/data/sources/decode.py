"""Decode the bytes of an image file to uint8 (C,H,W).

The content decides the format, not the file name. Every failure raises a ValueError. Its message is
the rest of a sentence that starts with the name of the image: "is empty (0 bytes)".

- JPEG is decoded by torchcodec if it is installed, else by torchvision. Both are faster than Pillow
  and give the same pixels (benchmarks/decode.py). Pillow decodes everything else.
- Modes become RGB as in torchvision's ImageFolder: grey is repeated, a palette is looked up, CMYK
  is converted, alpha is dropped, and the EXIF orientation is not applied.
- Images with 16 bits per channel keep their upper 8 bits.
- Arrays (.npy files, and TIFF files that Pillow cannot hold) keep their number of channels.

Images that are too large raise a ValueError (see headers.py). A JPEG or JPEG 2000 image of more
than PIXELS pixels is decoded at a half, a quarter or an eighth of its size.
"""

import io
from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import Any, BinaryIO

import numpy as np
import torch
from PIL import Image
from PIL.Jpeg2KImagePlugin import Jpeg2KImageFile
from PIL.JpegImagePlugin import JpegImageFile
from torch import Tensor

from antipode.data.sources.headers import (
    FORMATS,
    JPEG,
    NPY,
    PIXELS,
    SCAN,
    TIFF,
    Header,
    header,
    open_tiff,
    reason,
)

EXIF = b"Exif\0"
APP1 = 0xE1  # the marker of the segment that holds EXIF data
SCANS = 1 << 33  # pixels times scans of a progressive JPEG; every scan visits all pixels


def decode(data: bytes, *, channels: int = 3) -> Tensor:
    """Return the image uint8 (channels,H,W) that the bytes of a file encode.

    Raises ValueError if they do not encode an image, or one with another number of channels.
    """
    file = io.BytesIO(data)
    info = header(file)
    file.seek(0)
    try:
        image = _pixels(data, file, info, channels)
    except Exception as error:
        raise ValueError(f"cannot be decoded ({reason(error)})") from error
    return match_channels(image, channels)


def from_pillow(image: Image.Image, *, channels: int = 3) -> Tensor:
    """Return a Pillow image of any mode as uint8 (C,H,W).

    The image is converted to RGB for three channels and to grey for one. For other numbers of
    channels it keeps its own bands.
    """
    if image.mode.startswith(("I", "F")):
        return from_array(np.asarray(image))
    mode = {1: "L", 3: "RGB"}.get(channels)
    if mode and image.mode != mode:
        image = image.convert(mode)
    return from_array(np.asarray(image))


def from_array(array: np.ndarray[Any, Any], *, channels: int | None = None) -> Tensor:
    """Return an array (H,W), (H,W,C) or (C,H,W) as uint8 (C,H,W).

    Floats must be in [0,1]. 16-bit integers keep their upper 8 bits. The channel axis is the axis
    with `channels` entries, or the shorter one of the first and the last axis.
    """
    if array.ndim not in (2, 3) or 0 in array.shape:
        raise ValueError(f"has the shape {array.shape}, but must be (H,W), (H,W,C) or (C,H,W)")
    array = array[:, :, None] if array.ndim == 2 else array
    first, _, last = array.shape
    if last != channels and (first == channels or first < last):
        array = array.transpose(1, 2, 0)
    return torch.from_numpy(np.array(_eight_bits(array))).permute(2, 0, 1)


def match_channels(image: Tensor, channels: int) -> Tensor:
    """Return an image (C,H,W) with `channels` channels: grey is repeated, alpha is dropped.

    Raises ValueError for any other difference.
    """
    count = len(image)
    if count == channels:
        return image
    if count in (2, 4) and count - 1 in (1, channels):
        return match_channels(image[:-1], channels)
    if count == 1 and channels == 3:
        return image.expand(3, -1, -1)
    raise ValueError(f"has {count} channels, but {channels} are expected")


@cache
def fast_jpeg() -> Callable[[bytes, int], Tensor] | None:
    """Return a function that decodes JPEG bytes to a number of channels, or None if there is none.

    It is torchcodec's decoder if that is installed, else torchvision's operator, which later
    versions of torchvision will not have. Both are built on libjpeg-turbo, give the same pixels and
    take the same time (benchmarks/decode.py).
    """
    return _torchcodec() or _torchvision()


def _torchcodec() -> Callable[[bytes, int], Tensor] | None:
    try:
        operator: Any = import_module("torchcodec.decoders").decode_jpeg  # optional
    except (ImportError, AttributeError, OSError, RuntimeError):  # none, too old, another torch's
        return None

    def decode(data: bytes, channels: int) -> Tensor:
        plain = _tensor(without_exif(data))
        image: Tensor = operator(plain, mode={1: "GRAY", 3: "RGB"}[channels])
        return image

    return decode


def _torchvision() -> Callable[[bytes, int], Tensor] | None:
    # slow to import, and not needed for images in memory: torchvision loads torch's compiler
    import torchvision.io  # noqa: F401, PLC0415  (loads torch.ops.image)

    # the operator and not torchvision.io.decode_jpeg, because that wrapper warns on every call
    operator = getattr(torch.ops.image, "decode_jpeg", None)
    if operator is None:
        return None
    # the last argument says whether to apply the EXIF orientation
    return lambda data, channels: operator(_tensor(data), channels, False)


def without_exif(data: bytes) -> bytes:
    """Return a JPEG file without its EXIF segments, since torchcodec applies the orientation."""
    if EXIF not in data:
        return data
    kept = [data[:2]]
    at = 2
    while at + 4 <= len(data) and data[at] == 0xFF and data[at + 1] != SCAN:
        if data[at + 1] == 0xFF:  # any number of these bytes may precede a marker
            at += 1
            continue
        end = at + 2 + int.from_bytes(data[at + 2 : at + 4], "big")
        if data[at + 1] != APP1 or not data.startswith(EXIF, at + 4):
            kept.append(data[at:end])
        at = end
    return b"".join([*kept, data[at:]])


def _tensor(data: bytes) -> Tensor:
    """Return bytes as a uint8 tensor in memory of its own."""
    return torch.from_numpy(np.frombuffer(data, np.uint8).copy())


def _pixels(data: bytes, file: BinaryIO, info: Header, channels: int) -> Tensor:
    if info.width * info.height > PIXELS and info.reducible:
        return from_pillow(_reduced(data, file), channels=channels)
    if data.startswith(JPEG) and not info.reducible:
        _check_scans(data, info)
    if data.startswith(JPEG) and channels in (1, 3):
        operator = fast_jpeg()
        if operator is not None:
            return operator(data, channels)
    if data.startswith(NPY):
        return from_array(np.load(file, allow_pickle=False), channels=channels)
    if data.startswith(TIFF) and (info.bands or channels not in (1, 3)):
        with open_tiff(file) as tiff:
            return from_array(tiff.series[0].asarray(), channels=channels)
    return from_pillow(Image.open(file, formats=FORMATS), channels=channels)


def _reduced(data: bytes, file: BinaryIO) -> Image.Image:
    """Return a JPEG or JPEG 2000 image, reduced by a power of two to at most PIXELS pixels."""
    image = JpegImageFile(file) if data.startswith(JPEG) else Jpeg2KImageFile(file)
    width, height = image.size
    halvings = 1
    while (width >> halvings) * (height >> halvings) > PIXELS:
        halvings += 1
    if isinstance(image, Jpeg2KImageFile):
        image.reduce = halvings
    else:
        image.draft(None, (width >> halvings, height >> halvings))
    return image


def _check_scans(data: bytes, info: Header) -> None:
    """Raise ValueError for a progressive JPEG with so many scans that decoding takes minutes."""
    scans = data.count(bytes((0xFF, SCAN)))
    if scans * info.width * info.height > SCANS:
        raise ValueError(f"it has {scans:,} scans of {info.width} x {info.height} pixels")


def _eight_bits(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    if array.dtype == np.uint8:
        return array
    if array.dtype == np.bool_:
        return array.astype(np.uint8) * 255
    low, high = array.min(), array.max()
    if array.dtype.kind == "f" and 0 <= low and high <= 1:
        scaled = array * 255
        return np.asarray(np.rint(scaled, out=scaled), np.uint8)
    if array.dtype in (np.uint16, np.int16, np.int32) and 0 <= low and high < 1 << 16:
        return np.asarray(np.right_shift(array, 8), np.uint8)
    raise ValueError(
        f"has {array.dtype} values from {low} to {high}, "
        "but must have 8-bit or 16-bit integers or floats in [0,1]"
    )
