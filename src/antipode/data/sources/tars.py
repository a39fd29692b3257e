"""Read the members of a tar file, and refuse a tar file that is damaged.

Python's tarfile stops without an error at a damaged header and at the first end-of-archive marker.
The files after that place would be lost. It also trusts the sizes in the headers: a negative size
sends it back to an earlier header for ever, and a large one takes the memory of the machine.
"""

import os
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, cast

from antipode.names import brief, printable

LARGEST = 1 << 14  # bytes of a header; the longest path of Linux has 4,096
CHUNK = 1 << 20  # bytes that are read at once after the end of the archive
BLOCK = tarfile.BLOCKSIZE


def members(path: Path, file: BinaryIO, notes: list[str]) -> Iterator[tarfile.TarInfo]:
    """Yield the members of an open, uncompressed tar file in their order.

    Raises ValueError if the file is not a tar file, if a header is damaged, or if the file
    continues after the end of the archive. Adds a text to `notes` if the file may be truncated.
    """
    size = os.fstat(file.fileno()).st_size
    count = 0
    end = 0
    try:
        tar = tarfile.open(fileobj=cast(BinaryIO, _Headers(file)), mode="r:")
    except Exception as error:  # a damaged header can raise almost anything
        raise _not_a_tar(path, error) from error
    while (member := _next(tar, path, count)) is not None:
        regular = member.isreg()
        if member.size < 0 or tar.offset <= end:
            raise _damaged(path, end, count, f"a size of {member.size} bytes")
        if regular and member.offset_data + member.size > size:
            raise _not_a_tar(path, "unexpected end of data")
        end = tar.offset
        count += 1
        tar.members.clear()  # type: ignore[attr-defined]  # tarfile keeps them all
        yield member
    _check_end(path, file, tar.offset, count, notes)


class _Headers:
    """The file from which tarfile reads headers; it refuses to read a large amount at once."""

    def __init__(self, file: BinaryIO) -> None:
        self.file = file

    def read(self, size: int) -> bytes:
        if not 0 <= size <= LARGEST:
            raise ValueError(f"a header of {brief(size)} bytes")
        return self.file.read(size)

    def seek(self, position: int) -> int:
        return self.file.seek(position)

    def tell(self) -> int:
        return self.file.tell()


def _next(tar: tarfile.TarFile, path: Path, count: int) -> tarfile.TarInfo | None:
    try:
        return tar.next()
    except tarfile.ReadError as error:
        raise _not_a_tar(path, error) from error
    except Exception as error:  # a damaged header can raise almost anything
        raise _damaged(path, tar.offset, count, error) from error


def _check_end(path: Path, file: BinaryIO, end: int, count: int, notes: list[str]) -> None:
    """Raise ValueError if a file has anything but zeros after its last member."""
    file.seek(end)
    first = file.read(BLOCK)
    if any(first):
        raise _damaged(path, end, count, "no valid header")
    if len(first) < BLOCK:
        notes.append("has no end-of-archive marker, so the shard may be truncated")
    at = end + len(first)
    while chunk := file.read(CHUNK):
        rest = chunk.lstrip(b"\0")
        if rest:
            raise ValueError(
                printable(
                    f"{path} continues at byte {at + len(chunk) - len(rest):,}, after the end of "
                    f"its archive of {count} files: join archives with tar --concatenate and not "
                    "with cat, or give them as separate shards"
                )
            )
        at += len(chunk)


def _damaged(path: Path, at: int, count: int, what: object) -> ValueError:
    reason = " ".join(str(what).split())[:120] or type(what).__name__
    return ValueError(
        printable(
            f"{path} is damaged at byte {at:,}, after {count} files ({reason}): copy it again, or "
            "pack its files again"
        )
    )


def _not_a_tar(path: Path, reason: object) -> ValueError:
    text = " ".join(str(reason).split())[:120]
    return ValueError(
        printable(f"{path} is not an uncompressed tar file, or is truncated ({text})")
    )
