"""A run as analyses see it: recipe, learner, data and views, and embeddings of seeded images. Labels are never read."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from antipode import rng
from antipode.core.learner import Learner
from antipode.core.negatives import Bank, Queue
from antipode.core.objective import Contrast
from antipode.core.scores import unit
from antipode.data.loader import Loader
from antipode.data.sources.source import Source, subset
from antipode.data.sources.splits import Splits
from antipode.data.views.views import Views
from antipode.evaluation.features import extract
from antipode.papers.npid import Memory, NoiseContrast
from antipode.recipe.resolve import Recipe
from antipode.runs.folder import RunFolder
from antipode.runs.restore import put

BATCH = 256  # images that pass a network at once
PAIRS = (
    4097,
    16385,
)  # images in two views, on a CPU and on a GPU: one more than the largest power of four to be drawn
STILL = 5000, 50000  # images seen once, without chance
WITH_TAU = "simclr mocov1 mocov2 npid invspread adco eqco simo dcl dclw jcl".split()
WITH_MEMORY = "mocov1 mocov2 npid adco jcl".split()


class Seen(NamedTuple):
    """V augmented views of N images, as the frozen networks see them."""

    backbone: Tensor  # (V,N,D)
    head: Tensor  # (V,N,D) projections, as they leave the head
    query: Tensor  # (V,N,D) unit: predictions where there is a predictor, else projections
    keys: Tensor  # (V,N,D) unit: what the twin makes of the same views; (V,N,0) where they were not asked for


class Stored(NamedTuple):
    """Vectors (K,D) that a method keeps to repel its queries, as its loss uses them."""

    kind: str  # bank, queue or memory
    vectors: Tensor


@dataclass
class Subject:
    """One run. `look` is the one view without chance; `images` caps how many an analysis uses, None is its own cap."""

    name: str
    path: Path
    recipe: Recipe
    learner: Learner
    splits: Splits
    views: Views
    eval_view: Views
    device: torch.device
    seed: int = 0
    images: int | None = None
    module: nn.Module | None = field(
        default=None, repr=False
    )  # what a run on a module of one's own was given
    kept: dict[Any, Any] = field(default_factory=dict, repr=False)

    def rows(self) -> list[dict[str, Any]]:
        """The lines of metrics.jsonl."""
        return RunFolder(self.path).metrics()

    def count(self, source: Source, caps: tuple[int, int]) -> int:
        """How many images of a source to use: all, or as many as the caps (CPU, GPU) or the caller allow."""
        cap = caps[self.device.type != "cpu"] if self.images is None else self.images
        return min(len(source), cap)

    def draw(self, n: int, source: Source | None = None) -> Tensor:
        """The ids (n,) of images in random order, the same for the same seed."""
        source = self.splits.pretrain if source is None else source
        return rng.permutation(rng.key(self.seed, "analysis images"), len(source))[:n]

    def pairs(self) -> tuple[Tensor, Seen]:
        """Ids (N,) of training images and two views of each, made once."""
        if "pairs" not in self.kept:
            ids = self.draw(self.count(self.splits.pretrain, PAIRS))
            self.kept["pairs"] = ids, self.see(ids, 2)
        found: tuple[Tensor, Seen] = self.kept["pairs"]
        return found

    @torch.no_grad()
    def see(self, ids: Tensor, views: int, salt: int = 0, keys: bool = True) -> Seen:
        """`views` augmented views of the training images `ids` (N,), drawn as in training, the large ones in turn."""
        make = _large(self.views)
        batch, n = min(len(ids), BATCH), len(ids)
        padded = torch.cat([ids, ids[: -n % batch]])  # the loader drops a short last batch
        loader = Loader(
            subset(self.splits.pretrain, padded),
            make,
            batch=batch,
            epochs=-(-views // make.count),
            seed=rng.number(self.seed, "analysis views", salt),
            device=self.device,
            workers=self.recipe.data.workers,
        )
        out: list[Tensor] = []
        for step, epoch, seen in loader.steps():
            first = step % loader.per_epoch * batch
            at = loader.order(epoch, self.device)[first : first + batch]
            for place, view in enumerate(seen.views[: views - epoch * make.count]):
                rows = self._through(view, padded.to(self.device)[at], keys)
                out = out or [row.new_empty(views, len(padded), row.shape[1]) for row in rows]
                for whole, part in zip(out, rows, strict=True):
                    whole[epoch * make.count + place, at] = part
        return Seen(*(whole[:, :n] for whole in out))

    def _through(
        self, view: Tensor, ids: Tensor, keys: bool
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Backbone, head, query and key (N,D) of one view of the images `ids`."""
        learner = self.learner
        backbone = learner.online.backbone(view)
        head = learner.online.head(backbone)
        query = unit(head if learner.predictor is None else learner.predictor(head))
        key = unit(learner.twin([view], [head], ids, learner.seed)[0]) if keys else query[:, :0]
        return backbone.float(), head.float(), query, key

    def still(self, source: Source | None = None) -> tuple[Tensor, Tensor]:
        """Backbone and head features (N,D) of up to `STILL` images, each seen once; test images where there are any."""
        source = self.judged if source is None else source
        if ("still", id(source)) not in self.kept:
            few = subset(source, self.draw(self.count(source, STILL), source))
            backbone = extract(self.learner.online.backbone, self.eval_view, few).x.to(self.device)
            with torch.no_grad():
                parts = [
                    self.learner.online.head(part).float() for part in torch.split(backbone, BATCH)
                ]
            self.kept["still", id(source)] = backbone, torch.cat(parts)
        found: tuple[Tensor, Tensor] = self.kept["still", id(source)]
        return found

    @property
    def judged(self) -> Source:
        """Images for features without chance: the test images, or the training images of a set without."""
        return self.splits.pretrain if self.splits.test is None else self.splits.test

    @property
    def tau(self) -> float | None:
        """The temperature of the method's contrast; None where it has no negatives."""
        for part in self.parts():
            if isinstance(part, Contrast | NoiseContrast):
                return part.tau
        return None

    @property
    def alpha(self) -> float | None:
        """EqCo's alpha; None where the method has no such margin."""
        margins = [part.margin for part in self.parts() if isinstance(part, Contrast)]
        return next(
            (found.keywords["alpha"] for found in margins if hasattr(found, "keywords")), None
        )

    @property
    def stored(self) -> Stored | None:
        """The vectors that the method keeps, None where its negatives are the batch or it has none."""
        for part in self.parts():
            if isinstance(part, Bank):
                return Stored("bank", unit(part.weight.detach()))
            if isinstance(part, Queue | Memory):
                return Stored("queue" if isinstance(part, Queue) else "memory", part.vectors)
        return None

    def parts(self) -> list[Any]:
        """The objective and all that it is made of."""
        objective: Any = self.learner.objective
        return list(objective.modules()) if hasattr(objective, "modules") else [objective]

    @property
    def per_epoch(self) -> int:
        """Steps of an epoch."""
        return max(1, len(self.splits.pretrain) // self.recipe.train.batch)

    @property
    def epoch(self) -> float:
        """How many epochs the checkpoint has behind it."""
        return int(self.learner.step) / self.per_epoch

    def history(self, most: int) -> "list[Subject]":
        """The run as each kept checkpoint has it, oldest first and the subject itself last; at most `most`, spread."""
        own = f"step-{int(self.learner.step):09d}.pt"
        files = [
            file
            for file in sorted((self.path / "checkpoints").glob("step-*.pt"))
            if file.name < own
        ]
        room = min(most - 1, len(files))
        chosen = [files[place * (len(files) - 1) // max(room - 1, 1)] for place in range(room)]
        return [*(earlier for file in chosen if (earlier := self._at(file)) is not None), self]

    def _at(self, file: Path) -> "Subject | None":
        try:
            content = torch.load(file, map_location="cpu", weights_only=True)
        except Exception as error:  # whatever a damaged file provokes
            warnings.warn(
                f"{file} cannot be read ({type(error).__name__}) and is left out", stacklevel=2
            )
            return None
        return replace(
            self, learner=put(self.recipe, content, self.module).to(self.device), kept={}
        )

    def settings(self, **more: Any) -> dict[str, Any]:
        """What was looked at: data, epoch, seed, and what an analysis adds."""
        capped = {} if self.images is None else {"at most": self.images}
        about = {
            "data": self.splits.name,
            "epoch": self.epoch,
            "seed": self.seed,
            "device": self.device.type,
        }
        return {**about, **capped, **more}


def _large(views: Views) -> Views:
    """The views of full size alone: small crops of a multi-crop policy are no measure of the others."""
    return Views([view for view in views.policy if view.size == max(views.sizes)], views.normal).to(
        views.normal.mean.device
    )


def named(paths: Sequence[Path]) -> list[str]:
    """A name for each run: that of its folder, or the whole path where two folders have one name."""
    names = [path.resolve().name for path in paths]
    return [
        name if names.count(name) == 1 else str(path)
        for name, path in zip(names, paths, strict=True)
    ]
