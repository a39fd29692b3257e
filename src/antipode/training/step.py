"""One training step: forward, backward, clipping, optimisers, and the learner's own state."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from antipode import dist
from antipode.core.learner import Learner
from antipode.core.negatives import Bank
from antipode.core.skip import Backup, changing
from antipode.data.loader import Maker, uniforms
from antipode.optim import clip, step_unless
from antipode.training.graph import compile_graph, compiled, warn_slower
from antipode.types import Batch, Output

Optims = dict[str, torch.optim.Optimizer]


class Step:
    """One training step.

    With `accumulate` parts, the gradient is that of the mean over the parts, but in-batch negatives
    and batch norm see one part at a time. A queue or bank takes in the keys of all parts. Views are
    converted to the precision of the weights.

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
        clips: dict[str, float | None] | None = None,
    ) -> None:
        self.learner = learner
        self.optims = optims
        self.bf16 = bf16
        self.accumulate = accumulate
        self.groups = learner.groups()
        self.clips = clips or {}
        self.forward: Callable[[Batch], Output] = dist.parallel(learner, unused=filling(learner))
        # the function to fall back to, until the first compiled step has succeeded
        self.uncompiled: Callable[[Batch], Output] | None = None
        weight = next(learner.parameters())
        self.device = weight.device
        self.dtype = weight.dtype
        self.checks = True  # False only to measure what the check costs (benchmarks/finite.py)
        self.backup = Backup(changing(learner))
        self.skipped = torch.zeros((), dtype=torch.int64, device=self.device)
        self.streak = torch.zeros_like(self.skipped)

    def __call__(self, batch: Batch) -> tuple[Output, Tensor]:
        """Return the learner's output and the gradient norm () of the network before clipping."""
        if self.uncompiled is None:
            return self._run(batch)
        uncompiled = self.uncompiled
        self.uncompiled = None
        try:  # the backward pass, too, is compiled in the first step
            return self._run(batch)
        except (torch.OutOfMemoryError, ValueError):
            raise
        except Exception as error:
            warn_slower("compiling the learner", error)
            self.forward = uncompiled
            return self._run(batch)

    def compile(self) -> None:
        """Compile forward and backward pass as one graph; the first step shows if that works."""
        self.uncompiled = self.forward
        self.forward = compile_graph(self.forward)

    def _run(self, batch: Batch) -> tuple[Output, Tensor]:
        """Take a step, with the compiled or the plain forward pass."""
        copies = self.backup.copies() if self.checks else []
        out, norms = self._gradients(batch)
        finite = all_finite(out.loss, *norms.values()) if self.checks else None
        skip = None if finite is None else finite.logical_not().float()
        for optim in self.optims.values():
            step_unless(optim, skip)
        self.learner.after_step(out, finite)
        if finite is not None:
            self.backup.restore(copies, finite)
            self._count(finite)
        return out, norms["network"]

    def _gradients(self, batch: Batch) -> tuple[Output, dict[str, Tensor]]:
        """Compute the gradients of a batch and clip them.

        Returns the learner's output, and the gradient norm () of each group before clipping.
        """
        self._clear_gradients()
        outs = []
        batch = Batch([view.to(self.dtype) for view in batch.views], batch.image_ids)
        for part in parts(batch, self.accumulate):
            with self._precision():
                out = self.forward(part)
            (out.loss / self.accumulate).backward()  # type: ignore[no-untyped-call]
            # no autograd node may outlive its step: it belongs to the stream of that step, and a
            # capture uses another one
            outs.append(out._replace(loss=out.loss.detach()))
        norms = {name: clip(weights, self.clips.get(name)) for name, weights in self.groups.items()}
        out = outs[0] if len(outs) == 1 else by_part(joined(outs), self.accumulate)
        return out, norms

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
        out, norms = self._gradients(batch)
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
    step: Step, images: Tensor, views: Maker
) -> Callable[[Tensor, Tensor], tuple[Output, Tensor]]:
    """Return a step that starts from image ids: it selects the images, makes the views and trains.

    The returned function takes image ids (N,) and the key () of the random draws. `images` uint8
    (I,C,H,W) lie on the device. The learning rates and the progress of training are buffers, so the
    whole step can be captured as one CUDA graph.
    """
    render = compiled(views.apply, "the views")

    def run(image_ids: Tensor, key: Tensor) -> tuple[Output, Tensor]:
        draws = uniforms(key, image_ids, views)
        return step(Batch(render(images.index_select(0, image_ids), draws), image_ids))

    return run


@torch.no_grad()
def all_finite(*values: Tensor) -> Tensor:
    """Return whether all values () are finite, on all ranks: () bool on the device."""
    return dist.every_rank(torch.stack([value.detach() for value in values]).isfinite().all())


def filling(learner: nn.Module) -> bool:
    """Return True while AdCo's bank still takes in keys.

    The keys are counted on the host, so this does not synchronise with the device.
    """
    return any(part.filling for part in learner.modules() if isinstance(part, Bank))


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
    if world == 1:
        return out

    def reordered(values: Tensor) -> Tensor:
        places = torch.arange(world * n, device=values.device)
        places = places.view(world, count, n // count).transpose(0, 1).flatten()
        return dist.gather(values)[places[dist.rank() * n : (dist.rank() + 1) * n]]

    return out._replace(keys=reordered(out.keys), image_ids=reordered(out.image_ids))
