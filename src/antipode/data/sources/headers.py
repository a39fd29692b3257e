"""Read the headers of image files, and refuse images that are too large for training.

The content decides the format, not the file name. Every failure raises a ValueError. Its message is
the rest of a sentence that starts with the name of the image: "is empty (0 bytes)".

The memory and the time for one image are bounded. An image of more than PIXELS pixels raises a
ValueError. JPEG and JPEG 2000 can be decoded at a half, a quarter or an eighth of their size
without the full image in memory, so they may have up to REDUCIBLE pixels.
"""

import io
import logging
import math
import re
import struct
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from PIL import Image, UnidentifiedImageError
from PIL.Jpeg2KImagePlugin import Jpeg2KImageFile

# the formats that Pillow reads by itself; others may start programs (EPS) or are not photographs
FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF", "PPM", "JPEG2000")
PIXELS = 1 << 26  # 8,192 x 8,192: 192 MiB of RGB, and about 1 s and 700 MiB to decode as PNG
REDUCIBLE = 178_956_970  # the limit for formats that can be decoded at a reduced size
BYTES = 1 << 29  # of a file; no image within these limits needs more
LONGEST = 100  # the largest allowed ratio of the longer side to the shorter side
PAGES = 1024  # of a TIFF file
# in messages of torchvision and torchcodec: a function perhaps, a path, and a line
SOURCE_LINE = re.compile(r"^(\w+, )?\S+\.cpp:\d+,? ?")
HEAD = 4096  # bytes; they contain the header of most PNG and JPEG files

NPY = b"\x93NUMPY"
JPEG = b"\xff\xd8\xff"
PNG = b"\x89PNG\r\n\x1a\n"
TIFF = (b"II*\x00", b"MM\x00*", b"II+\x00", b"MM\x00+")
JPEG2000 = (b"\xff\x4f\xff\x51", b"\x00\x00\x00\x0cjP  ")
# allowed bits per channel of each colour type of a PNG
PNG_BITS = {0: (1, 2, 4, 8, 16), 2: (8, 16), 3: (1, 2, 4, 8), 4: (8, 16), 6: (8, 16)}
# JPEG's markers: start of frame (baseline, extended, progressive), start of scan, and the segments
# that may precede them (Huffman and quantisation tables, restart interval, APPn, comment)
FRAMES = (0xC0, 0xC1, 0xC2)
PROGRESSIVE = 0xC2
SCAN = 0xDA
BASELINE = 0xC0
ADOBE = 0xEE  # its byte 11 is 1 if the components are luma and colour, 0 if red, green and blue
END = b"\xff\xd9"
# 4:4:4, 4:2:2 and 4:2:0: horizontal and vertical sampling of the components, four bits each
SAMPLINGS = (b"\x11\x11\x11", b"\x21\x11\x11", b"\x22\x11\x11")
SHORTEST = {BASELINE: 17, ADOBE: 14}  # bytes of the parts of these segments that are read
PLAIN = 1 << 24  # pixels of an image that a GPU decodes
SEGMENTS = frozenset((0xC4, 0xDB, 0xDD, *range(0xE0, 0xF0), 0xFE))


class Header(NamedTuple):
    """What the header of an image file says about the image."""

    width: int
    height: int
    bands: int  # channels of an array; 0 for a picture, which can be converted to RGB or grey
    deep: bool  # more than 8 bits per channel
    reducible: bool = False  # can be decoded at a reduced size without the full image in memory


def header(file: BinaryIO) -> Header:
    """Return the header of an open image file.

    Raises ValueError if the file is not an image, or if its size is not suitable for training.
    """
    start = file.read(HEAD)
    file.seek(0)
    return quick_header(start) or _full_header(file, start[:8])


def quick_header(start: bytes) -> Header | None:
    """Return the header of an ordinary PNG or JPEG file from its first bytes, else None.

    This takes a tenth of the time that Pillow needs. None means that Pillow has to look: the file
    has another format, the bytes end before the pixels start, or something is unusual. Raises
    ValueError if the size is not suitable for training.
    """
    result = None
    if start.startswith(PNG):
        result = _png_header(start)
    elif start.startswith(JPEG):
        result = _jpeg_header(start)
    if result is not None:
        _check_size(result)
    return result


def _full_header(file: BinaryIO, magic: bytes) -> Header:
    if not magic:
        raise ValueError("is empty (0 bytes)")
    try:
        result = _npy_header(file) if magic.startswith(NPY) else _picture_header(file, magic)
    except UnidentifiedImageError as error:
        raise ValueError("is not an image in a supported format") from error
    except Exception as error:
        raise ValueError(f"is not an image that can be read ({reason(error)})") from error
    _check_size(result)
    return result


def too_long(size: int) -> str:
    """Return the reason why a file of `size` bytes is not read."""
    return f"has {size:,} bytes, more than the limit of {BYTES:,}"


def plain_jpeg(data: bytes) -> tuple[int, int] | None:
    """Return height and width if the file is an ordinary colour JPEG, which any decoder can decode.

    It is baseline with three components (luma and two of colour) in a usual subsampling, and
    complete. None means that it is something else. Raises ValueError if the size is not suitable
    for training.
    """
    if not data.startswith(JPEG) or END not in data[-64:]:
        return None
    sides = None
    at = 2
    marker = 0
    while at + 4 <= len(data) and data[at] == 0xFF:
        marker = data[at + 1]
        length = int.from_bytes(data[at + 2 : at + 4], "big")
        if marker == SCAN:
            break
        fits = SHORTEST.get(marker, 2) <= length <= len(data) - at - 2
        if not fits or (marker == BASELINE and sides):  # decoders may read such a file otherwise
            return None
        if marker == BASELINE:
            bits, height, width, components = struct.unpack_from(">BHHB", data, at + 4)
            sampling = data[at + 11 : at + 19 : 3]
            if bits != 8 or components != 3 or sampling not in SAMPLINGS:
                return None
            sides = height, width
        elif marker not in SEGMENTS or (marker == ADOBE and data[at + 15] != 1):
            return None
        at += 2 + length
    if marker != SCAN or sides is None or sides[0] * sides[1] > PLAIN:
        return None
    _check_size(Header(sides[1], sides[0], 0, False, True))
    return sides


def _png_header(start: bytes) -> Header | None:
    if len(start) < 33:
        return None
    layout = struct.unpack_from(">I4sIIBBBBBI", start, 8)
    length, kind, width, height, bits, colour, compression, filtering, _, crc = layout
    if (
        (length, kind) != (13, b"IHDR")
        or zlib.crc32(start[12:29]) != crc
        or bits not in PNG_BITS.get(colour, ())
        or compression
        or filtering
    ):
        return None
    at = 33
    while at + 8 <= len(start):
        length, kind = struct.unpack_from(">I4s", start, at)
        if kind == b"IDAT":
            return Header(width, height, 0, bits == 16)
        at += 12 + length
    return None


def _jpeg_header(start: bytes) -> Header | None:
    result = None
    at = 2
    while at + 4 <= len(start):
        marker = start[at + 1]
        length = int.from_bytes(start[at + 2 : at + 4], "big")
        if start[at] != 0xFF or length < 2:
            return None
        if marker == SCAN:
            return result
        if marker in FRAMES and result is None and at + 10 <= len(start):
            bits, height, width, components = struct.unpack_from(">BHHB", start, at + 4)
            if bits != 8 or components not in (1, 3, 4):
                return None
            result = Header(width, height, 0, False, marker != PROGRESSIVE)
        elif marker not in SEGMENTS:
            return None
        at += 2 + length
    return None


def _picture_header(file: BinaryIO, magic: bytes) -> Header:
    try:
        # Image.open warns of more than 89 million pixels, which can be decoded at a reduced size
        layered = magic.startswith(JPEG2000)
        image = Jpeg2KImageFile(file) if layered else Image.open(file, formats=FORMATS)
        if not (magic.startswith(TIFF) and getattr(image, "n_frames", 1) > 1):
            deep = ";16" in f"{image.tile}{image.mode}" or image.mode in ("I", "F")
            return Header(*image.size, 0, deep, _is_reducible(image))
    except UnidentifiedImageError:
        if not magic.startswith(TIFF):
            raise
    file.seek(0)
    with open_tiff(file) as tiff:
        return _array_header(tiff.series[0].shape, tiff.series[0].dtype)


def _is_reducible(image: Image.Image) -> bool:
    # a progressive JPEG needs the coefficients of the full image in memory
    return image.format == "JPEG2000" or (
        image.format == "JPEG" and not image.info.get("progressive")
    )


def _npy_header(file: BinaryIO) -> Header:
    read = {
        (1, 0): np.lib.format.read_array_header_1_0,
        (2, 0): np.lib.format.read_array_header_2_0,
    }
    shape, _, dtype = read[np.lib.format.read_magic(file)](file)
    result = _array_header(shape, dtype)
    start = file.tell()
    size = file.seek(0, io.SEEK_END) - start
    needed = math.prod(shape) * dtype.itemsize
    if size < needed:
        text = f"the shape {shape} of {dtype} needs {needed:,} bytes, but it has {size:,}"
        raise ValueError(text)
    return result


def _array_header(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Header:
    if len(shape) == 2:
        shape = (*shape, 1)
    if len(shape) != 3:
        raise ValueError(f"the shape {shape} is not (H,W), (H,W,C) or (C,H,W)")
    if dtype.kind not in "biuf":
        raise ValueError(f"the type {dtype} is not a number")
    height, width, bands = shape if shape[2] <= shape[0] else (shape[1], shape[2], shape[0])
    if height * width * bands * dtype.itemsize > 6 * PIXELS:
        raise ValueError(f"the shape {shape} of {dtype} needs more than {6 * PIXELS >> 20} MiB")
    return Header(width, height, bands, dtype.itemsize > 1)


def _check_size(info: Header) -> None:
    width, height, bands = info[:3]
    limit = REDUCIBLE if info.reducible else PIXELS
    if width * height * max(bands, 3) > 3 * limit:
        raise ValueError(
            f"has {width} x {height} pixels of {bands or 3} channels, "
            f"more than the limit of {limit:,} pixels of 3 channels"
        )
    if min(width, height) < 2:
        raise ValueError(f"is {width} x {height} px, too small to crop (at least 2 x 2 px)")
    if max(width, height) > LONGEST * min(width, height):
        raise ValueError(f"is {width} x {height} px, more than {LONGEST} times as long as wide")


@contextmanager
def open_tiff(file: BinaryIO) -> Iterator[Any]:
    """Open a TIFF file that Pillow cannot hold, with the optional package tifffile.

    Raises ValueError if the package is not installed, or if the file has more than PAGES pages.
    """
    try:
        import tifffile  # noqa: PLC0415
    except ImportError as error:
        raise ValueError(
            "this TIFF needs the tifffile package: pip install 'antipode[data]'"
        ) from error
    # tifffile logs every fault of a file before it raises an error; our callers already report it
    logging.getLogger("tifffile").setLevel(logging.CRITICAL)
    with tifffile.TiffFile(file) as tiff:
        # counting first also ends the search for pages, which is endless in some damaged files
        if len(tiff.pages) > PAGES:
            raise ValueError(f"it has {len(tiff.pages):,} pages, more than the limit of {PAGES:,}")
        yield tiff


def reason(error: Exception) -> str:
    """Return an error's message on one line of at most 120 characters."""
    text = " ".join(str(error).split()) or type(error).__name__
    text = SOURCE_LINE.sub("", text)
    return text if len(text) <= 120 else text[:117] + "..."
