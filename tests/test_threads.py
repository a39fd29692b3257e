"""The threads of a program: none that spins for long, and as many as cores are free; its memory."""

import os
import platform
import subprocess
import sys

import pytest

from antipode import threads


def test_what_the_user_has_set_stays():
    given = {"OMP_WAIT_POLICY": "ACTIVE", "OMP_NUM_THREADS": "7"}
    threads.prepare(given)
    assert given["OMP_WAIT_POLICY"] == "ACTIVE" and given["OMP_NUM_THREADS"] == "7"
    assert given["GOMP_SPINCOUNT"] == "10000" and given["KMP_BLOCKTIME"] == "0"
    other = {"MKL_NUM_THREADS": "3"}
    threads.prepare(other)
    assert "OMP_NUM_THREADS" not in other


@pytest.mark.parametrize(
    ("idle", "expected"), [(0.0, 1), (0.4, 1), (1.0, 1), (1.6, 2), (4.0, 4), (9.0, 4)]
)
def test_the_number_of_threads_is_that_of_the_idle_cores(monkeypatch, idle, expected):
    clock = iter([100.0, 100.0 + idle])  # idle seconds before and after one second
    times = iter([0.0, 1.0])
    monkeypatch.setattr(threads, "cores", lambda: 4)
    monkeypatch.setattr(threads, "_idle_seconds", lambda: next(clock))
    monkeypatch.setattr(threads.time, "sleep", lambda _: None)
    monkeypatch.setattr(threads.time, "monotonic", lambda: next(times))
    assert threads.free_cores() == expected


def test_without_proc_the_load_average_decides(monkeypatch):
    monkeypatch.setattr(threads, "cores", lambda: 8)
    monkeypatch.setattr(threads, "_idle_seconds", lambda: None)
    monkeypatch.setattr(threads.os, "getloadavg", lambda: (2.2, 0.0, 0.0), raising=False)
    assert threads.free_cores() == 6


def test_a_quota_of_the_control_group_counts(tmp_path):
    file = tmp_path / "cpu.max"
    file.write_text("150000 100000\n")
    assert threads._quota(file) == 1.5
    file.write_text("max 100000\n")
    assert threads._quota(file) is None
    assert threads._quota(tmp_path / "none") is None


def test_the_idle_time_is_that_of_the_cores_of_this_process(tmp_path):
    if not hasattr(os, "sched_getaffinity"):
        pytest.skip("this system does not say which cores a process may use")
    rows = [f"cpu{number} 1 1 1 200 100 0 0" for number in os.sched_getaffinity(0)]
    file = tmp_path / "stat"
    file.write_text("\n".join(["cpu 9 9 9 9 9", *rows, "cpu999 0 0 0 5 5", "intr 3"]))
    expected = len(rows) * 300 / os.sysconf("SC_CLK_TCK")
    assert threads._idle_seconds(file) == expected
    assert threads._idle_seconds(tmp_path / "none") is None


def test_the_command_line_prepares_before_torch_is_imported():
    code = """import os, sys
from antipode.__main__ import main
sys.argv = ["antipode", "evaluate", "nosuch"]
try:
    main()
except SystemExit as end:
    print(end.code, "torch" in sys.modules, os.environ["OMP_WAIT_POLICY"])
    print(os.environ["OMP_NUM_THREADS"])
"""
    free = {name: value for name, value in os.environ.items() if name not in threads.COUNTS}
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=free
    )
    state, count = result.stdout.splitlines()
    assert state == "2 False PASSIVE" and 1 <= int(count) <= threads.cores()


def faults(code):
    """Return the page faults of ten blocks of 8 MB, each of which is written and then freed."""
    program = f"""import resource
import numpy as np
from antipode import threads
{code}
np.ones(1 << 20)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(10):
    np.ones(1 << 20)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""
    free = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}
    command = [sys.executable, "-c", program]
    result = subprocess.run(command, capture_output=True, text=True, check=True, env=free)
    return int(result.stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="glibc's allocator is set")
def test_freed_memory_is_used_again_instead_of_new_pages():
    assert faults("assert threads.keep_freed_memory()") < min(100, faults(""))


def test_the_users_own_allocator_stays(monkeypatch):
    monkeypatch.setenv("MALLOC_ARENA_MAX", "2")
    assert not threads.keep_freed_memory()


def test_a_resumed_run_has_the_threads_of_its_start(monkeypatch):
    counts = []
    monkeypatch.setattr("torch.set_num_threads", counts.append)
    monkeypatch.setattr(threads, "cores", lambda: 4)
    monkeypatch.setattr(threads, "_chosen", False)
    threads.restore(2)
    assert counts == [], "the user's program has its own number"
    monkeypatch.setattr(threads, "_chosen", True)
    for stored in (2, None, 99, "2"):
        threads.restore(stored)
    assert counts == [2]
