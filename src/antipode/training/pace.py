"""How long training takes and how much memory it needs, measured on its own steps."""

import sys
import time

import torch

# The first steps take longer: a GPU compiles and captures them, and workers start.
WARM = {"cuda": 15}
WARM_CPU = 5
STEPS = 10  # measured before the first estimate
SECONDS = 3.0  # the same; a GPU computes later than the steps are started


class Pace:
    """Estimate the time that is left from the speed of the steps after the first few.

    Args:
        total: number of steps of the run.
        start: the first step, which is not 0 if the run is resumed.
        warm: number of steps that are not measured.
    """

    def __init__(self, total: int, start: int, warm: int) -> None:
        self.total = total
        self.warm = start + warm
        self.first = start  # the number of steps at `begun`
        self.begun = time.monotonic()  # when the measurement began
        self.done = start
        self.now = self.begun

    def tick(self, done: int) -> None:
        """Note that `done` steps have ended."""
        self.done = done
        self.now = time.monotonic()
        if done <= self.warm:
            self.first = done
            self.begun = self.now

    @property
    def per_step(self) -> float | None:
        """Seconds per step, None before enough steps have been measured."""
        steps = self.done - self.first
        seconds = self.now - self.begun
        enough = steps >= STEPS and seconds >= SECONDS and self.done > self.warm
        return seconds / steps if enough else None

    @property
    def left(self) -> float | None:
        """Seconds until the end, None if unknown."""
        per_step = self.per_step
        return None if per_step is None else per_step * (self.total - self.done)


def warm_steps(device: str) -> int:
    """Return the number of first steps that are not measured on a device."""
    return WARM.get(device, WARM_CPU)


def memory_used(device: str) -> int | None:
    """Return the largest number of bytes in use so far, on the GPU or of this process.

    Returns None if unknown.
    """
    if device == "cuda":
        return int(torch.cuda.max_memory_allocated())
    try:
        import resource  # noqa: PLC0415  (not on Windows)
    except ImportError:
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def duration(seconds: float) -> str:
    """Return a duration in words: "45 s", "3.2 min" or "1.5 h"."""
    if seconds < 60:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.1f} min" if seconds < 3600 else f"{seconds / 3600:.1f} h"


def amount(count: int) -> str:
    """Return a number of bytes in words: "850 MB" or "3.2 GB"."""
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{count / 1e6:.0f} MB"
