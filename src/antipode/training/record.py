"""Record a run: its metrics, health, checkpoints, and the scores tracked during training."""

import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import torch

from antipode import dist
from antipode.core.learner import Learner
from antipode.core.traits import negatives_per_query, stored_size
from antipode.data.views.policy import standardises
from antipode.nets import weights
from antipode.nets.weight_file import About, Normal
from antipode.runs.folder import RunFolder
from antipode.training import checkpoint, health, logs
from antipode.training.build import Setup
from antipode.training.checkpoint_check import non_finite
from antipode.training.progress import Display
from antipode.types import Output

Monitor = Callable[[Learner, int], dict[str, float]]  # learner, epoch -> scores to record


class Interrupted(KeyboardInterrupt):
    """The run was asked to stop by Ctrl-C or SIGTERM, and has written a checkpoint.

    The message says how to resume. It is a KeyboardInterrupt, so that a program that catches
    `Exception` ends as well.
    """


class InTrouble(Exception):
    """The run ended because its network is in trouble; the last good checkpoint is kept."""


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
        again: str = "the same command",
    ) -> None:
        self.setup = setup
        self.folder = folder
        self.display = display
        self.watch = watch or health.HealthMonitor(settling(setup))
        self.monitor = monitor
        self.loggers = loggers
        self.again = again  # describes the command that resumes the run
        self.writes = dist.rank() == 0
        self.scores: dict[str, float] = {}
        self.health: dict[str, float] = {}  # of the last check, once the run has settled
        self.clock = time.perf_counter()
        self.images = 0  # processed since the clock was read
        self.streak = 0.0  # skipped steps in a row, at the last row
        self.warned = ""  # the kind of trouble that was reported last
        self.reported = int(setup.step.skipped)  # the number of skipped steps in the last warning

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
        # with on_collapse=stop, no checkpoint is written of a network in trouble
        judged = self.setup.recipe.train.on_collapse == "stop" and self.due(step + 1)
        check = bool(every) and (step % every == 0 or last or judged)
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

    def due(self, done: int) -> bool:
        """Return True if a checkpoint is due after `done` steps."""
        plan = self.setup.recipe.train
        loader = self.setup.loader
        every = max(1, round(plan.checkpoint_every * loader.per_epoch))
        steps = plan.checkpoint_steps or every
        return done % every == 0 or done % steps == 0 or done == loader.total

    def checkpoint(self, done: int, stopping: bool = False) -> None:
        """Save a checkpoint on rank 0; raise InTrouble if the network is not finite.

        No checkpoint is saved after a skipped step, because the step may have failed for weights
        that are finite but too large. The exceptions are the last step, after which the network is
        tried on other images, and a run that is `stopping`.
        """
        streak = int(self.setup.step.streak)
        last = done == self.setup.loader.total
        if streak and last:
            self._check_recovery(streak)
        elif streak and not stopping:
            return
        content = checkpoint.state(
            self.setup.learner,
            self.setup.optims,
            done,
            self.watch.state(),
            self.setup.loader.stamp,
            skipped=int(self.setup.step.skipped),
        )
        self._check_finite(content, done)
        if self.writes:
            checkpoint.save(self.folder, content, self.setup.recipe.train.keep)

    def finish(self) -> None:
        """Write the trained backbone; raise InTrouble if it is not finite."""
        self._check_finite(self.setup.learner.backbone.state_dict(), self.setup.loader.total)
        if self.writes:
            file = self.folder.path / "backbone.safetensors"
            weights.write(self.setup.learner.backbone, file, self._about())

    def _row(
        self, step: int, epoch: int, rates: dict[str, float], out: Output, norm: torch.Tensor
    ) -> dict[str, Any]:
        """Return the row of a step for metrics.jsonl, averaged over the ranks."""
        # stacked, so that there is only one transfer from the device
        counts = [self.setup.step.skipped, self.setup.step.streak]
        values = dist.mean(torch.stack([*out.metrics.values(), norm, *counts])).tolist()
        *values, skipped, self.streak = values
        row: dict[str, Any] = {"step": step, "epoch": epoch}
        row |= dict(zip([*out.metrics, "gradient"], values, strict=True))
        row |= {"skipped": round(skipped)} if skipped else {}
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
        step = self.setup.step
        # the loss of the whole batch has the negatives of all parts
        parts = 1 if step.whole is not None else step.accumulate
        count = negatives_per_query(learner, batch // parts)
        taken = row["step"] - row.get("skipped", 0)  # a skipped step adds no keys to the queue
        measured: dict[str, float | None] = {
            **health.measure(learner, dist.gather(keys)),
            "alignment": health.alignment(learner, row),
            "mi_bound": health.bound(learner, row.get("contrast", 0.0), count),
            "queue_age": health.age(learner, batch, max(0, taken)),
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
        self._report_skipped(row)
        # Between two checks the last one still counts. Otherwise the same collapse would be
        # reported again after each check.
        limit = min(len(keys) * dist.world(), health.ENOUGH, keys.shape[1])
        self._report(self.watch.trouble(self.health | row, limit))

    def _report(self, trouble: health.Trouble | None) -> None:
        """Warn of new trouble, or raise InTrouble if it is fatal and the recipe says stop."""
        if trouble and trouble.fatal and self.setup.recipe.train.on_collapse == "stop":
            # no checkpoint of a broken network is written
            place = "the last checkpoint" if self.folder.has_checkpoint() else "the start"
            raise InTrouble(
                f"{trouble.sentence}; stopped because train.on_collapse=stop, with "
                f"train.on_collapse=warn {self.again} resumes from {place}"
            )
        kind = trouble.kind if trouble else ""
        if trouble and kind != self.warned and self.writes:
            warnings.warn(trouble.sentence, Unhealthy, stacklevel=2)
        self.warned = kind

    def _report_skipped(self, row: dict[str, Any]) -> None:
        """Warn of skipped steps, at first and each time their number has doubled.

        Raises InTrouble if there are too many in a row.
        """
        skipped = row.get("skipped", 0)
        if self.streak >= max(health.HOPELESS, self.setup.recipe.monitor.log_every):
            self._end(health.hopeless(round(self.streak), row["step"] + 1))
        if skipped >= max(1, 2 * self.reported):
            self.reported = skipped
            if self.writes:
                warnings.warn(health.survived(skipped, row["step"]), Unhealthy, stacklevel=2)

    def _check_recovery(self, streak: int) -> None:
        """Raise InTrouble if the network is broken, after a run whose last steps were skipped.

        Their images may be damaged instead. So the batch of the last finite step is tried again.
        """
        total = self.setup.loader.total
        finite = total - 1 - streak
        if finite < 0 or not self.setup.is_finite_at(finite):
            self._end(health.hopeless(streak, total))

    def _check_finite(self, content: Any, done: int) -> None:
        """Raise InTrouble on all ranks if a tensor of a checkpoint is not finite on one of them."""
        name = non_finite(content)
        if dist.any_rank(bool(name), self.setup.device):
            self._end(health.broken(name or "on another rank", done))

    def _end(self, sentence: str) -> NoReturn:
        """Raise InTrouble with a sentence, and with what is left of the run."""
        kept = "no checkpoint has been written yet"
        if self.folder.has_checkpoint():
            kept = f"the last good checkpoint is kept, and {self.again} resumes from it"
        raise InTrouble(f"{sentence}; {kept}")

    def _tracks(self, step: int, epoch: int) -> bool:
        """Return True if the monitor scores after this step, the last of an epoch."""
        every = self.setup.recipe.monitor.knn_every
        ended = (step + 1) % self.setup.loader.per_epoch == 0
        return bool(self.monitor and every and ended and (epoch + 1) % every == 0)

    def _about(self) -> About:
        """Return the description of the trained backbone."""
        recipe = self.setup.recipe
        name, stem = recipe.backbone.name, recipe.backbone.stem
        channels = self.setup.loader.source.channels
        return About(name, stem, channels, recipe.views.size, recipe.views.policy, self._normal())

    def _normal(self) -> Normal | None:
        """Return mean and deviation of the channels by which the views are normalised.

        Returns None if each image is standardised on its own, or if there is no normalisation.
        """
        normalise = getattr(self.setup.loader.views, "normal", None)
        if normalise is None or standardises(self.setup.recipe.views.policy):
            return None
        mean = tuple(normalise.mean.flatten().tolist())
        std = tuple(normalise.std.flatten().tolist())
        return Normal(mean, std)


def settling(setup: Setup) -> int:
    """Return the number of steps after which the health of a run counts."""
    loader = setup.loader
    return health.settling(stored_size(setup.learner), loader.batch, loader.per_epoch)
