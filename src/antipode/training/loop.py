"""The training loop.

It has no callbacks: whatever is to happen in every step is a line of this file.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import nn

from antipode import dist
from antipode.data.sources.located import path_of
from antipode.data.sources.splits import Splits
from antipode.data.sources.stamp import check as check_stamp
from antipode.data.sources.stamp import sampled
from antipode.recipe.recipe import Recipe
from antipode.recipe.resolve import rescaled
from antipode.runs.environment import environment
from antipode.runs.folder import IMAGES, RunFolder
from antipode.threads import restore as restore_threads
from antipode.training import checkpoint, health, logs
from antipode.training.build import Setup, build
from antipode.training.decoder import where_to_decode
from antipode.training.filling import filling_sentence
from antipode.training.progress import display, say
from antipode.training.record import Interrupted, Monitor, Recorder, settling
from antipode.training.signals import StepClock, interrupts
from antipode.wording import option, overrides

SLOW = 1.0  # seconds; if steps take longer, ranks communicate about stopping after every step


def train(
    recipe: Recipe,
    run: RunFolder,
    *,
    splits: Splits | None = None,
    backbone: nn.Module | None = None,
    monitor: Monitor | None = None,
    overwrite: bool = False,
    again: str = "the same command",
    opening: Sequence[str] = (),
    quiet: bool = False,
) -> None:
    """Train a recipe to its end, starting from the newest checkpoint if there is one.

    Only rank 0 writes files. With `overwrite`, an existing run is deleted once the new one has
    taken its first step. If that step fails, the existing run is kept. `again` describes the
    command that resumes the run, for the message after an interruption. `opening` are the first
    lines to print.
    """
    # the caller may be in inference mode or may have disabled gradients
    with dist.together(), unchanged(), torch.inference_mode(False), torch.enable_grad():
        resumes = run.has_checkpoint() and not overwrite
        if resumes:
            restore_threads(run.read_object("env.json").get("threads"))
        decoder = where_to_decode(recipe, splits, backbone, run if resumes else None)
        setup = build(recipe, splits, backbone, fresh=not resumes, decoder=decoder)
        folder = prepared(run, overwrite) if dist.rank() == 0 else nullcontext(_nothing)
        with folder as commit, setup.loader.beside():
            # other ranks wait here, so that they do not read a checkpoint of the replaced run
            dist.any_rank(False, setup.device)
            _loop(setup, run, monitor, commit, again, opening, quiet)


@contextmanager
def prepared(run: RunFolder, overwrite: bool) -> Iterator[Callable[[], None]]:
    """Lock the folder for this process; with `overwrite`, set its run aside.

    Call the yielded function to delete the old run; otherwise it is restored.
    """
    try:
        run.claim()
        run.recover()
        with run.replacing() if overwrite else nullcontext(_nothing) as commit:
            yield commit
    finally:
        run.release()


@contextmanager
def unchanged() -> Iterator[None]:
    """Restore the global settings of torch that a recipe may change, after its run.

    These are deterministic algorithms and cuDNN's search for fast kernels.
    """
    deterministic = torch.are_deterministic_algorithms_enabled()
    warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
    benchmark = torch.backends.cudnn.benchmark
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(deterministic, warn_only=warn_only)
        torch.backends.cudnn.benchmark = benchmark


def _nothing() -> None:
    """Do nothing: the commit if there is no run to replace."""


def _loop(
    setup: Setup,
    run: RunFolder,
    monitor: Monitor | None,
    commit: Callable[[], None],
    again: str,
    opening: Sequence[str],
    quiet: bool,
) -> None:
    """Take all remaining steps; call `commit` after the first one."""
    recipe = setup.recipe
    total = setup.loader.total
    silent = quiet or dist.rank() > 0
    start, watch = begin(setup, run)
    loggers = logs.open(recipe.monitor, run, start, recipe.leaves())
    progress = display(recipe, total, start, silent, opening)
    clock = StepClock(start, total)
    stopping = interrupts(clock.announcement)
    with stopping as signals, dist.together(), closing(loggers), progress as shown:
        recorder = Recorder(setup, run, shown, monitor, loggers, watch, again)
        halt = Halt(setup.device)
        committed = False
        for step, epoch, rates, out, norm in out_of_memory(setup.run(start), recipe):
            recorder.note(step, epoch, rates, out, norm)
            if step == start and not silent:
                explain_start(setup, start)
            # a skipped step is no step: if none succeeds, the replaced run is restored
            if not committed and not setup.step.streak:
                commit()
                committed = True
            done = step + 1
            clock.tick()
            stop = halt(bool(signals) or dist.deserted(), step)
            if stop or recorder.due(done):
                recorder.checkpoint(done, stopping=stop)
            if stop and done < total:
                raise Interrupted(
                    f"stopped after step {done} of {total}; {again} resumes from there"
                )
        recorder.finish()
    # other ranks wait here, so that none looks for the weights before they are written
    dist.any_rank(False, setup.device)


def explain_start(setup: Setup, start: int) -> None:
    """Print what may surprise in the first lines: rescaled learning rates, a loss that rises."""
    sentences = [rescaled(setup.recipe)]
    sentences += [filling_sentence(setup.learner, setup.loader.batch)] if start == 0 else []
    for sentence in sentences:
        if sentence:
            say(sentence)


class Halt:
    """Decide together with the other ranks whether to stop, because one of them was asked to.

    The ranks communicate every tenth step. If steps are slow, they communicate after every step,
    because torchrun kills ranks that have not ended 30 seconds after it asked them to.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.slow = True
        self.last = time.monotonic()

    def __call__(self, asked: bool, step: int) -> bool:
        """Return True if all ranks stop after this step; `asked` is True if this one is to stop."""
        if dist.world() == 1:
            return asked
        now = time.monotonic()
        slow = now - self.last > SLOW
        self.last = now
        if not self.slow and step % 10 < 9:
            return False
        self.slow = dist.any_rank(slow, self.device)
        return dist.any_rank(asked, self.device)


def begin(setup: Setup, run: RunFolder) -> tuple[int, health.HealthMonitor]:
    """Load the newest checkpoint, if there is one, and write what describes the run.

    That is recipe.json, env.json and, for images of a path, images.json. Returns the first step and
    the health monitor. Raises ValueError if the checkpoint was trained on other images.
    """
    found = checkpoint.newest(run, setup.device)
    content = found[0] if found else None
    images = len(setup.loader.source)
    if content and content.get("images", images) != images:
        raise ValueError(
            f"{run.path} was trained on {content['images']} images, but {setup.recipe.data.name} "
            f"now has {images}: a run can only resume with the same images, use another "
            f"{option('out')}"
        )
    stamp = setup.loader.stamp  # of the images as they are now, also if there is no checkpoint
    if content:
        check_stamp(content.get("stamp"), stamp, run.path, setup.recipe.data.name)
    start = checkpoint.restore(content, setup.learner, setup.optims) if content else 0
    watch = health.HealthMonitor(settling(setup))
    if content:
        watch.load(content.get("health", {}))
        setup.step.skipped.fill_(content.get("skipped", 0))
    if dist.rank() == 0:
        run.path.mkdir(parents=True, exist_ok=True)
        setup.recipe.write(run.path / "recipe.json")
        run.write_json("env.json", environment(setup.device.type) | _settled(setup))
        if path_of(setup.recipe.data.name):
            run.write_json(IMAGES, sampled(stamp, setup.loader.source))
        run.rewind(start)
        if found:
            checkpoint.complete(run, found[1], setup.recipe.train.keep)
    return start, watch


def _settled(setup: Setup) -> dict[str, str]:
    """Return what a run decides at its start and does not write to recipe.json.

    A resumed run keeps the decoder. The relative paths of the recipe start at the directory.
    """
    return {"decoder": setup.loader.decoded_by, "directory": str(Path.cwd())}


def out_of_memory(steps: Iterator[Any], recipe: Recipe) -> Iterator[Any]:
    """Yield the steps; raise MemoryError with advice if the GPU's memory is too small."""
    try:
        yield from steps
    except torch.OutOfMemoryError as error:
        raise MemoryError(
            f"the GPU's memory is too small for a batch of {recipe.train.batch} images of "
            f"{recipe.views.size} px: try a smaller {option('batch')}, or "
            f"{overrides({'train.accumulate': 2})}"
        ) from error


@contextmanager
def closing(loggers: Sequence[logs.Log]) -> Iterator[None]:
    """Close the loggers at the end of the block, also after an exception."""
    try:
        yield
    finally:
        for logger in loggers:
            logger.close()
