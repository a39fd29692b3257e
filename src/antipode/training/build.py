"""Build everything that a recipe describes: data, views, learner, optimisers and loader."""

import threading
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import nn

from antipode import dist, optim
from antipode.core.learner import Learner
from antipode.data.decoders import loader_arguments
from antipode.data.loader import Loader
from antipode.data.sources.catalog import load
from antipode.data.sources.source import Memory
from antipode.data.sources.splits import Splits
from antipode.data.views.views import Views
from antipode.data.views.views import views as make_views
from antipode.devices import pick_device
from antipode.nets import weights
from antipode.nets.backbone import Stem, Wrapped
from antipode.nets.backbone import backbone as make_backbone
from antipode.nets.norm import BatchNorm, ranks_of_group
from antipode.nets.timm_net import embeddings, freeze_patch_projection, patches
from antipode.papers import build as build_learner
from antipode.recipe.datasets import dataset_defaults
from antipode.recipe.own_data import STEM
from antipode.recipe.recipe import Recipe
from antipode.schedule import Schedule, scaled
from antipode.training.graph import CapturedStep
from antipode.training.step import Optims, Step, step_on_crops, step_on_images
from antipode.types import Output

# weights are drawn from torch's global generator, so only one thread at a time may draw
DRAWING = threading.Lock()
FEW_PATCHES = 16  # a vision transformer with fewer patches per image causes a warning


@dataclass
class Setup:
    """Everything that the training loop needs, on its device."""

    recipe: Recipe
    device: torch.device
    learner: Learner
    optims: Optims
    schedules: dict[str, tuple[float, Schedule]]  # base learning rate and schedule of each group
    loader: Loader
    step: Step

    def prepare(self, step: int) -> dict[str, float]:
        """Set learning rates and progress for a step; return the learning rates."""
        rates = {}
        for name, (base, schedule) in self.schedules.items():
            rates[name] = base * schedule.factor(step, self.loader.per_epoch)
            optim.set_rate(self.optims[name], rates[name])
        self.learner.before_step(step / self.loader.total)
        return rates

    def run(self, start: int) -> Iterator[tuple[int, int, dict[str, float], Output, torch.Tensor]]:
        """Yield step, epoch, learning rates, output and gradient norm of all steps from `start`."""
        take = self._whole_step()
        for step, epoch, inputs in self.loader.inputs(start):
            rates = self.prepare(step)
            yield step, epoch, rates, *take(*inputs)

    def is_finite_at(self, step: int) -> bool:
        """Return True if loss and gradient are finite for the images of a step.

        Takes no step: all state stays as it is.
        """
        _, _, batch = next(self.loader.steps(step))
        return self.step.is_finite_on(batch)

    def compile(self) -> None:
        """Compile the step. What was compiled for earlier runs of this process is dropped.

        The compiler counts versions of a function over all learners of a process. After eight it
        would refuse to compile another one, for example in a sweep over temperatures.
        """
        torch.compiler.reset()
        self.step.compile()

    def _whole_step(self) -> Callable[..., tuple[Output, torch.Tensor]]:
        """Return the step from what the loader yields to the updated learner.

        On a GPU it is compiled, and captured as one CUDA graph after a few steps.
        """
        compiles = self.recipe.train.compile != "off" and self.device.type == "cuda"
        if compiles:
            self.compile()
        source = self.loader.source
        if isinstance(source, Memory):
            body = step_on_images(self.step, source.images, self.loader.views, compiles)
        else:
            body = step_on_crops(self.step, self.loader.views, compiles)
        if not compiles:
            return body
        return CapturedStep(
            body,
            what="the step",
            unsettled=lambda: not self.step.settled,
            together=dist.active(),
        )


def build(
    recipe: Recipe,
    splits: Splits | None = None,
    backbone: nn.Module | None = None,
    fresh: bool = True,
    decoder: str | None = None,
) -> Setup:
    """Build data, views, learner, optimisers and loader of a recipe, on its device.

    `splits` and `backbone` replace those that the recipe names. `fresh` is False if a checkpoint
    will replace the weights, so that pretrained weights need not be loaded. `decoder` says where
    JPEG is decoded if the recipe leaves that open ("auto"); by default the workers decode.
    """
    device = pick_device(recipe.train.device)
    dist.setup(device.type)
    _set_backends(recipe, device)
    _check_accumulation(recipe)
    section = recipe.data
    data = splits or load(
        section.name, root=section.root, download=section.download, labels=section.labels
    )
    views = make_views(
        recipe.views.policy,
        size=recipe.views.size,
        mean=data.mean,
        std=data.std,
        **recipe.views.arguments,
    ).to(device)
    learner = _learner(recipe, data, views, device, backbone, fresh)
    _check_groups(learner)
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
        reduced=recipe.data.reduced_decode,
        **loader_arguments(decoder or recipe.data.decoder, data.pretrain, views, device),
    )
    optims, schedules = optimisers(recipe, learner)
    step = Step(
        learner,
        optims,
        bf16=bf16(recipe, device),
        accumulate=recipe.train.accumulate,
        whole=recipe.train.negatives == "batch",
        clips={name: recipe.optim[name].clip for name in optims},
    )
    return Setup(recipe, device, learner, optims, schedules, loader, step)


def _set_backends(recipe: Recipe, device: torch.device) -> None:
    """Set the global settings of torch; the training loop restores them afterwards."""
    if recipe.train.deterministic:
        torch.use_deterministic_algorithms(True, warn_only=device.type == "cuda")
    # all batches have one shape; searching for the fastest kernels made SimCLR's step 6 % and
    # BYOL's 7 % faster than cuDNN's own choice (H200)
    if device.type == "cuda":
        torch.backends.cudnn.benchmark = not recipe.train.deterministic


def _check_accumulation(recipe: Recipe) -> None:
    """Raise ValueError if the images of a rank do not divide into equal parts."""
    share = recipe.train.batch // dist.world()
    if share % recipe.train.accumulate:
        raise ValueError(
            f"train.accumulate={recipe.train.accumulate} does not divide the {share} images of "
            f"each of {dist.world()} ranks"
        )


def _check_groups(learner: Learner) -> None:
    """Raise ValueError if the statistics groups of batch norm do not fit the number of ranks.

    An evaluation on any number of ranks builds learners, too, but computes no statistics.
    """
    for part in learner.modules():
        if isinstance(part, BatchNorm):
            ranks_of_group(part.groups)


def _learner(
    recipe: Recipe,
    data: Splits,
    views: Views,
    device: torch.device,
    backbone: nn.Module | None,
    fresh: bool,
) -> Learner:
    """Build the learner on its device; raise ValueError if it cannot process the views."""
    # Try the views once: the policy may reject the channels of the images, or the network the size
    # of the views. The generator is our own, since torch's raises after a failed capture on a GPU.
    blank = torch.zeros(2, data.channels, 8, 8, dtype=torch.uint8, device=device)
    sample = views(blank, torch.Generator())
    sizes = sorted({view.shape[-1] for view in sample})
    learner = initial_learner(recipe, data.channels, sizes[-1], backbone, fresh)
    if isinstance(learner.backbone, Wrapped):  # your own network may not process all view sizes
        for size in sizes:
            learner.backbone.tried(data.channels, size)
    _warn_of_few_patches(recipe, learner.backbone)
    if learner.views != views.count:
        raise ValueError(
            f"{recipe.method.name} needs {learner.views} views of each image but "
            f"{recipe.views.policy} makes {views.count}"
        )
    learner.to(device)
    if double(recipe, device):
        learner.double()
    if recipe.train.channels_last and not (device.type == "cpu" and has_tiny_strides(learner)):
        learner.to(memory_format=torch.channels_last)
    return learner


def has_tiny_strides(net: nn.Module) -> bool:
    """Return True if a network has 1 x 1 convolutions with a stride and few input channels.

    In channels-last format, their backward pass on a CPU with AVX2 writes outside of its memory
    with fewer than 8 input channels (torch 2.15): the process crashes or never ends.
    """
    return any(
        part.kernel_size == (1, 1) and part.stride != (1, 1) and part.in_channels < 8
        for part in net.modules()
        if isinstance(part, nn.Conv2d)
    )


def _warn_of_few_patches(recipe: Recipe, net: nn.Module) -> None:
    """Warn if a vision transformer sees an image as a handful of patches."""
    count = patches(net)
    if count is not None and count < FEW_PATCHES and dist.first():
        warnings.warn(
            f"{recipe.backbone.name} divides views of {recipe.views.size} px into {count} patches, "
            f"and fewer than {FEW_PATCHES} show little of an image: state a smaller patch, such as "
            "timm:vit_tiny_patch16_224?patch_size=4",
            stacklevel=5,
        )


def initial_learner(
    recipe: Recipe,
    channels: int,
    size: int,
    backbone: nn.Module | None = None,
    fresh: bool = True,
) -> Learner:
    """Return the learner with its weights before training, on the CPU.

    `channels` and `size` describe the largest views. The other arguments are those of `build`.
    """
    with DRAWING:
        torch.manual_seed(recipe.train.seed)
        net = make_backbone(
            recipe.backbone.name if backbone is None else backbone,
            stem=recipe.backbone.stem if backbone is None else None,
            channels=channels,
            size=size,
        )
        if recipe.backbone.freeze_patches:
            freeze_patch_projection(net)
        if recipe.backbone.weights and fresh:
            weights.start(net, recipe.backbone.name, recipe.backbone.weights, _named_stem(recipe))
        method = recipe.method
        return build_learner(
            method.name, net, channels=channels, seed=recipe.train.seed, **method.arguments
        )


def _named_stem(recipe: Recipe) -> Stem | None:
    """Return the stem that the user has named, None if it is the data set's default."""
    usual = dataset_defaults(recipe.data.name).layer["backbone.stem"]
    default = recipe.sources.get("backbone.stem") in (usual[1], STEM)
    return None if default else recipe.backbone.stem


def optimisers(
    recipe: Recipe, learner: Learner
) -> tuple[Optims, dict[str, tuple[float, Schedule]]]:
    """Return one optimiser and one schedule for each of the learner's parameter groups."""
    groups = learner.groups()
    absent = [name for name in groups if name not in recipe.optim]
    if absent:
        raise ValueError(
            f"{recipe.method.name} trains the group {absent[0]!r}, but optim.{absent[0]} is not set"
        )
    optims: Optims = {}
    schedules: dict[str, tuple[float, Schedule]] = {}
    for name, parameters in groups.items():
        section = recipe.optim[name]
        base = scaled(section.lr, section.rule, recipe.train.batch, learner.views)
        optims[name] = optim.make(
            parameters,
            name=section.name,
            lr=base,
            momentum=section.momentum,
            weight_decay=section.weight_decay,
            nesterov=section.nesterov,
            exclude=section.exclude,
            variant=section.variant,
            capturable=parameters[0].is_cuda,
            embeddings=embeddings(learner.backbone),
        )
        schedules[name] = base, section.scheduled(recipe.train.epochs)
    return optims, schedules


def bf16(recipe: Recipe, device: torch.device) -> bool:
    """Return True if networks run under bfloat16 autocast: by default on GPUs that support it.

    It is never the default on a CPU, since bfloat16 autocast crashes on some CPUs.
    """
    if recipe.train.precision == "auto":
        return device.type == "cuda" and torch.cuda.is_bf16_supported()
    return recipe.train.precision == "bf16"


def double(recipe: Recipe, device: torch.device) -> bool:
    """Return True if everything after the views is computed in float64.

    One process and several processes then agree to many digits. Raises ValueError on MPS devices,
    which have no float64.
    """
    if recipe.train.precision == "fp64" and device.type == "mps":
        raise ValueError("train.precision=fp64 needs a CPU or a CUDA device: mps has no float64")
    return recipe.train.precision == "fp64"
