"""Read JSON that someone else may have written.

Whatever the text is, the answer is a value or a ValueError of one sentence: the text may be cut
off, nested thousands of levels deep, hold numbers of thousands of digits, or be very long.
"""

import json
from itertools import chain
from pathlib import Path
from typing import Any

# Python objects take up to thirty times the memory of their text
LARGEST = 2**25  # bytes of a file: 32 MiB
DEEPEST = 64  # levels of nesting; our own files have six
HUGE = 1e150  # the square of a larger number may not be finite


def parse(text: str | bytes, name: str) -> Any:
    """Return the value of a JSON text; raise ValueError with one sentence if it is not JSON.

    `name` is what the sentence calls the text, such as the path of its file.
    """
    try:
        value = json.loads(text)
    except RecursionError:
        raise _too_deep(name) from None
    except MemoryError:
        raise ValueError(
            f"{name} needs more memory than there is: {len(text):,} bytes of JSON"
        ) from None
    except ValueError as error:  # not JSON, not Unicode, or a number of thousands of digits
        raise ValueError(f"{name} is not JSON: {_reason(error)}") from None
    if _brackets(text) > DEEPEST:
        _check_depth(value, name)
    return value


def _brackets(text: str | bytes) -> int:
    """Return the number of opening brackets, of which there are as many as levels or more."""
    if isinstance(text, bytes):
        return text.count(b"[") + text.count(b"{")
    return text.count("[") + text.count("{")


def number(value: Any) -> bool:
    """Return True if a JSON value is a finite number of a size that can be squared."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and -HUGE <= value <= HUGE


def read(path: Path) -> Any:
    """Return the value in a JSON file.

    Raises OSError if the file cannot be opened, and ValueError if it is longer than `LARGEST`, if
    it is not a regular file (a pipe would never end), or if it does not hold JSON.
    """
    if path.exists() and not path.is_file():
        raise ValueError(f"{path} is not a regular file, so it is not read as JSON")
    with path.open("rb") as file:
        content = file.read(LARGEST + 1)
    if len(content) > LARGEST:
        raise ValueError(
            f"{path} has {path.stat().st_size:,} bytes, and JSON files of at most {LARGEST:,} "
            "bytes are read"
        )
    return parse(content, str(path))


def _check_depth(value: Any, name: str) -> None:
    """Raise ValueError if a value is nested so deeply that functions which call themselves fail."""
    level = [value]
    for _ in range(DEEPEST):
        level = list(chain.from_iterable(map(_children, level)))
        if not level:
            return
    raise _too_deep(name)


def _children(value: Any) -> list[Any]:
    """Return the lists and objects directly inside a value."""
    if isinstance(value, dict):
        value = value.values()
    elif not isinstance(value, list):
        return []
    return [item for item in value if isinstance(item, list | dict)]


def _too_deep(name: str) -> ValueError:
    return ValueError(f"{name} is nested too deeply: JSON of at most {DEEPEST} levels is read")


def _reason(error: ValueError) -> str:
    """Return why a text is not JSON, in words that do not speak of Python."""
    if isinstance(error, json.JSONDecodeError | UnicodeDecodeError):
        return str(error)
    return "it holds a number of more than 4,300 digits"
