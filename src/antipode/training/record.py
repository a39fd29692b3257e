"""Record a run: its metrics, health, checkpoints, and the scores tracked during training."""

import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch

from antipode import dist
from antipode.core.learner import Learner
from antipode.core.traits import negatives_per_query, stored_size
from antipode.data.views.policy import standardises
from antipode.nets import weights
from antipode.runs.folder import RunFolder
from antipode.training import checkpoint, health, logs
from antipode.training.build import Setup
from antipode.training.progress import Display
from antipode.types import Output

Monitor = Callable[[Learner, int], dict[str, float]]  # learner, epoch -> scores to record


class Interrupted(Exception):
    """The run stopped before its end.

    If it was asked to stop, it has written a checkpoint. If it stopped because of a failed health
    check, it has not.
    """


class Unhealthy(UserWarning):
    """A health check has failed."""


class Recorder:
    """Write the metrics, checkpoints and weights of one run; only rank 0 writes files."""

    def __init__(
        self,
        setup: Setup,
        folder: RunFolder,
        display: Display,
        monitor: Monitor | None,
        loggers: Sequence[logs.Log] = (),
        watch: health.HealthMonitor | None = None,
    ) -> None:
        self.setup = setup
        self.folder = folder
        self.display = display
        self.watch = watch or health.HealthMonitor(settling(setup))
        self.monitor = monitor
        self.loggers = loggers
        self.writes = dist.rank() == 0
        self.scores: dict[str, float] = {}
        self.health: dict[str, float] = {}  # of the last check, once the run has settled
        self.clock = time.perf_counter()
        self.images = 0  # processed since the clock was read
        self.warned = ""  # the kind of trouble that was reported last

    def note(
        self, step: int, epoch: int, rates: dict[str, float], out: Output, norm: torch.Tensor
    ) -> None:
        """Record a step if a log line, a check or a score is due.

        Values are read from the device only then.
        """
        intervals = self.setup.recipe.monitor
        last = step + 1 == self.setup.loader.total
        self.images += self.setup.loader.batch
        every = intervals.health_every
        check = bool(every) and (step % every == 0 or last)
        track = self._tracks(step, epoch)
        if not (check or track or last or step % intervals.log_every == 0):
            self.display.advance(step)
            return
        row = self._row(step, epoch, rates, out, norm)
        if check:
            measured = self._check(row, out.keys)
            row |= measured
            self.health = measured if step >= self.watch.settling else {}
        if track and self.monitor:
            self.scores = self.monitor(self.setup.learner, epoch)
            row |= self.scores
            self.clock = time.perf_counter()  # the monitor's time is not training time
        self._write(row, out.keys)

    def checkpoint(self, done: int) -> None:
        """Save a checkpoint on rank 0."""
        if self.writes:
            content = checkpoint.state(
                self.setup.learner,
                self.setup.optims,
                done,
                self.watch.state(),
                images=len(self.setup.loader.source),
            )
            checkpoint.save(self.folder, content, self.setup.recipe.train.keep)

    def finish(self) -> None:
        """Write the trained backbone."""
        if self.writes:
            file = self.folder.path / "backbone.safetensors"
            weights.write(self.setup.learner.backbone, file, self._normal())

    def _row(
        self, step: int, epoch: int, rates: dict[str, float], out: Output, norm: torch.Tensor
    ) -> dict[str, Any]:
        """Return the row of a step for metrics.jsonl, averaged over the ranks."""
        # stacked, so that there is only one transfer from the device
        values = dist.mean(torch.stack([*out.metrics.values(), norm])).tolist()
        row: dict[str, Any] = {"step": step, "epoch": epoch}
        row |= dict(zip([*out.metrics, "gradient"], values, strict=True))
        row |= {f"lr_{name}": rate for name, rate in rates.items()}
        row["images_per_second"] = self.images / max(time.perf_counter() - self.clock, 1e-9)
        self.clock = time.perf_counter()
        self.images = 0
        return row

    def _check(self, row: dict[str, Any], keys: torch.Tensor) -> dict[str, float]:
        """Return the health metrics of a step.

        They are computed from the keys of all ranks, so that all ranks come to the same decision.
        """
        learner = self.setup.learner
        batch = self.setup.loader.batch
        count = negatives_per_query(learner, batch // self.setup.step.accumulate)
        measured: dict[str, float | None] = {
            **health.measure(learner, dist.gather(keys)),
            "alignment": health.alignment(learner, row),
            "mi_bound": health.bound(learner, row.get("contrast", 0.0), count),
            "queue_age": health.age(learner, batch, row["step"]),
            "bank_drift": self.watch.drift(learner),
        }
        return {name: value for name, value in measured.items() if value is not None}

    def _write(self, row: dict[str, Any], keys: torch.Tensor) -> None:
        """Write a row to all logs, show it, and report trouble."""
        if self.writes:
            self.folder.record(row)
        for logger in self.loggers:
            logger.row(row)
        self.display.update(row, self.scores)
        self.watch.note(row)
        # Between two checks the last one still counts. Otherwise the same collapse would be
        # reported again after each check.
        limit = min(len(keys) * dist.world(), health.ENOUGH, keys.shape[1])
        self._report(self.watch.trouble(self.health | row, limit))

    def _report(self, trouble: health.Trouble | None) -> None:
        """Warn of new trouble, or raise Interrupted if it is fatal and the recipe says stop."""
        if trouble and trouble.fatal and self.setup.recipe.train.on_collapse == "stop":
            # no checkpoint of a broken network is written
            place = "the last checkpoint" if self.folder.has_checkpoint() else "the start"
            raise Interrupted(
                f"{trouble.sentence}; stopped because train.on_collapse=stop, with "
                f"train.on_collapse=warn the same command resumes from {place}"
            )
        kind = trouble.kind if trouble else ""
        if trouble and kind != self.warned and self.writes:
            warnings.warn(trouble.sentence, Unhealthy, stacklevel=2)
        self.warned = kind

    def _tracks(self, step: int, epoch: int) -> bool:
        """Return True if the monitor scores after this step, the last of an epoch."""
        every = self.setup.recipe.monitor.knn_every
        ended = (step + 1) % self.setup.loader.per_epoch == 0
        return bool(self.monitor and every and ended and (epoch + 1) % every == 0)

    def _normal(self) -> weights.Normal | None:
        """Return mean and deviation of the channels by which the views are normalised.

        Returns None if each image is standardised on its own, or if there is no normalisation.
        """
        normalise = getattr(self.setup.loader.views, "normal", None)
        if normalise is None or standardises(self.setup.recipe.views.policy):
            return None
        mean = tuple(normalise.mean.flatten().tolist())
        std = tuple(normalise.std.flatten().tolist())
        return weights.Normal(mean, std)


def settling(setup: Setup) -> int:
    """Return the number of steps after which the health of a run counts."""
    loader = setup.loader
    return health.settling(stored_size(setup.learner), loader.batch, loader.per_epoch)
