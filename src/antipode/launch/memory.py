"""How many runs one device takes at once: the first run is measured while it trains."""

import os
from collections.abc import Sequence
from pathlib import Path

import torch

from antipode.launch.task import Task

# Largest batch size -> number of runs beyond which an H200 is not faster (benchmarks/at_once.py).
# Small batches leave most of a GPU idle.
GAIN = {64: 8, 256: 4, 1024: 2}
SPARE = 0.1  # the share of the memory that stays free
CORES = 2  # CPU cores that a run on a GPU needs to be fed


class Room:
    """The free memory of a device before the first run.

    Args:
        device: the device.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.before = self.free()
        self.logs: dict[Path, int] = {}  # the fewest bytes that each log has had

    def free(self) -> int:
        """Return the free bytes of the device, 0 if they are unknown."""
        return torch.cuda.mem_get_info(self.device)[0] if self.device.type == "cuda" else 0

    def has_logged(self, folder: Path) -> bool:
        """Return True if a run has logged a step since the first call for it.

        The log of a resumed run has steps at first, and is cut to those of the checkpoint.
        """
        log = folder / "metrics.jsonl"
        size = log.stat().st_size if log.exists() else 0
        self.logs[folder] = min(size, self.logs.get(folder, size))
        return size > self.logs[folder]


def most_at_once(tasks: Sequence[Task], room: Room, first: Path | None) -> int:
    """Return how many tasks may run at once, 0 as long as that is unknown.

    On a GPU this is known once a run that is alone on it, whose folder is `first`, has logged a
    step: all its memory is then in use. The number is limited by the free memory, by the CPU cores,
    and by the batch size, since a GPU that one run fills gains nothing. Without a GPU the answer is
    1: a run uses all cores.
    """
    if room.device.type != "cuda":
        return 1
    if first is None or not room.has_logged(first):
        return 0
    used = max(1, room.before - room.free())
    fitting = int((1 - SPARE) * room.before / used)
    batch = max((task.batch for task in tasks), default=0)
    gains = next((most for size, most in GAIN.items() if batch <= size), 1)
    return max(1, min(fitting, gains, (os.cpu_count() or 1) // CORES, len(tasks)))
