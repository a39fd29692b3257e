"""Arrays of an .npz file as memory maps: nothing is read before it is needed."""

import struct
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

# what a missing or damaged file raises
DAMAGED = (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, struct.error)


def member(file: Path, name: str) -> "np.ndarray[Any, Any]":
    """Return an array of an .npz file as a memory map for reading.

    The file may be from someone else: no object is unpickled, and an array that is longer than the
    file, or compressed, raises ValueError.
    """
    with zipfile.ZipFile(file) as archive:
        info = archive.getinfo(f"{name}.npy")
        if info.compress_type != zipfile.ZIP_STORED:
            raise ValueError(f"{name} of {file} is compressed")
        with archive.open(info) as stream:
            version = np.lib.format.read_magic(stream)
            header: Any = (
                np.lib.format.read_array_header_1_0
                if version == (1, 0)
                else np.lib.format.read_array_header_2_0
            )
            shape, fortran, dtype = header(stream)
            start = stream.tell()
    if dtype.hasobject:
        raise ValueError(f"{name} of {file} contains objects")
    if 0 in shape:  # there is no empty memory map
        return np.zeros(shape, dtype)
    with file.open("rb") as handle:
        handle.seek(info.header_offset + 26)  # the lengths of the name and of the extra field
        lengths = struct.unpack("<HH", handle.read(4))
        offset = info.header_offset + 30 + sum(lengths) + start
        return np.memmap(handle, dtype, "r", offset, shape, "F" if fortran else "C")
