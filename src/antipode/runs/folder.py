"""The run folder: the interface between training, evaluation and report. All is written aside and renamed."""

import errno
import json
import os
import platform
import shutil
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from antipode.files import finite, atomic_write

ADDING = threading.Lock()
FILES = ("recipe.json", "env.json", "metrics.jsonl", "scores.json", "analysis.json", "network.json", "wandb.json")
WEIGHTS, PAGE = "backbone.safetensors", "report.html"
FOLDERS = ("checkpoints", "tensorboard", "features")


@dataclass(frozen=True)
class Lock:
    """A locked file, and the process that has it."""

    file: IO[str]
    pid: int

    def stands(self, path: Path) -> bool:
        """Whether it is this process's, which a fork's is not, and of the file that is there now."""
        try:
            return self.pid == os.getpid() and os.fstat(self.file.fileno()).st_ino == path.stat().st_ino
        except FileNotFoundError:
            return False


# a record lock is the process's: within it a second holder would get it, too, and let go of it for the first
LOCKS: dict[Path, Lock] = {}
LOCKING = threading.Lock()
KEPT: list[Lock] = []  # of a parent, or of a file that is gone: closing one might let go of another on the same file


class RunFolder:
    """recipe.json, env.json, metrics.jsonl, checkpoints/, backbone.safetensors, scores.json and what is added later."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path).expanduser()
        self.checkpoints = self.path / "checkpoints"
        self.lock: Lock | None = None

    def holds_run(self) -> bool:
        """Whether a run was begun here."""
        return (self.path / "recipe.json").exists()

    def has_trained(self) -> bool:
        """Whether a step was taken here, as far as the folder tells."""
        return self.has_checkpoint() or bool(self.metrics()) or (self.path / WEIGHTS).exists()

    def has_checkpoint(self) -> bool:
        """Whether there is a checkpoint to go on from."""
        return (self.checkpoints / "last.pt").exists() or any(self.checkpoints.glob("step-*.pt"))

    def claim(self, patience: float = 20.0) -> None:
        """Take the folder for this process until it ends or lets go; one that is about to let go is waited for.

        By a record lock, which goes with its process however that ends, and which forked workers do not inherit.
        """
        if self.lock is not None or os.name != "posix":
            return
        until = time.monotonic() + patience
        while not self._take():
            if time.monotonic() > until:
                # not read where it is our own: closing the file once more would let go of it
                mine = LOCKS.get(self.path.resolve())
                ours = mine is not None and mine.pid == os.getpid()
                owner = os.getpid() if ours else (self.path / ".lock").read_text()
                raise ValueError(f"{self.path} is in use: process {owner} trains there, wait for it or stop it")
            time.sleep(0.1)
        for left in self.checkpoints.glob(".*.tmp"):  # by a process that was killed while it wrote: nobody else does
            left.unlink(missing_ok=True)

    def _take(self) -> bool:
        """Whether the folder is this process's now."""
        path, place = self.path / ".lock", self.path.resolve()
        with LOCKING:
            if place in LOCKS and LOCKS[place].stands(path):
                return False
            try:
                self.path.mkdir(parents=True, exist_ok=True)
                file = path.open("a+")
            except FileNotFoundError:  # who had it removes what it had made for nothing
                return False
            lock = Lock(file, os.getpid())
            if not _locked(file) or not lock.stands(path):  # or of a file that went while we waited
                file.close()
                return False
            if place in LOCKS:
                KEPT.append(LOCKS[place])
            file.truncate(0)
            file.write(str(os.getpid()))
            file.flush()
            self.lock = LOCKS[place] = lock
        return True

    def release(self) -> None:
        """Let others have the folder."""
        with LOCKING:
            lock, self.lock = self.lock, None
            if lock is not None and lock.pid != os.getpid():
                KEPT.append(lock)
            elif lock is not None:
                lock.file.close()
                for place in [place for place, held in LOCKS.items() if held is lock]:
                    del LOCKS[place]

    def clear(self) -> None:
        """Remove a run, and nothing else that lies in the folder; its recipe last, by which it is known to be one."""
        for part in sorted(self._parts(), key=lambda part: part.name == "recipe.json"):
            if part.is_dir():
                shutil.rmtree(part, ignore_errors=True)
            else:
                part.unlink(missing_ok=True)

    @contextmanager
    def replacing(self) -> Iterator[Callable[[], None]]:
        """Set the run aside for a new one. When what is yielded is called it goes for good, else it comes back.

        Whoever is killed in between leaves it to `recover`. A folder `.old.moving` holds a part of the run, the rest
        being in its place; `.old` holds all of it; what is in `.old.gone` is not wanted any more.
        """
        self.recover()
        if not self._parts():  # there is no run: what lies here is somebody else's
            yield self._forget
            return
        moving, old = self._aside("moving"), self._aside()
        moving.mkdir(parents=True)
        try:
            for part in self._parts():
                part.rename(moving / part.name)
            moving.rename(old)
            yield self._forget
        finally:
            self.recover()

    def recover(self) -> None:
        """Bring back a run that was set aside for one that never took a step."""
        moving, old = self._aside("moving"), self._aside()
        if old.exists():
            self.clear()  # of the new one
            old.rename(moving)
        if moving.exists():
            for part in moving.iterdir():
                part.rename(self.path / part.name)
            moving.rmdir()
        shutil.rmtree(self._aside("gone"), ignore_errors=True)

    def _forget(self) -> None:
        if self._aside().exists():
            self._aside().rename(self._aside("gone"))
            shutil.rmtree(self._aside("gone"), ignore_errors=True)

    def _aside(self, state: str = "") -> Path:
        return self.path / f".old{state and '.'}{state}"

    def _parts(self) -> list[Path]:
        """What is the run's own in the folder, and nothing else that lies there: none of it where there is no run."""
        if not (self.holds_run() or self.has_checkpoint() or (self.path / "network.json").exists()):
            return []
        return [*filter(Path.exists, (self.path / name for name in (*FILES, WEIGHTS, PAGE, *FOLDERS)))]

    def write_json(self, name: str, value: Any) -> None:
        """Replace a JSON file of the run, whole or not at all."""
        with atomic_write(self.path / name) as file:
            file.write((json.dumps(value, indent=1) + "\n").encode())

    def add_json(self, name: str, values: dict[str, Any]) -> None:
        """Add keys to a JSON file of the run; what other processes and threads add at the same time stays."""
        self.path.mkdir(parents=True, exist_ok=True)
        with ADDING, (self.path / ".adding").open("a+") as lock:  # a record lock is the process's, not a thread's
            while os.name == "posix" and not _locked(lock):
                time.sleep(0.02)
            self.write_json(name, self.read_object(name) | values)

    def file(self, name: str, values: dict[str, Any]) -> None:
        """Add keys as `add_json` does; where nothing can be written they are still worth being seen, so that warns."""
        try:
            self.add_json(name, values)
        except OSError as error:
            what = f"{', '.join(values)} cannot be added to {name}"
            warnings.warn(f"{self.path} cannot be written to ({error.strerror or error}): {what}", stacklevel=3)

    def read_object(self, name: str) -> dict[str, Any]:
        """The keys and values of a JSON file of the run, none where it is not there."""
        there = self.read_json(name)
        if not isinstance(there, dict):
            raise ValueError(f"{self.path / name} holds no object of keys and values but {str(there)[:60]}")
        return there

    def read_json(self, name: str) -> Any:
        """The content of a JSON file of the run, {} where there is none."""
        file = self.path / name
        try:
            return json.loads(file.read_text()) if file.exists() else {}
        except ValueError as error:
            raise ValueError(f"{file} is not JSON: {error}") from error

    def record(self, row: dict[str, Any]) -> None:
        """Add one line to metrics.jsonl."""
        with (self.path / "metrics.jsonl").open("a") as file:
            file.write(json.dumps(finite(row)) + "\n")

    def metrics(self) -> list[dict[str, Any]]:
        """All whole lines of metrics.jsonl; a line that a crash cut short is left out."""
        file = self.path / "metrics.jsonl"
        return list(_rows(file)) if file.exists() else []

    def rewind(self, step: int) -> None:
        """Forget what was recorded from `step` on: a resumed run records it again."""
        rows = self.metrics()
        kept = [row for row in rows if not isinstance(row.get("step"), int) or row["step"] < step]
        if len(kept) < len(rows) or self._cut_short():
            with atomic_write(self.path / "metrics.jsonl") as file:
                file.write("".join(json.dumps(row) + "\n" for row in kept).encode())

    def _cut_short(self) -> bool:
        file = self.path / "metrics.jsonl"
        return file.exists() and file.stat().st_size > 0 and not file.read_bytes().endswith(b"\n")


def _locked(file: IO[str]) -> bool:
    """Whether the file is locked now by this process; also where the file system knows no locks."""
    import fcntl  # noqa: PLC0415  (not on Windows)

    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno not in (errno.EACCES, errno.EAGAIN)
    return True


def _rows(file: Path) -> Iterator[dict[str, Any]]:
    for line in file.read_text(errors="replace").splitlines():
        try:
            row = json.loads(line)
        except ValueError:
            continue
        if isinstance(row, dict):
            yield row


def environment(device: str) -> dict[str, Any]:
    """Versions, device, command and commit: what it takes to repeat a run."""
    import torch  # noqa: PLC0415
    import torchvision  # noqa: PLC0415

    import antipode  # noqa: PLC0415
    from antipode import dist  # noqa: PLC0415

    return {
        "antipode": antipode.__version__,
        "commit": _commit(),
        "torch": torch.__version__,
        "torchvision": torchvision.__version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cores": os.cpu_count(),
        "device": torch.cuda.get_device_name() if device == "cuda" else device,
        "command": sys.argv,
        "launch": dist.launch(),
        "ranks": dist.world(),
    }


def _commit() -> str | None:
    """The commit of the package's own checkout, with a + where it has changes; None where it was installed.

    An installation may lie inside of somebody else's checkout, whose commit is not ours.
    """
    home = Path(__file__).resolve().parents[3]
    try:
        top = _git(home, "rev-parse", "--show-toplevel")
        return _git(home, "describe", "--always", "--dirty=+", "--abbrev=40") if Path(top).resolve() == home else None
    except (OSError, subprocess.SubprocessError):
        return None


def _git(folder: Path, *words: str) -> str:
    found = subprocess.run(["git", "-C", str(folder), *words], capture_output=True, text=True, check=True, timeout=10)
    return found.stdout.strip()
