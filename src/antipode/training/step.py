"""One training step: forward, backward, clipping, optimisers, and the learner's own state."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from antipode import dist
from antipode.core.learner import Learner
from antipode.core.negatives import Bank
from antipode.core.skip import Backup, changing
from antipode.data.chunks import Maker, uniforms
from antipode.optim import clip, step_unless
from antipode.training.graph import compiled, warn_slower
from antipode.training.whole_batch import Part, Passes, WholeBatch
from antipode.types import Batch, Output

Optims = dict[str, torch.optim.Optimizer]
CAPTURED_PARTS = 16  # the most parts of a step that is captured as a CUDA graph


class Step:
    """One training step.

    With `accumulate` parts, only one part of the batch at a time passes the networks, and batch
    norm sees one part at a time. The loss is the mean over the parts, each with its own in-batch
    negatives, or with `whole` the loss of the whole batch (whole_batch.py). A queue or bank takes
    in the keys of all parts. Views are converted to the precision of the weights.

    A step whose loss or gradient norm is not finite is skipped: weights, optimisers, twin, queue,
    bank, memory and running statistics stay as they were. This is decided on the device, and the
    host does not wait for it. `skipped` () counts such steps, `streak` () those since the last
    finite step.
    """

    def __init__(
        self,
        learner: Learner,
        optims: Optims,
        *,
        bf16: bool,
        accumulate: int = 1,
        whole: bool = False,
        clips: dict[str, float | None] | None = None,
    ) -> None:
        self.learner = learner
        self.optims = optims
        self.bf16 = bf16
        self.accumulate = accumulate
        self.groups = learner.groups()
        self.clips = clips or {}
        dist.share_state(learner)
        self.passes = Passes.of(learner)
        # the functions to fall back to, until the first compiled step has succeeded
        self.uncompiled: Passes | None = None
        self.whole = WholeBatch(learner) if whole and accumulate > 1 else None
        weight = next(learner.parameters())
        self.device = weight.device
        self.dtype = weight.dtype
        self.checks = True  # False only to measure what the check costs (benchmarks/finite.py)
        self.backup = Backup(changing(learner))
        self.skipped = torch.zeros((), dtype=torch.int64, device=self.device)
        self.streak = torch.zeros_like(self.skipped)

    def __call__(self, batch: Batch) -> tuple[Output, Tensor]:
        """Return the learner's output and the gradient norm () of the network before clipping."""
        return self.on_parts(ready(batch, self.accumulate))

    def on_parts(self, parts: Sequence[Part]) -> tuple[Output, Tensor]:
        """Take a step on a batch whose parts are made when they are needed."""
        if self.uncompiled is None:
            return self._run(parts)
        uncompiled = self.uncompiled
        self.uncompiled = None
        copies = self.backup.copies()
        try:  # the backward pass, too, is compiled in the first step
            return self._run(parts)
        except (torch.OutOfMemoryError, ValueError):
            raise
        except Exception as error:
            warn_slower("compiling the learner", error)
            self.passes = uncompiled
            # the forward pass may have succeeded, and have changed the running statistics
            self.backup.restore(copies, torch.zeros((), dtype=torch.bool, device=self.device))
            return self._run(parts)

    def compile(self) -> None:
        """Compile forward and backward pass as one graph; the first step shows if that works."""
        self.uncompiled = self.passes
        self.passes = self.passes.compile()

    @property
    def settled(self) -> bool:
        """True if all later steps do the same work, so that one of them can be captured.

        A step of many parts is never captured: its graph would have a hundred thousand kernels, and
        parts of many images hide the time that it takes to launch kernels.
        """
        if self.accumulate > CAPTURED_PARTS or (self.whole and self.whole.draws):
            return False
        return not filling(self.learner)

    def _run(self, parts: Sequence[Part]) -> tuple[Output, Tensor]:
        """Take a step, with the compiled or the plain forward pass."""
        copies = self.backup.copies() if self.checks else None
        out, norms = self._gradients(parts)
        finite = all_finite(out.loss, *norms.values()) if self.checks else None
        skip = None if finite is None else finite.logical_not().float()
        for optim in self.optims.values():
            step_unless(optim, skip)
        self.learner.after_step(out, finite)
        if finite is not None and copies is not None:
            self.backup.restore(copies, finite)
            self._count(finite)
        return out, norms["network"]

    def _gradients(self, parts: Sequence[Part]) -> tuple[Output, dict[str, Tensor]]:
        """Compute the gradients of a batch, average them over the ranks, and clip them.

        Returns the learner's output, and the gradient norm () of each group before clipping.
        """
        self._clear_gradients()
        made = [partial(self._converted, part) for part in parts]
        if self.whole is None:
            out = self._mean_over(made)
        else:
            out = self.whole(self.passes, made, self._precision)
        dist.average_gradients(weight for group in self.groups.values() for weight in group)
        norms = {name: clip(weights, self.clips.get(name)) for name, weights in self.groups.items()}
        return by_part(out, len(made)), norms

    def _mean_over(self, parts: Sequence[Part]) -> Output:
        """Add up the gradient of the mean loss over parts, and return their joined output."""
        outs = []
        for part in parts:
            with self._precision():
                out = self.passes.forward(part())
            (out.loss / len(parts)).backward()  # type: ignore[no-untyped-call]
            # no autograd node may outlive its step: it belongs to the stream of that step, and a
            # capture uses another one
            outs.append(out._replace(loss=out.loss.detach()))
        return outs[0] if len(outs) == 1 else joined(outs)

    def _converted(self, part: Part) -> Batch:
        """Make a part with views in the precision of the weights."""
        batch = part()
        return Batch([view.to(self.dtype) for view in batch.views], batch.image_ids)

    def _clear_gradients(self) -> None:
        """Drop the gradients of the step before."""
        for optim in self.optims.values():
            optim.zero_grad(set_to_none=True)

    @torch.no_grad()
    def _count(self, finite: Tensor) -> None:
        """Count a skipped step, on the device."""
        skip = finite.logical_not()
        self.skipped.add_(skip)
        self.streak.add_(1).mul_(skip)

    def is_finite_on(self, batch: Batch) -> bool:
        """Return True if loss and gradient of a batch are finite; all state stays as it is."""
        copies = self.backup.copies()
        out, norms = self._gradients(ready(batch, self.accumulate))
        finite = all_finite(out.loss, *norms.values())
        self.backup.restore(copies, torch.zeros_like(finite))
        self._clear_gradients()
        return bool(finite)

    def _precision(self) -> AbstractContextManager[Any]:
        """Return bfloat16 autocast, or a context without effect."""
        if self.bf16:
            return torch.autocast(self.device.type, dtype=torch.bfloat16)
        return nullcontext()


def step_on_images(
    step: Step, images: Tensor, views: Maker, compiles: bool = False
) -> Callable[..., tuple[Output, Tensor]]:
    """Return a step that starts from image ids: it selects the images, makes the views and trains.

    The returned function takes image ids (N,) and the key () of the random draws. `images` uint8
    (I,C,H,W) lie on the device. The learning rates and the progress of training are buffers, so the
    whole step can be captured as one CUDA graph.
    """
    render, draw = _makers(views.apply, views, compiles)

    def make(image_ids: Tensor, key: Tensor) -> Batch:
        return Batch(render(images.index_select(0, image_ids), draw(key, image_ids)), image_ids)

    def run(image_ids: Tensor, key: Tensor) -> tuple[Output, Tensor]:
        return step.on_parts([partial(make, ids, key) for ids in image_ids.chunk(step.accumulate)])

    return run


def step_on_crops(
    step: Step, views: Maker, compiles: bool = False
) -> Callable[..., tuple[Output, Tensor]]:
    """Return a step that starts from decoded crops: it makes the views and trains.

    The returned function takes image ids (N,), the ids (N,) and the key () of the random draws, and
    V crops uint8 (N,C,S,S) on the device.
    """
    render, draw = _makers(views.finish, views, compiles)

    def make(key: Tensor, image_ids: Tensor, planned_ids: Tensor, *crops: Tensor) -> Batch:
        return Batch(render(list(crops), draw(key, planned_ids)), image_ids)

    def run(
        image_ids: Tensor, planned_ids: Tensor, key: Tensor, *crops: Tensor
    ) -> tuple[Output, Tensor]:
        columns = [part.chunk(step.accumulate) for part in (image_ids, planned_ids, *crops)]
        return step.on_parts([partial(make, key, *part) for part in zip(*columns, strict=True)])

    return run


def _makers(
    render: Callable[..., list[Tensor]], views: Maker, compiles: bool
) -> tuple[Callable[..., list[Tensor]], Callable[[Tensor, Tensor], Tensor]]:
    """Return the function that makes views and the one that draws their numbers, compiled if asked.

    The draws are compiled on their own. Otherwise the compiler would hash again for every pixel,
    and without compilation the draws take 81 kernels.
    """
    draw = partial(uniforms, views=views)
    if not compiles:
        return render, draw
    return compiled(render, "the views"), compiled(draw, "the random draws of the views")


@torch.no_grad()
def all_finite(*values: Tensor) -> Tensor:
    """Return whether all values () are finite, on all ranks: () bool on the device."""
    return dist.every_rank(torch.stack([value.detach() for value in values]).isfinite().all())


def filling(learner: nn.Module) -> bool:
    """Return True while AdCo's bank still takes in keys.

    The keys are counted on the host, so this does not synchronise with the device.
    """
    return any(part.filling for part in learner.modules() if isinstance(part, Bank))


def ready(batch: Batch, count: int) -> list[Part]:
    """Return the `count` parts of a batch whose views exist already."""
    return [lambda part=part: part for part in parts(batch, count)]  # type: ignore[misc]


def parts(batch: Batch, count: int) -> list[Batch]:
    """Split a batch into `count` equal parts."""
    if count == 1:
        return [batch]
    pieces = [view.chunk(count) for view in batch.views]
    return [
        Batch(list(views), image_ids)
        for *views, image_ids in zip(*pieces, batch.image_ids.chunk(count), strict=True)
    ]


def joined(outs: list[Output]) -> Output:
    """Return the outputs of several parts as one: loss and metrics averaged, keys concatenated."""
    names = outs[0].metrics
    return Output(
        torch.stack([out.loss for out in outs]).mean(),
        {name: torch.stack([out.metrics[name] for out in outs]).mean() for name in names},
        torch.cat([out.keys for out in outs]),
        torch.cat([out.image_ids for out in outs]),
    )


@torch.no_grad()
def by_part(out: Output, count: int) -> Output:
    """Reorder the keys of this rank, so that a gather over ranks gives the order of one process.

    One process has its keys part by part, and every rank has a share of each of the `count` parts.
    """
    world = dist.world()
    n = len(out.keys)
    if world == 1 or count == 1:
        return out

    def reordered(values: Tensor) -> Tensor:
        places = torch.arange(world * n, device=values.device)
        places = places.view(world, count, n // count).transpose(0, 1).flatten()
        return dist.gather(values)[places[dist.rank() * n : (dist.rank() + 1) * n]]

    return out._replace(keys=reordered(out.keys), image_ids=reordered(out.image_ids))
