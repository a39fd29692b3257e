"""CPU threads for a program: as many as cores are free, and none that spins while it waits.

OpenMP's threads spin between two operations by default. If another process needs the core, a
training step then takes many times as long (docs/cpu.md). The settings take effect only before
torch is imported, so this module does not import it. The command line and the examples call
`prepare`. As a library, antipode leaves the threads of a program as they are.
"""

import math
import os
import sys
import time
from collections.abc import MutableMapping
from pathlib import Path

# GNU's and Intel's OpenMP: a thread that waits gives up its core at once
PASSIVE = {"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "0", "KMP_BLOCKTIME": "0"}
COUNTS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")  # set by the user, or by torchrun
SAMPLE = 0.2  # seconds over which the idle time of the cores is measured

_chosen = False  # whether `prepare` chose the number of threads


def prepare(environment: MutableMapping[str, str] | None = None) -> None:
    """Set the environment variables of OpenMP for this process, where the user has not set them.

    Call it before torch is imported. The number of threads is that of the free cores at this
    moment. A number that the user has set in the environment stays.
    """
    global _chosen  # noqa: PLW0603
    variables = os.environ if environment is None else environment
    if "torch" in sys.modules and environment is None:
        return
    for name, value in PASSIVE.items():
        variables.setdefault(name, value)
    if not any(name in variables for name in COUNTS):
        variables["OMP_NUM_THREADS"] = str(free_cores())
        _chosen = True


def chosen() -> bool:
    """Return True if `prepare` chose the number of threads, and not the user."""
    return _chosen


def restore(count: object) -> None:
    """Use the number of threads with which a run was started, if `prepare` chose another one.

    Sums depend on it in their last digits, and a resumed run continues bit for bit.
    """
    if _chosen and isinstance(count, int) and 1 <= count <= cores():
        import torch  # noqa: PLC0415  (`prepare` must run before this import)

        torch.set_num_threads(count)


def cores() -> int:
    """Return the number of cores that this process may use: its affinity and its quota."""
    if hasattr(os, "sched_getaffinity"):
        allowed = len(os.sched_getaffinity(0))
    else:
        allowed = os.cpu_count() or 1
    quota = _quota(Path("/sys/fs/cgroup/cpu.max"))
    return max(1, allowed if quota is None else min(allowed, math.ceil(quota)))


def free_cores() -> int:
    """Return the number of cores that other processes leave idle, at least 1.

    On Linux it is measured over `SAMPLE` seconds. Elsewhere it follows from the load average of the
    last minute, and on Windows all cores count.
    """
    total = cores()
    before = _idle_seconds()
    if before is not None:
        start = time.monotonic()
        time.sleep(SAMPLE)
        after = _idle_seconds()
        passed = time.monotonic() - start
        idle = 0.0 if after is None else (after - before) / passed
    elif hasattr(os, "getloadavg"):
        idle = total - os.getloadavg()[0]
    else:
        idle = total
    return max(1, min(total, round(idle)))


def _quota(file: Path) -> float | None:
    """Return the cores that a control group allows, such as 1.5, or None without a limit."""
    try:
        quota, period = file.read_text().split()
        return int(quota) / int(period)
    except (OSError, ValueError, ZeroDivisionError):
        return None


def _idle_seconds(file: Path = Path("/proc/stat")) -> float | None:
    """Return how long the cores of this process have been idle, None if the system does not say."""
    try:
        allowed = {f"cpu{number}" for number in os.sched_getaffinity(0)}
        rows = [line.split() for line in file.read_text().splitlines() if line.startswith("cpu")]
        ticks = sum(int(row[4]) + int(row[5]) for row in rows if row[0] in allowed)
        return ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError, AttributeError):
        return None
