"""The run folder: the files through which training, evaluation, analysis and report communicate.

JSON files, checkpoints and weights are written to a temporary file and then renamed, so that a
reader never sees half a file.
"""

import json
import os
import shutil
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from antipode import json_text
from antipode.early import CLASSIFIER
from antipode.files import atomic_write, finite, remove_leftovers
from antipode.names import brief
from antipode.paths import absolute
from antipode.runs import lock
from antipode.runs.lines import read_blocks
from antipode.runs.own_file import check_own, open_own
from antipode.wording import option

WEIGHTS = "backbone.safetensors"
PAGE = "report.html"
IMAGES = "images.json"  # the stamp of images that are named by a path
FILES = (
    "recipe.json",
    "env.json",
    IMAGES,
    "metrics.jsonl",
    "scores.json",
    "analysis.json",
    "duplicates.csv",
    "network.json",
    "wandb.json",
)
FOLDERS = ("checkpoints", "tensorboard", "features")
APPENDED = ("metrics.jsonl", ".adding")
# what a folder holds, by the file that marks it
KINDS = {
    "recipe.json": "a run",
    "network.json": "the scores of a network that no run trained",
    CLASSIFIER: "a classifier",
    "sweep.json": "a sweep",
}

# a record lock excludes other processes only, so this lock excludes other threads
ADDING = threading.Lock()


def check_results(path: Path, *own: str) -> None:
    """Raise ValueError if a folder holds results of another kind than `own`, keys of `KINDS`.

    Several kinds write scores.json or report.html, so they would replace each other's files.
    """
    found = [file for file in KINDS if (path / file).exists()]
    if found and not set(found) & set(own):
        raise ValueError(f"{path} holds {KINDS[found[0]]}: choose another {option('out')}")


class RunFolder:
    """The folder of one run.

    It holds recipe.json, env.json, images.json (of your own images), metrics.jsonl, checkpoints/
    and backbone.safetensors. Evaluations, analyses and reports add scores.json, analysis.json,
    duplicates.csv, features/ and report.html.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = absolute(path)
        self.checkpoints = self.path / "checkpoints"
        self.lock: lock.Lock | None = None

    def holds_run(self) -> bool:
        """Return True if a run was started here."""
        return (self.path / "recipe.json").exists()

    def has_trained(self) -> bool:
        """Return True if at least one training step left a trace here."""
        logged = any(True for _ in self.rows())
        return self.has_checkpoint() or logged or (self.path / WEIGHTS).exists()

    def has_ended(self) -> bool:
        """Return True if the run in the folder was trained to its end."""
        return (self.path / WEIGHTS).exists()

    def has_checkpoint(self) -> bool:
        """Return True if there is a checkpoint to resume from."""
        return (self.checkpoints / "last.pt").exists() or any(self.checkpoints.glob("step-*.pt"))

    def claim(self, patience: float = 20.0) -> None:
        """Lock the folder for this process until it calls `release` or ends.

        If the folder is locked already, wait up to `patience` seconds and then raise ValueError.
        """
        for name in APPENDED:  # now, and not when the first line is written
            check_own(self.path / name)
        if self.lock is not None or os.name != "posix":
            return
        deadline = time.monotonic() + patience
        while (acquired := lock.acquire(self.path)) is None:
            if time.monotonic() > deadline:
                raise ValueError(
                    f"{self.path} is in use: {lock.owner(self.path)} is training there; "
                    "wait for it or stop it"
                )
            time.sleep(0.1)
        self.lock = acquired
        # only a process that was killed while it wrote a file leaves such files
        remove_leftovers(self.path, (*FILES, WEIGHTS, PAGE))
        for name in FOLDERS:
            remove_leftovers(self.path / name)
        (self.checkpoints / ".last.tmp").unlink(missing_ok=True)

    def release(self) -> None:
        """Release the lock, so that other processes can claim the folder."""
        acquired = self.lock
        self.lock = None
        if acquired is not None:
            lock.release(acquired)

    def clear(self) -> None:
        """Delete the run, but no other files in the folder.

        recipe.json is deleted last, because it marks the folder as a run.
        """
        for part in sorted(self._parts(), key=lambda part: part.name == "recipe.json"):
            if part.is_dir():
                shutil.rmtree(part, ignore_errors=True)
            else:
                part.unlink(missing_ok=True)

    @contextmanager
    def replacing(self) -> Iterator[Callable[[], None]]:
        """Set the run aside for a new one.

        Call the yielded function (`commit`) to delete the old run; otherwise it is restored at the
        end of the block. If the process is killed, the next call of `recover` restores the old run.

        The old run moves through three folders:

        - `.old.moving` holds a part of it while the rest is still in its place,
        - `.old` holds all of it,
        - `.old.gone` holds what is to be deleted after the commit.
        """
        self.recover()
        if not self._parts():  # there is no run, and other files in the folder are not ours
            yield self._commit
            return
        moving = self._aside("moving")
        moving.mkdir(parents=True)
        try:
            for part in self._parts():
                part.rename(moving / part.name)
            moving.rename(self._aside())
            yield self._commit
        finally:
            self.recover()

    def recover(self) -> None:
        """Restore a run that was set aside for a new run which never took a step."""
        moving = self._aside("moving")
        old = self._aside()
        if old.exists():
            self.clear()  # deletes the new run
            old.rename(moving)
        if moving.exists():
            for part in moving.iterdir():
                part.rename(self.path / part.name)
            moving.rmdir()
        shutil.rmtree(self._aside("gone"), ignore_errors=True)

    def _commit(self) -> None:
        """Delete the old run that was set aside."""
        if self._aside().exists():
            self._aside().rename(self._aside("gone"))
            shutil.rmtree(self._aside("gone"), ignore_errors=True)

    def _aside(self, state: str = "") -> Path:
        """Return the folder that holds the old run in one of the states of `replacing`."""
        return self.path / (f".old.{state}" if state else ".old")

    def _parts(self) -> list[Path]:
        """Return the files and folders of the run, but no others; empty if there is no run here."""
        if not (self.holds_run() or self.has_checkpoint() or (self.path / "network.json").exists()):
            return []
        paths = [self.path / name for name in (*FILES, WEIGHTS, PAGE, *FOLDERS)]
        return [path for path in paths if path.exists()]

    def write_json(self, name: str, value: Any) -> None:
        """Replace a JSON file of the run atomically; non-finite numbers become null."""
        with atomic_write(self.path / name) as file:
            file.write((json.dumps(finite(value), indent=1) + "\n").encode())

    def add_json(self, name: str, values: dict[str, Any]) -> None:
        """Add keys to a JSON file of the run.

        Other processes and threads can add keys at the same time without losing any.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        with ADDING, open_own(self.path / ".adding") as file:
            while os.name == "posix" and not lock.lock_file(file):
                time.sleep(0.02)
            self.write_json(name, self.read_object(name) | values)

    def file(self, name: str, values: dict[str, Any]) -> None:
        """Add keys as `add_json` does, but warn instead of raising if the file cannot be written.

        The caller can then still show the values.
        """
        try:
            self.add_json(name, values)
        except OSError as error:
            warnings.warn(
                f"{self.path} cannot be written to ({error.strerror or error}): "
                f"{', '.join(values)} cannot be added to {name}",
                stacklevel=3,
            )

    def read_object(self, name: str) -> dict[str, Any]:
        """Return the keys and values of a JSON file of the run, {} if there is no such file.

        Raises ValueError if the file does not hold a JSON object.
        """
        content = self.read_json(name)
        if not isinstance(content, dict):
            raise ValueError(
                f"{self.path / name} must hold a JSON object, but it holds {brief(content)}"
            )
        return content

    def read_json(self, name: str) -> Any:
        """Return the content of a JSON file of the run, {} if there is no such file.

        Raises ValueError if the file does not hold JSON.
        """
        file = self.path / name
        return json_text.read(file) if file.exists() else {}

    def record(self, row: dict[str, Any]) -> None:
        """Append one line to metrics.jsonl."""
        with open_own(self.path / "metrics.jsonl") as file:
            file.write(json.dumps(finite(row)) + "\n")

    def metrics(self) -> list[dict[str, Any]]:
        """Return all rows of metrics.jsonl; lines that are not JSON objects are skipped.

        A crash can leave an incomplete last line.
        """
        return list(self.rows())

    def rows(self) -> Iterator[dict[str, Any]]:
        """Yield the rows of metrics.jsonl, reading the file as they are asked for."""
        for block in self.row_blocks():
            yield from block

    def row_blocks(self) -> Iterator[list[dict[str, Any]]]:
        """Yield the rows of metrics.jsonl in lists of some thousands."""
        file = self.path / "metrics.jsonl"
        return read_blocks(file) if file.is_file() else iter(())

    def rewind(self, step: int) -> None:
        """Delete the rows from `step` on, because a resumed run records them again."""

        def is_later(row: dict[str, Any]) -> bool:
            return isinstance(row.get("step"), int) and row["step"] >= step

        if any(map(is_later, self.rows())) or self._ends_in_a_partial_line():
            with atomic_write(self.path / "metrics.jsonl") as file:
                for row in self.rows():
                    if not is_later(row):
                        file.write((json.dumps(row) + "\n").encode())

    def _ends_in_a_partial_line(self) -> bool:
        """Return True if the last line of metrics.jsonl is incomplete."""
        path = self.path / "metrics.jsonl"
        if not path.is_file() or not path.stat().st_size:
            return False
        with path.open("rb") as file:
            file.seek(-1, os.SEEK_END)
            return file.read(1) != b"\n"
