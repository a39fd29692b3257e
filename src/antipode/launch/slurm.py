"""Perform tasks as jobs of a SLURM cluster: one job per task.

The command waits for the jobs. If it is interrupted, they keep running, and the same command waits
for them again instead of submitting them twice. Jobs are submitted through submitit, an extra.
"""

import hashlib
import math
import re
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

from antipode import threads
from antipode.launch import slurm_queue
from antipode.launch.place import Resources
from antipode.launch.record import (
    Record,
    jobs_folder,
    now,
    read_outcome,
    read_record,
    write_record,
)
from antipode.launch.slurm_job import Work, newest, requeue_if_advanced
from antipode.launch.slurm_queue import Job
from antipode.launch.task import Board, Task
from antipode.wording import from_command_line, option, same_call

HOURS = 12.0  # the default time limit; a run that reaches it continues in a new time slot
POLL = 5.0  # seconds between two looks at the queue
# Seconds until a job counts as lost that has completed or that the queue does not show: its outcome
# may appear late on a network file system.
LOST = 30.0
ATTEMPTS = 3  # to read the queue before anything is submitted


def perform_on_slurm(
    tasks: Sequence[Task],
    *,
    resources: Resources,
    device: str = "auto",
    quiet: bool = False,
    poll: float = POLL,
) -> dict[Path, str]:
    """Perform tasks as SLURM jobs and return the folders of those that failed, with a sentence.

    Jobs of an earlier call that wait or run are not submitted again. Tasks that an earlier job has
    finished are not performed again.
    """
    submitit = _submitit()
    queue = _queue(poll)
    by_name = {job.name: job for job in queue.values() if job.active}
    waiting = {task.folder: record for task in tasks if (record := _known(task, by_name))}
    missing = [task for task in tasks if task.folder not in waiting]
    limits = _parameters(resources, device) if missing else {}
    board = Board(tasks, quiet, "the time left is known after the first run")
    later = list(missing)
    reason = ""

    def submit() -> list[Task]:
        """Submit as many of the missing tasks as SLURM takes now, and return them."""
        nonlocal reason
        begun: list[Task] = []
        while later:
            try:
                waiting[later[0].folder] = _submitted(submitit, later[0], limits)
            except ValueError as error:
                if not waiting:
                    raise
                reason = str(error)
                break  # a limit of the cluster, probably; tried again when a job has ended
            begun.append(later.pop(0))
        return begun

    try:
        submit()
        if not quiet:
            print(_opening(tasks, missing, waiting), file=sys.stderr, flush=True)
        _wait(tasks, waiting, board, poll, submit)
        for task in later:  # none of our jobs is left, and SLURM still takes no other one
            board.end(task, reason)
    except KeyboardInterrupt:
        raise KeyboardInterrupt(_left_running(tasks, waiting)) from None
    return board.failed


def _queue(poll: float) -> dict[str, Job]:
    """Return the jobs of the queue.

    Raises ValueError if SLURM does not answer: jobs that wait or run would be submitted twice.
    """
    for _ in range(ATTEMPTS):
        queue = slurm_queue.queue()
        if queue is not None:
            return dict(queue)
        time.sleep(poll)
    raise ValueError(
        f"squeue has failed {ATTEMPTS} times, so it is not known which jobs wait or run already: "
        "try again when SLURM answers"
    )


def _submitit() -> Any:
    """Return the module submitit. Raises ValueError if it or SLURM is not installed."""
    try:
        submitit = import_module("submitit")
    except ImportError:
        raise ValueError(
            f"{option('on', 'slurm')} needs submitit: pip install 'antipode[slurm]'"
        ) from None
    if not slurm_queue.available():
        raise ValueError(
            f"{option('on', 'slurm')} needs the commands of SLURM (sbatch, squeue, srun), which "
            "are not on this machine: use a login node of the cluster"
        )
    return submitit


def _known(task: Task, active: Mapping[str, Job]) -> Record | None:
    """Return the job of a task that waits, runs or has finished all of it, None if there is none.

    A job of the queue is recognised by its name, even if no record of it was written.
    """
    record = read_record(task.folder)
    if job := active.get(job_name(task.folder)):
        return record if record and record.id == job.id else _record(task, job.id)
    if record is None or record.scheduler != "slurm" or record.key != task.key or task.work != 0:
        return None
    outcome = read_outcome(task.folder, record.id)
    return record if outcome is not None and not outcome.error else None


def job_name(folder: Path) -> str:
    """Return the name of the job of a run folder, which no other folder has."""
    digest = hashlib.blake2b(str(folder).encode(), digest_size=5).hexdigest()
    readable = re.sub(r"[^A-Za-z0-9_.-]", "-", folder.name)[:60]
    return f"antipode-{readable}-{digest}"


def _record(task: Task, job: str) -> Record:
    """Return the record of a job, and store it in the run folder."""
    log = str(jobs_folder(task.folder) / f"{job}_0_log.out")
    record = Record("slurm", job, task.label, log, task.key, now())
    write_record(task.folder, record)
    return record


def _submitted(submitit: Any, task: Task, limits: Mapping[str, Any]) -> Record:
    """Submit the job of a task. Raises ValueError with SLURM's reason if it is rejected."""
    executor = submitit.SlurmExecutor(folder=jobs_folder(task.folder))
    executor.update_parameters(**limits, job_name=job_name(task.folder))
    try:
        job = executor.submit(Work(task, from_command_line()))
    except submitit.core.utils.FailedJobError as error:
        found = re.findall(r"error: (.+)", str(error)) or str(error).split("\n")
        raise ValueError(f"SLURM rejected the job of {task.label}: {found[-1].strip()}") from None
    return _record(task, job.job_id)


def _parameters(resources: Resources, device: str) -> dict[str, Any]:
    """Return the resources of a job as parameters of submitit."""
    gpus = resources.gpus
    if gpus is None and device != "cpu" and slurm_queue.has_gpus(resources.partition):
        gpus = 1
    minutes = max(1, math.ceil((resources.hours or HOURS) * 60))
    asked = {
        "time": minutes,
        "nodes": resources.nodes,
        "ntasks_per_node": resources.processes or gpus or 1,
        "cpus_per_task": resources.cpus,
        "gpus_per_node": gpus or None,
        "mem": None if resources.memory is None else f"{math.ceil(resources.memory * 1024)}MB",
        "partition": resources.partition,
        "account": resources.account,
        "qos": resources.qos,
        "constraint": resources.constraint,
        # time for the last step and its checkpoint: a twentieth of the limit, 20 s to 5 min
        "signal_delay_s": int(min(300, max(20, minutes * 3))),
        "stderr_to_stdout": True,
        "additional_parameters": {"requeue": True},
        "srun_args": ["--kill-on-bad-exit=1"],
        "setup": _setup(resources),
    }
    return {key: value for key, value in asked.items() if value is not None} | {"wckey": None}


def _setup(resources: Resources) -> list[str]:
    """Return lines of the job's script: CPU threads follow the node and not this machine."""
    lines = []
    if threads.chosen():
        lines.append("export OMP_NUM_THREADS=${SLURM_CPUS_PER_TASK:-1}")
    if resources.cpus:  # srun of newer versions does not inherit it from sbatch
        lines.append("export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK")
    return lines


def _opening(tasks: Sequence[Task], missing: Sequence[Task], records: Mapping[Path, Record]) -> str:
    """Return the sentence that says what was submitted and how to look at it."""
    begun = [task for task in missing if task.folder in records]
    ids = ", ".join(records[task.folder].id for task in begun[:5])
    more = f" and {len(begun) - 5} more" if len(begun) > 5 else ""
    found = len(tasks) - len(missing)
    submitted = f"submitted {_jobs(len(begun))} ({ids}{more})" if begun else ""
    if len(begun) < len(missing):
        submitted += f", and {_jobs(len(missing) - len(begun))} later, as SLURM takes no more now"
    attached = f"found {_jobs(found)} of an earlier call" if found else ""
    done = " and ".join(filter(None, (submitted, attached)))
    return f"SLURM: {done}; `{look(tasks)}` shows their states"


def _jobs(count: int) -> str:
    return "1 job" if count == 1 else f"{count} jobs"


def look(tasks: Sequence[Task]) -> str:
    """Return the command that shows the states of the jobs."""
    folders = [task.folder for task in tasks]
    together = folders[0].parent.parent if folders[0].parent.name == "runs" else folders[0].parent
    return f"antipode jobs {folders[0] if len(folders) == 1 else together}"


def _left_running(tasks: Sequence[Task], records: Mapping[Path, Record]) -> str:
    """Return what an interrupted command says about jobs that wait or run."""
    queue = slurm_queue.queue() or {}
    ids = [record.id for record in records.values() if (job := queue.get(record.id)) and job.active]
    if not ids:
        return f"interrupted; {same_call()} submits what is missing"
    return (
        f"interrupted; {_jobs(len(ids))} of SLURM keep running: `{look(tasks)}` shows them, "
        f"{same_call()} waits for them again, `scancel {' '.join(ids)}` cancels them"
    )


@dataclass
class Watched:
    """A job that the command waits for.

    Args:
        task: the task.
        record: the job.
        seen: when the queue last showed that the job waits or runs.
        written: when the run had last written something at the last time limit, see `newest`.
        started: whether the start of the job was reported.
    """

    task: Task
    record: Record
    seen: float = field(default_factory=time.monotonic)
    written: int = 0
    started: bool = False

    def error(self, queue: Mapping[str, Job] | None, patience: float) -> str | None:
        """Return the sentence of a job that failed, empty if it succeeded, None if it still runs.

        `patience` is how many seconds the outcome of a failed job may appear after its end.
        """
        job = None if queue is None else queue.get(self.record.id)
        if queue is None or (job and job.active):
            self.seen = time.monotonic()
        outcome = read_outcome(self.task.folder, self.record.id)
        if outcome is not None:
            return f"{outcome.error} (log: {self.record.log})" if outcome.error else ""
        if job and job.state == "TIMEOUT":
            before = self.written
            self.written = newest(self.task.folder)
            if requeue_if_advanced(self.task.folder, self.record.id, before):
                self.seen = time.monotonic()
        known = job is not None and job.state != "COMPLETED"
        if time.monotonic() - self.seen < (patience if known else LOST):
            return None
        return ended_without_outcome(self.record, job)


def _wait(
    tasks: Sequence[Task],
    records: Mapping[Path, Record],
    board: Board,
    poll: float,
    submit: Callable[[], list[Task]],
) -> None:
    """Wait until all jobs have ended, and report on the board as they start and end.

    `submit` is called whenever a job has ended, and returns the tasks that it has submitted: SLURM
    may not take all jobs at once.
    """
    watched = [_watched(task, records) for task in tasks if task.folder in records]
    while watched:
        queue = slurm_queue.queue()
        for one in list(watched):
            job = (queue or {}).get(one.record.id)
            if job and job.word == "running" and not one.started:
                one.started = True
                board.start(one.task, sum(other.started for other in watched) - 1)
            error = one.error(queue, poll)
            if error is not None:
                watched.remove(one)
                board.end(one.task, error)
                watched += [_watched(task, records) for task in submit()]
        if watched:
            time.sleep(poll)


def _watched(task: Task, records: Mapping[Path, Record]) -> Watched:
    return Watched(task, records[task.folder], written=newest(task.folder))


def ended_without_outcome(record: Record, job: Job | None) -> str:
    """Return the sentence on a job that SLURM ended, or that it no longer knows."""
    how = slurm_queue.GONE if job is None else slurm_queue.ENDED.get(job.state, f"is {job.state}")
    return f"its job {record.id} {how}; {same_call()} resumes it (log: {record.log})"
