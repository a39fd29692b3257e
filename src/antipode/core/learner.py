"""The one learner. Every method of this package is an instance of it; none is a subclass.

Forward reads state, `after_step` writes it: a second forward gives the same loss. A step of training is

    learner.before_step(progress); out = learner(batch); out.loss.backward(); optimiser.step(); learner.after_step(out)
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn

from antipode import dist, rng
from antipode.core.objective import Metrics, Objective, centroid
from antipode.core.pairing import Pairing, views_of
from antipode.core.passes import Apart, ours, passes
from antipode.core.regularise import Regulariser
from antipode.core.scores import precise, unit
from antipode.core.twin import Twin
from antipode.types import Batch, Output, Pair

Weighted = tuple[str, float, Regulariser]  # its name in the metrics, its weight, itself


class Encoder(nn.Module):
    """A backbone and the head that projects its features; only the backbone outlives pretraining."""

    def __init__(self, backbone: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.backbone, self.head = backbone, head

    def forward(self, images: Tensor) -> Tensor:
        """Projections (N,D) of images (N,C,H,W)."""
        out: Tensor = self.head(self.backbone(images))
        return out


class Learner(nn.Module):
    """Online network, twin, pairing, objective, and where the paper has them predictor and regularisers.

    scale: multiplies the mean over pairs; 2 gives BYOL's sum of two.
    joint: all views of one size pass the online network at once, with common batch-norm statistics.
    renormalise: centroids of several query views are scaled back to length one.
    on: the online vectors that the regularisers see, "prediction" or "projection".
    remember: what goes into a queue, bank or memory after the step, the first pair's mean "keys" or its "query".
    options: the optimiser settings that the paper gives a parameter group of its own.
    """

    seed: Tensor
    step: Tensor
    twin: Twin
    objective: Objective

    def __init__(
        self,
        *,
        online: Encoder,
        twin: Twin,
        pairing: Pairing,
        objective: Objective,
        predictor: nn.Module | None = None,
        regularisers: Sequence[Weighted] = (),
        scale: float = 1.0,
        joint: bool = False,
        renormalise: bool = True,
        on: Literal["prediction", "projection"] = "prediction",
        remember: Literal["keys", "query"] = "keys",
        options: Mapping[str, Mapping[str, float]] | None = None,
    ) -> None:
        super().__init__()
        if on not in ("prediction", "projection"):
            raise ValueError(f"regularisers act on the prediction or the projection, not on {on!r}")
        self.online, self.twin, self.objective, self.predictor = online, twin, objective, predictor
        self.pairing, self.regularisers, self.options = (
            pairing,
            list(regularisers),
            dict(options or {}),
        )
        self.scale, self.joint, self.renormalise, self.on, self.remember = (
            scale,
            joint,
            renormalise,
            on,
            remember,
        )
        self.together = ours(online) and ours(predictor)
        self.views = views_of(pairing)
        self.key_views = sorted({view for _, keys in pairing for view in keys})
        queries = {view for views, _ in pairing for view in views}
        self.query_views = sorted(queries)
        self.seen = sorted(queries | set(self.key_views)) if twin.own else self.query_views
        self.register_buffer("seed", torch.tensor(rng.number(0, "noise")))
        self.register_buffer("step", torch.zeros((), dtype=torch.int64))

    def forward(self, batch: Batch) -> Output:
        """The loss of a batch, reading state and writing none but batch norm's running statistics."""
        self._check(batch)
        noise = rng.fold(self.seed, self.step)
        z, p = self._online([batch.views[view] for view in self.seen])
        own = [z[view] for view in self.key_views] if self.twin.own else []
        keys = self.twin(
            [batch.views[view] for view in self.key_views], own, batch.image_ids, rng.fold(noise, 1)
        )
        with precise(batch.image_ids.device):
            query = {view: unit(p[view]) for view in self.query_views}
            k = {view: unit(key) for view, key in zip(self.key_views, keys, strict=True)}
            pairs = self._pairs(query, k, batch.image_ids, rng.fold(noise, 2))
            loss, metrics = self._mean([self.objective(pair) for pair in pairs])
            shown = (
                query
                if self.on == "prediction"
                else {view: unit(z[view]) for view in self.query_views}
            )
            for name, weight, term in self.regularisers:
                value = term(torch.stack(list(shown.values())), batch.image_ids, rng.fold(noise, 3))
                loss, metrics[name] = loss + weight * value, value.detach()
        kept = pairs[0].query if self.remember == "query" else pairs[0].keys.mean(0)
        return Output(loss, metrics | {"loss": loss.detach()}, kept.detach(), batch.image_ids)

    def before_step(self, progress: float) -> None:
        """Set what changes with time, for a step at `progress` in [0,1]: the share of training that lies behind it."""
        if not 0 <= progress <= 1:
            raise ValueError(f"the progress of a step lies in [0,1], got {progress}")
        self.twin.at(progress)
        self.objective.at(progress)

    @torch.no_grad()
    def after_step(self, out: Output) -> None:
        """Write state, after the optimiser's step: the twin follows, queue and bank take in keys."""
        dist.average_running_stats(self)
        filled = self.objective.push(
            out.keys, out.image_ids, rng.fold(rng.fold(self.seed, self.step), 4)
        )
        # AdCo's key encoder starts again from the query encoder once the bank is full (train.py, fd65f12)
        self.twin.follow(self.online, restart=filled)
        self.step += 1

    def reseed(self, seed: int) -> "Learner":
        """Draw Brownian kicks, subsets and shuffles from another seed; returns itself."""
        self.seed.fill_(rng.number(seed, "noise"))
        return self

    @property
    def backbone(self) -> nn.Module:
        """What pretraining is for."""
        return self.online.backbone

    def groups(self) -> dict[str, list[nn.Parameter]]:
        """Trained parameters by name: network, and where there are any predictor and bank."""
        parts = {"network": self.online, "predictor": self.predictor, "bank": self.objective}
        named = {
            name: [p for p in part.parameters() if p.requires_grad]
            for name, part in parts.items()
            if isinstance(part, nn.Module)
        }
        return {name: parameters for name, parameters in named.items() if parameters}

    def param_groups(self) -> list[dict[str, Any]]:
        """The groups as torch optimisers take them, with the settings that belong to the method (AdCo's bank)."""
        return [
            {"params": ps, "name": name, **self.options.get(name, {})}
            for name, ps in self.groups().items()
        ]

    def _online(self, images: list[Tensor]) -> tuple[dict[int, Tensor], dict[int, Tensor]]:
        """Projections and predictions (N,D) of each view seen; without a predictor they are the same."""
        z: list[Tensor] = []
        p: list[Tensor] = []
        for x, views, apart in passes(images, self.joint, self.together):
            with Apart(apart):
                out = self.online(x)
                z += out.chunk(views)
                p += (out if self.predictor is None else self.predictor(out)).chunk(views)
        return dict(zip(self.seen, z, strict=True)), dict(zip(self.seen, p, strict=True))

    def _pairs(
        self, query: dict[int, Tensor], k: dict[int, Tensor], image_ids: Tensor, noise: Tensor
    ) -> list[Pair]:
        """Every pair of the pairing, with its pool of vectors from all ranks."""
        everyone = dist.gather(image_ids)
        joint = (
            torch.cat([dist.gather(key) for key in k.values()])
            if self.objective.pool == "all"
            else None
        )
        pairs = []
        for number, (queries, keys) in enumerate(self.pairing):
            q = centroid(torch.stack([query[view] for view in queries]), self.renormalise)
            ks = torch.stack([k[view] for view in keys])
            if joint is not None:
                pool = joint
            else:
                pool = (
                    dist.gather(ks.mean(0))
                    if self.objective.pool == "pair"
                    else q.new_empty(0, q.shape[1])
                )
            ids = everyone.repeat(len(pool) // len(everyone))
            pairs.append(Pair(q, ks, image_ids, pool, ids, rng.fold(noise, number)))
        return pairs

    def _mean(self, results: list[tuple[Tensor, Metrics]]) -> tuple[Tensor, Metrics]:
        """The scaled mean loss over pairs, and the mean of each metric."""
        loss = torch.stack([loss for loss, _ in results]).mean() * self.scale
        names = results[0][1]
        return loss, {
            name: torch.stack([metrics[name] for _, metrics in results]).mean() for name in names
        }

    def _check(self, batch: Batch) -> None:
        """Refuse a batch that does not fit, before it broadcasts into something wrong."""
        if len(batch.views) != self.views:
            raise ValueError(
                f"this method needs {self.views} views of each image, got {len(batch.views)}"
            )
        sizes = [len(view) for view in batch.views]
        if (
            batch.image_ids.ndim != 1
            or set(sizes) != {len(batch.image_ids)}
            or not len(batch.image_ids)
        ):
            raise ValueError(
                f"views of {sizes} images do not fit image ids of shape {tuple(batch.image_ids.shape)}"
            )
        kinds = {batch.image_ids.dtype, *(view.dtype for view in batch.views)}
        if batch.image_ids.dtype != torch.int64 or not all(
            view.is_floating_point() for view in batch.views
        ):
            raise ValueError(
                f"views are floats and image ids int64, but here are {', '.join(map(str, kinds))}"
            )
