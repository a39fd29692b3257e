"""Runs as jobs of a real SLURM: requeued ones end with the bits of undisturbed ones."""

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.cluster.slurm_service import Unavailable, missing, service

REASON = missing() or ("" if find_spec("submitit") else "submitit is not installed")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.dist,
    pytest.mark.xdist_group("slurm"),
    pytest.mark.skipif(bool(REASON), reason=f"no SLURM: {REASON}"),
]
SMALL = ["--set", "backbone.name=resnet10-slim", "--set", "train.checkpoint_steps=10"]
PATIENCE = 400  # seconds; a busy machine takes several times as long as an idle one


@pytest.fixture(scope="module")
def slurm(tmp_path_factory):
    """The environment of a cluster with two nodes. Every process has one thread."""
    with ExitStack() as stack:
        try:
            variables = stack.enter_context(service(tmp_path_factory.mktemp("slurm")))
        except Unavailable as error:
            pytest.skip(f"no SLURM: {error}")
        yield {**os.environ, **variables, "OMP_NUM_THREADS": "1"}


def antipode(*words):
    return [sys.executable, "-m", "antipode", *map(str, words)]


@pytest.fixture
def start(slurm, tmp_path):
    """Start commands in the folder of the test; those that still run are killed at its end."""
    processes = []

    def started(*words):
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        processes.append(subprocess.Popen(antipode(*words), env=slurm, cwd=tmp_path, **pipes))
        return processes[-1]

    yield started
    for process in processes:
        process.kill()
        process.communicate()


def ended(process):
    """Return the output of a process that must succeed."""
    out, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, err
    return out, err


def until(check):
    """Return the first true value of a function, which is called again and again."""
    end = time.monotonic() + PATIENCE
    while not (value := check()):
        assert time.monotonic() < end
        time.sleep(0.5)
    return value


def scontrol(environment, *words):
    subprocess.run(["scontrol", *words], env=environment, check=True)


def sweep_words(out):
    words = ["sweep", "digits.dcl", "--vary", "train.epochs=1,2,4,6", "--protocol", "knn20"]
    return [*words, "--device", "cpu", *SMALL, "--out", out]


def job_of(out, epochs):
    """Return the job of the run with some epochs, once it has written a checkpoint."""
    for file in out.glob("runs/*/jobs/job.json"):
        record = json.loads(file.read_text())
        folder = file.parents[1]
        if record["label"].startswith(f"train.epochs={epochs} "):
            return record["id"] if (folder / "checkpoints" / "last.pt").exists() else None
    return None


def results(out):
    """Return the rows and the weights of all runs."""
    rows = json.loads((out / "sweep.json").read_text())["rows"]
    weights = {file.parent.name: file.read_bytes() for file in out.glob("runs/*/*.safetensors")}
    return rows, weights


@pytest.mark.cluster
def test_a_requeued_job_and_one_at_its_time_limit_end_with_the_bits_of_local_runs(
    slurm, start, tmp_path
):
    there = tmp_path / "there"
    here = tmp_path / "here"
    command = start(*sweep_words(there), "--on", "slurm", "--resources", "cpus=1,hours=1")
    long = until(lambda: job_of(there, 6))
    # The signal comes within half a minute after this, and the limit itself is never reached. The
    # job is stopped until then, because a fast machine would be done before. SLURM continues it.
    os.kill(process_of(there, long), signal.SIGSTOP)
    scontrol(slurm, "update", f"JobId={long}", "TimeLimit=1")
    local = start(*sweep_words(here), "--at-once", "2")
    short = until(lambda: job_of(there, 4))
    scontrol(slurm, "requeue", short)
    until(lambda: "goes back into the queue" in log_of(there, long))
    scontrol(slurm, "update", f"JobId={long}", "TimeLimit=60")
    ended(local)
    ended(command)
    rows, weights = results(here)
    assert len(weights) == 4
    assert results(there) == (rows, weights)
    table = json.loads(
        subprocess.check_output(antipode("jobs", there, "--json"), env=slurm, text=True)
    )
    attempts = {row["id"]: row["attempts"] for row in table["jobs"]}
    assert all(row["state"] == "finished" for row in table["jobs"]) and len(attempts) == 4
    assert attempts[long] >= 2 and attempts[short] >= 2


def process_of(out, job):
    """Return the process that trains in a job."""
    [script] = out.glob(f"runs/*/jobs/{job}_submission.sh")
    found = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = file.read_bytes().decode(errors="replace").split("\0")
        except OSError:  # it has ended
            continue
        if str(script.parent) in words and "python" in Path(words[0]).name:
            found.append(int(file.parent.name))
    [pid] = found
    return pid


def log_of(out, job):
    return "".join(file.read_text() for file in out.glob(f"runs/*/jobs/{job}_0_log.out"))


@pytest.mark.cluster
def test_two_nodes_compute_what_one_process_computes(start, tmp_path):
    """Training to 1e-9 in float64; the first process evaluates."""
    words = ["sweep", "digits.dcl", "--vary", "method.tau=0.1", "--device", "cpu", *SMALL]
    words += ["--set", "train.precision=fp64", "--set", "train.epochs=1", "--protocol", "knn20"]
    asked = ["--on", "slurm", "--resources", "nodes=2,cpus=1,hours=1"]
    there = start(*words, "--out", tmp_path / "two", *asked)
    ended(start(*words, "--out", tmp_path / "one"))
    ended(there)
    one, two = (
        torch.load(file, weights_only=False)["learner"]
        for name in ("one", "two")
        for file in (tmp_path / name).glob("runs/*/checkpoints/last.pt")
    )
    assert one.keys() == two.keys()
    doubles = [name for name, value in one.items() if value.dtype == torch.float64]
    assert doubles
    for name in doubles:
        torch.testing.assert_close(two[name], one[name], rtol=1e-9, atol=1e-9)
    [env] = [json.loads(file.read_text()) for file in (tmp_path / "two").glob("runs/*/env.json")]
    assert env["ranks"] == 2 and env["launch"].startswith("slurm ")
    assert results(tmp_path / "two")[0][0]["scores"].keys() == {"knn20", "knn-held-out"}


def test_an_interrupted_command_leaves_its_job_and_the_same_command_attaches(
    slurm, start, tmp_path
):
    out = tmp_path / "run"
    words = ["pretrain", "digits.dcl", "--epochs", "30", "--device", "cpu", *SMALL, "--out", out]
    words += ["--on", "slurm", "--resources", "cpus=1,hours=1"]
    first = start(*words)
    job = until(lambda: (out / "checkpoints" / "last.pt").exists() and record(out)["id"])
    first.send_signal(2)
    _, err = first.communicate()
    assert first.returncode == 130 and f"scancel {job}" in err and "antipode jobs" in err
    second = start(*words)
    for line in second.stderr:
        if line.startswith("SLURM: "):
            assert "found 1 job of an earlier call" in line
            break
    assert record(out)["id"] == job
    subprocess.run(["scancel", job], env=slurm, check=True)
    _, err = second.communicate(timeout=PATIENCE)
    assert second.returncode == 1 and "was cancelled" in err
    shown = subprocess.run(
        antipode("jobs", out), env=slurm, capture_output=True, text=True, check=True
    )
    assert "cancelled" in shown.stdout and "start the same command again" in shown.stdout


def test_a_preempted_job_ends_with_the_bits_of_a_local_run(slurm, start, tmp_path):
    """A job of a partition with a higher priority takes all nodes for a while."""
    words = ["pretrain", "digits.dcl", "--epochs", "12", "--device", "cpu", *SMALL]
    there = tmp_path / "there"
    here = tmp_path / "here"
    command = start(*words, "--out", there, "--on", "slurm", "--resources", "cpus=1,hours=1")
    until((there / "checkpoints" / "last.pt").exists)
    job = record(there)["id"]
    urgent = ["--partition=urgent", "--nodes=2", "--ntasks-per-node=8", "--output=/dev/null"]
    subprocess.run(["sbatch", *urgent, "--wrap", "sleep 5"], env=slurm, check=True)
    ended(start(*words, "--out", here))
    ended(command)
    name = "backbone.safetensors"
    assert (there / name).read_bytes() == (here / name).read_bytes()
    table = json.loads(ended(start("jobs", there, "--json"))[0])
    [row] = table["jobs"]
    assert row["id"] == job and row["state"] == "finished" and row["attempts"] >= 2


def test_embed_and_pack_as_jobs_write_what_they_write_here(start, tmp_path):
    asked = ["--on", "slurm", "--resources", "cpus=1,hours=1"]
    ended(start("pretrain", "digits.dcl", "--epochs", "1", "--device", "cpu", *SMALL, "--out", "r"))
    jobs = []
    for place, more in (("there", asked), ("here", [])):
        features = ["embed", "r", "--data", "digits", "--out", f"{place}.npz"]
        jobs.append(start(*features, *more))
        jobs.append(start("pack", "digits", "--out", place, *more))
    for process in jobs:
        ended(process)
    here, there = (np.load(tmp_path / f"{place}.npz") for place in ("here", "there"))
    assert {*here} == {*there} and all(np.array_equal(here[key], there[key]) for key in here)
    packs = [
        {str(file.relative_to(tmp_path / place)): file.read_bytes() for file in found}
        for place in ("here", "there")
        if (found := [*(tmp_path / place).rglob("*.bin"), *(tmp_path / place).rglob("*.npy")])
    ]
    assert len(packs) == 2 and packs[0] == packs[1]


def test_an_item_is_reproduced_by_jobs_with_the_numbers_of_local_runs(start, tmp_path):
    words = ["reproduce", "dcl.table3", "--scale", "smoke", "--device", "cpu"]
    there = start(*words, "--out", "there", "--on", "slurm", "--resources", "cpus=1,hours=1")
    ended(start(*words, "--out", "here"))
    ended(there)
    tables = []
    for place in ("here", "there"):
        [file] = (tmp_path / place).glob("*.json")
        tables.append(json.loads(file.read_text()))
    assert tables[0]["cells"] == tables[1]["cells"] and tables[0]["cells"]


def page_commands():
    """Return the commands of the guide, for a small cluster without GPUs."""
    page = Path(__file__).parents[2] / "docs" / "guides" / "slurm.md"
    lines = [line for line in page.read_text().splitlines() if line.startswith("antipode ")]
    small = {"cifar10.dcl": "digits.dcl", "gpus=1": "cpus=1", "partition=gpu": "partition=main"}
    small["--seeds 2"] = "--seeds 1"
    for old, new in small.items():
        lines = [line.replace(old, new) for line in lines]
    return [shlex.split(line)[1:] for line in lines]


def test_the_commands_of_the_guide_run(start):
    small = ["--set", "train.epochs=1", *SMALL]
    commands = page_commands()
    waited = [words for words in commands if "slurm" in words]
    assert len(waited) == 2 and len(commands) == 4
    for process in [start(*words, *small) for words in waited]:
        ended(process)
    for words in [words for words in commands if words not in waited]:
        out, _ = ended(start(*words))
        assert "2 finished" in out if words[0] == "jobs" else "antipode pretrain digits.dcl" in out


def record(out):
    return json.loads((out / "jobs" / "job.json").read_text())
