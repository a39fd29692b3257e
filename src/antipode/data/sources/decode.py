"""Bytes of an image file to uint8 (C,H,W). The content decides the format, not the name; what fails is a ValueError.

JPEG goes through torchvision's operator, which is faster than Pillow and gives the same pixels (benchmarks/decode.py),
all else through Pillow. Modes become RGB as in torchvision's ImageFolder: grey is repeated, a palette is
looked up, CMYK is converted, alpha is dropped, the EXIF turn is not applied. 16 bits keep their upper 8. Arrays (.npy,
TIFF that Pillow cannot hold) keep their number of channels.
"""

import io
import logging
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import torch
import torchvision.io  # noqa: F401  (loads torch.ops.image)
from PIL import Image, UnidentifiedImageError
from torch import Tensor

# the formats Pillow reads by itself; others may start programs (EPS) or are no photographs
FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF", "PPM", "JPEG2000")
PIXELS = 178_956_970  # the size at which Pillow, too, refuses to open: 512 MiB of RGB
# the operator, not torchvision.io.decode_jpeg, whose Python wrapper is deprecated and warns on every call;
# its second argument is the number of channels to convert to, its third the EXIF turn
FAST_JPEG: Any = getattr(torch.ops.image, "decode_jpeg", None)
LONGEST = 100  # an image may be this many times as long as it is wide

NPY, JPEG, TIFF = b"\x93NUMPY", b"\xff\xd8\xff", (b"II*\x00", b"MM\x00*", b"II+\x00", b"MM\x00+")


class Header(NamedTuple):
    """What the first bytes of an image file tell."""

    width: int
    height: int
    bands: int  # channels of an array; 0 for a picture, which can become RGB or grey
    deep: bool  # more than 8 bits a channel


def header(file: BinaryIO) -> Header:
    """The header of an open image file; a ValueError says why it is no image, or not one to learn from."""
    magic = file.read(8)
    file.seek(0)
    if not magic:
        raise ValueError("has no bytes")
    try:
        found = _npy_header(file) if magic.startswith(NPY) else _picture_header(file, magic)
    except UnidentifiedImageError as error:
        raise ValueError("is not an image of a known format") from error
    except Exception as error:
        raise ValueError(f"is not an image that can be read ({_reason(error)})") from error
    _check(found)
    return found


def decode(data: bytes, *, channels: int = 3) -> Tensor:
    """The image uint8 (channels,H,W) in the bytes of a file; a ValueError where there is none, or of other channels."""
    file = io.BytesIO(data)
    found = header(file)
    file.seek(0)
    try:
        image = _pixels(data, file, found, channels)
    except Exception as error:
        raise ValueError(f"cannot be decoded ({_reason(error)})") from error
    return fit(image, channels)


def picture(image: Image.Image, *, channels: int = 3) -> Tensor:
    """A Pillow image of any mode as uint8 (C,H,W): RGB for three channels, grey for one, else its own bands."""
    if image.mode.startswith(("I", "F")):
        return tensor(np.asarray(image))
    wanted = {1: "L", 3: "RGB"}.get(channels)
    if wanted and image.mode != wanted:
        image = image.convert(wanted)
    return tensor(np.asarray(image))


def tensor(array: np.ndarray[Any, Any], *, channels: int | None = None) -> Tensor:
    """An array (H,W), (H,W,C) or (C,H,W) as uint8 (C,H,W); floats must lie in [0,1], 16 bits keep their upper 8.

    The channel axis is the one of `channels` entries, or the shorter of first and last.
    """
    if array.ndim not in (2, 3) or 0 in array.shape:
        raise ValueError(f"has the shape {array.shape}, not (H,W), (H,W,C) or (C,H,W)")
    array = array[:, :, None] if array.ndim == 2 else array
    first, _, last = array.shape
    if last != channels and (first == channels or first < last):
        array = array.transpose(1, 2, 0)
    return torch.from_numpy(np.array(_eight_bits(array))).permute(2, 0, 1)


def fit(image: Tensor, channels: int) -> Tensor:
    """An image (C,H,W) with `channels` channels: grey is repeated, alpha is dropped, anything else is a ValueError."""
    have = len(image)
    if have == channels:
        return image
    if have in (2, 4) and have - 1 in (1, channels):
        return fit(image[:-1], channels)
    if have == 1 and channels == 3:
        return image.expand(3, -1, -1)
    raise ValueError(f"has {have} channels where {channels} are expected")


def _pixels(data: bytes, file: BinaryIO, found: Header, channels: int) -> Tensor:
    if FAST_JPEG is not None and data.startswith(JPEG) and channels in (1, 3):
        image: Tensor = FAST_JPEG(
            torch.from_numpy(np.frombuffer(data, np.uint8).copy()), channels, False
        )
        return image
    if data.startswith(NPY):
        return tensor(np.load(file, allow_pickle=False), channels=channels)
    if data.startswith(TIFF) and (found.bands or channels not in (1, 3)):
        return tensor(_tifffile().imread(file), channels=channels)
    return picture(Image.open(file, formats=FORMATS), channels=channels)


def _picture_header(file: BinaryIO, magic: bytes) -> Header:
    try:
        image = Image.open(file, formats=FORMATS)
        if not (magic.startswith(TIFF) and getattr(image, "n_frames", 1) > 1):
            return Header(
                *image.size, 0, ";16" in f"{image.tile}{image.mode}" or image.mode in ("I", "F")
            )
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
        raise ValueError(f"shape {shape} is not (H,W), (H,W,C) or (C,H,W)")
    height, width, bands = shape if shape[2] <= shape[0] else (shape[1], shape[2], shape[0])
    return Header(width, height, bands, dtype.itemsize > 1)


def _check(found: Header) -> None:
    width, height, bands, _ = found
    if width * height * max(bands, 3) > 3 * PIXELS:
        raise ValueError(
            f"has {width} x {height} pixels of {bands or 3} channels, more than {PIXELS:,} of 3"
        )
    if min(width, height) < 2:
        raise ValueError(f"is {width} x {height} px: nothing to crop")
    if max(width, height) > LONGEST * min(width, height):
        raise ValueError(f"is {width} x {height} px: more than {LONGEST} times as long as wide")


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
        f"holds {array.dtype} from {low} to {high}, not 8 or 16 bits or floats in [0,1]"
    )


def _tifffile() -> Any:
    try:
        import tifffile  # noqa: PLC0415
    except ImportError as error:
        raise ValueError("this TIFF needs tifffile: pip install 'antipode[data]'") from error
    # it logs every fault of a file before it raises; here a fault is reported once, by the sentence above it
    logging.getLogger("tifffile").setLevel(logging.CRITICAL)
    return tifffile


def _reason(error: Exception) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    text = text.split("torchvision/csrc/io/image/")[-1]
    return text if len(text) <= 120 else text[:117] + "..."
