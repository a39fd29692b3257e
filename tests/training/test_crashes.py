"""Processes that are killed at any moment lose nothing and leave nothing behind."""

import subprocess
import sys

import pytest

from tests.crashes import COMMANDS
from tests.training.runs import ROOT, environment

pytestmark = [pytest.mark.slow, pytest.mark.skipif(sys.platform == "win32", reason="forks")]


def run(module, *words):
    """Run a module of the tests in a process of its own, which forks; return what it printed."""
    command = [sys.executable, "-m", module, *words]
    done = subprocess.run(
        command, env=environment(), cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("command", COMMANDS)
def test_a_kill_at_any_change_to_the_disk_loses_nothing(command):
    assert "kills, nothing lost, nothing left behind" in run("tests.crashes", command)


def test_two_hundred_kills_of_ten_runs_do_not_change_a_bit():
    assert run("tests.kills", "10", "20").count("20 kills") == 10
