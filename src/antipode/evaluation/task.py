"""What every protocol gets: a frozen backbone on a data set."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn

from antipode.data.sources.source import Decoded, Memory, Source
from antipode.data.sources.splits import Splits
from antipode.data.views.views import Views
from antipode.evaluation.features import extract
from antipode.evaluation.score import Result
from antipode.types import Features


class Protocol(NamedTuple):
    """A named evaluation with fixed settings.

    Args:
        run: function from a `Task` to its `Result`.
        about: a description in one line, for lists.
        data: the data set that the protocol belongs to, or None for the data set of the run.
        labels: whether the protocol needs labels.
        baseline: whether it is cheap enough to score the untrained network beside the trained one.
    """

    run: Callable[["Task"], Result]
    about: str
    data: str | None = None
    labels: bool = True
    baseline: bool = False


@dataclass
class Task:
    """A frozen backbone on a data set.

    Args:
        backbone: the network, in eval mode. It must not be modified: a protocol that trains it
            takes a copy.
        splits: the train and test images.
        size: the side of a view in pixels.
        eval_view: makes the evaluation view of an image.
        device: the device that the backbone is on.
        seed: the seed of whatever a protocol draws at random.
        head: the projection head, if it is at hand.
        root: the folder with data sets.
        cache: a folder to store features in.
        make_head: returns the projection head. It is called once, when a protocol first needs the
            head, because it reads a checkpoint.
        make_untrained: returns the backbone before training, or None if it is unknown.
        computed: the features that were already computed, by split and network.
    """

    backbone: nn.Module
    splits: Splits
    size: int
    eval_view: Views
    device: torch.device
    seed: int = 0
    head: nn.Module | None = None
    root: str | None = None
    cache: Path | None = None
    make_head: Callable[[], nn.Module | None] | None = field(default=None, repr=False)
    make_untrained: Callable[[], nn.Module | None] | None = field(default=None, repr=False)
    computed: dict[tuple[str, str], Features] = field(default_factory=dict, repr=False)

    def features(self, part: str, of: str = "backbone") -> Features:
        """Return the features of the train or test images, which are computed once.

        `of` is "backbone", or "head" for the output of the projection head.
        """
        if (part, of) not in self.computed:
            self.computed[part, of] = extract(
                self.network(of), self.eval_view, self.labelled(part), cache=self.cache
            )
        return self.computed[part, of]

    def network(self, of: str = "backbone") -> nn.Module:
        """Return the backbone, followed by its projection head if `of` is "head"."""
        if of == "backbone":
            return self.backbone
        head = self.projection()
        if head is None:
            raise ValueError(
                "there is no projection head: only a run that has a checkpoint has one"
            )
        return nn.Sequential(self.backbone, head)

    def projection(self) -> nn.Module | None:
        """Return the projection head on the task's device, or None if there is none."""
        if self.head is None and self.make_head is not None:
            head = self.make_head()
            self.make_head = None
            self.head = None if head is None else head.to(self.device)
        return self.head

    def untrained(self) -> nn.Module | None:
        """Return the backbone before training on the task's device, or None if it is unknown."""
        net = None if self.make_untrained is None else self.make_untrained()
        return None if net is None else net.to(self.device)

    def images(self) -> tuple[Source, str]:
        """Return images without labels and the name of their split.

        They are the test images, or those of pretraining if there are no test images.
        """
        source = self.splits.pretrain if self.splits.test is None else self.splits.test
        split = "train" if self.splits.test is None else "test"
        if not isinstance(source, Memory | Decoded):
            raise ValueError(f"the images must be Memory or Decoded, not {type(source).__name__}")
        return replace(source, labels=None), split

    def labelled(self, part: str) -> Source:
        """Return the train or test images.

        Raises ValueError if there are no such images, if some of them have no label, or if all
        train images have the same class.
        """
        source = self.splits.train if part == "train" else self.splits.test
        if source is None:
            raise ValueError(
                f"{self.splits.name} has no {part} split to score on; retrieval needs none"
            )
        labels = source.labels
        if labels is None or is_unlabelled(source):
            raise ValueError(
                f"{self.splits.name} has no labels for its {part} images, but this protocol needs "
                "them; use retrieval, which needs none"
            )
        if labels.ndim == 1 and (absent := int((labels < 0).sum())):
            raise ValueError(
                f"{absent} of the {len(labels)} {part} images of {self.splits.name} have no label, "
                "but this protocol needs a label for every image; use retrieval, which needs none"
            )
        if part == "train" and labels.ndim == 1 and int(labels.min()) == int(labels.max()):
            raise ValueError(
                f"{self.splits.name} has images of one class only, but a score needs at least two "
                "classes"
            )
        return source

    def labels(self, part: str) -> Tensor:
        """Return the labels (N,) or (N,K) of the train or test images, on the CPU."""
        labels = self.labelled(part).labels
        assert labels is not None
        return labels.cpu()

    @property
    def classes(self) -> int:
        """The number of classes."""
        labels = self.labels("train")
        if labels.ndim == 2:
            return labels.shape[1]
        return max(int(labels.max()) + 1, len(self.splits.classes or ()))


def is_unlabelled(source: Source | None) -> bool:
    """Return True if there are no images, or if none of them has a label."""
    labels = None if source is None else source.labels
    if labels is None:
        return True
    return labels.ndim == 1 and len(labels) > 0 and bool((labels < 0).all())
