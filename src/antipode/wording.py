"""Words for messages, many of which depend on how antipode was called: by command or from Python.

A message to a user of the command line names flags (`--overwrite`). A message to a Python program
names arguments (`overwrite=True`). Every message that names one of them asks here.
"""

import json
import shlex
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

_flags = False  # a process is either the command line or a Python program


@contextmanager
def command_line() -> Iterator[None]:
    """Let messages name flags, as long as this context is open."""
    global _flags  # noqa: PLW0603
    before = _flags
    _flags = True
    try:
        yield
    finally:
        _flags = before


def from_command_line() -> bool:
    """Return True if antipode was called from the command line."""
    return _flags


def option(name: str, value: object = None) -> str:
    """Return a flag or an argument, with a value if it is given.

    `option("overwrite", True)` is `--overwrite` or `overwrite=True`.
    """
    flag = name.replace("_", "-")
    if not _flags:
        return name if value is None else f"{name}={_literal(value)}"
    if isinstance(value, bool):
        return f"--{flag}" if value else f"--no-{flag}"
    return f"--{flag}" if value is None else f"--{flag} {shlex.quote(str(value))}"


def overrides(values: Mapping[str, object]) -> str:
    """Return how values of the recipe are set: with `--set` or as `overrides`."""
    if _flags:
        return " ".join(f"--set {key}={_plain(value)}" for key, value in values.items())
    inner = ", ".join(f'"{key}": {_literal(value)}' for key, value in values.items())
    return f"overrides={{{inner}}}"


def final_loss(mean: float, lines: int) -> str:
    """Return the loss at the end of a training, the mean of its last `lines` log lines."""
    return f"{mean:.4f}" + (f" (mean of the last {lines} log lines)" if lines > 1 else "")


def command(name: str, *words: str, **flags: object) -> str:
    """Return a command for a shell, which has no counterpart in Python."""
    pairs = [text for flag, value in flags.items() for text in (f"--{flag}", str(value))]
    return shlex.join(["antipode", name, *words, *pairs])


def counted(number: int, noun: str) -> str:
    """Return a number with its noun: "1 epoch", "2,000 epochs"."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def capital(text: str) -> str:
    """Return a sentence that begins with a capital letter, unless it begins with kNN."""
    return text if text.startswith("kNN") else text[:1].upper() + text[1:]


def same_call() -> str:
    """Return "the same command" or "the same call"."""
    return "the same command" if _flags else "the same call"


def _plain(value: object) -> str:
    """Return a value as it is written after `--set key=`."""
    return value if isinstance(value, str) else json.dumps(value)


def _literal(value: object) -> str:
    """Return a value as it is written in Python, with double quotes."""
    return json.dumps(value) if isinstance(value, str) else repr(value)
