"""Ranks that are forked from the process of the tests.

A fork has torch already, which takes a new process seconds to import.
"""

from multiprocessing import get_context

import torch
import torch.distributed as process


def _rank(work, folder, rank, count, arguments):
    torch.set_num_threads(1)  # threads of OpenMP do not survive a fork
    process.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=count
    )
    torch.save(work(*arguments), folder / f"{rank}.pt")
    process.destroy_process_group()


class Ranks:
    """Processes that start to work at once; `results` waits for what they return."""

    def __init__(self, folder, work, arguments):
        """Let each rank call `work` with its own arguments."""
        self.folder = folder
        count = len(arguments)
        self.ranks = [
            get_context("fork").Process(target=_rank, args=(work, folder, rank, count, own))
            for rank, own in enumerate(arguments)
        ]
        for rank in self.ranks:
            rank.start()

    def results(self):
        for rank in self.ranks:
            rank.join(timeout=300)
        assert all(rank.exitcode == 0 for rank in self.ranks)  # None: it still runs
        places = [self.folder / f"{rank}.pt" for rank in range(len(self.ranks))]
        return [torch.load(place, weights_only=True) for place in places]
