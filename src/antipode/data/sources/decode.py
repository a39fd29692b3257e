"""Decode the bytes of an image file to uint8 (C,H,W).

The content decides the format, not the file name. Every failure raises a ValueError. Its message is
the rest of a sentence that starts with the name of the image: "is empty (0 bytes)".

- JPEG is decoded by torchvision's operator, which is faster than Pillow and gives the same pixels
  (benchmarks/decode.py). Pillow decodes everything else.
- Modes become RGB as in torchvision's ImageFolder: grey is repeated, a palette is looked up, CMYK
  is converted, alpha is dropped, and the EXIF orientation is not applied.
- Images with 16 bits per channel keep their upper 8 bits.
- Arrays (.npy files, and TIFF files that Pillow cannot hold) keep their number of channels.
"""

import io
import logging
from functools import cache
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import torch
from PIL import Image, UnidentifiedImageError
from torch import Tensor

# the formats that Pillow reads by itself; others may start programs (EPS) or are not photographs
FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF", "PPM", "JPEG2000")
PIXELS = 178_956_970  # Pillow does not open larger images either: 512 MiB of RGB
LONGEST = 100  # the largest allowed ratio of the longer side to the shorter side

NPY = b"\x93NUMPY"
JPEG = b"\xff\xd8\xff"
TIFF = (b"II*\x00", b"MM\x00*", b"II+\x00", b"MM\x00+")


class Header(NamedTuple):
    """What the header of an image file says about the image."""

    width: int
    height: int
    bands: int  # channels of an array; 0 for a picture, which can be converted to RGB or grey
    deep: bool  # more than 8 bits per channel


def header(file: BinaryIO) -> Header:
    """Return the header of an open image file.

    Raises ValueError if the file is not an image, or if its size is not suitable for training.
    """
    magic = file.read(8)
    file.seek(0)
    if not magic:
        raise ValueError("is empty (0 bytes)")
    try:
        result = _npy_header(file) if magic.startswith(NPY) else _picture_header(file, magic)
    except UnidentifiedImageError as error:
        raise ValueError("is not an image in a supported format") from error
    except Exception as error:
        raise ValueError(f"is not an image that can be read ({_reason(error)})") from error
    _check_size(result)
    return result


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
        raise ValueError(f"cannot be decoded ({_reason(error)})") from error
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
def fast_jpeg() -> Any:
    """Return torchvision's operator that decodes JPEG, or None if torchvision was built without it.

    This is the operator and not torchvision.io.decode_jpeg, because that Python wrapper is
    deprecated and warns on every call. Its second argument is the number of channels to convert to.
    The third says whether to apply the EXIF orientation.
    """
    # slow to import, and not needed for images in memory: torchvision loads torch's compiler
    import torchvision.io  # noqa: F401, PLC0415  (loads torch.ops.image)

    return getattr(torch.ops.image, "decode_jpeg", None)


def _pixels(data: bytes, file: BinaryIO, info: Header, channels: int) -> Tensor:
    if data.startswith(JPEG) and channels in (1, 3):
        operator = fast_jpeg()
        if operator is not None:
            encoded = torch.from_numpy(np.frombuffer(data, np.uint8).copy())
            image: Tensor = operator(encoded, channels, False)
            return image
    if data.startswith(NPY):
        return from_array(np.load(file, allow_pickle=False), channels=channels)
    if data.startswith(TIFF) and (info.bands or channels not in (1, 3)):
        return from_array(_tifffile().imread(file), channels=channels)
    return from_pillow(Image.open(file, formats=FORMATS), channels=channels)


def _picture_header(file: BinaryIO, magic: bytes) -> Header:
    try:
        image = Image.open(file, formats=FORMATS)
        if not (magic.startswith(TIFF) and getattr(image, "n_frames", 1) > 1):
            deep = ";16" in f"{image.tile}{image.mode}" or image.mode in ("I", "F")
            return Header(*image.size, 0, deep)
    except UnidentifiedImageError:
        if not magic.startswith(TIFF):
            raise
    file.seek(0)
    with _tifffile().TiffFile(file) as tiff:
        return _array_header(tiff.series[0].shape, tiff.series[0].dtype)


def _npy_header(file: BinaryIO) -> Header:
    read = {
        (1, 0): np.lib.format.read_array_header_1_0,
        (2, 0): np.lib.format.read_array_header_2_0,
    }
    shape, _, dtype = read[np.lib.format.read_magic(file)](file)
    return _array_header(shape, dtype)


def _array_header(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Header:
    if len(shape) == 2:
        shape = (*shape, 1)
    if len(shape) != 3:
        raise ValueError(f"the shape {shape} is not (H,W), (H,W,C) or (C,H,W)")
    height, width, bands = shape if shape[2] <= shape[0] else (shape[1], shape[2], shape[0])
    return Header(width, height, bands, dtype.itemsize > 1)


def _check_size(info: Header) -> None:
    width, height, bands, _ = info
    if width * height * max(bands, 3) > 3 * PIXELS:
        raise ValueError(
            f"has {width} x {height} pixels of {bands or 3} channels, "
            f"more than the limit of {PIXELS:,} pixels of 3 channels"
        )
    if min(width, height) < 2:
        raise ValueError(f"is {width} x {height} px, too small to crop (at least 2 x 2 px)")
    if max(width, height) > LONGEST * min(width, height):
        raise ValueError(f"is {width} x {height} px, more than {LONGEST} times as long as wide")


def _eight_bits(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    if array.dtype == np.uint8:
        return array
    if array.dtype == np.bool_:
        return array.astype(np.uint8) * 255
    low, high = array.min(), array.max()
    if array.dtype.kind == "f" and 0 <= low and high <= 1:
        return np.asarray(np.rint(array * 255), np.uint8)
    if array.dtype in (np.uint16, np.int16, np.int32) and 0 <= low and high < 1 << 16:
        return np.asarray(np.right_shift(array, 8), np.uint8)
    raise ValueError(
        f"has {array.dtype} values from {low} to {high}, "
        "but must have 8-bit or 16-bit integers or floats in [0,1]"
    )


def _tifffile() -> Any:
    try:
        import tifffile  # noqa: PLC0415
    except ImportError as error:
        raise ValueError(
            "this TIFF needs the tifffile package: pip install 'antipode[data]'"
        ) from error
    # tifffile logs every fault of a file before it raises an error; our callers already report it
    logging.getLogger("tifffile").setLevel(logging.CRITICAL)
    return tifffile


def _reason(error: Exception) -> str:
    """Return an error's message on one line of at most 120 characters."""
    text = " ".join(str(error).split()) or type(error).__name__
    text = text.split("torchvision/csrc/io/image/")[-1]
    return text if len(text) <= 120 else text[:117] + "..."
