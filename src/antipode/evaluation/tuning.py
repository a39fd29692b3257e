"""The loop of fine-tuning: a backbone and a linear classifier on crops of labelled images.

Shapes: N images, C classes, D features, H W pixels.
"""

import copy
import math
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from antipode import dist, optim, rng
from antipode.data.chunks import uniforms
from antipode.data.decoders import evaluation_decoder
from antipode.data.loader import Loader, in_order
from antipode.data.progress import bar
from antipode.data.sources.source import Memory, Source, subset
from antipode.data.views.operation import Crop
from antipode.data.views.policy import View
from antipode.data.views.views import Views
from antipode.evaluation.classifier import Features, Heads, embed, width
from antipode.evaluation.linear import one_label
from antipode.evaluation.pixels import as_evaluated
from antipode.evaluation.shares import divides, mine, over_ranks, places
from antipode.evaluation.task import Task
from antipode.optim import set_rate
from antipode.schedule import Schedule
from antipode.training.graph import CapturedStep

CROP = (0.35, 1.0)  # the share of the image area that a training crop covers
MEASURED = 2048  # train images by which the features are standardised
LENGTH = 16.0  # the root mean square norm of standardised features

# views (N,C,H,W), ids (N,) of their labels -> loss ()
Learn = Callable[[Tensor, Tensor], Tensor]
Steps = Generator[Callable[[], Tensor], None, None]


@dataclass(frozen=True, kw_only=True)
class Tuning:
    """The settings of a fine-tuning.

    Args:
        epochs: the number of passes over the train images.
        batch: the number of images per step.
        lr: the learning rate of the backbone, or None if it is frozen in eval mode.
        classifier_lr: the learning rate of the classifier.
        optimiser: SGD with Nesterov momentum 0.9, or AdamW.
        weight_decay: the weight decay of weights; biases and norm scales have none.
        warmup: the number of epochs of a linear warm-up, before a cosine schedule to 0.
        balanced: whether every class is shown equally often.
        flip: the probability of a horizontal flip.
        standardised: whether the classifier starts from standardised features. This is folded into
            its weights at the end.
        crop: the share of the image area that a training crop covers.
    """

    epochs: int
    batch: int
    lr: float | None
    classifier_lr: float
    optimiser: Literal["sgd", "adamw"]
    weight_decay: float
    warmup: float
    balanced: bool = False
    flip: float = 0.5
    standardised: bool = True
    crop: tuple[float, float] = CROP


class Tuned(NamedTuple):
    """The result of a fine-tuning."""

    backbone: nn.Module  # in eval mode
    heads: Heads  # the classifier, as the only one
    losses: list[float]  # the mean train loss of each epoch


def tune(task: Task, tuning: Tuning) -> Tuned:
    """Train a classifier and a copy of the backbone on the train images, and return both.

    A seed gives the same result again on the same machine. The ranks share every batch. Without
    dropout, the result does not depend on the number of ranks.
    """
    source = one_label(task, "train")
    devices = [task.device] if task.device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):  # dropout draws from torch's generator
        torch.manual_seed(task.seed + dist.rank())  # images of other ranks have their own dropout
        net = over_ranks(copy.deepcopy(task.backbone), tuning.batch)
        net = net.requires_grad_(tuning.lr is not None).eval()
        heads = Heads(1, task.classes, width(task), std=0.01, seed=task.seed).to(task.device)
        centre, scale = _statistics(task, tuning, net, source)
        losses = _train(task, tuning, source, net, heads, (centre, scale))
    _fold(heads, centre, scale)
    _check_finite(net, heads, tuning)
    return Tuned(net.eval().requires_grad_(False), heads.requires_grad_(False), losses)


def _train(
    task: Task,
    tuning: Tuning,
    source: Source,
    net: nn.Module,
    heads: Heads,
    statistics: tuple[Tensor, Tensor],
) -> list[float]:
    """Train the classifier and the network in place, and return the mean loss of each epoch.

    The host synchronises with the device once per epoch.
    """
    assert source.labels is not None
    labels = source.labels.to(task.device)
    centre, scale = statistics
    # before the optimisers, whose state has the memory layout of the weights
    features = partial(embed, net) if tuning.lr is None else _trainable(net, task.device)
    moves = _moves(tuning, net, heads)
    weights = [*heads.parameters(), *([] if tuning.lr is None else net.parameters())]

    def learn(view: Tensor, image_ids: Tensor) -> Tensor:
        for optimiser, _ in moves:
            optimiser.zero_grad(set_to_none=True)
        loss = heads.loss((features(view) - centre) * scale, labels.index_select(0, image_ids))
        loss.backward()  # type: ignore[no-untyped-call]
        dist.average_gradients(weights)
        for optimiser, _ in moves:
            optimiser.step()
        return loss.detach()

    per_epoch = len(source) // tuning.batch
    schedule = Schedule(name="cosine", epochs=tuning.epochs, warmup=tuning.warmup, start=0.1)
    total = torch.zeros((), device=task.device)
    losses: list[float] = []
    images = tuning.epochs * per_epoch * tuning.batch
    # closed also after an error: this ends the workers and the use of another stream
    with (
        closing(_steps(task, tuning, source, heads, learn)) as steps,
        bar(images, "fine-tuning", least=1) as done,
    ):
        for step in range(tuning.epochs * per_epoch):
            for optimiser, rate in moves:
                set_rate(optimiser, rate * schedule.factor(step, per_epoch))
            total += next(steps)()
            done(tuning.batch)
            if (step + 1) % per_epoch == 0:
                losses.append(dist.mean(total).item() / per_epoch)
                total.zero_()
                if not math.isfinite(losses[-1]):  # the weights, too, will never be finite again
                    _check_finite(net, heads, tuning)
    return losses


def _steps(task: Task, tuning: Tuning, source: Source, heads: Heads, learn: Learn) -> Steps:
    """Yield a function for each step. It takes the step and returns the loss ().

    There are at least as many steps as the epochs of the settings have. `heads.decoder` is set to
    who decodes the images.
    """
    table = _table(source, tuning.balanced)
    rows = table.to(task.device)
    views = mild(task.eval_view, tuning).to(task.device)
    if isinstance(source, Memory):
        yield from _resident(task, tuning, source, rows, views, learn)
        return
    shown = subset(source, table) if tuning.balanced else source
    loader = Loader(
        shown,
        views,
        batch=tuning.batch,
        epochs=tuning.epochs,
        seed=task.seed,
        device=task.device,
        **evaluation_decoder(shown, views, task.device),
        **places(tuning.batch),
    )
    heads.decoder = loader.decoded_by
    with loader.beside():  # the caller takes a step while this generator waits: on the same stream
        for _, _, batch in loader.steps():
            yield partial(learn, batch.views[0], rows.index_select(0, batch.image_ids))


def _resident(
    task: Task, tuning: Tuning, source: Memory, rows: Tensor, views: Views, learn: Learn
) -> Steps:
    """Yield the steps of images in memory, in the order in which `Loader` would show them.

    The images of small classes are in `rows` several times, and are not copied. On a GPU the steps
    run as a CUDA graph.
    """
    device = task.device
    images = source.images.to(device)

    def body(at: Tensor, key: Tensor) -> Tensor:
        ids = rows.index_select(0, at)
        draws = uniforms(key, at, views)  # repeated images get different crops
        return learn(views.apply(images.index_select(0, ids), draws)[0], ids)

    train_step: Callable[[Tensor, Tensor], Tensor] = body
    if device.type == "cuda":
        together = dist.active()
        train_step = CapturedStep(body, what="the step of fine-tuning", together=together)
    for epoch in range(tuning.epochs):
        order = rng.permutation(rng.key(task.seed, "order", epoch, device=device), len(rows))
        key = rng.key(task.seed, "augment", epoch, device=device)
        for first in range(0, len(rows) - tuning.batch + 1, tuning.batch):
            yield partial(train_step, mine(order[first : first + tuning.batch]), key)


def _table(source: Source, balanced: bool) -> Tensor:
    """Return the ids of the images that an epoch shows.

    They are all images once. With `balanced`, the images of smaller classes are repeated until
    every class has as many as the largest.
    """
    if not balanced:
        return torch.arange(len(source))
    assert source.labels is not None
    labels = source.labels.cpu()
    counts = labels.bincount().tolist()
    most = max(counts)
    members = [(labels == label).nonzero().flatten() for label, n in enumerate(counts) if n]
    return torch.cat([ids[torch.arange(most) % len(ids)] for ids in members])


def mild(eval_view: Views, tuning: Tuning) -> Views:
    """Return the views of fine-tuning: a random crop and flip.

    Colours stay as they are, since they may belong to a class. The operations after the crop are
    those of the evaluation view.
    """
    size = eval_view.sizes[0]
    crop = Crop(size, tuning.crop, flip=tuning.flip)
    return as_evaluated([View(size, (crop, eval_view.normal))], eval_view)


def _moves(tuning: Tuning, net: nn.Module, heads: Heads) -> list[tuple[Optimizer, float]]:
    """Return the optimisers of the classifier and of a trained network, with learning rates."""
    rates = {heads: tuning.classifier_lr} | ({} if tuning.lr is None else {net: tuning.lr})
    return [
        (
            optim.make(
                list(module.parameters()),
                name=tuning.optimiser,
                lr=0.0,  # set at every step
                weight_decay=tuning.weight_decay,
                nesterov=tuning.optimiser == "sgd",
                exclude=True,
                capturable=next(heads.parameters()).is_cuda,
            ),
            rate,
        )
        for module, rate in rates.items()
    ]


def _trainable(net: nn.Module, device: torch.device) -> Features:
    """Put a network into training mode and return the function from views to its features.

    On a GPU the network computes in bfloat16 and with channels in the last place.
    """
    net.train()
    if device.type != "cuda":
        return net
    net.to(memory_format=torch.channels_last)

    def features(view: Tensor) -> Tensor:
        with _precision(device):
            result: Tensor = net(view.contiguous(memory_format=torch.channels_last))
        return result.float()

    return features


def _precision(device: torch.device) -> AbstractContextManager[Any]:
    """Return bfloat16 autocast on a GPU that supports it, else a context without effect."""
    return torch.autocast("cuda", dtype=torch.bfloat16) if half(device) else nullcontext()


def half(device: torch.device) -> bool:
    """Return True if networks are trained in bfloat16 on a device."""
    return device.type == "cuda" and torch.cuda.is_bf16_supported()


# The scale of features


@torch.no_grad()
def _statistics(
    task: Task, tuning: Tuning, net: nn.Module, source: Source
) -> tuple[Tensor, Tensor]:
    """Return the mean (D,) of the features of train images, and the factors (D,) on them.

    With both, every feature has the same variance, and the mean squared norm is LENGTH squared.
    The features of methods differ in scale by more than a factor of 10, and one learning rate would
    not suit them all. If they are not to be standardised, the features stay as they are.
    """
    if not tuning.standardised:
        return torch.zeros(width(task), device=task.device), torch.ones((), device=task.device)
    sample = _sample(task, tuning, net, source)
    dtype = sample.dtype
    x = sample.double()
    if not bool(x.isfinite().all()):
        raise ValueError("the backbone has features that are NaN or infinite")
    spread = x.std(0, correction=0)
    spread = spread.clamp(min=max(0.1 * spread.mean().item(), 1e-12))  # some features may be dead
    scale = LENGTH / math.sqrt(x.shape[1]) / spread
    return x.mean(0).to(task.device, dtype), scale.to(task.device, dtype)


def _sample(task: Task, tuning: Tuning, net: nn.Module, source: Source) -> Tensor:
    """Return the features (n,D) of at most MEASURED train images, on the CPU.

    A network that will be trained computes them with batch statistics, as in its first step. Other
    images than those of its pretraining may have other statistics.
    """
    trains = tuning.lr is not None
    net = copy.deepcopy(net).train() if trains else net  # running statistics stay as they are
    order = rng.permutation(rng.key(task.seed, "scale of features"), len(source))
    most = max(1, MEASURED // tuning.batch) * tuning.batch
    count = min(most, len(source) // tuning.batch * tuning.batch)  # whole batches
    batches = [mine(ids) for ids in torch.split(order[:count], tuning.batch)]
    sample = subset(source, torch.cat(batches))
    views = in_order(sample, task.eval_view, batch=len(batches[0]), device=task.device)
    x = torch.cat([embed(net, view) for view, _ in views])
    return (dist.gather(x) if divides(tuning.batch) else x).cpu()


@torch.no_grad()
def _fold(heads: Heads, centre: Tensor, scale: Tensor) -> None:
    """Change the classifier so that it takes features as they are, with equal logits."""
    weight, bias = heads.weights[0], heads.biases[0]
    folded = weight.cpu().double() * scale.cpu().double()
    bias.copy_(bias.cpu().double() - folded @ centre.cpu().double())
    weight.copy_(folded)


def _check_finite(net: nn.Module, heads: Heads, tuning: Tuning) -> None:
    """Raise ValueError if training ended with weights that are not finite."""
    finite = all(bool(value.isfinite().all()) for value in net.state_dict().values())
    if not (finite and all(heads.finite())):
        tried = tuning.classifier_lr if tuning.lr is None else tuning.lr
        raise ValueError(
            f"training ended with weights that are NaN or infinite: the learning rate {tried:g} is "
            "too high"
        )
