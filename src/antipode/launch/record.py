"""What is known about the job of a run, in the folder `jobs` of its run folder.

`job.json` is written by the command that submits the job, and `outcome.json` by the job itself.
Both name the job, so an outcome of an earlier job is recognised.
"""

import json
import time
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from antipode import json_text
from antipode.files import atomic_write

FOLDER = "jobs"


@dataclass(frozen=True)
class Record:
    """The job of a run.

    Args:
        scheduler: "slurm" or "ray".
        id: the scheduler's name of the job.
        label: a description of the run for the user.
        log: the path of the log, empty if there is none.
        key: the key of the task, see `task.Task`.
        submitted: when it was submitted, in seconds since 1970.
    """

    scheduler: str
    id: str
    label: str = ""
    log: str = ""
    key: str = ""
    submitted: float = 0.0


@dataclass(frozen=True)
class Outcome:
    """How a job ended.

    Args:
        id: the job.
        error: the reason why it failed, empty if it succeeded.
        seconds: how long its last attempt took.
        attempts: how often it was started.
    """

    id: str
    error: str = ""
    seconds: float = 0.0
    attempts: int = 1


def jobs_folder(folder: Path) -> Path:
    """Return where the records and logs of the jobs of a run are."""
    return folder / FOLDER


def write_record(folder: Path, record: Record) -> None:
    """Store the job of the run in `folder`."""
    _write(jobs_folder(folder) / "job.json", asdict(record))


def read_record(folder: Path) -> Record | None:
    """Return the last job of the run in `folder`, None if there is none."""
    values = _read(jobs_folder(folder) / "job.json")
    known = {field.name for field in fields(Record)}
    return Record(**{k: v for k, v in values.items() if k in known}) if values else None


def write_outcome(folder: Path, outcome: Outcome) -> None:
    """Store how the job of the run in `folder` ended."""
    _write(jobs_folder(folder) / "outcome.json", asdict(outcome))


def read_outcome(folder: Path, job: str) -> Outcome | None:
    """Return how a job of the run in `folder` ended, None if it has not ended."""
    values = _read(jobs_folder(folder) / "outcome.json")
    known = {field.name for field in fields(Outcome)}
    if values.get("id") != job:
        return None
    return Outcome(**{k: v for k, v in values.items() if k in known})


def now() -> float:
    """Return the time in seconds since 1970."""
    return time.time()


def _write(path: Path, values: dict[str, Any]) -> None:
    with atomic_write(path) as file:
        file.write((json.dumps(values, indent=1) + "\n").encode())


def _read(path: Path) -> dict[str, Any]:
    """Return the content of a file, {} if there is no such file or it is not an object."""
    try:
        values = json_text.read(path)
    except (OSError, ValueError):
        return {}
    return values if isinstance(values, dict) and isinstance(values.get("id"), str) else {}
