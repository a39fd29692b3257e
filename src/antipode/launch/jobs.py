"""The states of the runs of a sweep, an item or a single run: the command `antipode jobs`.

It reads the records of jobs, the queue of SLURM and the run folders. It does not import torch.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from antipode.launch import slurm_queue
from antipode.launch.record import Outcome, Record, jobs_folder, read_outcome, read_record
from antipode.paths import absolute

WEIGHTS = "backbone.safetensors"
FAILED = ("failed", "cancelled", "lost")


@dataclass(frozen=True)
class Row:
    """The state of a run.

    Args:
        run: the name of the run folder.
        label: a description of the run, such as its varied values.
        state: waiting, running, finished, failed, cancelled or lost for a run that a cluster holds;
            finished, started or "to train" for others.
        scheduler: "slurm", "ray" or "local".
        id: the job, empty for a local run.
        time: how long the job has run, empty if unknown.
        attempts: how often the job was started, if it has ended.
        log: the path of the log, empty if there is none.
        note: why the job waits or failed.
    """

    run: str
    label: str
    state: str
    scheduler: str = "local"
    id: str = ""
    time: str = ""
    attempts: int | None = None
    log: str = ""
    note: str = ""


def job_table(folder: str | Path) -> list[dict[str, Any]]:
    """Return the states of the runs in a folder: a sweep, an item, a single run or a pack.

    Raises FileNotFoundError if there is no run.
    """
    place = absolute(folder)
    folders = list(run_folders(place))
    if not folders and not place.exists():
        raise FileNotFoundError(f"there is no folder {place}")
    if not folders:
        raise FileNotFoundError(
            f"{place} holds no run and no job: give the folder of a sweep, of a reproduction or of "
            "a run"
        )
    records = {path: read_record(path) for path in folders}
    uses_slurm = any(record and record.scheduler == "slurm" for record in records.values())
    queue = slurm_queue.queue() if uses_slurm and slurm_queue.available() else None
    return [asdict(_row(path, record, queue)) for path, record in records.items()]


def run_folders(place: Path) -> Iterator[Path]:
    """Yield the folders with a run or a job: the given one, or those below it."""
    beside = place.with_name(f"{place.name}.jobs")  # of `embed` and `pack`
    for path in (place, beside):
        if _holds(path):
            yield path
            return
    for parent in (place / "runs", place):
        found = [path for path in sorted(parent.glob("*")) if _holds(path)]
        if found:
            yield from found
            return


def _holds(path: Path) -> bool:
    return (jobs_folder(path) / "job.json").is_file() or (path / "recipe.json").is_file()


def _row(path: Path, record: Record | None, queue: Mapping[str, slurm_queue.Job] | None) -> Row:
    """Return the state of one run."""
    if record is None:
        return Row(path.name, "", _local_state(path))
    row = Row(
        path.name, record.label, "submitted", record.scheduler, record.id, log=record.log
    ).__dict__
    outcome = read_outcome(path, record.id)
    if outcome is not None:
        return Row(**row | _ended(outcome))
    if record.scheduler != "slurm":
        return Row(**row | {"state": "running" if _local_state(path) != "finished" else "finished"})
    if queue is None:
        return Row(**row | {"state": "unknown", "note": "squeue does not answer on this machine"})
    job = queue.get(record.id)
    if job is None:
        return Row(**row | {"state": "lost", "note": f"the job {slurm_queue.GONE}"})
    note = slurm_queue.ENDED.get(job.state, "") or (job.reason if job.word == "waiting" else "")
    state = "failed" if job.word == "finished" else job.word  # it ended without an outcome
    return Row(**row | {"state": state, "time": job.time, "note": note.strip("()")})


def _ended(outcome: Outcome) -> dict[str, Any]:
    return {
        "state": "failed" if outcome.error else "finished",
        "time": str(timedelta(seconds=round(outcome.seconds))),
        "attempts": outcome.attempts,
        "note": outcome.error,
    }


def _local_state(path: Path) -> str:
    """Return the state that the files of a run show."""
    if (path / WEIGHTS).exists():
        return "finished"
    return "started" if any((path / "checkpoints").glob("*.pt")) else "to train"


def job_lines(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the table as lines, and what to do about runs that failed."""
    heads = ("run", "state", "job", "time", "log")
    cells = [(row["run"], row["state"], row["id"], row["time"], _near(row["log"])) for row in rows]
    widths = [max(len(line[at]) for line in (heads, *cells)) for at in range(len(heads))]
    lines = [
        "  ".join(f"{text:{width}}" for text, width in zip(line, widths, strict=True)).rstrip()
        for line in (heads, *cells)
    ]
    notes = [f"{row['run']} ({row['label']}): {row['note']}" for row in rows if row["note"]]
    counts = [f"{count} {state}" for state, count in _counts(rows).items()]
    lines += [", ".join(counts), *notes]
    if any(row["state"] in FAILED for row in rows):
        lines.append(
            "Failed runs: read the log, correct the cause, and start the same command again; "
            "finished runs are kept and started ones resume."
        )
    if ids := [row["id"] for row in rows if row["state"] in ("waiting", "running") and row["id"]]:
        if all(row["scheduler"] == "slurm" for row in rows if row["id"] in ids):
            lines.append(f"To cancel: scancel {' '.join(ids)}")
    return lines


def _counts(rows: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for row in rows:
        counts[row["state"]] = counts.get(row["state"], 0) + 1
    return counts


def _near(path: str) -> str:
    """Return a path relative to the current folder, if it lies below it."""
    here = Path.cwd()
    return str(Path(path).relative_to(here)) if path and Path(path).is_relative_to(here) else path
