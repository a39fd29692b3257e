"""What stands beside a score: the score of the untrained network, and test images seen in training.

N images, S pixels of the side of a view.
"""

import warnings
from dataclasses import replace
from typing import Any

from antipode.evaluation.duplicates import Exact, exact_duplicates, sources_of
from antipode.evaluation.score import OVERLAP, Result
from antipode.evaluation.task import Protocol, Task

# The untrained network is scored on data sets of at most this many pixels (N S^2), because its
# features cost as much as those of the trained one: 3,000 images of 224 px on a CPU.
PIXELS = {"cpu": 1.5e8, "cuda": 5e9}


class Beside:
    """Computes what stands beside the scores of one run, once for each data set."""

    def __init__(self, compare: bool = True) -> None:
        self.compare = compare  # whether the untrained network is scored
        self.untrained: dict[int, Task | None] = {}  # by the id of the task of the run
        self.exact: dict[int, Exact] = {}  # by the id of the splits
        self.seen: list[Any] = []  # keeps the objects with these ids alive

    def more(self, protocol: Protocol, task: Task, result: Result) -> dict[str, Any]:
        """Return the numbers to add to `Score.more`."""
        return self._baseline(protocol, task, result) | self._overlap(task)

    def _baseline(self, protocol: Protocol, task: Task, result: Result) -> dict[str, float]:
        """Return the score of the network before training, if that is affordable and known."""
        if not self.compare or not protocol.baseline or not affordable(task):
            return {}
        if id(task) not in self.untrained:
            net = task.untrained()
            same = net is None or net is task.backbone
            self.untrained[id(task)] = None if same else _task_of(task, net)
            self.seen.append(task)
            if net is task.backbone:
                self.untrained[id(task)] = task
        other = self.untrained[id(task)]
        if other is None:
            return {}
        return {"untrained": result.value if other is task else protocol.run(other).value}

    def _overlap(self, task: Task) -> dict[str, int]:
        """Return the number of test images that are also training images, if there are any."""
        if task.splits.test is None:
            return {}
        if id(task.splits) not in self.exact:
            self.exact[id(task.splits)] = exact_duplicates(task.splits, task.cache)
            self.seen.append(task.splits)
            self._warn(task)
        count = len(self.exact[id(task.splits)].overlap)
        return {OVERLAP: count} if count else {}

    def _warn(self, task: Task) -> None:
        found = self.exact[id(task.splits)]
        if found.overlap and task.splits.test is not None:
            warnings.warn(
                f"{len(found.overlap)} of the {len(task.splits.test)} test images of "
                f"{task.splits.name} are also training images, so its scores are too high; "
                "antipode analyse RUN --what duplicates lists them",
                stacklevel=5,
            )


def _task_of(task: Task, net: Any) -> Task:
    """Return the task with another network, whose features are not stored on the disk."""
    return replace(task, backbone=net, head=None, make_head=None, cache=None, computed={})


def affordable(task: Task) -> bool:
    """Return True if a data set is small enough to score the untrained network, too."""
    images = sum(len(source) for source in sources_of(task.splits).values())
    kind = "cpu" if task.device.type == "cpu" else "cuda"
    return images * task.size**2 <= PIXELS[kind]
