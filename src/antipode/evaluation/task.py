"""A frozen backbone on a data set: what every protocol gets."""

from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor, nn

from antipode.data.sources.source import Source
from antipode.data.sources.splits import Splits
from antipode.data.views.views import Views
from antipode.evaluation.features import extract
from antipode.types import Features


@dataclass
class Task:
    """The backbone is in eval mode and nobody's to change: a protocol that trains it takes a copy.

    size: side of a view in pixels; look: the one view without chance; head: the projection of a run, where there is
    one; root: the folder of data sets; cache: a folder for features.
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
    found: dict[tuple[str, str], Features] = field(default_factory=dict, repr=False)

    def features(self, part: str, of: str = "backbone") -> Features:
        """Features of the train or test images, made once."""
        if (part, of) not in self.found:
            self.found[part, of] = extract(
                self.network(of), self.eval_view, self.labelled(part), cache=self.cache
            )
        return self.found[part, of]

    def network(self, of: str = "backbone") -> nn.Module:
        """The backbone, or the backbone with its head."""
        if of == "backbone":
            return self.backbone
        if self.head is None:
            raise ValueError("there is no head here: only the checkpoint of a run has one")
        return nn.Sequential(self.backbone, self.head)

    def labelled(self, part: str) -> Source:
        """The train or test images, refused where no protocol could judge by their labels."""
        source = self.splits.train if part == "train" else self.splits.test
        if source is None:
            raise ValueError(f"{self.splits.name} has no {part} split to score on")
        labels = source.labels
        if labels is None or (labels.ndim == 1 and len(labels) and bool((labels < 0).all())):
            raise ValueError(
                f"{self.splits.name} has no labels for its {part} images, and a score needs them"
            )
        if labels.ndim == 1 and (absent := int((labels < 0).sum())):
            whole = f"{absent} of the {len(labels)} {part} images of {self.splits.name}"
            raise ValueError(f"{whole} have no label, and a score needs one for each")
        if part == "train" and labels.ndim == 1 and int(labels.min()) == int(labels.max()):
            raise ValueError(
                f"{self.splits.name} has images of one class only, and a score needs two at least"
            )
        return source

    def labels(self, part: str) -> Tensor:
        """Labels (N,) or (N,K) of the train or test images."""
        labels = self.labelled(part).labels
        assert labels is not None
        return labels.cpu()

    @property
    def classes(self) -> int:
        """How many there are."""
        names = self.splits.classes
        labels = self.labels("train")
        return labels.shape[1] if labels.ndim == 2 else max(int(labels.max()) + 1, len(names or ()))
