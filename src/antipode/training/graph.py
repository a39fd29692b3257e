"""Compilation and CUDA graphs make a step fast; if one fails, training continues without it."""

import re
import warnings
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from antipode import dist

Result = TypeVar("Result")
# steps that run eagerly before one is captured, as CUDA graphs require
WARM = 3


class Slower(UserWarning):
    """Compilation or capture failed, and training continues without it."""


class CapturedStep(Generic[Result]):
    """A step that runs as one CUDA graph after a few eager steps.

    A network that cannot be captured, because it reads values back from the device, runs without a
    graph.

    Args:
        body: the step, a function of tensors on the device whose shapes are always the same.
        what: what is captured, for the warning if that fails.
        unsettled: returns True while the step still changes, such as while AdCo's bank fills. A
            step is captured only after it has settled.
        together: all ranks take the step at the same time, and capture it together or not at all.
    """

    def __init__(
        self,
        body: Callable[..., Result],
        *,
        what: str,
        unsettled: Callable[[], bool] = lambda: False,
        together: bool = False,
    ) -> None:
        self.body = body
        self.what = what
        self.together = together
        self.unsettled = unsettled
        self.inputs: list[Tensor] = []  # a graph always reads the same memory
        self.graph: torch.cuda.CUDAGraph | None = None
        self.stream: torch.cuda.Stream | None = None
        self.eager_steps = 0
        self.can_capture = True

    def __call__(self, *inputs: Tensor) -> Result:
        """Run the step on these tensors."""
        if not self.inputs:
            self.inputs = [torch.empty_like(tensor) for tensor in inputs]
        torch._foreach_copy_(self.inputs, list(inputs))
        if self.graph is not None:
            self.graph.replay()
            return self.result
        # the settled step must have been compiled before: the compiler cannot run during a capture
        self.eager_steps = 0 if self.unsettled() else self.eager_steps + 1
        if self.can_capture and self.eager_steps > WARM:
            return self._capture()
        return self._eager()

    def _eager(self) -> Result:
        """Run the step on a side stream, as CUDA graphs require of the steps before a capture."""
        if self.stream is None:  # one for all steps: the allocator reserves memory for each stream
            self.stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            result = self.body(*self.inputs)
        torch.cuda.current_stream().wait_stream(self.stream)
        return result

    def _capture(self) -> Result:
        """Capture the step as a graph and run it; if the capture fails, warn and run it eagerly."""
        graph = torch.cuda.CUDAGraph()
        failure: RuntimeError | None = None
        if self.together:  # no collective of an earlier step may be under way during the capture
            torch.cuda.synchronize()
        try:
            # thread_local: another thread of the process group watches the collectives
            with torch.cuda.graph(graph, capture_error_mode="thread_local"):
                self.result = self.body(*self.inputs)
        except (torch.OutOfMemoryError, ValueError):
            raise
        except RuntimeError as error:  # your own network may read values back from the device
            failure = error
        failed = failure is not None
        if self.together:
            failed = dist.any_rank(failed, self.inputs[0].device)
        if failed:
            self.can_capture = False
            reason = failure or RuntimeError("it failed on another rank")
            warn_slower(f"capturing {self.what} as a CUDA graph", reason)
            return self._eager()
        self.graph = graph
        graph.replay()  # the capture itself computes nothing
        return self.result


def compiled(plain: Callable[..., Any], what: str) -> Callable[..., Any]:
    """Compile a function as one graph; if that fails, warn and use the plain function.

    `what` names the function in the warning.
    """
    fast: list[Callable[..., Any]] = [compile_graph(plain)]

    def call(*arguments: Any) -> Any:
        try:
            return fast[0](*arguments)
        except (torch.OutOfMemoryError, ValueError):
            raise
        except Exception as error:
            if fast[0] is plain:
                raise
            warn_slower(f"compiling {what}", error)
            fast[0] = plain
            return plain(*arguments)

    return call


def compile_graph(plain: Callable[..., Any]) -> Callable[..., Any]:
    """Compile a function as one graph, with the options that torch 2.11 needs."""
    fast = torch.compile(plain, fullgraph=True, dynamic=False, options=_options())
    return with_half_precision_saved(fast) if dist.active() else fast


def with_half_precision_saved(fast: Callable[..., Any]) -> Callable[..., Any]:
    """Let a compiled function save the bfloat16 inputs of batch norm for the backward pass.

    The statistics of batch norm are exchanged between ranks. The compiler does not want to compute
    a tensor again if it was used on both sides of such an exchange. Without this setting it saves
    the normalised activations in float32. The largest layers of ResNet-18 then took 67 microseconds
    to normalise in place of 42 (CIFAR-10, batch size 256, an H200).
    """
    from torch._functorch import config  # noqa: PLC0415  (slow to import)

    def call(*arguments: Any) -> Any:
        with config.patch(ban_recompute_used_far_apart=False):
            return fast(*arguments)

    return call


def _options() -> dict[str, Any]:
    """Return the compiler's options.

    torch 2.11 fails a wrong assertion when it fuses the reductions of grouped batch norm.
    """
    from torch._inductor import config  # noqa: PLC0415  (slow to import)

    known = hasattr(config.triton, "mix_order_reduction")
    return {"triton.mix_order_reduction": False} if known else {}


def warn_slower(what: str, error: Exception) -> None:
    """Warn that compilation or capture failed, with the reason in one line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    reason = lines[0] if lines else type(error).__name__
    if reason.endswith(":") and len(lines) > 1:
        # an exception in a worker process of the compiler: its cause is at the end of the traceback
        pattern = r"\w+(\.\w+)*(Error|Exception|Exceeded|OutOfResources)\b"
        causes = [line for line in lines if re.match(pattern, line)]
        reason = f"{reason} {(causes or lines)[-1]}"
    text = f"{what} failed ({reason[:300]}); training continues without it"
    warnings.warn(text, Slower, stacklevel=3)
