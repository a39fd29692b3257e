"""The learner. Every method of this package is an instance of `Learner`; none is a subclass.

`forward` reads state and `after_step` writes it, so a second forward pass gives the same loss. One
training step is:

    learner.before_step(progress)
    out = learner(batch)
    out.loss.backward()
    optimiser.step()
    learner.after_step(out)
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn

from antipode import dist, rng
from antipode.core.negatives import Bank
from antipode.core.objective import Metrics, Objective, centroid
from antipode.core.pairing import Pairing, views_of
from antipode.core.passes import SeparateStatistics, has_only_grouped_norm, passes, view_norms
from antipode.core.regularise import Regulariser
from antipode.core.scores import precise, raised, unit
from antipode.core.skip import Conditional, conditional_parts
from antipode.core.twin import Twin
from antipode.names import brief
from antipode.types import Batch, Output, Pair, check_kind, check_seed

Weighted = tuple[str, float, Regulariser]  # name in the metrics, weight, regulariser


class Encoder(nn.Module):
    """A backbone followed by its projection head. Only the backbone is kept after pretraining."""

    def __init__(self, backbone: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.backbone = backbone
        self.head = head

    def forward(self, images: Tensor) -> Tensor:
        """Return the projections (N,D) of images (N,C,H,W)."""
        out: Tensor = self.head(self.backbone(images))
        return out


class Learner(nn.Module):
    """A self-supervised method: online network, twin, pairing, objective, and what else a paper
    adds.

    Args:
        online: the trained encoder.
        twin: what makes the keys (the network itself, or a slow copy of it).
        pairing: which view is compared with which.
        objective: the loss of one pair of queries and keys.
        predictor: the network between projection and loss, as in BYOL.
        regularisers: further terms of the loss, each with its name and weight.
        scale: factor on the mean over pairs; 2 gives BYOL's sum of both directions.
        joint: all views of one size pass through the online network as one batch, with common
            batch-norm statistics.
        renormalise: scale the centroid of several query views back to unit length.
        on: the online vectors that the regularisers act on, "prediction" or "projection".
        remember: what enters a queue, bank or memory after the step: the mean "keys" of the first
            pair or its "query".
        options: optimiser settings that the paper gives to a parameter group of its own.
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
        self.online = online
        self.twin = twin
        self.objective = objective
        self.predictor = predictor
        self.pairing = pairing
        self.regularisers = list(regularisers)
        self.scale = scale
        self.joint = joint
        self.renormalise = renormalise
        self.on: Literal["prediction", "projection"] = on
        self.remember: Literal["keys", "query"] = remember
        self.options = dict(options or {})
        self.separable = has_only_grouped_norm(online, predictor)
        self.norms = view_norms(online, predictor)
        self.banks = [part for part in self.modules() if isinstance(part, Bank)]
        self.conditional = conditional_parts(self)
        self.views = views_of(pairing)
        self.query_views = sorted({view for queries, _ in pairing for view in queries})
        self.key_views = sorted({view for _, keys in pairing for view in keys})
        # the views that pass through the online network
        self.seen = sorted({*self.query_views, *(self.key_views if twin.own else ())})
        self.register_buffer("seed", torch.tensor(rng.number(0, "noise")))
        self.register_buffer("step", torch.zeros((), dtype=torch.int64))

    def replace(self, **parts: Any) -> "Learner":
        """Return a learner with the same modules, of which the named `parts` are replaced.

        This is how a paper that changes one part of another method is written: DCL is
        `simclr(...).replace(objective=...)`.
        """
        kept = (
            *("online", "twin", "pairing", "objective", "predictor", "regularisers"),
            *("scale", "joint", "renormalise", "on", "remember", "options"),
        )
        learner = Learner(**{name: getattr(self, name) for name in kept} | parts)
        learner.seed = self.seed.clone()
        learner.step = self.step.clone()
        learner.training = self.training
        return learner

    def forward(self, batch: Batch) -> Output:
        """Return the loss of a batch. Only the running statistics of batch norm change."""
        self._check(batch)
        z, p = self._online([batch.views[view] for view in self.seen])
        return self._compare(z, p, self.keys(batch), batch.image_ids)

    # Training may pass a batch through the networks part by part and compute the loss of the whole
    # batch. It calls `project` and `keys` for each part, and `compare` once.

    def project(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return projections and predictions (S,N,D) of the S views that the online network sees.

        Without a predictor, both are the same tensor.
        """
        self._check(batch)
        z, p = self._online([batch.views[view] for view in self.seen])
        projections = torch.stack([z[view] for view in self.seen])
        if self.predictor is None:
            return projections, projections
        return projections, torch.stack([p[view] for view in self.seen])

    def keys(self, batch: Batch) -> list[Tensor]:
        """Return the keys (N,D) of each key view; none if they come from the online network."""
        if self.twin.own:
            return []
        images = [batch.views[view] for view in self.key_views]
        noise = rng.fold(rng.fold(self.seed, self.step), 1)
        return self.twin(images, [], batch.image_ids, noise)

    def compare(self, z: Tensor, p: Tensor, keys: list[Tensor], image_ids: Tensor) -> Output:
        """Return the loss of images (N,) from the results of `project` and `keys`."""
        projections = dict(zip(self.seen, z, strict=True))
        return self._compare(projections, dict(zip(self.seen, p, strict=True)), keys, image_ids)

    def _compare(
        self, z: dict[int, Tensor], p: dict[int, Tensor], keys: list[Tensor], image_ids: Tensor
    ) -> Output:
        """Return the loss of projections and predictions (N,D), by view, and keys (N,D)."""
        noise = rng.fold(self.seed, self.step)
        if self.twin.own:
            own = [z[view] for view in self.key_views]
            keys = self.twin([], own, image_ids, rng.fold(noise, 1))
        scaled = unit if self.objective.unit_vectors else raised
        with precise(image_ids.device):
            query = {view: scaled(p[view]) for view in self.query_views}
            k = {view: scaled(key) for view, key in zip(self.key_views, keys, strict=True)}
            pairs = self._pairs(query, k, image_ids, rng.fold(noise, 2))
            loss, metrics = self._loss(pairs)
            if self.regularisers:
                acted_on = p if self.on == "prediction" else z
                vectors = torch.stack([unit(acted_on[view]) for view in self.query_views])
                for name, weight, term in self.regularisers:
                    value = term(vectors, image_ids, rng.fold(noise, 3))
                    loss = loss + weight * value
                    metrics[name] = value.detach()
        kept = pairs[0].query if self.remember == "query" else pairs[0].keys.mean(0)
        return Output(loss, metrics | {"loss": loss.detach()}, kept.detach(), image_ids)

    def before_step(self, progress: float) -> None:
        """Set everything that changes over training, for a step at `progress` in [0,1]."""
        check_kind(float, progress=progress)
        if not 0 <= progress <= 1:
            raise ValueError(f"the progress of a step lies in [0,1], got {progress}")
        self.twin.at(progress)
        self.objective.at(progress)

    @torch.no_grad()
    def after_step(self, out: Output, finite: Tensor | None = None) -> None:
        """Update the state after the optimiser's step: twin, queue, bank and memory.

        If `finite` () bool is given and False, they stay as they are, because the step was skipped
        (core/skip.py). Only the step is counted.
        """
        if not isinstance(out, Output):
            raise ValueError(f"a step ends with what the learner returned, not {brief(out)}")
        dist.average_running_stats(self)
        with Conditional(self.conditional, finite):
            filled = self.objective.push(out.keys, out.image_ids, self._noise_of_push)
            # AdCo restarts its key encoder from the query encoder once the bank is full (train.py,
            # fd65f12)
            self.twin.follow(self.online, restart=filled)
        self.step += 1

    def _noise_of_push(self) -> Tensor:
        """Return the key of random draws from this step's keys.

        Few objectives need it, such as a queue that is smaller than the batch. The hash takes 50
        kernels on a GPU, so it is computed only then.
        """
        return rng.fold(rng.fold(self.seed, self.step), 4)

    def reseed(self, seed: int) -> "Learner":
        """Draw kicks, subsets and shuffles from another seed; return the learner itself."""
        self.seed.fill_(rng.number(check_seed(seed), "noise"))
        return self

    @property
    def backbone(self) -> nn.Module:
        """The online backbone: the result of pretraining."""
        return self.online.backbone

    def groups(self) -> dict[str, list[nn.Parameter]]:
        """Return the trained parameters by group: network, predictor and bank."""
        parts = {"network": self.online, "predictor": self.predictor, "bank": self.objective}
        groups = {
            name: [p for p in part.parameters() if p.requires_grad]
            for name, part in parts.items()
            if isinstance(part, nn.Module)
        }
        return {name: parameters for name, parameters in groups.items() if parameters}

    def param_groups(self) -> list[dict[str, Any]]:
        """Return the groups as torch optimisers take them, with the method's own settings."""
        return [
            {"params": parameters, "name": name, **self.options.get(name, {})}
            for name, parameters in self.groups().items()
        ]

    def _online(self, images: list[Tensor]) -> tuple[dict[int, Tensor], dict[int, Tensor]]:
        """Return projections and predictions (N,D) by view; equal without a predictor."""
        z: list[Tensor] = []
        p: list[Tensor] = []
        for x, views, separate in passes(images, self.joint, self.separable):
            with SeparateStatistics(self.norms, separate):
                out = self.online(x)
                z += out.chunk(views)
                p += (out if self.predictor is None else self.predictor(out)).chunk(views)
        return dict(zip(self.seen, z, strict=True)), dict(zip(self.seen, p, strict=True))

    def _pairs(
        self, query: dict[int, Tensor], k: dict[int, Tensor], image_ids: Tensor, noise: Tensor
    ) -> list[Pair]:
        """Return every pair of the pairing, with its pool of vectors from all ranks."""
        all_ids = dist.gather(image_ids)
        all_keys = None
        if self.objective.pool == "all":
            all_keys = torch.cat([dist.gather(key) for key in k.values()])
        pairs = []
        for number, (queries, keys) in enumerate(self.pairing):
            q = centroid(torch.stack([query[view] for view in queries]), self.renormalise)
            ks = torch.stack([k[view] for view in keys])
            if all_keys is not None:
                pool = all_keys
            elif self.objective.pool == "pair":
                pool = dist.gather(ks.mean(0))
            else:
                pool = q.new_empty(0, q.shape[1])
            pool_ids = all_ids.repeat(len(pool) // len(all_ids))
            pairs.append(Pair(q, ks, image_ids, pool, pool_ids, rng.fold(noise, number)))
        return pairs

    def _loss(self, pairs: list[Pair]) -> tuple[Tensor, Metrics]:
        """Return the scaled mean loss over pairs, and the mean of each metric.

        While a bank takes in keys, only the first pair counts, without `scale`: AdCo's authors fill
        the bank one way, also if training is symmetric (init_memory in train.py, fd65f12).
        """
        filling = any(bank.filling for bank in self.banks)
        results = [self.objective(pair) for pair in (pairs[:1] if filling else pairs)]
        loss = torch.stack([loss for loss, _ in results]).mean() * (1 if filling else self.scale)
        metrics = {
            name: torch.stack([metrics[name] for _, metrics in results]).mean()
            for name in results[0][1]
        }
        return loss, metrics

    def _check(self, batch: Batch) -> None:
        """Raise ValueError for a batch that does not fit and might broadcast."""
        if not isinstance(batch, Batch):
            raise ValueError(
                f"a learner takes a Batch(views, image_ids), not {type(batch).__name__}"
            )
        ids = batch.image_ids
        if not isinstance(batch.views, list | tuple):
            raise ValueError(f"the views must be a list of tensors, not {brief(batch.views)}")
        for x in (ids, *batch.views):
            if not isinstance(x, Tensor):
                raise ValueError(f"views and image ids must be tensors, not {brief(x)}")
        if len(batch.views) != self.views:
            raise ValueError(
                f"this method needs {self.views} views of each image, got {len(batch.views)}"
            )
        sizes = [len(view) for view in batch.views]
        if ids.ndim != 1 or set(sizes) != {len(ids)} or not len(ids):
            raise ValueError(
                f"views of {sizes} images do not fit image ids of shape {tuple(ids.shape)}"
            )
        if ids.dtype != torch.int64 or not all(view.is_floating_point() for view in batch.views):
            kinds = dict.fromkeys([ids.dtype, *(view.dtype for view in batch.views)])
            raise ValueError(
                f"views are floats and image ids int64, but here are {', '.join(map(str, kinds))}"
            )
