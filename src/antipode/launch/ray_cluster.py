"""Perform tasks on a Ray cluster: every task is a Ray task with resources of its own.

Run folders must be on a file system that all nodes see under the same path. A task that loses its
node is sent to another one, and its run resumes there from its last checkpoint. Ray's own retries
are off: this module repeats a task as long as its run makes progress.
"""

import os
import shutil
import socket
import sys
import time
import traceback
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from antipode.launch.place import Resources
from antipode.launch.ray_connect import Cluster, Needs, check, connected, needs
from antipode.launch.task import TASK_ERRORS, Board, Task
from antipode.runs.folder import RunFolder

LOSSES = 3  # workers that a run may lose without a new checkpoint in between
POLL = 0.5  # seconds between two looks at the tasks
STOPPING = 60.0  # seconds that a task has to write a checkpoint after Ctrl-C
# seconds in which a node that is lost but still runs notices it, and gives up its run folders
PATIENCE = 300.0
GUESS = "the time left is known after the first run"


@dataclass
class Attempt:
    """A task that the cluster performs, or waits to perform.

    Args:
        task: the task.
        sign: a file that exists while a worker performs the task.
        launch: a name that all attempts of the task share.
        again: whether another attempt has lost its worker.
        lost: how many workers it has lost since its last new checkpoint.
        told: whether its start was printed.
        seen: the checkpoints of its run when it was submitted.
    """

    task: Task
    sign: Path
    launch: str
    again: bool = False
    lost: int = 0
    told: bool = False
    seen: set[tuple[str, int]] = field(default_factory=set)

    def next(self) -> "Attempt | None":
        """Return the attempt after the loss of a worker, or None if there were too many losses."""
        now = checkpoints(self.task.folder)
        lost = 1 if now - self.seen else self.lost + 1
        if lost >= LOSSES:
            return None
        sign = self.sign.with_name(uuid.uuid4().hex)
        return Attempt(self.task, sign, self.launch, True, lost, True, now)


def perform_on_ray(
    tasks: Sequence[Task],
    *,
    address: str = "",
    resources: Resources,
    device: str = "auto",
    quiet: bool = False,
) -> dict[Path, str]:
    """Perform tasks on a Ray cluster; return the folders of those that failed, with a sentence.

    Args:
        tasks: the tasks, in the order in which they are submitted.
        address: of a running cluster, such as ray://HOST:PORT. Without one, Ray is started on this
            machine for the time of the tasks, unless the variable RAY_ADDRESS names a cluster.
        resources: what each task gets.
        device: the device that they use. On a CPU they get no GPU by default.
        quiet: whether to print nothing.
    """
    check(resources)
    if device == "cpu" and resources.gpus is None:
        resources = replace(resources, gpus=0)
    if not tasks:
        return {}
    with connected(address, quiet) as cluster:
        return perform(cluster, tasks, needs(cluster, resources), quiet=quiet)


def perform(
    cluster: Cluster, tasks: Sequence[Task], each: Needs, *, quiet: bool = False
) -> dict[Path, str]:
    """Perform tasks on a cluster that is connected. `each` is what a task gets."""
    board = Board(tasks, quiet, GUESS)
    remote = cluster.ray.remote(**each.options())(work)
    with signs(tasks) as places:
        attempts = [
            Attempt(
                task, place / str(number), f"{place.name} {number}", seen=checkpoints(task.folder)
            )
            for number, (task, place) in enumerate(zip(tasks, places, strict=True))
        ]
        here = Path.cwd()
        under_way = {remote.remote(one, here, each.cpus): one for one in attempts}
        try:
            while under_way:
                ready, _ = cluster.ray.wait(list(under_way), timeout=POLL)
                _tell_starts(board, under_way.values())
                for reference in ready:
                    attempt = under_way.pop(reference)
                    again = _ended(cluster.ray, reference, attempt, board)
                    if again is not None:
                        under_way[remote.remote(again, here, each.cpus)] = again
        finally:
            _stop(cluster.ray, under_way)
    return board.failed


def _tell_starts(board: Board, attempts: Any) -> None:
    """Print the tasks that workers have started since the last call."""
    running = [one for one in attempts if one.told or one.sign.exists()]
    beside = sum(one.told for one in running)
    for attempt in running:
        if not attempt.told:
            board.start(attempt.task, beside)
            attempt.told = True
            beside += 1


def _ended(ray: Any, reference: Any, attempt: Attempt, board: Board) -> Attempt | None:
    """Record how an attempt ended. Return the next attempt if its worker was lost."""
    if not attempt.told:
        board.start(attempt.task)
    try:
        error, trace = ray.get(reference)
    except ray.exceptions.RayTaskError as problem:  # such as antipode that is not installed there
        board.end(attempt.task, f"a node of Ray cannot perform it ({_brief(problem.cause)})")
        return None
    except ray.exceptions.TaskCancelledError:
        board.end(attempt.task, "it was cancelled; the same command resumes it")
        return None
    except ray.exceptions.RayError as problem:
        again = attempt.next()
        if again is None:
            board.end(
                attempt.task,
                f"it lost its worker {LOSSES} times without a new checkpoint, the last time "
                f"because of {_brief(problem)}; the same command resumes it",
            )
        elif not board.quiet:
            text = f"lost its worker ({type(problem).__name__}) and resumes: {attempt.task.label}"
            print(text, file=sys.stderr, flush=True)
        return again
    if trace and not board.quiet:
        print(trace, file=sys.stderr, flush=True)
    board.end(attempt.task, error)
    return None


def _brief(error: BaseException) -> str:
    """Return the kind and the first words of an error."""
    words = " ".join(str(error).split())
    return f"{type(error).__name__}: {words[:200]}" if words else type(error).__name__


def _stop(ray: Any, under_way: dict[Any, Attempt]) -> None:
    """Ask tasks to stop, which keeps their last step, and wait until they have."""
    for reference in under_way:
        with suppress(Exception):  # the connection may be lost
            ray.cancel(reference)
    end = time.monotonic() + STOPPING
    while time.monotonic() < end and any(one.sign.exists() for one in under_way.values()):
        time.sleep(0.1)


@contextmanager
def signs(tasks: Sequence[Task]) -> Iterator[list[Path]]:
    """Create a folder for signs beside the folder of each task, and remove it at the end.

    A worker that does not see it does not share the file system.
    """
    name = f".ray-{uuid.uuid4().hex}"
    places = [task.folder.parent / name for task in tasks]
    try:
        for place in set(places):
            place.mkdir(parents=True)
        yield places
    finally:
        for place in set(places):
            shutil.rmtree(place, ignore_errors=True)


def checkpoints(folder: Path) -> set[tuple[str, int]]:
    """Return name and time of the checkpoints of a run."""
    found = set()
    for file in (folder / "checkpoints").glob("[!.]*"):
        with suppress(FileNotFoundError):  # replaced at this moment
            found.add((file.name, file.stat().st_mtime_ns))
    return found


def work(attempt: Attempt, here: Path, threads: int) -> tuple[str, str]:
    """Perform a task on a node of the cluster.

    Returns the sentence of its error, empty for none, and the traceback of an unexpected error.

    Args:
        attempt: the task, with a sign to set while it is performed.
        here: the working directory, to which relative paths refer.
        threads: the number of threads, on which the last bits of sums depend.
    """
    task = attempt.task
    if not attempt.sign.parent.is_dir():
        return (
            f"the node {socket.gethostname()} does not see {task.folder.parent}: all nodes of a "
            "Ray cluster must share the file system of the run folders",
            "",
        )
    with suppress(OSError):  # paths may all be absolute
        os.chdir(here)
    torch.set_num_threads(threads)
    attempt.sign.touch()
    try:
        with restarts(attempt):
            if attempt.again:
                wait_for_lost(task.folder)
            task.do(True)
    except TASK_ERRORS as error:
        return str(error) or type(error).__name__, ""
    except KeyboardInterrupt:
        return "interrupted; the same command resumes it", ""
    except BaseException as error:
        return f"{type(error).__name__}: {error}", traceback.format_exc()
    finally:
        attempt.sign.unlink(missing_ok=True)
    return "", ""


@contextmanager
def restarts(attempt: Attempt) -> Iterator[None]:
    """Let a run know whether an earlier attempt began it: it then resumes in any case.

    A worker performs several tasks, so the variables of dist.py are removed at the end.
    """
    variables = {"ANTIPODE_LAUNCH": attempt.launch, "ANTIPODE_RESTARTS": str(int(attempt.again))}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name in variables:
            os.environ.pop(name, None)


def wait_for_lost(folder: Path) -> None:
    """Wait until a worker that was lost but still runs has given up its run folder.

    Raises ValueError if it has not after `PATIENCE` seconds.
    """
    if os.name == "posix" and (folder / ".lock").exists():
        run = RunFolder(folder)
        run.claim(PATIENCE)
        run.release()
