"""A test that the benchmark of large evaluations runs, at its smallest size."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_every_part_runs_and_agrees_with_float64(tmp_path):
    out = tmp_path / "report.json"
    command = [sys.executable, "benchmarks/evaluate_large.py", "--smoke", "--out", str(out)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    subprocess.run(command, cwd=ROOT, env=environment, check=True, capture_output=True)
    report = json.loads(out.read_text())
    for name in ("logistic", "logistic-large"):
        assert abs(report[name]["excess"]) < 1e-5
    assert report["knn"]["same_neighbours"] == 100
    for name in ("detect-voc", "detect-coco", "segment-coco"):
        assert report[name]["hours_of_the_schedule"] > 0
    for name in ("linear", "linear-pack", "semi-10"):
        assert report[name]["share_of_the_bare_step"] > 0
