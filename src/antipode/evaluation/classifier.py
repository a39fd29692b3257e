"""Linear classifiers on a frozen backbone, trained on augmented images.

Shapes: N images, S classifiers that are trained side by side, C classes, D features, H W pixels.
"""

from collections.abc import Callable, Iterator
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import Optimizer

from antipode import dist, rng
from antipode.core.scores import raised
from antipode.data.chunks import uniforms
from antipode.data.decoders import evaluation_decoder
from antipode.data.loader import Loader, cores, in_order
from antipode.data.progress import bar
from antipode.data.sources.source import Memory, Source
from antipode.data.views.policy import linear
from antipode.data.views.views import Views
from antipode.evaluation.pixels import as_evaluated
from antipode.evaluation.shares import joined, places, shared
from antipode.evaluation.task import Task
from antipode.optim import set_rate
from antipode.training.graph import CapturedStep

# step, steps per epoch -> factor of the base learning rate
Factor = Callable[[int, int], float]
# views (N,C,H,W) -> features (N,D)
Features = Callable[[Tensor], Tensor]
# one step, of views (N,C,H,W) and image ids (N,)
Learn = Callable[[Tensor, Tensor], None]
# one step, of what the loader yields
Step = Callable[..., None]

CROP = (0.08, 1.0)  # the share of the image area that a training crop covers


class Heads(nn.Module):
    """S linear classifiers (C,D) on the same features.

    All start from the same weights, so that they differ only by their learning rates. `decoder` is
    "cpu", "gpu" or "both": who decoded the images that they were trained on.
    """

    def __init__(self, count: int, classes: int, width: int, *, std: float, seed: int) -> None:
        super().__init__()
        start = std * torch.randn(classes, width, generator=rng.generator(seed, "classifier"))
        self.weights = nn.ParameterList(start.clone() for _ in range(count))
        self.biases = nn.ParameterList(torch.zeros(classes) for _ in range(count))
        self.decoder = "cpu"

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits (S,N,C) of features (N,D)."""
        weights = torch.stack(list(self.weights))
        biases = torch.stack(list(self.biases))
        return torch.baddbmm(biases[:, None], x.expand(len(weights), -1, -1), weights.mT)

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the sum () over classifiers of the mean cross-entropy.

        It is a sum, so that the gradient of a classifier does not depend on the others.
        """
        logits = self(x)
        return len(logits) * F.cross_entropy(logits.flatten(0, 1), y.repeat(len(logits)))

    def finite(self) -> list[bool]:
        """Return for each classifier whether all its weights are finite.

        A classifier whose weights have overflowed would still get an accuracy.
        """
        pairs = zip(self.weights, self.biases, strict=True)
        return [bool(weight.isfinite().all() and bias.isfinite().all()) for weight, bias in pairs]


def width(task: Task) -> int:
    """Return the number of features D of the backbone."""
    shape = (1, task.splits.channels, task.size, task.size)
    blank = torch.zeros(shape, dtype=torch.uint8, device=task.device)
    return embed(task.backbone, task.eval_view(blank)[0]).shape[1]


def augmented(eval_view: Views) -> Views:
    """Return the views to train a classifier: a random crop and flip, not the centre crop.

    The operations after the crop are those of the evaluation view, so that the backbone gets pixels
    that are normalised as in its own training.
    """
    return as_evaluated(linear(eval_view.sizes[0], eval_view.normal, scale=CROP), eval_view)


@torch.no_grad()
def embed(backbone: nn.Module, view: Tensor) -> Tensor:
    """Return features (N,D) of views (N,C,H,W) in at least float32.

    On a GPU the backbone computes in bfloat16. The views are processed in parts, because a batch of
    4096 images may not fit into memory.
    """
    if not view.is_cuda:
        view = view.to(next(backbone.parameters(), view).dtype)
        return raised(torch.cat([backbone(part) for part in torch.split(view, 256)]))
    view = view.contiguous(memory_format=torch.channels_last)
    with torch.autocast("cuda", dtype=torch.bfloat16, enabled=torch.cuda.is_bf16_supported()):
        return torch.cat([backbone(part) for part in torch.split(view, 1024)]).float()


def judge(
    task: Task, heads: Heads, source: Source, features: Features
) -> tuple[list[float], list[float]]:
    """Return the top-1 and the top-5 accuracy in percent of each of the S classifiers."""
    right = graded(task, heads, source, features)[0].double()
    return (100 * right[:, :, 0].mean(1)).tolist(), (100 * right.sum(2).mean(1)).tolist()


@torch.no_grad()
def graded(task: Task, heads: Heads, source: Source, features: Features) -> tuple[Tensor, Tensor]:
    """Return which of the best five classes of each image is the right one, and the labels (N,).

    The first tensor is bool (S,N,5), with the best class first. It has fewer than five columns if
    there are fewer classes. Both tensors are on the CPU. The ranks share the images.
    """
    ours = shared(source)
    labels = _labels(ours, task.device)
    workers = cores(dist.world())
    hits = []
    seen = []
    with bar(len(ours), "test") as done:
        for view, ids in in_order(ours, task.eval_view, device=task.device, workers=workers):
            logits = heads(features(view))  # (S,N,C)
            best = logits.topk(min(5, logits.shape[2]), 2).indices
            seen.append(labels[ids.to(task.device)])
            hits.append(best == seen[-1][:, None])
            done(len(ids))
    rows = joined(torch.cat(hits, 1).transpose(0, 1).contiguous(), len(source))
    return rows.transpose(0, 1).cpu(), joined(torch.cat(seen), len(source)).cpu()


def decoding(heads: Heads) -> dict[str, str]:
    """Return who decoded the images of a training, to record with a score, if a GPU did."""
    return {} if heads.decoder == "cpu" else {"decoder": heads.decoder}


def fit(
    task: Task,
    heads: Heads,
    source: Source,
    features: Features,
    moves: list[tuple[Optimizer, float]],
    factor: Factor,
    *,
    batch: int,
    epochs: int,
) -> None:
    """Train classifiers on random crops of a source.

    The host synchronises with the device once per epoch. The ranks share every batch, and gradients
    are averaged over the ranks. The crops of an image are the same for any number of ranks.

    Args:
        task: the backbone and the data set.
        heads: the classifiers, which are trained in place.
        source: the images and labels.
        features: function from views (N,C,H,W) to features (N,D).
        moves: each optimiser with its base learning rate.
        factor: the factor of the base learning rates at a step.
        batch: the batch size.
        epochs: the number of epochs.
    """
    views = augmented(task.eval_view)
    loader = Loader(
        source,
        views,
        batch=batch,
        epochs=epochs,
        seed=task.seed,
        device=task.device,
        **evaluation_decoder(source, views, task.device),
        **places(batch),
    )
    heads.decoder = loader.decoded_by
    optimisers = [optimiser for optimiser, _ in moves]
    learn = learning(heads, _labels(source, task.device), features, optimisers)
    # The memory of a captured step is not free for others. A trained network may need all of it.
    frozen = len(weights_of(optimisers)) == len(list(heads.parameters()))
    with bar(loader.total * batch, "classifier") as done, loader.beside():
        for step, take_step in _steps(loader, learn, frozen):
            for optimiser, rate in moves:
                set_rate(optimiser, rate * factor(step, loader.per_epoch))
            take_step()
            done(batch)


def weights_of(optimisers: list[Optimizer]) -> list[Tensor]:
    """Return all weights that optimisers change."""
    groups = [group for optimiser in optimisers for group in optimiser.param_groups]
    return [weight for group in groups for weight in group["params"]]


def learning(
    heads: Heads, labels: Tensor, features: Features, optimisers: list[Optimizer]
) -> Learn:
    """Return a function that takes one step with views (N,C,H,W) of images with ids (N,)."""
    weights = weights_of(optimisers)

    def learn(view: Tensor, image_ids: Tensor) -> None:
        for optimiser in optimisers:
            optimiser.zero_grad(set_to_none=True)
        loss = heads.loss(features(view), labels.index_select(0, image_ids))
        loss.backward()  # type: ignore[no-untyped-call]
        dist.average_gradients(weights)
        for optimiser in optimisers:
            optimiser.step()

    return learn


def _steps(loader: Loader, learn: Learn, frozen: bool) -> Iterator[tuple[int, Callable[[], None]]]:
    """Yield the number of each step and a function that takes it.

    On a GPU, the steps of images in memory, and those of a frozen network, run as a CUDA graph.
    """
    source = loader.source
    on_gpu = loader.device.type == "cuda"
    if not isinstance(source, Memory):

        def on_crops(image_ids: Tensor, planned_ids: Tensor, key: Tensor, crops: Tensor) -> None:
            draws = uniforms(key, planned_ids, loader.views)
            learn(loader.views.finish([crops], draws)[0], image_ids)

        step_of_crops = _captured(on_crops) if on_gpu and frozen else on_crops
        for number, _, inputs in loader.inputs():
            yield number, partial(step_of_crops, *inputs)
        return

    def body(image_ids: Tensor, key: Tensor) -> None:
        draws = uniforms(key, image_ids, loader.views)
        learn(loader.views.apply(source.images.index_select(0, image_ids), draws)[0], image_ids)

    train_step = _captured(body) if on_gpu else body
    for number, _, image_ids, key in loader.plan():
        yield number, partial(train_step, image_ids, key)


def _captured(step: Step) -> Step:
    return CapturedStep(step, what="the classifier's step", together=dist.active())


def _labels(source: Source, device: torch.device) -> Tensor:
    """Return the labels (N,) of a source that `Task.labelled` has checked."""
    assert source.labels is not None
    return source.labels.to(device)
