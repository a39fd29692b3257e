"""One step of training: eager, compiled, or as one CUDA graph from image ids to updated queue."""

import re
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from antipode import dist
from antipode.core.learner import Learner
from antipode.core.negatives import Bank
from antipode.data.loader import Maker, uniforms
from antipode.optim import clip
from antipode.types import Batch, Output

Optims = dict[str, torch.optim.Optimizer]


WARM = 3  # steps that run eagerly before one is captured


class Slower(UserWarning):
    """Compilation or capture failed, and training goes on without it."""


class Step:
    """Forward, backward, clipping, optimisers and the learner's own writing.

    With `accumulate` parts, gradients are those of the mean over parts, but in-batch negatives and batch norm see one
    part at a time: a queue or bank takes in the keys of all parts. Views take the precision of the weights.
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
        self.learner, self.optims, self.bf16, self.accumulate = learner, optims, bf16, accumulate
        self.groups, self.clips = learner.groups(), clips or {}
        self.forward: Callable[[Batch], Output] = dist.parallel(learner, unused=filling(learner))
        self.plain: Callable[[Batch], Output] | None = (
            None  # what to fall back to while compilation is untried
        )
        weight = next(learner.parameters())
        self.device, self.dtype = weight.device, weight.dtype

    def __call__(self, batch: Batch) -> tuple[Output, Tensor]:
        """What the learner gave out, and the gradient norm () of the network before clipping."""
        if self.plain is None:
            return self._run(batch)
        plain, self.plain = self.plain, None
        try:  # the backward pass, too, is compiled in the first step
            return self._run(batch)
        except (torch.OutOfMemoryError, ValueError):
            raise
        except Exception as error:
            slower("compiling the learner", error)
            self.forward = plain
            return self._run(batch)

    def _run(self, batch: Batch) -> tuple[Output, Tensor]:
        for optim in self.optims.values():
            optim.zero_grad(set_to_none=True)
        outs = []
        batch = Batch([view.to(self.dtype) for view in batch.views], batch.image_ids)
        for part in parts(batch, self.accumulate):
            with self._precision():
                out = self.forward(part)
            (out.loss / self.accumulate).backward()  # type: ignore[no-untyped-call]
            # no node of the pass may outlive it: it belongs to the stream of its step, and a capture has another
            outs.append(out._replace(loss=out.loss.detach()))
        norms = {name: clip(weights, self.clips.get(name)) for name, weights in self.groups.items()}
        for optim in self.optims.values():
            optim.step()
        out = outs[0] if len(outs) == 1 else by_part(joined(outs), self.accumulate)
        self.learner.after_step(out)
        return out, norms["network"]

    def compile(self) -> None:
        """Compile the forward, and with it the backward, as one graph; the first step shows whether that works."""
        self.plain = self.forward
        self.forward = torch.compile(
            self.forward, fullgraph=True, dynamic=False, options=_options()
        )

    def _precision(self) -> AbstractContextManager[Any]:
        return (
            torch.autocast(self.device.type, dtype=torch.bfloat16) if self.bf16 else nullcontext()
        )


class Graph:
    """A whole step in one CUDA graph: ids in, images by index, draws, views, Step. Rates and progress are buffers."""

    def __init__(self, step: Step, images: Tensor, views: Maker, count: int) -> None:
        self.step, self.images, self.views = step, images, views
        self.render = compiled(views.apply, "compiling the views")
        self.image_ids = torch.arange(count, device=images.device)
        self.key = torch.zeros((), dtype=torch.int64, device=images.device)
        self.graph: torch.cuda.CUDAGraph | None = None
        self.warm, self.able = 0, True
        self.stream: torch.cuda.Stream | None = None

    def __call__(self, image_ids: Tensor, key: Tensor) -> tuple[Output, Tensor]:
        """The step of these images; the first ones run eagerly on a side stream, as capture demands."""
        self.image_ids.copy_(image_ids)
        self.key.copy_(key)
        if self.graph is not None:
            self.graph.replay()
            return self.result
        # a bank that is full makes another step, and the compiler must have seen that one before it is captured
        self.warm = 0 if filling(self.step.learner) else self.warm + 1
        return self._capture() if self.able and self.warm > WARM else self._aside()

    def _body(self) -> tuple[Output, Tensor]:
        chance = uniforms(self.key, self.image_ids, self.views)
        views = self.render(self.images.index_select(0, self.image_ids), chance)
        return self.step(Batch(views, self.image_ids))

    def _aside(self) -> tuple[Output, Tensor]:
        if self.stream is None:  # one for all steps: the allocator keeps memory for each
            self.stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            result = self._body()
        torch.cuda.current_stream().wait_stream(self.stream)
        return result

    def _capture(self) -> tuple[Output, Tensor]:
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph):
                self.result = self._body()
        except (torch.OutOfMemoryError, ValueError):
            raise
        except RuntimeError as error:  # a network of one's own may ask the host what a tensor holds
            self.able = False
            slower("capturing the step as a CUDA graph", error)
            return self._aside()
        self.graph = graph
        graph.replay()  # capturing itself computes nothing
        return self.result


def filling(learner: nn.Module) -> bool:
    """Whether AdCo's bank still takes in keys, which is counted on the host."""
    return any(part.filling for part in learner.modules() if isinstance(part, Bank))


def parts(batch: Batch, count: int) -> list[Batch]:
    """The batch in `count` equal parts."""
    if count == 1:
        return [batch]
    pieces = [view.chunk(count) for view in batch.views]
    return [
        Batch(list(views), image_ids)
        for *views, image_ids in zip(*pieces, batch.image_ids.chunk(count), strict=True)
    ]


def joined(outs: list[Output]) -> Output:
    """What several parts gave out, as one."""
    names = outs[0].metrics
    return Output(
        torch.stack([out.loss for out in outs]).mean(),
        {name: torch.stack([out.metrics[name] for out in outs]).mean() for name in names},
        torch.cat([out.keys for out in outs]),
        torch.cat([out.image_ids for out in outs]),
    )


@torch.no_grad()
def by_part(out: Output, count: int) -> Output:
    """The keys so that a gather gives them as one process has them, part by part; a rank has its share of each part."""
    world, n = dist.world(), len(out.keys)
    if world == 1:
        return out

    def turned(values: Tensor) -> Tensor:
        places = (
            torch.arange(world * n, device=values.device)
            .view(world, count, n // count)
            .transpose(0, 1)
            .flatten()
        )
        return dist.gather(values)[places[dist.rank() * n : (dist.rank() + 1) * n]]

    return out._replace(keys=turned(out.keys), image_ids=turned(out.image_ids))


def compiled(plain: Callable[..., Any], what: str) -> Callable[..., Any]:
    """A function compiled as one graph; where that fails, it says so and goes on without."""
    fast: list[Callable[..., Any]] = [
        torch.compile(plain, fullgraph=True, dynamic=False, options=_options())
    ]

    def call(*arguments: Any) -> Any:
        try:
            return fast[0](*arguments)
        except (torch.OutOfMemoryError, ValueError):
            raise
        except Exception as error:
            if fast[0] is plain:
                raise
            slower(what, error)
            fast[0] = plain
            return plain(*arguments)

    return call


def _options() -> dict[str, Any]:
    """What the compiler must be told: torch 2.11 asserts wrongly when it fuses reductions of batch norm in groups."""
    from torch._inductor import config  # noqa: PLC0415

    known = hasattr(config.triton, "mix_order_reduction")
    return {"triton.mix_order_reduction": False} if known else {}


def slower(what: str, error: Exception) -> None:
    """Say that something fast did not work."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [
        type(error).__name__
    ]
    reason = lines[0]
    if (
        reason.endswith(":") and len(lines) > 1
    ):  # a worker's exception: the cause is where its traceback ends
        trace = [
            line
            for line in lines
            if re.match(r"\w+(\.\w+)*(Error|Exception|Exceeded|OutOfResources)\b", line)
        ]
        reason = f"{reason} {(trace or lines)[-1]}"
    warnings.warn(
        f"{what} failed ({reason[:300]}); training goes on without it", Slower, stacklevel=3
    )
