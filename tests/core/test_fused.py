"""Kernels on CPU tensors, by Triton's interpreter; tests/test_gpu.py has the tests on a GPU."""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

HERE = Path(__file__).parent


@pytest.mark.skipif(find_spec("triton") is None, reason="there is no Triton")
def test_the_kernels_in_the_interpreter():
    command = [sys.executable, "-m", "pytest", "-x", "-p", "no:cacheprovider", "-W", "ignore"]
    environment = {**os.environ, "TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""}
    environment.pop("PYTEST_XDIST_WORKER", None)
    done = subprocess.run(
        [*command, str(HERE / "interpreted.py")],
        check=False,
        cwd=HERE.parents[1],
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-4000:]
