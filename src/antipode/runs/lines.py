"""Read JSON lines: one object a line, in time and memory that grow with the file alone."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from antipode import json_text

BLOCK = 2**20  # bytes that are read and parsed at once
LONGEST = 2**20  # bytes of a line; a longer one is skipped


def read_blocks(path: Path) -> Iterator[list[dict[str, Any]]]:
    """Yield the objects of a file of JSON lines, in lists of some thousands.

    Lines that are not JSON objects are skipped, because a crash can leave an incomplete line.
    """
    for lines in _lines(path):
        objects = _objects([line for line in lines if not line.isspace() and line])
        if objects:
            yield objects


def _lines(path: Path) -> Iterator[list[bytes]]:
    """Yield the lines of a file, block by block, without those that are longer than `LONGEST`."""
    rest = b""
    skipping = False  # inside a line that is too long
    with path.open("rb") as file:
        while block := file.read(BLOCK):
            *whole, rest = (rest + block).split(b"\n")
            if skipping and whole:
                whole.pop(0)
                skipping = False
            yield whole
            if skipping or len(rest) > LONGEST:
                rest = b""
                skipping = True
    if not skipping:
        yield [rest]


def _objects(lines: list[bytes]) -> list[dict[str, Any]]:
    """Return the lines that are JSON objects.

    Flat objects are parsed together, which is faster than one by one, and lets them share the texts
    of their keys. Each of them has one opening brace, at its start, so no object can end in another
    line.
    """
    joined = b",".join(lines)
    is_flat = joined.count(b"{") == len(lines) and b"[" not in joined
    if is_flat and all(line.startswith(b"{") for line in lines):
        try:
            values: list[dict[str, Any]] = json.loads(b"[" + joined + b"]")
        except ValueError:
            values = []
        if len(values) == len(lines):
            return values
    parsed = map(_parsed, lines)
    return [value for value in parsed if isinstance(value, dict)]


def _parsed(line: bytes) -> Any:
    """Return the value of a line of JSON, None if it is not JSON."""
    try:
        return json_text.parse(line.decode("utf-8", "replace"), "a line")
    except ValueError:
        return None
