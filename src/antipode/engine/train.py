"""The loop. No callbacks: a new need is a new line here, seen by all."""

import signal
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any

import torch
from torch import nn

from antipode import dist, optim
from antipode.core.learner import Learner
from antipode.core.negatives import Queue
from antipode.core.objective import Adversarial, Contrast
from antipode.data.catalog import load
from antipode.data.loader import Loader
from antipode.data.source import Memory
from antipode.data.splits import Splits
from antipode.data.views import views as make_views
from antipode.engine import checkpoint, health, logs, weights
from antipode.engine.progress import Shown, display
from antipode.engine.recipe import Recipe
from antipode.engine.rundir import RunDir, environment
from antipode.engine.step import Graph, Optims, Step
from antipode.methods import build as build_learner
from antipode.nets.backbone import backbone as make_backbone
from antipode.schedule import Schedule, scaled
from antipode.types import Output

Monitor = Callable[[Learner, int], dict[str, float]]  # learner, epoch -> scores to record


class Interrupted(Exception):
    """The run was asked to stop; a checkpoint is written."""


class Unhealthy(UserWarning):
    """What the health check complains about."""


@dataclass
class Job:
    """What a recipe builds."""

    recipe: Recipe
    device: torch.device
    learner: Learner
    optims: Optims
    schedules: dict[str, tuple[float, Schedule]]  # base rate and schedule of each group
    loader: Loader
    step: Step

    def prepare(self, step: int) -> dict[str, float]:
        """Set rates and progress for a step; returns the rates."""
        rates = {}
        for name, (base, schedule) in self.schedules.items():
            rates[name] = base * schedule.factor(step, self.loader.per_epoch)
            optim.set_rate(self.optims[name], rates[name])
        self.learner.before_step(step / self.loader.total)
        return rates

    def run(self, start: int) -> Iterator[tuple[int, int, dict[str, float], Output, torch.Tensor]]:
        """Step, epoch, rates, output and gradient norm of every step from `start` on."""
        graph = self._graph()
        if graph is None:
            for step, epoch, batch in self.loader.steps(start):
                rates = self.prepare(step)
                yield step, epoch, rates, *self.step(batch)
            return
        for step, epoch, owner, key in self.loader.plan(start):
            rates = self.prepare(step)
            yield step, epoch, rates, *graph(owner, key)

    def _graph(self) -> Graph | None:
        """A graph of the whole step, on one GPU with a data set that lives there."""
        fast = self.recipe.train.compile != "off" and self.device.type == "cuda" and dist.world() == 1
        if not fast:
            return None
        self.step.compile()
        source = self.loader.source
        if not isinstance(source, Memory):
            return None
        return Graph(self.step, source.images, self.loader.views, self.loader.batch)


def build(recipe: Recipe, splits: Splits | None = None, backbone: nn.Module | None = None, fresh: bool = True) -> Job:
    """Data, views, learner, optimisers and loader of a recipe, on its device; a checkpoint will follow if not fresh."""
    device = pick_device(recipe.train.device)
    dist.setup(device.type)
    if recipe.train.deterministic:
        torch.use_deterministic_algorithms(True, warn_only=device.type == "cuda")
        torch.backends.cudnn.benchmark = False
    data = splits or load(recipe.data.name, root=recipe.data.root, download=recipe.data.download)
    policy = dict(recipe.views.arguments)
    views = make_views(recipe.views.policy, size=recipe.views.size, mean=data.mean, std=data.std, **policy).to(device)
    views(torch.zeros(2, data.channels, 8, 8, dtype=torch.uint8, device=device))  # a policy may refuse the channels
    torch.manual_seed(recipe.train.seed)
    net = backbone or make_backbone(recipe.backbone.name, stem=recipe.backbone.stem, channels=data.channels)
    if recipe.backbone.weights and fresh:
        weights.start(net, recipe.backbone.name, recipe.backbone.weights)
    learner = build_learner(
        recipe.method.name, net, channels=data.channels, seed=recipe.train.seed, **recipe.method.arguments
    )
    if learner.views != views.count:
        made = f"{recipe.views.policy} makes {views.count}"
        raise ValueError(f"{recipe.method.name} needs {learner.views} views of each image but {made}")
    learner.to(device)
    if recipe.train.channels_last:
        learner.to(memory_format=torch.channels_last)
    loader = Loader(
        data.pretrain,
        views,
        batch=recipe.train.batch,
        epochs=recipe.train.epochs,
        seed=recipe.train.seed,
        rank=dist.rank(),
        world=dist.world(),
        device=device,
        workers=recipe.data.workers,
    )
    optims, schedules = optimisers(recipe, learner)
    clips = {name: recipe.optim[name].clip for name in optims}
    step = Step(learner, optims, bf16=bf16(recipe, device), accumulate=recipe.train.accumulate, clips=clips)
    return Job(recipe, device, learner, optims, schedules, loader, step)


def optimisers(recipe: Recipe, learner: Learner) -> tuple[Optims, dict[str, tuple[float, Schedule]]]:
    """One optimiser and one schedule for each of the learner's parameter groups."""
    groups = learner.groups()
    absent = [name for name in groups if name not in recipe.optim]
    if absent:
        raise ValueError(f"{recipe.method.name} trains the group {absent[0]!r}, but optim.{absent[0]} is not set")
    optims: Optims = {}
    schedules: dict[str, tuple[float, Schedule]] = {}
    for name, trained in groups.items():
        spec = recipe.optim[name]
        base = scaled(spec.lr, spec.rule, recipe.train.batch, learner.views)
        optims[name] = optim.make(
            trained,
            name=spec.name,
            lr=base,
            momentum=spec.momentum,
            weight_decay=spec.weight_decay,
            nesterov=spec.nesterov,
            exclude=spec.exclude,
            variant=spec.variant,
            capturable=trained[0].is_cuda,
        )
        schedules[name] = base, spec.scheduled(recipe.train.epochs)
    return optims, schedules


def pick_device(name: str) -> torch.device:
    """The device of a recipe; auto takes a GPU where there is one."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    if name == "cuda" and not torch.cuda.is_available():
        raise ValueError("there is no CUDA device here; use --device cpu")
    if name == "mps" and not torch.backends.mps.is_available():
        raise ValueError("there is no MPS device here; use --device cpu")
    return torch.device(name)


def bf16(recipe: Recipe, device: torch.device) -> bool:
    """Whether networks run in bfloat16: on GPUs unless told otherwise; some CPUs die of it, so never there unasked."""
    if recipe.train.precision == "auto":
        return device.type == "cuda" and torch.cuda.is_bf16_supported()
    return recipe.train.precision == "bf16"


def train(
    recipe: Recipe,
    run: RunDir,
    *,
    splits: Splits | None = None,
    backbone: nn.Module | None = None,
    monitor: Monitor | None = None,
    overwrite: bool = False,
    quiet: bool = False,
) -> None:
    """Train to the end, from the last checkpoint where there is one; only rank 0 writes."""
    job = build(recipe, splits, backbone, fresh=overwrite or not run.begun())
    if overwrite and dist.rank() == 0:
        run.clear()  # only now that the new run is known to start
    dist.any_rank(False, job.device)  # nobody looks for a checkpoint before it is gone
    start = begin(job, run)
    loggers = logs.open(recipe.monitor, run, start, recipe.leaves())
    every = max(1, round(recipe.train.checkpoint_every * job.loader.per_epoch))
    silent = quiet or dist.rank() > 0
    with interrupts() as asked, closing(loggers), display(recipe, job.loader.total, start, silent) as shown:
        book = Book(job, run, shown, monitor, loggers)
        for step, epoch, rates, out, norm in out_of_memory(job.run(start), recipe):
            book.note(step, epoch, rates, out, norm)
            if step == start and not quiet and dist.rank() == 0:
                announce(job)
            done = step + 1
            stop = bool(asked) if dist.world() == 1 else step % 10 == 9 and dist.any_rank(bool(asked), job.device)
            if done % every == 0 or done == job.loader.total or stop:
                book.checkpoint(done)
            if stop and done < job.loader.total:
                raise Interrupted(f"stopped after step {done} of {job.loader.total}; the same command goes on there")
        book.finish()


def announce(job: Job) -> None:
    """Say what a batch other than the recipe's own does to the rates."""
    batch = job.recipe.train.batch
    if job.recipe.sources.get("train.batch", "").startswith("--"):
        rates = [f"{name} {base:.4g} ({job.recipe.optim[name].rule})" for name, (base, _) in job.schedules.items()]
        print(f"a batch of {batch}: rates {', '.join(rates)}", file=sys.stderr)


def begin(job: Job, run: RunDir) -> int:
    """Write what describes the run, or take up what is there; returns the first step."""
    content = checkpoint.load(run, job.device)
    start = checkpoint.restore(content, job.learner, job.optims) if content else 0
    if dist.rank() == 0:
        run.path.mkdir(parents=True, exist_ok=True)
        job.recipe.write(run.path / "recipe.json")
        run.write_json("env.json", environment(job.device.type))
        run.rewind(start)
    return start


class Book:
    """Keeps the record of a run: metrics, health, checkpoints, the monitor's scores."""

    def __init__(
        self, job: Job, run: RunDir, shown: Shown, monitor: Monitor | None, loggers: Sequence[logs.Log] = ()
    ) -> None:
        self.job, self.run, self.shown, self.monitor, self.loggers = job, run, shown, monitor, loggers
        self.mine = dist.rank() == 0
        self.scores: dict[str, float] = {}
        self.clock, self.seen, self.warned = time.perf_counter(), 0, False

    def note(self, step: int, epoch: int, rates: dict[str, float], out: Output, norm: torch.Tensor) -> None:
        """Record a step where it is due; the device is asked for numbers only then."""
        plan, total = self.job.recipe.monitor, self.job.loader.total
        self.seen += self.job.loader.batch
        if step % plan.log_every == 0 or step + 1 == total:
            values = dist.mean(torch.stack([*out.metrics.values(), norm])).tolist()  # one transfer from the device
            row: dict[str, Any] = {
                "step": step,
                "epoch": epoch,
                **dict(zip([*out.metrics, "gradient"], values, strict=True)),
            }
            row |= {f"lr_{name}": rate for name, rate in rates.items()}
            row["images_per_second"] = self.seen / max(time.perf_counter() - self.clock, 1e-9)
            self.clock, self.seen = time.perf_counter(), 0
            if plan.health_every and (step % plan.health_every == 0 or step + 1 == total):
                row |= health.measure(self.job.learner, out.keys)
                mutual = health.bound(self.job.learner, row.get("contrast", 0.0), negatives(self.job))
                row |= {} if mutual is None else {"mi_bound": mutual}
            self._write(row, out.keys.shape)
        else:
            self.shown.advance(step)
        self._monitor(step, epoch)

    def _write(self, row: dict[str, Any], shape: torch.Size) -> None:
        self._record(row)
        self.shown.update(row, self.scores)
        trouble = health.complaint(row, min(shape))
        if trouble and (self.job.recipe.train.on_collapse == "stop"):
            raise Interrupted(f"{trouble}; stopped because train.on_collapse=stop")
        if trouble and not self.warned:
            warnings.warn(trouble, Unhealthy, stacklevel=2)
        self.warned = bool(trouble)

    def _monitor(self, step: int, epoch: int) -> None:
        every = self.job.recipe.monitor.knn_every
        ended = (step + 1) % self.job.loader.per_epoch == 0
        if self.monitor and every and ended and (epoch + 1) % every == 0:
            self.scores = self.monitor(self.job.learner, epoch)
            self._record({"step": step, "epoch": epoch, **self.scores})
            self.clock = time.perf_counter()

    def _record(self, row: dict[str, Any]) -> None:
        if self.mine:
            self.run.record(row)
        for logger in self.loggers:
            logger.row(row)

    def checkpoint(self, done: int) -> None:
        """Save on rank 0."""
        if self.mine:
            content = checkpoint.state(self.job.learner, self.job.optims, done)
            checkpoint.save(self.run, content, self.job.recipe.train.keep)

    def finish(self) -> None:
        """Write the backbone as it came out."""
        if self.mine:
            weights.write(self.job.learner.backbone, self.run.path / "backbone.safetensors")


def negatives(job: Job) -> int:
    """How many negatives a query meets, where that is one number: a queue, or the batch."""
    objective = job.learner.objective
    contrast = objective.contrast if isinstance(objective, Adversarial) else objective
    if not isinstance(contrast, Contrast):
        return 0
    images, count = job.loader.batch, 0
    for part in contrast.negatives:
        if isinstance(part, Queue):
            count += len(part.vectors)
        elif getattr(part, "pool", None):
            views = len(job.learner.key_views) if part.pool == "all" else 1
            count += getattr(part, "subset", None) or views * (images - 1)
    return count


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
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
