"""The embeddings of a run, on which analyses work. An analysis calls a `RunEmbeddings` its subject.

Shapes: N images, V views of each image, K stored vectors, D features.
"""

import warnings
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from antipode import rng
from antipode.core.learner import Learner
from antipode.core.scores import unit
from antipode.core.traits import Stored, alpha, stored_negatives, temperature
from antipode.data.loader import Loader
from antipode.data.sources.source import Source, subset
from antipode.data.sources.splits import Splits
from antipode.data.views.views import Views
from antipode.evaluation.features import extract
from antipode.recipe.recipe import Recipe
from antipode.runs.run import Run

BATCH = 256  # images in one forward pass
PAIRS = (4097, 16385)  # images in two views, on a CPU and on a GPU
# Keys from which negatives are drawn, on a CPU and on a GPU: one more than the largest number of
# negatives, which is a power of four.
KEYS = (4097, 65537)
KEY_VIEWS = 8  # maximum number of views of an image among these keys
EVAL_IMAGES = (5000, 50000)  # images in the evaluation view, on a CPU and on a GPU


class ViewEmbeddings(NamedTuple):
    """Embeddings of V augmented views of N images, computed by the frozen networks."""

    backbone: Tensor  # (V,N,D) features
    head: Tensor  # (V,N,D) projections, not normalised
    query: Tensor  # (V,N,D) unit predictions if there is a predictor, else unit projections
    keys: Tensor  # (V,N,D) unit outputs of the twin for the same views; (V,N,0) if not requested


@dataclass
class RunEmbeddings:
    """The networks of one run and their embeddings of images that are drawn with a seed.

    Labels are never read.

    Args:
        run: the run.
        name: the name of the run in the results.
        learner: the networks of the run, on `device`.
        splits: the images of the run.
        views: the augmented views of its training.
        eval_view: the evaluation view.
        device: where embeddings are computed.
        seed: determines which images are used and how they are augmented.
        images: maximum number of images; None for the default of each analysis.
        cache: embeddings that were computed before.
    """

    run: Run
    name: str
    learner: Learner
    splits: Splits
    views: Views
    eval_view: Views
    device: torch.device
    seed: int = 0
    images: int | None = None
    cache: dict[Any, Any] = field(default_factory=dict, repr=False)

    @property
    def recipe(self) -> Recipe:
        """The recipe of the run."""
        return self.run.recipe

    @property
    def tau(self) -> float | None:
        """The temperature of the method, or None if it has none."""
        return temperature(self.learner)

    @property
    def alpha(self) -> float | None:
        """EqCo's alpha, or None if the method has no such margin."""
        return alpha(self.learner)

    @property
    def stored(self) -> Stored | None:
        """The vectors (K,D) that the method stores, or None if it stores none."""
        return stored_negatives(self.learner)

    def rows(self) -> list[dict[str, Any]]:
        """Return the lines of metrics.jsonl."""
        return self.run.metrics()

    def count(self, source: Source, caps: tuple[int, int]) -> int:
        """Return how many images of a source to use.

        The maximum is `images`, or else the first of `caps` on a CPU and the second on a GPU.
        """
        return min(len(source), self.cap(caps))

    def cap(self, caps: tuple[int, int]) -> int:
        """Return `images`, or else the first of `caps` on a CPU and the second on a GPU."""
        return caps[self.device.type != "cpu"] if self.images is None else self.images

    def draw(self, n: int, source: Source | None = None) -> Tensor:
        """Return the indices (n,) of random images, by default of training images.

        The same seed gives the same images, and a larger n adds images to those of a smaller n.
        """
        source = self.splits.pretrain if source is None else source
        return rng.permutation(rng.key(self.seed, "analysis images"), len(source))[:n]

    def pairs(self) -> tuple[Tensor, ViewEmbeddings]:
        """Return the indices (N,) of training images and the embeddings of two views of each."""
        if "pairs" not in self.cache:
            ids = self.draw(self.count(self.splits.pretrain, PAIRS))
            self.cache["pairs"] = ids, self.embed_views(ids, 2)
        pairs: tuple[Tensor, ViewEmbeddings] = self.cache["pairs"]
        return pairs

    def keys(self) -> Tensor:
        """Return unit keys (V,N,D) of training images, from which negatives are drawn.

        The first keys of the first view are those of the second view of `pairs`. If there are fewer
        images than `KEYS`, the images have several views, up to `KEY_VIEWS`.
        """
        if "keys" not in self.cache:
            ids, pairs = self.pairs()
            everything = self.draw(self.count(self.splits.pretrain, KEYS))
            first = pairs.keys[-1]
            if len(everything) > len(ids):
                rest = self.embed_views(everything[len(ids) :], 1, salt=-2).keys[0]
                first = torch.cat([first, rest])
            needed = -(-(self.cap(KEYS) - 1) // max(1, len(everything) - 1))
            further = min(needed, KEY_VIEWS) - 1
            views = [first[None]]
            if further > 0:
                views.append(self.embed_views(everything, further, salt=-3).keys)
            self.cache["keys"] = torch.cat(views)
        keys: Tensor = self.cache["keys"]
        return keys

    @torch.no_grad()
    def embed_views(
        self, ids: Tensor, views: int, salt: int = 0, keys: bool = True
    ) -> ViewEmbeddings:
        """Return embeddings of `views` augmented views of the training images `ids` (N,).

        The views are drawn as in training. A multi-crop policy contributes its views of full size
        only. `salt` selects another draw. Without `keys`, the twin is not run.
        """
        make = _full_size(self.views)
        n = len(ids)
        batch = min(n, BATCH)
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
        for step, epoch, content in loader.steps():
            first = step % loader.per_epoch * batch
            at = loader.order(epoch, self.device)[first : first + batch]
            for place, view in enumerate(content.views[: views - epoch * make.count]):
                rows = self._embed(view, padded.to(self.device)[at], keys)
                out = out or [row.new_empty(views, len(padded), row.shape[1]) for row in rows]
                for whole, part in zip(out, rows, strict=True):
                    whole[epoch * make.count + place, at] = part
        return ViewEmbeddings(*(whole[:, :n] for whole in out))

    def _embed(
        self, view: Tensor, ids: Tensor, keys: bool
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return backbone, head, query and key embeddings (N,D) of one view of `ids` (N,)."""
        learner = self.learner
        backbone = learner.online.backbone(view)
        head = learner.online.head(backbone)
        query = unit(head if learner.predictor is None else learner.predictor(head))
        key = unit(learner.twin([view], [head], ids, learner.seed)[0]) if keys else query[:, :0]
        return backbone.float(), head.float(), query, key

    def eval_features(self, source: Source | None = None) -> tuple[Tensor, Tensor]:
        """Return backbone and head features (N,D) of up to `EVAL_IMAGES` images of a source.

        The images are seen once, in the evaluation view. The source is `eval_source` by default.
        """
        source = self.eval_source if source is None else source
        name = ("eval", id(source))
        if name not in self.cache:
            images = subset(source, self.draw(self.count(source, EVAL_IMAGES), source))
            backbone = extract(self.learner.online.backbone, self.eval_view, images).x
            backbone = backbone.to(self.device)
            with torch.no_grad():
                parts = [
                    self.learner.online.head(part).float() for part in torch.split(backbone, BATCH)
                ]
            self.cache[name] = backbone, torch.cat(parts)
        features: tuple[Tensor, Tensor] = self.cache[name]
        return features

    @property
    def eval_source(self) -> Source:
        """The test images, or the training images of a data set without test images."""
        return self.splits.pretrain if self.splits.test is None else self.splits.test

    @property
    def eval_split(self) -> str:
        """The name of the split of `eval_source`."""
        return "pretrain" if self.splits.test is None else "test"

    @property
    def per_epoch(self) -> int:
        """The number of steps per epoch."""
        return max(1, len(self.splits.pretrain) // self.recipe.train.batch)

    @property
    def epoch(self) -> float:
        """The number of epochs that the learner has been trained for."""
        return int(self.learner.step) / self.per_epoch

    def history(self, most: int) -> "list[RunEmbeddings]":
        """Return the run at each stored checkpoint, oldest first. The last entry is this object.

        If there are more than `most`, they are selected evenly over training.
        """
        present = f"step-{int(self.learner.step):09d}.pt"
        folder = self.run.folder.checkpoints
        files = [file for file in sorted(folder.glob("step-*.pt")) if file.name < present]
        room = min(most - 1, len(files))
        chosen = [files[place * (len(files) - 1) // max(room - 1, 1)] for place in range(room)]
        earlier = [self._at_checkpoint(file) for file in chosen]
        return [*(moment for moment in earlier if moment is not None), self]

    def _at_checkpoint(self, file: Path) -> "RunEmbeddings | None":
        """Return the run at a checkpoint, or None with a warning if the file cannot be read."""
        try:
            learner = self.run.learner(file)
        except Exception as error:  # a damaged file can raise any exception
            warnings.warn(
                f"{file} cannot be read ({type(error).__name__}) and is left out", stacklevel=2
            )
            return None
        return replace(self, learner=learner.to(self.device), cache={})

    def settings(self, **more: Any) -> dict[str, Any]:
        """Return the settings of a result: data, epoch, seed, device and those of the analysis."""
        limit = {} if self.images is None else {"at most": self.images}
        common = {
            "data": self.splits.name,
            "epoch": self.epoch,
            "seed": self.seed,
            "device": self.device.type,
        }
        return {**common, **limit, **more}


def _full_size(views: Views) -> Views:
    """Return the views of the largest size only.

    The small crops of a multi-crop policy are not comparable with the views of other policies.
    """
    largest = [view for view in views.policy if view.size == max(views.sizes)]
    return Views(largest, views.normal).to(views.normal.mean.device)
