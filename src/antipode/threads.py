"""CPU threads and memory for a program: as many threads as cores are free, and little waiting.

OpenMP's threads spin for milliseconds between two operations by default. If another process needs
the core, a training step then takes many times as long (docs/cpu.md). A thread that never spins
must be woken for each of a step's thousand operations. So threads spin for about 0.1 ms.

The settings of threads take effect only before torch is imported, so this module does not import
it. The command line and the examples call `prepare`. As a library, antipode leaves the threads and
the memory of a program as they are.
"""

import ctypes
import math
import os
import sys
import time
from collections.abc import MutableMapping
from pathlib import Path

# A thread that waits gives up its core: with GNU's OpenMP, which torch uses on Linux, after 10,000
# turns of about 10 ns, with Intel's and LLVM's at once.
PASSIVE = {"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "10000", "KMP_BLOCKTIME": "0"}
COUNTS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")  # set by the user, or by torchrun
SAMPLE = 0.2  # seconds over which the idle time of the cores is measured

# glibc's malloc: parameter -> bytes. Blocks of up to 32 MiB, the largest value that it takes, are
# kept when they are freed. Otherwise every step gets its activations as new pages, which the system
# must fill with zeros.
KEPT = {-3: 32 << 20, -1: 1 << 30}  # M_MMAP_THRESHOLD, M_TRIM_THRESHOLD

_chosen = False  # whether `prepare` chose the number of threads


def prepare(environment: MutableMapping[str, str] | None = None) -> None:
    """Set OpenMP's environment variables and the memory allocator of this process.

    Call it before torch is imported. The number of threads is that of the free cores at this
    moment. What the user has set in the environment stays.
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
    if environment is None:
        keep_freed_memory()


def keep_freed_memory() -> bool:
    """Let the allocator keep freed blocks for the next step. Return False if that is not possible.

    It is possible with glibc, which most Linux systems use. A user's own choice stays.
    """
    if any(name.startswith("MALLOC_") or name == "LD_PRELOAD" for name in os.environ):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError, TypeError):  # another system, or another C library
        return False
    return all([mallopt(parameter, size) == 1 for parameter, size in KEPT.items()])


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
