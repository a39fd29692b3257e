"""How the command line ends: the sentences for errors and interruptions, and exit statuses."""

import os
import re
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

# what an interrupted command prints
INTERRUPTED = dict.fromkeys(
    ("pretrain", "pack", "reproduce", "sweep"),
    "interrupted; the same command resumes from what is on the disk",
) | {
    "analyse": "interrupted; finished analyses are in analysis.json",
    "evaluate": "interrupted; finished scores are in scores.json, and the same command computes "
    "all scores again",
    "finetune": "interrupted; no classifier was written, and the same command trains it again from "
    "the start",
    "predict": "interrupted; no file was written, and the same command predicts all images again",
}
# what a command with --overwrite prints
FRESH = "interrupted; the same command without --overwrite resumes from what is on the disk"


class Stopped(Exception):
    """An interruption whose sentence says how to resume.

    typer replaces every KeyboardInterrupt by an exit status, so the command line raises this.
    """


@contextmanager
def terminable() -> Iterator[None]:
    """Treat SIGTERM, which schedulers send, like Ctrl-C.

    While a run trains, it installs its own handler.
    """
    main = os.getpid()

    def interrupt(number: int, frame: FrameType | None) -> None:
        if os.getpid() != main:  # a worker process that inherited this handler
            os._exit(128 + number)
        raise KeyboardInterrupt

    try:
        before = signal.signal(signal.SIGTERM, interrupt)
    except ValueError:  # only the main thread can install handlers
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before or signal.SIG_DFL)


def failure(error: BaseException) -> tuple[str, int]:
    """Return the sentence and the exit status for an error of the user or the machine.

    The sentence is empty for a bug in antipode, which should show its traceback.
    """
    if hasattr(error, "format_message"):  # an error of typer's parser
        return _usage(error), 2
    if type(error).__name__ == "InTrouble":  # training ended because the network is in trouble
        return str(error), 3
    if isinstance(error, KeyboardInterrupt | Stopped) or type(error).__name__ == "Abort":
        return str(error) or "interrupted", 130
    if type(error).__name__ == "JobFailed":  # a job of a cluster
        return str(error), 1
    if isinstance(error, ConnectionError) and not error.errno:  # another rank failed
        return str(error), 1
    sentence = _of_system(error)
    if not sentence and isinstance(error, ValueError | FileNotFoundError):
        sentence = str(error) or type(error).__name__
    return sentence, 2 if sentence else 1


def _of_system(error: BaseException) -> str:
    """Return the sentence for an error of the operating system: a file, a folder or memory."""
    if isinstance(error, RuntimeError) and "allocate memory" in str(error):
        size = re.search(r"allocate (\d+) bytes", str(error))
        amount = f"{int(size[1]):,} bytes" if size else "memory"
        return f"not enough memory: cannot allocate {amount}, so choose smaller values"
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        place = " on the GPU" if isinstance(error, RuntimeError) else ""
        detail = str(error).partition(". ")[0]
        return (
            f"not enough memory{place}{f' ({detail})' if detail else ''}: choose a smaller batch "
            "size, view size or data set"
        )
    if isinstance(error, FileExistsError | NotADirectoryError) and error.filename:
        path = Path(os.fsdecode(error.filename))
        file = next((place for place in (path, *path.parents) if place.is_file()), path)
        return f"{file} is a file, but a folder is needed"
    if isinstance(error, OSError) and error.errno:
        # a file is written under a temporary name first; filename2 is the final one
        name = error.filename2 or error.filename
        return f"{error.strerror or error}{f': {name}' if name else ''}"
    return ""


def _usage(error: Any) -> str:
    """Return the sentence of typer's parser, and where to find the valid names."""
    sentence = error.format_message().rstrip(".")
    context = getattr(error, "ctx", None)
    commands = getattr(getattr(context, "command", None), "commands", None)
    if commands and "command" in sentence:
        choices = f"choose from {', '.join(commands)}"
        problem, _, hint = sentence.partition(". Did you ")
        return f"{problem}, did you {hint} ({choices})" if hint else f"{problem}: {choices}"
    return f"{sentence}; see {context.command_path} --help" if context else sentence


def warn(message: Any, category: Any, *_: Any, **__: Any) -> None:
    """Print a warning as one sentence, without the source line that Python adds."""
    print(f"warning: {message}", file=sys.stderr)


def exit_with(sentence: str, status: int) -> NoReturn:
    """Print a sentence on stderr and exit."""
    print(f"antipode: {' '.join(sentence.split())}", file=sys.stderr)
    sys.exit(status)
