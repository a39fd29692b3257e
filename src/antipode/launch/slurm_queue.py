"""Ask a SLURM cluster about its jobs and nodes.

Only `squeue`, `sinfo` and `scontrol` are used, since not every cluster keeps the accounts that
`sacct` reads.
"""

import shutil
import subprocess
from dataclasses import dataclass

# states of jobs that will run, or run now
WAITING = ("PENDING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT", "RESV_DEL_HOLD")
RUNNING = (
    *("RUNNING", "CONFIGURING", "COMPLETING", "SUSPENDED", "STOPPED", "SIGNALING", "STAGE_OUT"),
    *("RESIZING",),
)
# what to say about a job that ended without an outcome
ENDED = {
    "CANCELLED": "was cancelled",
    "TIMEOUT": "was killed at its time limit before it could stop: give it more hours",
    "OUT_OF_MEMORY": "ran out of memory: give it more memory, or choose a smaller batch size",
    "NODE_FAIL": "lost its node",
    "PREEMPTED": "was preempted and not requeued",
    "BOOT_FAIL": "could not start its node",
    "DEADLINE": "missed its deadline",
    "FAILED": "failed",
    "COMPLETED": "ended without a result",
}
GONE = "is no longer known to SLURM and left no result"


@dataclass(frozen=True)
class Job:
    """A job of the queue.

    Args:
        id: the number of the job.
        name: the name of the job.
        state: SLURM's word, such as RUNNING.
        time: how long it has run, such as 1:02:03.
        reason: why it waits, or the nodes that it runs on.
    """

    id: str
    name: str
    state: str
    time: str
    reason: str

    @property
    def active(self) -> bool:
        """True if the job waits or runs."""
        return self.state in WAITING or self.state in RUNNING

    @property
    def word(self) -> str:
        """The state for display."""
        if self.state in WAITING:
            return "waiting"
        if self.state in RUNNING:
            return "running"
        return {"CANCELLED": "cancelled", "COMPLETED": "finished"}.get(self.state, "failed")


def available() -> bool:
    """Return True if SLURM's commands are installed on this machine."""
    return all(shutil.which(name) for name in ("sbatch", "squeue", "srun"))


def queue() -> dict[str, Job] | None:
    """Return the jobs of this user by id, with those that ended in the last minutes.

    Returns None if the cluster does not answer, which may be temporary.
    """
    form = "%i|%j|%T|%M|%R"
    answer = call(["squeue", "--me", "--states=all", "--noheader", f"--format={form}"])
    if answer is None:
        return None
    rows = [line.strip().split("|", 4) for line in answer.splitlines() if line.count("|") >= 4]
    return {row[0]: Job(*row) for row in rows}


def has_gpus(partition: str | None) -> bool:
    """Return True if the nodes of a partition, or of the default one, have GPUs."""
    chosen = [f"--partition={partition}"] if partition else []
    answer = call(["sinfo", "--noheader", "--format=%G", *chosen])
    return answer is not None and "gpu" in answer.lower()


def host_address(nodes: str) -> str:
    """Return the first host of a list of nodes such as `gpu[01-04]`, as other nodes reach it."""
    names = (call(["scontrol", "show", "hostnames", nodes]) or nodes).split()
    shown = call(["scontrol", "show", "node", names[0]]) or ""
    fields = dict(word.partition("=")[::2] for word in shown.split())
    return fields.get("NodeAddr") or names[0]


def requeue(job: str) -> bool:
    """Put a running job back into the queue; return True on success."""
    return call(["scontrol", "requeue", job]) is not None


def call(words: list[str]) -> str | None:
    """Return the output of a command, None if it failed."""
    try:
        done = subprocess.run(words, check=True, capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout
