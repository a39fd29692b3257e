"""The gradient of the loss over a whole batch, while one part at a time passes the networks.

A loss over a batch needs the vectors of all its images, but the activations of only one part need
to be in memory. This takes two passes:

1. Each part passes the networks, and only its projections, predictions and keys are kept. The loss
   of all of them gives the gradient of each projection and prediction.
2. Each part passes the online network again, now with its activations, and the gradients of its
   vectors are propagated back.

Both passes see the same views, buffers and random numbers, so they compute the same vectors. The
gradient is that of the whole batch, except that batch norm computes the statistics of each part, as
if each part were on a rank of its own with as many groups. Running statistics become the mean of
those of the parts, which is the result of batch norm in as many groups as parts.
"""

import warnings
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from antipode.core.learner import Learner
from antipode.core.skip import Backup, changing
from antipode.training.graph import Slower, compile_graph
from antipode.types import Batch, Output

KEPT = 4 << 30  # bytes of views that are kept for the second pass; more are made again

Part = Callable[[], Batch]  # makes the views of one part of a batch
Precision = Callable[[], AbstractContextManager[Any]]


@dataclass(frozen=True)
class Passes:
    """The functions of a learner that a step calls, compiled or not."""

    forward: Callable[[Batch], Output]
    project: Callable[[Batch], tuple[Tensor, Tensor]]
    keys: Callable[[Batch], list[Tensor]]
    compare: Callable[[Tensor, Tensor, list[Tensor], Tensor], Output]
    compiled: bool = False

    @classmethod
    def of(cls, learner: Learner) -> "Passes":
        """Return the functions as they are."""
        return cls(learner, learner.project, learner.keys, learner.compare)

    def compile(self) -> "Passes":
        """Return the functions, each of which is compiled when it is called first."""
        return Passes(
            compile_graph(self.forward),
            compile_graph(self.project),
            compile_graph(self.keys),
            compile_graph(self.compare),
            compiled=True,
        )


class WholeBatch:
    """Compute the gradient of the loss over all parts of a batch.

    `draws` becomes True if the network draws random numbers, as dropout does. Such a step cannot be
    captured as a CUDA graph, because the second pass sets the state of the generators.
    """

    def __init__(self, learner: Learner) -> None:
        self.learner = learner
        self.state = Backup(changing(learner))
        self.device = learner.seed.device
        self.never = torch.zeros((), dtype=torch.bool, device=self.device)
        self.draws = False

    def __call__(self, passes: Passes, parts: Sequence[Part], precision: Precision) -> Output:
        """Add the gradient to all weights and return the output for the whole batch."""
        before = self.state.copies()
        vectors = _Vectors()
        after: list[list[Tensor]] = []
        generators: list[list[Tensor]] = []
        for make in parts:
            self.state.restore(before, self.never)
            batch = vectors.keep(make(), len(parts))
            generators.append(self._generators())
            self._first_pass(passes, batch, precision, vectors, generators[-1])
            after.append(self.state.copies().values)
        end = self._generators()
        out = self._loss(passes, precision, vectors)
        for index, make in enumerate(parts):
            self.state.restore(before, self.never)
            batch = vectors.kept[index] if vectors.kept else make()
            self._set_generators(generators[index])
            self._second_pass(passes, batch, precision, vectors.gradients(index))
        self._set_generators(end)
        means = [_mean(list(values)) for values in zip(*after, strict=True)]
        self.state.restore(before._replace(values=means), self.never)
        return out

    def _first_pass(
        self,
        passes: Passes,
        batch: Batch,
        precision: Precision,
        vectors: "_Vectors",
        start: list[Tensor],
    ) -> None:
        """Store the vectors of a part."""
        # One compiled function serves both passes, so that they agree to the last bit. The compiler
        # would make another one without gradients.
        with precision(), torch.set_grad_enabled(passes.compiled):
            z, p = passes.project(batch)
        self._note_draws(start)
        with precision(), torch.no_grad():
            keys = passes.keys(batch)
        vectors.add(z, p, keys, batch.image_ids)

    def _loss(self, passes: Passes, precision: Precision, vectors: "_Vectors") -> Output:
        """Return the output for the whole batch; compute the gradient of every vector."""
        with precision():
            out = passes.compare(*vectors.joined())
        out.loss.backward()  # type: ignore[no-untyped-call]
        return out._replace(loss=out.loss.detach())

    def _second_pass(
        self, passes: Passes, batch: Batch, precision: Precision, gradients: list[Tensor | None]
    ) -> None:
        """Propagate the gradients of a part's vectors back to the weights."""
        with precision():
            z, p = passes.project(batch)
        pairs = zip((z, p), gradients, strict=True)
        found = [(vector, along) for vector, along in pairs if along is not None]
        if found:
            torch.autograd.backward([vector for vector, _ in found], [along for _, along in found])

    def _generators(self) -> list[Tensor]:
        """Return the states of the generators that a network may draw from; none in a capture."""
        if self.device.type != "cuda":
            return [torch.get_rng_state()]
        if torch.cuda.is_current_stream_capturing():
            return []
        return [torch.get_rng_state(), torch.cuda.get_rng_state(self.device)]

    def _set_generators(self, states: list[Tensor]) -> None:
        """Set the states of the generators, if they have moved."""
        if states and self.draws:
            torch.set_rng_state(states[0])
            if len(states) > 1:
                torch.cuda.set_rng_state(states[1], self.device)

    def _note_draws(self, start: list[Tensor]) -> None:
        """Find out whether the network has drawn random numbers since the state `start`."""
        if self.draws or all(map(torch.equal, start, self._generators())):
            return
        self.draws = True
        if self.device.type == "cuda":
            text = "the network draws random numbers, so the step with train.negatives=batch is "
            warnings.warn(f"{text}not captured as a CUDA graph", Slower, stacklevel=2)


class _Vectors:
    """The vectors of all parts of a batch. Shapes: S and K views, n images of a part."""

    def __init__(self) -> None:
        self.kept: list[Batch] = []
        self.z: list[Tensor] = []
        self.p: list[Tensor] = []
        self.k: list[list[Tensor]] = []
        self.image_ids: list[Tensor] = []
        self.leaves: list[Tensor] = []

    def keep(self, part: Batch, count: int) -> Batch:
        """Return a part, and keep it if all `count` parts take little memory."""
        if count * sum(view.nbytes for view in part.views) <= KEPT:
            self.kept.append(part)
        return part

    def add(self, z: Tensor, p: Tensor, keys: list[Tensor], image_ids: Tensor) -> None:
        """Store projections and predictions (S,n,D) and keys (n,D) of each key view."""
        self.z.append(z.detach())
        self.p.append(self.z[-1] if p is z else p.detach())
        self.k.append([key.detach() for key in keys])
        self.image_ids.append(image_ids)

    def joined(self) -> tuple[Tensor, Tensor, list[Tensor], Tensor]:
        """Return projections, predictions, keys and ids of the whole batch, as `compare` does."""
        z = torch.cat(self.z, 1).requires_grad_()
        p = z if self.p[0] is self.z[0] else torch.cat(self.p, 1).requires_grad_()
        self.leaves = [z, p]
        keys = [torch.cat(column) for column in zip(*self.k, strict=True)]
        return z, p, keys, torch.cat(self.image_ids)

    def gradients(self, index: int) -> list[Tensor | None]:
        """Return the gradients of projections and predictions (S,n,D) of a part."""
        z, p = self.leaves
        size = self.z[0].shape[1]
        rows = slice(index * size, (index + 1) * size)
        along_z = None if z.grad is None else z.grad[:, rows]
        return [along_z, None if p is z or p.grad is None else p.grad[:, rows]]


def _mean(values: list[Tensor]) -> Tensor:
    """Return the mean of several states of some buffers; the last one of counters."""
    return torch.stack(values).mean(0) if values[0].is_floating_point() else values[-1]
