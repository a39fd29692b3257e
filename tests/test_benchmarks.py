"""The scripts of benchmarks/ fit the package, although only a GPU runs most of them."""

import subprocess
import sys
from pathlib import Path

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"

IMPORT_ALL = """
import importlib, sys, traceback
failed = []
for name in sys.argv[1:]:
    try:
        importlib.import_module(name)
    except Exception:
        failed.append(name)
        traceback.print_exc()
sys.exit(f"cannot be imported: {', '.join(failed)}" if failed else 0)
"""


def test_every_script_can_be_imported():
    # a function that was renamed in src/ or in another script is found here, and not on the GPU
    names = sorted(path.stem for path in BENCHMARKS.glob("*.py"))
    assert len(names) > 20
    command = [sys.executable, "-c", IMPORT_ALL, *names]
    done = subprocess.run(command, cwd=BENCHMARKS, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
