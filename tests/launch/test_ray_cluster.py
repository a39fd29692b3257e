"""Runs on a real Ray cluster of three nodes: one is removed in the middle, and results stay."""

import json
import os
import signal
import socket
import threading
import time
from contextlib import suppress
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

import antipode
from antipode.launch import ray_data
from antipode.launch.place import Resources
from antipode.launch.ray_cluster import perform_on_ray
from antipode.launch.task import Task
from antipode.training.signals import interrupts
from tests.launch.test_local import note

ray = pytest.importorskip("ray", reason="needs the extra ray")
cluster_utils = pytest.importorskip("ray.cluster_utils")
pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("ray")]

VARY = {"method.tau": [0.1, 0.3]}
SET = {
    "train.epochs": 3,
    "train.batch": 128,
    "backbone.name": "resnet10-slim",
    "train.checkpoint_steps": 5,
}
# a busy machine does not lose a node, and one that is removed is noticed after a few seconds
PATIENT = {"health_check_period_ms": 1000, "health_check_timeout_ms": 60_000}


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


@pytest.fixture(scope="module")
def nodes():
    """Three nodes with one core each, to which this process is connected."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    port = free_port()
    head = {"num_cpus": 1, "include_dashboard": False, "ray_client_server_port": port}
    cluster = cluster_utils.Cluster(
        initialize_head=True, head_node_args={**head, "_system_config": PATIENT}
    )
    try:
        others = [cluster.add_node(num_cpus=1, wait=False) for _ in range(2)]
        cluster.wait_for_nodes()
        # tests share a connection, and so the workers, which take long to start
        ray.init(address=cluster.address, log_to_driver=False)
        yield cluster, others, f"ray://127.0.0.1:{port}"
    finally:
        ray.shutdown()
        cluster.shutdown()
        torch.set_num_threads(before)


def sweep(out, **options):
    return antipode.sweep(
        "digits.dcl", VARY, out, seeds=2, protocols="knn20", overrides=SET, device="cpu", **options
    )


def results(out):
    """Return the rows and the weights of all runs."""
    rows = json.loads((out / "sweep.json").read_text())["rows"]
    return rows, {file.parent.name: file.read_bytes() for file in out.glob("runs/*/*.safetensors")}


def linger(file, quiet):
    """Wait as training does: a signal is noted, and the step ends before the task does."""
    with interrupts(lambda number: "") as received:
        file.with_suffix(".begun").touch()
        end = time.monotonic() + 60
        while not received and time.monotonic() < end:
            time.sleep(0.05)
        time.sleep(0.5)
        file.with_suffix(".kept").touch()
    raise KeyboardInterrupt


def test_ctrl_c_lets_tasks_keep_their_last_step(nodes, tmp_path):
    tasks = [Task(name, tmp_path / name, partial(linger, tmp_path / name)) for name in "abcde"]

    def interrupt():
        while len(list(tmp_path.glob("*.begun"))) < 3:
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt, daemon=True)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        perform_on_ray(tasks, resources=Resources(), quiet=True)
    thread.join()
    names = sorted(file.name for file in tmp_path.iterdir())
    assert len(names) == 6 and names[1::2] == [name.replace("begun", "kept") for name in names[::2]]


def test_failures_are_named_and_the_others_are_performed(nodes, tmp_path):
    tasks = [
        Task(text, tmp_path / text, partial(note, tmp_path, text)) for text in ("a", "wrong", "bug")
    ]
    failed = perform_on_ray(tasks, resources=Resources(cpus=1), quiet=True)
    assert failed == {
        tmp_path / "wrong": "wrong: 3 is too large",
        tmp_path / "bug": "bug: ZeroDivisionError: division by zero",
    }
    assert [file.name for file in tmp_path.iterdir()] == ["a"]


def test_pack_over_nodes_writes_the_bytes_of_one_process(nodes, tmp_path):
    antipode.pack("digits", tmp_path / "one", size=6, progress=False)
    antipode.pack("digits", tmp_path / "all", size=6, progress=False, on="ray")
    one, spread = (
        {file.relative_to(home): file.read_bytes() for file in home.rglob("*.*")}
        for home in (tmp_path / "one", tmp_path / "all")
    )
    assert one == spread and len(one) > 5
    assert {file.name for file in tmp_path.iterdir()} == {"one", "all"}


def is_training(node):
    """Return whether a worker of a node performs a task."""
    [raylet] = node.all_processes["raylet"]
    pid = raylet.process.pid
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        with suppress(FileNotFoundError):
            if Path(f"/proc/{child}/cmdline").read_bytes().startswith(b"ray::work"):
                return True
    return False


def all_have_checkpoints(out):
    """Return whether every run that is not finished has a checkpoint."""
    runs = [file.parent for file in out.glob("runs/*/.lock")]
    open_ = [run for run in runs if not (run / "backbone.safetensors").exists()]
    return bool(open_) and all((run / "checkpoints" / "last.pt").exists() for run in open_)


@pytest.mark.cluster
def test_a_sweep_that_loses_a_node_has_the_results_of_a_local_one(nodes, tmp_path, capfd):
    cluster, others, _ = nodes
    sweep(tmp_path / "local", quiet=True)
    removed = threading.Event()

    def remove():
        while not (is_training(others[0]) and all_have_checkpoints(tmp_path / "ray")):
            time.sleep(0.02)
        cluster.remove_node(others[0], allow_graceful=False)
        removed.set()

    thread = threading.Thread(target=remove, daemon=True)
    thread.start()
    found = sweep(tmp_path / "ray", on="ray", resources="cpus=1")
    thread.join()
    err = capfd.readouterr().err
    assert removed.is_set() and "lost its worker" in err and found.ok
    rows, weights = results(tmp_path / "local")
    assert results(tmp_path / "ray") == (rows, weights) and len(weights) == 4


def test_embed_over_the_nodes_of_an_address_equals_one_process(nodes, tmp_path, monkeypatch):
    *_, address = nodes
    ray.shutdown()  # the command connects by itself
    monkeypatch.setattr(ray_data, "LEAST", 1)
    monkeypatch.setattr(ray_data, "PER_SLOT", 1)
    antipode.embed("random:resnet10-slim", "digits", tmp_path / "one.npz")
    antipode.embed("random:resnet10-slim", "digits", tmp_path / "all.npz", on=address)
    with np.load(tmp_path / "one.npz") as one, np.load(tmp_path / "all.npz") as spread:
        assert sorted(one) == sorted(spread)
        assert all((one[key] == spread[key]).all() for key in one)
    assert {file.name for file in tmp_path.iterdir()} == {"one.npz", "all.npz"}
    assert not ray.is_initialized()
