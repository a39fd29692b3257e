"""The loop. No callbacks: a new need is a new line here, seen by all."""

import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from types import FrameType
from typing import Any

import torch
from torch import nn

from antipode import dist
from antipode.data.sources.splits import Splits
from antipode.recipe.resolve import Recipe, rescaled
from antipode.runs.folder import RunFolder, environment
from antipode.training import checkpoint, health, logs
from antipode.training.build import Setup, build, pick_device
from antipode.training.progress import display, say
from antipode.training.record import Interrupted, Monitor, Recorder, Unhealthy, settling

SLOW = 1.0  # seconds of a step after which ranks ask each other after every one

__all__ = [
    "Interrupted",
    "Monitor",
    "Recorder",
    "Setup",
    "Unhealthy",
    "build",
    "pick_device",
    "train",
]


def train(
    recipe: Recipe,
    run: RunFolder,
    *,
    splits: Splits | None = None,
    backbone: nn.Module | None = None,
    monitor: Monitor | None = None,
    overwrite: bool = False,
    again: str = "the same command",
    quiet: bool = False,
) -> None:
    """Train to the end, from the last checkpoint where there is one; only rank 0 writes. `again` is what goes on.

    With `overwrite` a run that is there gives way when the new one has taken its first step, and stays if that fails.
    """
    with (
        dist.together(),
        unchanged(),
        torch.inference_mode(False),
        torch.enable_grad(),
    ):  # whatever the caller is in
        job = build(recipe, splits, backbone, fresh=overwrite or not run.has_checkpoint())
        with prepared(run, overwrite) if dist.rank() == 0 else nullcontext(_nothing) as stands:
            dist.any_rank(False, job.device)  # nobody looks for a checkpoint before it is set aside
            _loop(job, run, monitor, stands, again, quiet)


@contextmanager
def prepared(run: RunFolder, overwrite: bool) -> Iterator[Callable[[], None]]:
    """The folder for this process alone; what is yielded is to be called when the new run stands."""
    try:
        run.claim()
        run.recover()
        with run.replacing() if overwrite else nullcontext(_nothing) as stands:
            yield stands
    finally:
        run.release()


@contextmanager
def unchanged() -> Iterator[None]:
    """What a recipe asks of torch as a whole (same bits, search for kernels) does not outlast its run."""
    same, warn, search = (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
        torch.backends.cudnn.benchmark,
    )
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(same, warn_only=warn)
        torch.backends.cudnn.benchmark = search


def _nothing() -> None:
    """Where there is no run to replace."""


def _loop(
    job: Setup,
    run: RunFolder,
    monitor: Monitor | None,
    stands: Callable[[], None],
    again: str,
    quiet: bool,
) -> None:
    """All steps that are left; `stands` is called after the first."""
    recipe, silent = job.recipe, quiet or dist.rank() > 0
    start, watch = begin(job, run)
    loggers = logs.open(recipe.monitor, run, start, recipe.leaves())
    every = max(1, round(recipe.train.checkpoint_every * job.loader.per_epoch))
    bar = display(recipe, job.loader.total, start, silent)
    with interrupts() as asked, dist.together(), closing(loggers), bar as shown:
        book, halting = Recorder(job, run, shown, monitor, loggers, watch), Halt(job.device)
        for step, epoch, rates, out, norm in out_of_memory(job.run(start), recipe):
            book.note(step, epoch, rates, out, norm)
            if step == start:
                stands()
                if not silent and (sentence := rescaled(recipe)):
                    say(sentence)
            done = step + 1
            stop = halting(bool(asked) or dist.deserted(), step)
            if done % every == 0 or done == job.loader.total or stop:
                book.checkpoint(done)
            if stop and done < job.loader.total:
                raise Interrupted(
                    f"stopped after step {done} of {job.loader.total}; {again} goes on there"
                )
        book.finish()
    dist.any_rank(False, job.device)  # nobody looks for the weights before they are written


class Halt:
    """Whether all ranks stop, because one was asked to: found out together, every tenth step or, if slow, every one.

    torchrun kills ranks that have not ended half a minute after it was told to.
    """

    def __init__(self, device: torch.device) -> None:
        self.device, self.slow, self.last = device, True, time.monotonic()

    def __call__(self, wanted: bool, step: int) -> bool:
        """After a step: whether it is the last for now."""
        if dist.world() == 1:
            return wanted
        now = time.monotonic()
        long, self.last = now - self.last > SLOW, now
        if not self.slow and step % 10 < 9:
            return False
        self.slow = dist.any_rank(long, self.device)
        return dist.any_rank(wanted, self.device)


def begin(job: Setup, run: RunFolder) -> tuple[int, health.HealthMonitor]:
    """Write what describes the run, or take up what is there; returns the first step and what is known of health."""
    content = checkpoint.load(run, job.device)
    there = len(job.loader.source)
    if content and content.get("images", there) != there:
        trained = f"{run.path} was trained on {content['images']} images and {job.recipe.data.name} has {there} now"
        raise ValueError(
            f"{trained}: it goes on with the same images only, use another --out for these"
        )
    start = checkpoint.restore(content, job.learner, job.optims) if content else 0
    watch = health.HealthMonitor(settling(job))
    watch.load(content.get("health", {}) if content else {})
    if dist.rank() == 0:
        run.path.mkdir(parents=True, exist_ok=True)
        job.recipe.write(run.path / "recipe.json")
        run.write_json("env.json", environment(job.device.type))
        run.rewind(start)
        checkpoint.point(run)
    return start, watch


def out_of_memory(steps: Iterator[Any], recipe: Recipe) -> Iterator[Any]:
    """The steps; a GPU that is too small ends them with a sentence."""
    try:
        yield from steps
    except torch.OutOfMemoryError as error:
        raise MemoryError(
            f"the GPU's memory does not hold a batch of {recipe.train.batch} images of {recipe.views.size} px: "
            "try a smaller --batch, or --set train.accumulate=2"
        ) from error


@contextmanager
def closing(loggers: Sequence[logs.Log]) -> Iterator[None]:
    """Loggers hand over what they hold, however the run ends."""
    try:
        yield
    finally:
        for logger in loggers:
            logger.close()


@contextmanager
def interrupts() -> Iterator[list[int]]:
    """A list that fills when SIGTERM or Ctrl-C asks to stop; a second Ctrl-C stops at once."""
    asked: list[int] = []

    def ask(number: int, frame: FrameType | None) -> None:
        if asked and number == signal.SIGINT:
            raise KeyboardInterrupt
        asked.append(number)

    try:
        before = {number: signal.signal(number, ask) for number in (signal.SIGTERM, signal.SIGINT)}
    except ValueError:  # not the main thread: whoever runs this one handles signals
        yield asked
        return
    try:
        yield asked
    except (
        ConnectionError
    ):  # torchrun is about to end this rank too, and must not cut off its last words
        raise
    except BaseException:
        _restore(before)
        raise
    _restore(before)


def _restore(handlers: dict[signal.Signals, Any]) -> None:
    for number, handler in handlers.items():
        signal.signal(number, handler)
