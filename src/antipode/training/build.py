"""What a recipe builds: data, views, learner, optimisers and loader, on its device."""

import threading
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import nn

from antipode import dist, optim
from antipode.core.learner import Learner
from antipode.data.loader import Loader
from antipode.data.sources.catalog import load
from antipode.data.sources.source import Memory
from antipode.data.sources.splits import Splits
from antipode.data.views.views import views as make_views
from antipode.nets import weights
from antipode.nets.backbone import Wrapped
from antipode.nets.backbone import backbone as make_backbone
from antipode.papers import build as build_learner
from antipode.recipe.resolve import Recipe
from antipode.schedule import Schedule, scaled
from antipode.training.step import Graph, Optims, Step
from antipode.types import Output


@dataclass
class Setup:
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
        for step, epoch, image_ids, key in self.loader.plan(start):
            rates = self.prepare(step)
            yield step, epoch, rates, *graph(image_ids, key)

    def _graph(self) -> Graph | None:
        """A graph of the whole step, on one GPU with a data set that lives there."""
        fast = (
            self.recipe.train.compile != "off" and self.device.type == "cuda" and dist.world() == 1
        )
        if not fast:
            return None
        self.step.compile()
        source = self.loader.source
        if not isinstance(source, Memory):
            return None
        return Graph(self.step, source.images, self.loader.views, self.loader.batch)


DRAWING = (
    threading.Lock()
)  # weights come from torch's one generator: runs in threads draw theirs one after the other


def build(
    recipe: Recipe,
    splits: Splits | None = None,
    backbone: nn.Module | None = None,
    fresh: bool = True,
) -> Setup:
    """Data, views, learner, optimisers and loader of a recipe, on its device; a checkpoint will follow if not fresh."""
    device = pick_device(recipe.train.device)
    dist.setup(device.type)
    if recipe.train.deterministic:
        torch.use_deterministic_algorithms(True, warn_only=device.type == "cuda")
    # all batches have one shape; the search made SimCLR's step 6 % and BYOL's 7 % faster than cuDNN's guesses (H200)
    if device.type == "cuda":
        torch.backends.cudnn.benchmark = not recipe.train.deterministic
    share = recipe.train.batch // dist.world()
    if share % recipe.train.accumulate:
        each = f"the {share} images of each of {dist.world()} ranks"
        raise ValueError(f"train.accumulate={recipe.train.accumulate} does not divide {each}")
    data = splits or load(recipe.data.name, root=recipe.data.root, download=recipe.data.download)
    policy = dict(recipe.views.arguments)
    views = make_views(
        recipe.views.policy, size=recipe.views.size, mean=data.mean, std=data.std, **policy
    ).to(device)
    # a policy may refuse the channels, a network the sizes
    with DRAWING:
        seen = views(torch.zeros(2, data.channels, 8, 8, dtype=torch.uint8, device=device))
    sizes = sorted({view.shape[-1] for view in seen})
    named = (recipe.backbone.name, recipe.backbone.stem) if backbone is None else (backbone, None)
    with DRAWING:
        torch.manual_seed(recipe.train.seed)
        net = make_backbone(named[0], stem=named[1], channels=data.channels, size=sizes[-1])
        if recipe.backbone.weights and fresh:
            weights.start(net, recipe.backbone.name, recipe.backbone.weights)
        learner = build_learner(
            recipe.method.name,
            net,
            channels=data.channels,
            seed=recipe.train.seed,
            **recipe.method.arguments,
        )
    if isinstance(learner.backbone, Wrapped):
        for size in sizes:
            learner.backbone.tried(data.channels, size)
    if learner.views != views.count:
        made = f"{recipe.views.policy} makes {views.count}"
        raise ValueError(
            f"{recipe.method.name} needs {learner.views} views of each image but {made}"
        )
    learner.to(device)
    if double(recipe, device):
        learner.double()
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
        parts=recipe.train.accumulate,
        device=device,
        workers=recipe.data.workers,
    )
    optims, schedules = optimisers(recipe, learner)
    clips = {name: recipe.optim[name].clip for name in optims}
    step = Step(
        learner, optims, bf16=bf16(recipe, device), accumulate=recipe.train.accumulate, clips=clips
    )
    return Setup(recipe, device, learner, optims, schedules, loader, step)


def optimisers(
    recipe: Recipe, learner: Learner
) -> tuple[Optims, dict[str, tuple[float, Schedule]]]:
    """One optimiser and one schedule for each of the learner's parameter groups."""
    groups = learner.groups()
    absent = [name for name in groups if name not in recipe.optim]
    if absent:
        raise ValueError(
            f"{recipe.method.name} trains the group {absent[0]!r}, but optim.{absent[0]} is not set"
        )
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
    if name not in ("auto", "cpu", "cuda", "mps"):
        raise ValueError(f"the device is one of auto, cpu, cuda, mps, not {name!r}")
    if name == "auto":
        name = (
            "cuda"
            if torch.cuda.is_available()
            else "mps"
            if torch.backends.mps.is_available()
            else "cpu"
        )
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


def double(recipe: Recipe, device: torch.device) -> bool:
    """Whether everything from the views on is float64: one process and several then agree to many digits."""
    if recipe.train.precision == "fp64" and device.type == "mps":
        raise ValueError("train.precision=fp64 needs a CPU or a CUDA device: mps has no float64")
    return recipe.train.precision == "fp64"
