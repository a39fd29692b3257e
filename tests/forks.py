"""Ranks that are forked from the process of the tests.

A fork has torch already, which takes a new process seconds to import.
"""

from multiprocessing import get_context

import torch
import torch.distributed as process


def _rank(work, folder, rank, arguments):
    torch.set_num_threads(1)  # threads of OpenMP do not survive a fork
    process.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2
    )
    torch.save(work(*arguments), folder / f"{rank}.pt")
    process.destroy_process_group()


class TwoRanks:
    """Two processes that start to work at once; `results` waits for what they return."""

    def __init__(self, folder, work, arguments):
        """Let both ranks call `work`, each with its own arguments."""
        self.folder = folder
        self.ranks = [
            get_context("fork").Process(target=_rank, args=(work, folder, rank, arguments[rank]))
            for rank in range(2)
        ]
        for rank in self.ranks:
            rank.start()

    def results(self):
        for rank in self.ranks:
            rank.join(timeout=300)
        assert [rank.exitcode for rank in self.ranks] == [0, 0]
        return [torch.load(self.folder / f"{rank}.pt", weights_only=True) for rank in range(2)]
