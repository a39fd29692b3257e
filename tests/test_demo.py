"""The demo: Ctrl-C ends in a sentence, and the same command resumes."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from antipode.training import checkpoint
from antipode.training.record import Interrupted, InTrouble

DEMO = Path(__file__).parents[1] / "examples" / "demo.py"


def stopped(out, rows):
    """Start the demo, press Ctrl-C after `rows` lines of metrics, and return how it ended."""
    process = subprocess.Popen(
        [sys.executable, DEMO, "--out", out],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    metrics = out / "metrics.jsonl"
    until = time.monotonic() + 120
    while time.monotonic() < until and process.poll() is None:
        if metrics.exists() and metrics.read_text().count("\n") >= rows:
            break
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    words, errors = process.communicate(timeout=120)
    return process.returncode, words, errors


@pytest.mark.slow
def test_a_demo_that_was_stopped_resumes(tmp_path):
    out = tmp_path / "demo"
    steps = []
    for rows in (2, 5):
        status, words, errors = stopped(out, rows)
        assert status == 130 and "Run it again to resume" in words, errors
        assert "Traceback" not in errors
        steps.append(checkpoint.read(out / "checkpoints" / "last.pt", "cpu")["step"])
    assert 10 < steps[0] < steps[1], "the second start continues the first one"


def test_an_interruption_is_a_keyboard_interrupt_and_trouble_is_not():
    """A program that catches Exception must end at Ctrl-C, and may go on after trouble."""
    assert issubclass(Interrupted, KeyboardInterrupt)
    assert issubclass(InTrouble, Exception) and not issubclass(InTrouble, KeyboardInterrupt)
