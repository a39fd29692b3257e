"""The record of a run: metrics, health, checkpoints, the monitor's scores."""

import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch

from antipode import dist
from antipode.core.learner import Learner
from antipode.core.negatives import Bank, Queue
from antipode.core.objective import Adversarial, Contrast
from antipode.nets import weights
from antipode.runs.folder import RunFolder
from antipode.training import checkpoint, health, logs
from antipode.training.build import Setup
from antipode.training.progress import Shown
from antipode.types import Output

Monitor = Callable[[Learner, int], dict[str, float]]  # learner, epoch -> scores to record


class Interrupted(Exception):
    """The run was asked to stop, and a checkpoint is written; or it is in trouble, and of that there is none."""


class Unhealthy(UserWarning):
    """What the health check complains about."""


class Recorder:
    """Keeps the record of one run."""

    def __init__(
        self,
        job: Setup,
        run: RunFolder,
        shown: Shown,
        monitor: Monitor | None,
        loggers: Sequence[logs.Log] = (),
        watch: health.HealthMonitor | None = None,
    ) -> None:
        self.job, self.run, self.shown, self.watch = (
            job,
            run,
            shown,
            watch or health.HealthMonitor(settling(job)),
        )
        self.monitor, self.loggers = monitor, loggers
        self.mine = dist.rank() == 0
        self.scores: dict[str, float] = {}
        self.health: dict[str, float] = {}  # of the last check, once that counts
        self.clock, self.seen, self.warned = time.perf_counter(), 0, ""

    def note(
        self, step: int, epoch: int, rates: dict[str, float], out: Output, norm: torch.Tensor
    ) -> None:
        """Record a step where it is due; the device is asked for numbers only then."""
        plan, total = self.job.recipe.monitor, self.job.loader.total
        self.seen += self.job.loader.batch
        checked = bool(plan.health_every) and (step % plan.health_every == 0 or step + 1 == total)
        watched = self._watched(step, epoch)
        if checked or watched or step % plan.log_every == 0 or step + 1 == total:
            values = dist.mean(
                torch.stack([*out.metrics.values(), norm])
            ).tolist()  # one transfer from the device
            row: dict[str, Any] = {
                "step": step,
                "epoch": epoch,
                **dict(zip([*out.metrics, "gradient"], values, strict=True)),
            }
            row |= {f"lr_{name}": rate for name, rate in rates.items()}
            row["images_per_second"] = self.seen / max(time.perf_counter() - self.clock, 1e-9)
            self.clock, self.seen = time.perf_counter(), 0
            if checked:
                found = self._check(row, out.keys)
                row |= found
                self.health = found if step >= self.watch.settling else {}
            if watched and self.monitor:
                self.scores = self.monitor(self.job.learner, epoch)
                row |= self.scores
                self.clock = time.perf_counter()  # the monitor's is no time of training
            self._write(row, out.keys)
        else:
            self.shown.advance(step)

    def _check(self, row: dict[str, Any], keys: torch.Tensor) -> dict[str, float]:
        """The health of a step, of the keys of all ranks: so all ranks come to the same judgement."""
        learner, batch = self.job.learner, self.job.loader.batch
        found: dict[str, float | None] = {
            **health.measure(learner, dist.gather(keys)),
            "alignment": health.alignment(learner, row),
            "mi_bound": health.bound(learner, row.get("contrast", 0.0), negatives(self.job)),
            "queue_age": health.age(learner, batch, row["step"]),
            "bank_drift": self.watch.drift(learner),
        }
        return {name: value for name, value in found.items() if value is not None}

    def _write(self, row: dict[str, Any], keys: torch.Tensor) -> None:
        self._record(row)
        self.shown.update(row, self.scores)
        self.watch.note(row)
        # between two checks the last one counts, or a collapse would be told again after each
        trouble = self.watch.trouble(
            self.health | row, min(len(keys) * dist.world(), health.ENOUGH, keys.shape[1])
        )
        if trouble and trouble.fatal and self.job.recipe.train.on_collapse == "stop":
            there = (
                "the last checkpoint" if self.run.has_checkpoint() else "the start"
            )  # none is written of a broken network
            on = f"with train.on_collapse=warn the same command goes on from {there}"
            raise Interrupted(f"{trouble.sentence}; stopped because train.on_collapse=stop, {on}")
        kind = trouble.kind if trouble else ""
        if trouble and kind != self.warned and self.mine:
            warnings.warn(trouble.sentence, Unhealthy, stacklevel=2)
        self.warned = kind

    def _watched(self, step: int, epoch: int) -> bool:
        """Whether the monitor scores after this step, the last of an epoch."""
        every = self.job.recipe.monitor.knn_every
        ended = (step + 1) % self.job.loader.per_epoch == 0
        return bool(self.monitor and every and ended and (epoch + 1) % every == 0)

    def _record(self, row: dict[str, Any]) -> None:
        if self.mine:
            self.run.record(row)
        for logger in self.loggers:
            logger.row(row)

    def checkpoint(self, done: int) -> None:
        """Save on rank 0."""
        if self.mine:
            images = len(self.job.loader.source)
            content = checkpoint.state(
                self.job.learner, self.job.optims, done, self.watch.state(), images
            )
            checkpoint.save(self.run, content, self.job.recipe.train.keep)

    def finish(self) -> None:
        """Write the backbone as it came out."""
        if self.mine:
            weights.write(
                self.job.learner.backbone, self.run.path / "backbone.safetensors", self._normal()
            )

    def _normal(self) -> weights.Normal | None:
        """How the pixels of the views are normalised; those of shapes are not, by channel."""
        made = getattr(self.job.loader.views, "normal", None)
        if made is None or self.job.recipe.views.policy == "shapes":
            return None
        return weights.Normal(
            *(tuple(values.flatten().tolist()) for values in (made.mean, made.std))
        )


def negatives(job: Setup) -> int:
    """How many negatives a query meets, where that is one number: a queue, or the batch."""
    objective = job.learner.objective
    contrast = objective.contrast if isinstance(objective, Adversarial) else objective
    if not isinstance(contrast, Contrast):
        return 0
    images, count = job.loader.batch // job.step.accumulate, 0
    for part in contrast.negatives:
        if isinstance(part, Queue):
            count += len(part.vectors)
        elif getattr(part, "pool", None):
            views = len(job.learner.key_views) if part.pool == "all" else 1
            others = views * (images - 1)
            count += min(getattr(part, "subset", None) or others, others)
    return count


def settling(job: Setup) -> int:
    """Steps before the health of a run counts."""
    kept = [len(part.vectors) for part in job.learner.modules() if isinstance(part, Queue)]
    kept += [len(part.weight) for part in job.learner.modules() if isinstance(part, Bank)]
    return health.settling(max(kept, default=0), job.loader.batch, job.loader.per_epoch)
