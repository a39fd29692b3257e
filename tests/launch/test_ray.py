"""Tasks on Ray, without a cluster: what a task gets, how losses are counted, how parts are cut.

`Inline` stands for Ray here: it performs tasks in this process and loses workers on demand.
test_ray_cluster.py has the tests on a real cluster.
"""

import os
import signal
import sys
from functools import partial
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from antipode import dist
from antipode.launch import ray_cluster, ray_data
from antipode.launch.place import Resources
from antipode.launch.ray_cluster import Attempt, perform, perform_on_ray, work
from antipode.launch.ray_connect import GB, Cluster, Needs, check, connected, needs
from antipode.launch.task import Task
from tests.launch.test_local import note, tasks_of

HERE = (Path.cwd(), torch.get_num_threads())
LAPTOP = {"CPU": 4.0, "memory": 16.0 * GB}
SERVER = {"CPU": 64.0, "GPU": 8.0, "memory": 512.0 * GB}


class RayError(Exception):
    pass


class RayTaskError(RayError):
    def __init__(self, cause):
        super().__init__(str(cause))
        self.cause = cause


class TaskCancelledError(RayError):
    pass


class Inline:
    """Perform tasks in this process. `lost` counts the workers that each label still loses."""

    exceptions = SimpleNamespace(
        RayError=RayError, RayTaskError=RayTaskError, TaskCancelledError=TaskCancelledError
    )

    def __init__(self, lost=None, before_loss=lambda task: None, stop=False):
        self.lost = lost or {}
        self.before_loss = before_loss
        self.stop = stop
        self.calls = []
        self.cancelled = []

    def remote(self, **options):
        def decorate(function):
            self.function = function
            return SimpleNamespace(remote=self.submit)

        return decorate

    def submit(self, *arguments):
        self.calls.append(arguments)
        return len(self.calls) - 1

    def wait(self, references, timeout):
        if self.stop:
            raise KeyboardInterrupt
        return references[:1], references[1:]

    def get(self, reference):
        task = self.calls[reference][0].task
        if self.lost.get(task.label, 0):
            self.lost[task.label] -= 1
            self.before_loss(task)
            raise RayError("the node died")
        return self.function(*self.calls[reference])

    def cancel(self, reference):
        self.cancelled.append(reference)


def inline(ray, tasks):
    threads = torch.get_num_threads()
    try:
        return perform(Cluster(ray, False), tasks, Needs(threads), quiet=True)
    finally:
        torch.set_num_threads(threads)


def test_a_task_that_fails_is_named_and_the_others_are_performed(tmp_path):
    failed = inline(Inline(), tasks_of(tmp_path, "a", "wrong", "bug", "b"))
    assert failed == {
        tmp_path / "wrong": "wrong: 3 is too large",
        tmp_path / "bug": "bug: ZeroDivisionError: division by zero",
    }
    assert {file.name for file in tmp_path.iterdir()} == {"a", "b"}  # no sign is left


def test_a_task_that_loses_its_worker_is_performed_again(tmp_path):
    ray = Inline(lost={"b": ray_cluster.LOSSES - 1})
    assert not inline(ray, tasks_of(tmp_path, "a", "b"))
    attempts = [call[0] for call in ray.calls]
    assert [one.task.label for one in attempts] == ["a", "b", "b", "b"]
    assert len({one.sign for one in attempts}) == 4  # a lost worker's sign is not mistaken
    assert len({one.launch for one in attempts}) == 2  # one of each task
    assert [one.again for one in attempts] == [False, False, True, True]


def test_a_task_that_always_loses_its_worker_is_given_up(tmp_path):
    ray = Inline(lost={"a": 100})
    failed = inline(ray, tasks_of(tmp_path, "a", "b"))
    assert len(ray.calls) == ray_cluster.LOSSES + 1 and (tmp_path / "b").exists()
    assert "lost its worker 3 times without a new checkpoint" in failed[tmp_path / "a"]
    assert "the node died" in failed[tmp_path / "a"]


def test_a_run_that_makes_progress_may_lose_any_number_of_workers(tmp_path):
    def save(task):
        folder = task.folder / "checkpoints"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{len(list(folder.iterdir()))}.pt").touch()

    ray = Inline(lost={"a": 20}, before_loss=save)
    task = Task("a", tmp_path / "run", partial(note, tmp_path, "a"))
    assert not inline(ray, [task]) and len(ray.calls) == 21


def test_a_replaced_checkpoint_is_progress(tmp_path):
    file = tmp_path / "checkpoints" / "last.pt"
    file.parent.mkdir()
    file.touch()
    task = Task("a", tmp_path, print)
    before = ray_cluster.checkpoints(tmp_path)
    attempt = Attempt(task, tmp_path / "x", "launch", lost=2, seen=before)
    assert attempt.next() is None
    os.utime(file, ns=(1, 1))
    assert attempt.next().lost == 1


def asked_to_resume(file, quiet):
    file.write_text(f"{dist.launch()} {dist.restarted()}")


def test_a_run_that_is_performed_again_resumes_in_any_case(tmp_path):
    texts = []
    for again in (False, True):
        task = Task("a", tmp_path / "run", partial(asked_to_resume, tmp_path / "told"))
        assert work(Attempt(task, tmp_path / "sign", "x", again), *HERE) == ("", "")
        texts.append((tmp_path / "told").read_text())
    assert texts == ["x False", "x True"]
    assert dist.launch() is None and not dist.restarted()


def test_an_interruption_cancels_all_tasks(tmp_path):
    ray = Inline(stop=True)
    with pytest.raises(KeyboardInterrupt):
        inline(ray, tasks_of(tmp_path, "a", "b"))
    assert ray.cancelled == [0, 1] and not list(tmp_path.iterdir())


def test_a_cancelled_task_is_named_and_not_repeated(tmp_path):
    ray = Inline()
    ray.get = lambda reference: (_ for _ in ()).throw(TaskCancelledError())
    failed = inline(ray, tasks_of(tmp_path, "a"))
    assert failed == {tmp_path / "a": "a: it was cancelled; the same command resumes it"}


def test_a_node_without_the_package_is_named(tmp_path):
    ray = Inline()
    error = RayTaskError(ModuleNotFoundError("No module named 'antipode'"))
    ray.get = lambda reference: (_ for _ in ()).throw(error)
    [sentence] = inline(ray, tasks_of(tmp_path, "a")).values()
    assert sentence.endswith("cannot perform it (ModuleNotFoundError: No module named 'antipode')")


def test_a_node_that_does_not_share_the_file_system_is_named(tmp_path):
    task = Task("a", tmp_path / "elsewhere" / "run", print)
    error, trace = work(Attempt(task, tmp_path / "elsewhere" / ".ray" / "0", ""), *HERE)
    assert "does not see" in error and "share the file system" in error and not trace


def test_without_ray_one_sentence_says_how_to_install_it(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ValueError, match=r"pip install 'antipode\[ray\]'"):
        perform_on_ray(tasks_of(tmp_path, "a"), resources=Resources())


class Module:
    """Stand for the module ray, and note how it is used."""

    def __init__(self, error=None):
        self.error = error
        self.given = {}
        self.ended = False

    def is_initialized(self):
        return False

    def init(self, **given):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # as Ray replaces the handler
        self.given = given
        if self.error:
            raise self.error

    def shutdown(self):
        self.ended = True


@pytest.mark.parametrize(
    ("address", "variable", "expected"),
    [("", "", "local"), ("", "head:6379", None), ("ray://head:1", "", "ray://head:1")],
)
def test_a_cluster_is_started_only_if_none_is_named(monkeypatch, address, variable, expected):
    module = Module()
    monkeypatch.setitem(sys.modules, "ray", module)
    monkeypatch.setenv("RAY_ADDRESS", variable)
    handler = signal.getsignal(signal.SIGTERM)
    with connected(address, True) as cluster:
        assert cluster.own == (expected == "local") and not module.ended
        assert module.given.get("address") == expected and module.given["log_to_driver"] is False
        assert signal.getsignal(signal.SIGTERM) is handler
    assert module.ended


def test_a_cluster_that_does_not_answer_is_one_sentence(monkeypatch):
    module = Module(ConnectionError("timed\nout"))
    monkeypatch.setitem(sys.modules, "ray", module)
    sentence = r"cannot connect to the Ray cluster ray://head:1 \(timed out\)"
    with pytest.raises(ValueError, match=sentence), connected("ray://head:1", True):
        pass
    assert module.ended


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        (Resources(gpus=2), "asks for 2 processes"),
        (Resources(nodes=3, gpus=0), "asks for 3 processes"),
        (Resources(hours=2.0), "the resource hours is for"),
        (Resources(partition="a"), "the resource partition is for"),
    ],
)
def test_resources_that_ray_does_not_have_are_errors(asked, words):
    with pytest.raises(ValueError, match=words):
        check(asked)


def cluster_of(*nodes, own=False):
    listed = [{"Alive": True, "Resources": node} for node in nodes]
    dead = {"Alive": False, "Resources": {"CPU": 999.0, "GPU": 99.0}}
    return Cluster(SimpleNamespace(nodes=lambda: [*listed, dead]), own)


def test_by_default_a_task_has_the_threads_of_this_process(monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    assert needs(cluster_of(LAPTOP, LAPTOP), Resources()) == Needs(3)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 16)
    assert needs(cluster_of(LAPTOP, LAPTOP), Resources()) == Needs(4)  # no node has 16


def test_by_default_a_task_has_a_gpu_and_its_share_of_the_node():
    assert needs(cluster_of(LAPTOP, SERVER), Resources()) == Needs(8, 1)
    asked = Resources(gpus=0, cpus=2, memory=1.5)
    found = needs(cluster_of(LAPTOP, SERVER), asked)
    assert found == Needs(2, 0, 3 * GB // 2) and str(found) == "cpus=2,memory=1.5"
    assert [found.fit(LAPTOP), found.fit(SERVER)] == [2, 32]


def test_resources_that_no_node_has_are_an_error_only_if_none_can_join(capsys):
    with pytest.raises(ValueError, match="needs cpus=1,gpus=1, and none of the 1 nodes"):
        needs(cluster_of(LAPTOP, own=True), Resources(gpus=1, cpus=1))
    assert needs(cluster_of(LAPTOP), Resources(gpus=1, cpus=1)) == Needs(1, 1)
    assert "the runs wait" in capsys.readouterr().err


def test_ray_does_not_repeat_tasks_and_workers_have_the_threads_of_the_task(monkeypatch):
    monkeypatch.setenv("ANTIPODE_DATA", "/data")
    options = Needs(3, 1).options()
    assert options["max_retries"] == 0 and options["max_calls"] == 1
    variables = options["runtime_env"]["env_vars"]
    assert variables["OMP_NUM_THREADS"] == "3" and variables["ANTIPODE_DATA"] == "/data"


@given(st.integers(1, 3_000_000), st.integers(1, 200))
def test_images_are_cut_into_contiguous_parts_of_whole_batches(n, slots):
    parts = ray_data.ranges(n, slots)
    assert parts[0].start == 0 and parts[-1].stop == n
    assert all(a.stop == b.start for a, b in pairwise(parts))
    assert all(part.start % ray_data.BATCH == 0 for part in parts)
    assert all(0 < len(part) <= ray_data.MOST for part in parts)
