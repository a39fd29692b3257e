"""A sweep that is killed again and again ends with the results of an undisturbed one."""

import json
import os
import random
import signal
import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow
KILLS = 5


def command(out, at_once):
    words = ["sweep", "digits.dcl", "--seeds", "2", "--protocol", "knn20", "--device", "cpu"]
    for text in ("method.tau=0.1,0.2,0.3", "optim.network.lr=0.05,0.1"):
        words += ["--vary", text]
    for text in ("train.epochs=3", "backbone.name=resnet10-slim", "train.checkpoint_steps=5"):
        words += ["--set", text]
    return [sys.executable, "-m", "antipode", *words, "--at-once", str(at_once), "--out", str(out)]


def started(out, at_once):
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        command(out, at_once),
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )


def results(out):
    """Return the rows and the weights of all runs."""
    rows = json.loads((out / "sweep.json").read_text())["rows"]
    weights = {file.parent.name: file.read_bytes() for file in out.glob("runs/*/*.safetensors")}
    return rows, weights


@pytest.mark.parametrize("at_once", [1, 2])
def test_killed_sweeps_end_with_the_results_of_an_undisturbed_one(tmp_path, at_once):
    for name in ("undisturbed", "killed"):
        (tmp_path / name).mkdir()
    plain = started(tmp_path / "undisturbed", at_once)
    _, err = plain.communicate()
    assert plain.returncode == 0, err
    draw = random.Random(0)
    for _ in range(KILLS):
        process = started(tmp_path / "killed", at_once)
        try:
            process.wait(draw.uniform(6, 20))
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
    last = started(tmp_path / "killed", at_once)
    _, err = last.communicate()
    assert last.returncode == 0, err
    rows, weights = results(tmp_path / "undisturbed")
    again, same = results(tmp_path / "killed")
    assert len(rows) == 6 and len(weights) == 12
    assert again == rows and same == weights
