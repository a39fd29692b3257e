"""Torch files of tensors and plain values, read without executing code in them.

Whatever a file holds, reading it gives its content, a ValueError of one sentence, or an OSError.
"""

import pickle
import zipfile
from argparse import Namespace
from pathlib import Path
from typing import Any

import torch

from antipode.names import printable


def read_torch(path: Path) -> Any:
    """Return the content of a torch file.

    Besides tensors and plain values, a Namespace is accepted: many projects store their options in
    one, and it holds plain values as well.
    """
    _check_archive(path)
    try:
        with path.open("rb") as file, torch.serialization.safe_globals([Namespace]):
            return torch.load(file, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError:
        raise ValueError(
            f"{path} is not a torch file of tensors and plain values, and other content is not "
            "trusted: save its state_dict alone"
        ) from None
    except Exception as error:  # a damaged file raises errors of many types
        if isinstance(error, OSError) and error.filename:
            raise
        raise unreadable(path, error) from None


def _check_archive(path: Path) -> None:
    """Raise ValueError for a torch file whose records are damaged or larger than the file.

    torch compares no checksums, and would unpack compressed records of any size. Records without a
    checksum, which torch can write, are not compared.
    """
    if not zipfile.is_zipfile(path):
        return
    size = path.stat().st_size
    try:
        with zipfile.ZipFile(path) as archive:
            records = archive.infolist()
            total = sum(record.file_size for record in records)
            if total > size:
                raise ValueError(f"its records would have {total:,} bytes, the file has {size:,}")
            for record in records:
                if record.CRC:
                    _read_through(archive, record)
    except Exception as error:  # a damaged archive raises errors of many types
        raise unreadable(path, error) from None


def _read_through(archive: zipfile.ZipFile, record: zipfile.ZipInfo) -> None:
    """Read a record to its end, where its checksum is compared."""
    with archive.open(record) as content:
        while content.read(2**20):
            pass


def unreadable(path: Path, error: Exception) -> ValueError:
    """Return the error for a file whose weights cannot be read."""
    if isinstance(error, MemoryError):
        return ValueError(f"the weights in {path} need more memory than there is")
    return ValueError(f"the weights in {path} cannot be read ({line(error)})")


def line(error: Exception) -> str:
    """Return the first line of an error message, safe to print and of at most 200 characters."""
    text = (str(error).strip() or type(error).__name__).splitlines()[0]
    return printable(text)[:200]
