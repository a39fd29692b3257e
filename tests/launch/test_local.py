"""Tasks on this machine: one after the other or side by side, with the same results."""

import os
import signal
import subprocess
import sys
import time
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import pytest
import torch

from antipode.launch import local, memory, mps, products, task
from antipode.launch.local import check_at_once, perform
from antipode.launch.task import Board, Task
from antipode.training.record import InTrouble


def note(folder, text, quiet):
    """Write a file, or fail as told. Other processes import this function by name."""
    if text == "wrong":
        raise ValueError("3 is too large")
    if text == "trouble":
        raise InTrouble("the loss is NaN")
    if text == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if text == "bug":
        raise ZeroDivisionError("division by zero")
    (folder / text).write_text(f"{os.getpid()} {quiet}")


def tasks_of(folder, *texts):
    return [Task(text, folder / text, partial(note, folder, text), work=1.0) for text in texts]


def test_a_task_that_fails_is_named_and_the_others_are_performed(tmp_path, capsys):
    failed = perform(tasks_of(tmp_path, "a", "wrong", "trouble", "b"))
    assert failed == {
        tmp_path / "wrong": "wrong: 3 is too large",
        tmp_path / "trouble": "trouble: the loss is NaN",
    }
    assert {file.name for file in tmp_path.iterdir()} == {"a", "b"}
    err = capsys.readouterr().err
    assert "4 of 4" in err and "failed: wrong: 3 is too large" in err


# a fork has torch already, which a new process imports for seconds
@pytest.mark.parametrize("start", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
def test_side_by_side_every_task_has_its_own_process_and_failures_are_named(
    start, tmp_path, capfd, monkeypatch
):
    monkeypatch.setattr(local, "get_context", lambda kind: get_context(start))
    failed = perform(tasks_of(tmp_path, "a", "wrong", "killed"), at_once=2, quiet=True)
    assert {folder.name for folder in failed} == {"wrong", "killed"}
    assert failed[tmp_path / "wrong"] == "wrong: 3 is too large"
    assert "killed by signal 9" in failed[tmp_path / "killed"]
    pid, quiet = (tmp_path / "a").read_text().split()
    assert int(pid) != os.getpid() and quiet == "True"
    assert capfd.readouterr() == ("", "")


@pytest.mark.slow
def test_side_by_side_a_bug_shows_its_traceback_and_is_named(tmp_path, capfd):
    failed = perform(tasks_of(tmp_path, "bug", "a", "b"), at_once=2, quiet=True)
    assert failed == {tmp_path / "bug": "bug: ZeroDivisionError: division by zero"}
    assert {file.name for file in tmp_path.iterdir()} == {"a", "b"}
    assert capfd.readouterr().err.count("Traceback") == 1


def fail(error, quiet):
    raise error


def test_errors_of_the_system_do_not_stop_the_other_tasks(tmp_path):
    errors = {
        "memory": MemoryError(),
        "torch": RuntimeError("can't allocate memory: you tried to allocate 7 bytes"),
        "disk": OSError(28, "No space left on device", "x"),
        "long": ValueError("y" * 200_000),
    }
    tasks = [Task(name, tmp_path / name, partial(fail, error)) for name, error in errors.items()]
    failed = perform([*tasks, *tasks_of(tmp_path, "last")], quiet=True)
    assert {folder.name for folder in failed} == {*errors} and (tmp_path / "last").exists()
    assert "not enough memory" in failed[tmp_path / "memory"]
    assert "cannot allocate 7 bytes" in failed[tmp_path / "torch"]
    assert "No space left on device: x" in failed[tmp_path / "disk"]


def test_side_by_side_a_long_error_ends_its_task(tmp_path, monkeypatch):
    monkeypatch.setattr(local, "get_context", lambda kind: get_context("fork"))
    tasks = [Task("a", tmp_path / "a", partial(fail, ValueError("y" * 200_000)))]
    failed = perform([*tasks, *tasks_of(tmp_path, "b")], at_once=2, quiet=True)
    assert {*failed} == {tmp_path / "a"} and set(failed[tmp_path / "a"]) <= {*"a: y"}


def count_threads(file, quiet):
    file.write_text(str(torch.get_num_threads()))


def test_side_by_side_processes_share_the_cores(tmp_path, monkeypatch):
    monkeypatch.setattr(local, "get_context", lambda kind: get_context("fork"))
    monkeypatch.setattr(local, "cpu_threads", lambda share: 1 + share)
    tasks = [Task(n, tmp_path / n, partial(count_threads, tmp_path / n)) for n in "ab"]
    assert not perform(tasks, at_once=2, device="cpu", quiet=True)
    assert [(tmp_path / name).read_text() for name in "ab"] == ["3", "3"]


def test_the_threads_that_the_user_has_set_are_kept(monkeypatch):
    monkeypatch.setattr(local.threads, "cores", lambda: 8)
    monkeypatch.setattr(local.threads, "COUNTS", ("SOME_THREADS",))
    monkeypatch.delenv("SOME_THREADS", raising=False)
    assert [local.cpu_threads(share) for share in (1, 3, 64)] == [8, 2, 1]
    monkeypatch.setenv("SOME_THREADS", "3")
    assert local.cpu_threads(2) == 0
    monkeypatch.setattr(local.threads, "chosen", lambda: True)
    assert local.cpu_threads(2) == 4


def test_a_bug_is_not_hidden_when_tasks_run_one_after_the_other(tmp_path):
    with pytest.raises(ZeroDivisionError):
        perform(tasks_of(tmp_path, "bug", "a"))


def test_the_number_of_tasks_at_once_is_checked():
    assert check_at_once("3") == 3 and check_at_once("auto") == 0
    for wrong in ("0", -1, 65, "many", ""):
        with pytest.raises(ValueError, match="1 to 64 or auto"):
            check_at_once(wrong)


def test_the_time_left_follows_the_speed_so_far(tmp_path, monkeypatch):
    now = [0.0]
    monkeypatch.setattr(task.time, "monotonic", lambda: now[0])
    tasks = [Task(name, tmp_path / name, print, work=task.H200 * 60) for name in "abcd"]
    board = Board(tasks, began=0.0)
    assert board.left() == "4 min left on an H200"
    now[0] = 600
    board.end(tasks[0])
    assert board.left() == "about 30 min left"  # three tasks as long as the first
    for one in tasks[1:]:
        board.end(one)
    assert board.left() == "nothing left to train"


def test_failed_work_and_unknown_work_do_not_count_as_trained(tmp_path, monkeypatch):
    now = [1.0]
    monkeypatch.setattr(task.time, "monotonic", lambda: now[0])
    tasks = [Task(name, tmp_path / name, print, work=task.H200 * 60) for name in "abcd"]
    board = Board(tasks, quiet=True, began=0.0)
    board.end(tasks[0], "it failed")
    assert board.left() == "3 min left on an H200"
    now[0] = 100
    board.end(tasks[1])
    assert board.left() == "about 3 min left"
    unknown = [replace(one, work=None) for one in tasks]
    board = Board(unknown, quiet=True, began=0.0)
    assert board.left() == "time left unknown until the first has ended"
    board.end(unknown[0])
    assert board.left() == "about 5 min left"


PARENT = """
import sys, time
from functools import partial
from pathlib import Path
from antipode.launch.local import perform
from antipode.launch.task import Task
from tests.launch.test_local import linger
if __name__ == "__main__":
    folder = Path(sys.argv[1])
    tasks = [Task(n, folder / n, partial(linger, folder / n)) for n in "ab"]
    perform(tasks, at_once=2, quiet=True)
"""


def linger(file, quiet):
    """Write the id of this process and wait."""
    file.write_text(str(os.getpid()))
    time.sleep(600)


def alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    return state != "Z"


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_workers_end_with_the_process_that_started_them(tmp_path, number):
    script = tmp_path / "parent.py"
    script.write_text(PARENT)
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    parent = subprocess.Popen([sys.executable, script, tmp_path], env=environment)
    files = [tmp_path / name for name in "ab"]
    while not all(file.exists() and file.read_text() for file in files):
        assert parent.poll() is None
        time.sleep(0.1)
    pids = [int(file.read_text()) for file in files]
    parent.send_signal(number)
    parent.wait()
    end = time.monotonic() + 20
    while any(map(alive, pids)):
        assert time.monotonic() < end
        time.sleep(0.1)


def test_a_worker_unwinds_when_it_is_stopped_outside_of_training(tmp_path):
    context = get_context("fork")
    answer, theirs = context.Pipe(duplex=False)
    end, lifeline = context.Pipe(duplex=False)
    file = tmp_path / "a"
    task = Task("a", tmp_path, partial(linger, file))
    process = context.Process(target=local._work, args=(task, theirs, end, 0))
    process.start()
    while not (file.exists() and file.read_text()):
        assert process.is_alive()
        time.sleep(0.01)
    process.terminate()
    process.join(20)
    assert process.exitcode == 0 and answer.poll()
    assert answer.recv() == "interrupted; the same command resumes it"
    lifeline.close()


# The number of tasks at once


class Free(memory.Room):
    """A GPU with 100 bytes, of which the first run uses some."""

    before = 100

    def __init__(self, used):
        self.device = torch.device("cuda")
        self.logs = {}
        self.used = used

    def free(self):
        return self.before - self.used


@pytest.mark.parametrize(
    ("used", "batch", "most"), [(10, 32, 8), (30, 32, 3), (10, 256, 4), (10, 4096, 1), (95, 32, 1)]
)
def test_the_number_follows_from_memory_and_batch_size(tmp_path, monkeypatch, used, batch, most):
    monkeypatch.setattr(memory.os, "cpu_count", lambda: 64)
    tasks = [Task("", tmp_path, print, batch=batch)] * 20
    room = Free(used)
    assert memory.most_at_once(tasks, room, tmp_path) == 0  # nothing is logged yet
    (tmp_path / "metrics.jsonl").write_text("{}\n")
    assert memory.most_at_once(tasks, room, tmp_path) == most
    assert memory.most_at_once(tasks[:2], room, tmp_path) == min(2, most)
    monkeypatch.setattr(memory.os, "cpu_count", lambda: 4)
    assert memory.most_at_once(tasks, room, tmp_path) == min(2, most)


def test_the_log_of_a_resumed_run_must_grow_before_memory_is_measured(tmp_path, monkeypatch):
    monkeypatch.setattr(memory.os, "cpu_count", lambda: 64)
    tasks = [Task("", tmp_path, print, batch=32)] * 20
    room = Free(10)
    log = tmp_path / "metrics.jsonl"
    for rows, most in ((3, 0), (2, 0), (2, 0), (3, 8)):  # cut to the checkpoint, then continued
        log.write_text("{}\n" * rows)
        assert memory.most_at_once(tasks, room, tmp_path) == most
    assert memory.most_at_once(tasks, Free(10), None) == 0  # the next run is measured


def test_on_a_cpu_auto_takes_one_run_after_the_other(tmp_path):
    assert memory.most_at_once([], memory.Room(torch.device("cpu")), tmp_path) == 1


# MPS

CONTROL = """#!/bin/sh
echo "$@ $(cat) $CUDA_MPS_PIPE_DIRECTORY" >> {log}
exit {status}
"""


@pytest.fixture
def control(tmp_path, monkeypatch):
    """Install a service that does nothing; the function sets its status and returns its log."""

    def install(status):
        program = tmp_path / mps.CONTROL
        program.write_text(CONTROL.format(log=tmp_path / "log", status=status))
        program.chmod(0o755)
        return tmp_path / "log"

    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.delenv("CUDA_MPS_PIPE_DIRECTORY", raising=False)
    monkeypatch.setattr(mps, "serves", lambda: True)
    return install


@pytest.mark.parametrize("status", [0, 1])
def test_mps_runs_as_long_as_the_tasks_do(control, status):
    log = control(status)
    with mps.shared_gpu(torch.device("cpu")):
        assert not log.exists()
    with mps.shared_gpu(torch.device("cuda")):
        inside = os.environ.get("CUDA_MPS_PIPE_DIRECTORY")
        assert (inside is not None) == (status == 0)
    assert "CUDA_MPS_PIPE_DIRECTORY" not in os.environ
    lines = log.read_text().splitlines()
    assert lines[0].startswith("-d") and len(lines) == (2 if status == 0 else 1)
    if status == 0:
        assert lines[1].split() == ["quit", inside] and not Path(inside).exists()


def test_mps_that_serves_no_process_is_stopped_before_the_tasks(control, monkeypatch):
    log = control(0)
    monkeypatch.setattr(mps, "serves", lambda: False)
    with pytest.warns(UserWarning, match="serves no process"), mps.shared_gpu(torch.device("cuda")):
        assert not {*mps.PLACES} & {*os.environ}
        _, quit_line = log.read_text().splitlines()
        word, folder = quit_line.split()
        assert word == "quit" and not Path(folder).exists()
    assert len(log.read_text().splitlines()) == 2


@pytest.mark.parametrize("status", [0, 1])
def test_a_process_of_its_own_shows_whether_mps_serves(tmp_path, monkeypatch, status):
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\ncase "$2" in *device=*cuda*) exit {status};; esac\nexit 2\n')
    python.chmod(0o755)
    monkeypatch.setattr(mps.sys, "executable", str(python))
    assert mps.serves() == (status == 0)


def test_an_interruption_while_mps_starts_leaves_no_variables(monkeypatch):
    def interrupted(command, text=""):
        raise KeyboardInterrupt

    monkeypatch.delenv("CUDA_MPS_PIPE_DIRECTORY", raising=False)
    monkeypatch.setattr(mps.shutil, "which", lambda name: name)
    monkeypatch.setattr(mps, "_call", interrupted)
    with pytest.raises(KeyboardInterrupt), mps.shared_gpu(torch.device("cuda")):
        pass
    assert not {*mps.PLACES} & {*os.environ}


def test_mps_that_the_user_has_set_up_is_left_alone(tmp_path, monkeypatch):
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", str(tmp_path))
    monkeypatch.setattr(mps.shutil, "which", lambda name: name)
    monkeypatch.setattr(mps, "_call", None)
    with mps.shared_gpu(torch.device("cuda")):
        assert os.environ["CUDA_MPS_PIPE_DIRECTORY"] == str(tmp_path)


# A part of the GPU for each process


def test_the_parts_of_all_processes_cover_the_gpu_and_are_powers_of_two():
    assert [mps.part(count) for count in (1, 2, 3, 4, 5, 8, 9, 64)] == [
        1, 1, 0.5, 0.5, 0.25, 0.25, 0.125, 0.125,
    ]  # fmt: skip
    assert all(1 <= count * mps.part(count) for count in range(1, 65))


@pytest.fixture
def percentages(monkeypatch):
    """Under MPS, with products that are right; the function returns what processes would see."""
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", "somewhere")
    monkeypatch.delenv(mps.PERCENTAGE, raising=False)
    monkeypatch.setattr(mps, "has_right_products", lambda share: True)

    def inside(count, device="cuda"):
        with mps.part_of_gpu(count, torch.device(device)):
            return os.environ.get(mps.PERCENTAGE)

    return inside


def test_processes_under_mps_get_a_part_of_the_gpu(percentages, monkeypatch):
    assert [percentages(count) for count in (2, 4, 8, 16)] == [None, "50", "25", "12.5"]
    assert mps.PERCENTAGE not in os.environ
    assert percentages(8, "cpu") is None
    monkeypatch.setattr(mps, "has_right_products", lambda share: False)
    assert percentages(8) is None
    monkeypatch.delenv("CUDA_MPS_PIPE_DIRECTORY")
    monkeypatch.setattr(mps, "has_right_products", None)
    assert percentages(8) is None


def test_the_percentage_of_the_user_is_kept(percentages, monkeypatch):
    monkeypatch.setenv(mps.PERCENTAGE, "30")
    assert percentages(8) == "30"
    assert os.environ[mps.PERCENTAGE] == "30"


def test_the_parts_follow_from_the_tasks_that_are_left(tmp_path, monkeypatch):
    counts = []
    monkeypatch.setattr(local, "get_context", lambda kind: get_context("fork"))
    monkeypatch.setattr(
        local, "part_of_gpu", lambda count, device: counts.append(count) or nullcontext()
    )
    assert not perform(tasks_of(tmp_path, "a", "b"), at_once=8, quiet=True)
    assert counts == [2, 2]


def test_only_tasks_that_need_not_be_deterministic_get_a_part(tmp_path, monkeypatch):
    counts = []
    monkeypatch.setattr(local, "get_context", lambda kind: get_context("fork"))
    monkeypatch.setattr(
        local, "part_of_gpu", lambda count, device: counts.append(count) or nullcontext()
    )
    one, other = tasks_of(tmp_path, "a", "b")
    assert not perform([one, replace(other, deterministic=True)], at_once=2, quiet=True)
    assert counts == [2, 1]


def test_wrong_products_are_found(monkeypatch):
    monkeypatch.setattr(products, "SHAPES", ((8, 16, 8),))
    monkeypatch.setattr(products, "CHANNELS", ((4, 4),))
    cpu = torch.device("cpu")
    assert products.are_right(cpu)
    plain = products.F.conv2d

    def wrong(images, weights, **keys):
        value = plain(images, weights, **keys)
        value[0, 0] *= 1 if images.dtype == torch.float64 else torch.nan
        return value

    monkeypatch.setattr(products.F, "conv2d", wrong)
    assert not products.are_right(cpu)


def test_the_products_of_a_part_are_checked_in_a_process_of_their_own(tmp_path, monkeypatch):
    seen = tmp_path / "percentage"
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\necho "$@ ${mps.PERCENTAGE}" > {seen}\nexit 1\n')
    python.chmod(0o755)
    monkeypatch.setattr(mps.sys, "executable", str(python))
    mps.has_right_products.cache_clear()
    with pytest.warns(UserWarning, match="not right on 25 % of the GPU"):
        assert not mps.has_right_products(0.25)
    assert seen.read_text().split() == ["-m", "antipode.launch.products", "25"]
    mps.has_right_products.cache_clear()
