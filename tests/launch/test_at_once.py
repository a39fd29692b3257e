"""benchmarks/at_once.py on a CPU: runs in turn, in one process and in processes of their own."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from antipode.training.loop import unchanged

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
TINY = ("backbone.name=resnet10-slim", "views.size=16")


@pytest.fixture
def at_once(monkeypatch):
    monkeypatch.syspath_prepend(BENCHMARKS)
    monkeypatch.delenv("ANTIPODE_DATA", raising=False)
    import at_once

    with unchanged():
        yield at_once


def test_runs_that_take_turns_in_one_process_have_the_bits_of_solo_runs(at_once, tmp_path):
    kind = at_once.Kind(8, True, "cpu", 64, TINY, 1)
    trainings = at_once.Trainings(tmp_path)
    trainings.prepare(kind, (0, 1))
    in_turn = trainings.together(2)
    alone = []
    for seed in (0, 1):
        trainings.prepare(kind, (seed,))
        alone += trainings.together(2)
    assert in_turn == alone and len(set(alone)) == 2


@pytest.mark.slow
def test_all_ways_are_measured_side_by_side(tmp_path):
    words = ["--device", "cpu", "--batches", "32", "--most", "2", "--images", "256"]
    words += ["--seconds", "0.3", "--steps", "2", "--warm", "1", "--set", *TINY]
    words += ["--out", str(tmp_path / "a.json")]
    script = str(BENCHMARKS / "at_once.py")
    subprocess.run([sys.executable, script, *words], check=True, stdout=subprocess.DEVNULL)
    found = json.loads((tmp_path / "a.json").read_text())
    *rows, last = found["rows"]
    assert [row["at_once"] for row in rows] == [1, 2]
    assert all(row["processes"] > 0 and row["streams"] > 0 for row in rows)
    assert last["at_once"] == 2 and last["parts"] > 0 and last["skipped_steps"] == 0
    same = {key: found["same_bits"][key] for key in ("runs", "distinct", "processes", "streams")}
    assert same == dict.fromkeys(same, 2)
    assert found["same_bits"]["parts"] == 2  # on a CPU nothing is divided
