"""Linear classifiers on a frozen backbone, trained on augmented images.

N images, S classifiers side by side, C classes, D features, H W pixels.
"""

import warnings
from collections.abc import Callable, Iterator
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import Optimizer

from antipode import rng
from antipode.data.loader import Loader, in_order, uniforms
from antipode.data.progress import bar
from antipode.data.sources.source import Memory, Source
from antipode.data.views.operation import Centre
from antipode.data.views.policy import View, linear
from antipode.data.views.views import Views
from antipode.evaluation.task import Task
from antipode.optim import set_rate

Factor = Callable[[int, int], float]  # step, steps in an epoch -> share of the base rate
Features = Callable[[Tensor], Tensor]  # views (N,C,H,W) -> features (N,D)
Body = Callable[[Tensor, Tensor], None]  # image ids (N,), key () of the views' draws
WARM = 3  # steps before a capture, as CUDA graphs demand
CROP = (0.08, 1.0)  # share of an image that a crop in training has


class Heads(nn.Module):
    """S linear classifiers (C,D) that see the same features; all start alike, so that only their rates differ."""

    def __init__(self, count: int, classes: int, width: int, *, std: float, seed: int) -> None:
        super().__init__()
        start = std * torch.randn(classes, width, generator=rng.generator(seed, "classifier"))
        self.weights = nn.ParameterList(start.clone() for _ in range(count))
        self.biases = nn.ParameterList(torch.zeros(classes) for _ in range(count))

    def forward(self, x: Tensor) -> Tensor:
        """Logits (S,N,C) of features (N,D)."""
        weights, biases = torch.stack(list(self.weights)), torch.stack(list(self.biases))
        return torch.baddbmm(biases[:, None], x.expand(len(weights), -1, -1), weights.mT)

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        """The sum () of the classifiers' mean cross-entropies: none has a part in another's gradient."""
        logits = self(x)
        return len(logits) * F.cross_entropy(logits.flatten(0, 1), y.repeat(len(logits)))

    def finite(self) -> list[bool]:
        """Which of the S have not overflowed: the others would still score something."""
        pairs = zip(self.weights, self.biases, strict=True)
        return [bool(weight.isfinite().all() and bias.isfinite().all()) for weight, bias in pairs]


def width(task: Task) -> int:
    """D."""
    blank = torch.zeros(
        1, task.splits.channels, task.size, task.size, dtype=torch.uint8, device=task.device
    )
    return embed(task.backbone, task.eval_view(blank)[0]).shape[1]


def augmented(eval_view: Views) -> Views:
    """Crop and flip in place of the centre, then the pixels as the backbone has always seen them."""
    view = eval_view.policy[0]
    crop = linear(view.size, eval_view.normal, scale=CROP)[0].operations[0]
    rest = [operation for operation in view.operations if not isinstance(operation, Centre)]
    return Views([View(view.size, (crop, *rest))], eval_view.normal)


@torch.no_grad()
def embed(backbone: nn.Module, view: Tensor) -> Tensor:
    """Features float32 (N,D) of views (N,C,H,W); bfloat16 inside on a GPU; in parts, as 4096 images may not fit."""
    if not view.is_cuda:
        return torch.cat([backbone(few) for few in torch.split(view, 256)]).float()
    view = view.contiguous(memory_format=torch.channels_last)
    with torch.autocast("cuda", dtype=torch.bfloat16, enabled=torch.cuda.is_bf16_supported()):
        return torch.cat([backbone(few) for few in torch.split(view, 1024)]).float()


@torch.no_grad()
def judge(
    task: Task, heads: Heads, source: Source, features: Features
) -> tuple[list[float], list[float]]:
    """Top-1 and top-5 accuracy in percent of each of S classifiers."""
    labels, hits = _labels(source, task.device), []
    with bar(len(source), "test") as done:
        for view, ids in in_order(source, task.eval_view, device=task.device):
            logits = heads(features(view))  # (S,N,C)
            best = logits.topk(min(5, logits.shape[2]), 2).indices
            hits.append(best == labels[ids.to(task.device)][:, None])
            done(len(ids))
    right = torch.cat(hits, 1).double()  # (S,N,5)
    return (100 * right[:, :, 0].mean(1)).tolist(), (100 * right.sum(2).mean(1)).tolist()


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
    """Train on crops of a source, each optimiser from its own rate on. The host waits for the device once an epoch."""
    loader = Loader(
        source,
        augmented(task.eval_view),
        batch=batch,
        epochs=epochs,
        seed=task.seed,
        device=task.device,
    )
    labels = _labels(source, task.device)

    def learn(view: Tensor, image_ids: Tensor) -> None:
        for optimiser, _ in moves:
            optimiser.zero_grad(set_to_none=True)
        heads.loss(features(view), labels.index_select(0, image_ids)).backward()  # type: ignore[no-untyped-call]
        for optimiser, _ in moves:
            optimiser.step()

    with bar(loader.total * batch, "classifier") as done:
        for step, go in _steps(loader, learn):
            for optimiser, rate in moves:
                set_rate(optimiser, rate * factor(step, loader.per_epoch))
            go()
            done(batch)


def _steps(
    loader: Loader, learn: Callable[[Tensor, Tensor], None]
) -> Iterator[tuple[int, Callable[[], None]]]:
    """Every step and what does it: a CUDA graph where the images lie on a GPU."""
    source = loader.source
    if not isinstance(source, Memory):
        for step, _, batch in loader.steps():
            yield step, partial(learn, batch.views[0], batch.image_ids)
        return

    def body(image_ids: Tensor, key: Tensor) -> None:
        chance = uniforms(key, image_ids, loader.views)
        learn(loader.views.apply(source.images.index_select(0, image_ids), chance)[0], image_ids)

    run: Body = Graph(body, loader.batch, loader.device) if loader.device.type == "cuda" else body
    for step, _, image_ids, key in loader.plan():
        yield step, partial(run, image_ids, key)


class Graph:
    """A step as one CUDA graph. A network that cannot be captured, because it asks the host, runs without."""

    def __init__(self, body: Body, count: int, device: torch.device) -> None:
        self.body = body
        self.image_ids = torch.zeros(count, dtype=torch.int64, device=device)
        self.key = torch.zeros((), dtype=torch.int64, device=device)
        self.graph: torch.cuda.CUDAGraph | None = None
        self.done, self.able = 0, True

    def __call__(self, image_ids: Tensor, key: Tensor) -> None:
        """The step of these images (N,)."""
        self.image_ids.copy_(image_ids)
        self.key.copy_(key)
        if self.able and self.graph is None and self.done == WARM:
            self._capture()
        self.done += 1
        if self.graph is not None:
            self.graph.replay()
        else:
            self._aside()

    def _aside(self) -> None:
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            self.body(self.image_ids, self.key)
        torch.cuda.current_stream().wait_stream(stream)

    def _capture(self) -> None:
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph):
                self.body(self.image_ids, self.key)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            self.able = False
            reason = (str(error).strip().splitlines() or ["no reason given"])[0]
            warnings.warn(
                f"the classifier trains without a CUDA graph, which failed ({reason[:200]})",
                stacklevel=2,
            )
        else:
            self.graph = graph


def _labels(source: Source, device: torch.device) -> Tensor:
    assert source.labels is not None  # Task.labelled has seen to it
    return source.labels.to(device)
