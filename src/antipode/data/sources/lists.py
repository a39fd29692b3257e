"""Read lists of images and annotations that others have written: text, JSON and XML files.

Any content gives a value or a ValueError of one sentence with the name of the file.
"""

import math
from collections import Counter
from pathlib import Path, PurePosixPath
from typing import Any, NoReturn
from xml.etree import ElementTree

from antipode import json_text
from antipode.names import brief, printable

LIST_BYTES = 1 << 31  # the largest list; COCO's training images need 470 MB
XML_BYTES = 1 << 24  # the largest annotation of one image
FARTHEST = 1e6  # the largest coordinate of a box or an outline, in pixels
LONGEST_NAME = 1000  # characters
LARGEST_ID = (1 << 63) - 1  # of int64


def wrong(file: Path, what: str) -> NoReturn:
    """Raise a ValueError that names the file and says what is wrong with it."""
    raise ValueError(printable(f"{file} cannot be used: {what}"))


def read_lines(file: Path) -> list[str]:
    """Return the lines of a text file that are not empty."""
    text = _content(file, LIST_BYTES).decode("utf-8", "surrogateescape")
    return [line for line in text.split("\n") if line.strip()]


def read_object(file: Path) -> dict[str, Any]:
    """Return the object in a JSON file."""
    content = json_text.parse(_content(file, LIST_BYTES), str(file))
    if not isinstance(content, dict):
        wrong(file, f"it contains {brief(content, 40)}, not an object")
    return content


def read_xml(file: Path, tag: str) -> ElementTree.Element:
    """Return the root of an XML file, whose tag must be `tag`."""
    data = _content(file, XML_BYTES)
    try:
        root = ElementTree.fromstring(data)
    except Exception as error:  # a damaged file can raise more than ParseError
        wrong(file, f"it is not XML ({str(error)[:120] or type(error).__name__})")
    if root.tag != tag:
        wrong(file, f"it contains <{brief(root.tag)}>, not <{tag}>")
    return root


def rows(file: Path, content: dict[str, Any], key: str) -> list[dict[str, Any]]:
    """Return the list of objects under a key of a JSON file."""
    value = content.get(key)
    if not isinstance(value, list) or not all(isinstance(row, dict) for row in value):
        wrong(file, f"{key!r} is not a list of objects")
    return value


def text_of(file: Path, row: dict[str, Any], key: str, what: str) -> str:
    """Return the text under a key of an object; `what` says what the object is."""
    value = row.get(key)
    if not isinstance(value, str):
        wrong(file, f"the {key} of {what} is {brief(value)}, not a text")
    return value


def id_of(file: Path, row: dict[str, Any], key: str, what: str) -> int:
    """Return the integer under a key of an object; `what` says what the object is."""
    value = row.get(key)
    if type(value) is not int or not -LARGEST_ID <= value <= LARGEST_ID:
        wrong(file, f"the {key} of {what} is {brief(value)}, not an integer")
    return value


def unique_ids(file: Path, content: dict[str, Any], key: str) -> list[int]:
    """Return the `id` of every object in the list under a key of a JSON file.

    Raises ValueError if two objects have the same id.
    """
    ids = [id_of(file, row, "id", f"one of its {key}") for row in rows(file, content, key)]
    number, count = next(iter(Counter(ids).most_common(1)), (0, 0))
    if count > 1:
        wrong(file, f"the id {number} stands for {count} of its {key}")
    return ids


def inside(file: Path, name: str) -> str:
    """Return the name of an image; raise ValueError if it is outside the folder of the images."""
    path = PurePosixPath(name)
    if not path.parts or path.is_absolute() or ".." in path.parts or "\0" in name:
        wrong(file, f"the image {brief(name)} is not inside its folder")
    if len(name) > LONGEST_NAME:
        wrong(file, f"the name {brief(name)} of an image has {len(name):,} characters")
    return name


def coordinate(value: Any) -> float:
    """Return a number as a coordinate in pixels; raise ValueError if it cannot be one."""
    try:
        number = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not -FARTHEST <= number <= FARTHEST:
        raise ValueError(f"{brief(value)} is not a coordinate in pixels")
    return number


def _content(file: Path, most: int) -> bytes:
    size = file.stat().st_size
    if not file.is_file() or size > most:
        wrong(file, f"it is not a file of at most {most:,} bytes")
    return file.read_bytes()
