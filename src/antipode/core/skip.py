"""Steps that are skipped: the decision is taken on the device, and all state stays as it was.

A step whose loss or gradient is not finite must not change anything. The host does not wait for the
device to learn whether that is so. `finite` () bool is computed on the device instead, and every
write depends on it:

- Queue, memory and twin are large. They have an attribute `finite_step` and select by it in each
  write.
- All other buffers, such as the running statistics of batch norm, are small. They are copied before
  the step and restored afterwards.
- Optimisers read the flag on the device, see `optim.step_unless`.
"""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn


def chosen(finite: Tensor | None, new: Tensor, old: Tensor) -> Tensor:
    """Return `new` if the step is finite or was not checked (None), else `old`."""
    return new if finite is None else torch.where(finite, new, old)


class Conditional:
    """Context in which parts with an attribute `finite_step` write only if the flag is True."""

    def __init__(self, parts: Sequence[nn.Module], finite: Tensor | None) -> None:
        self.parts = parts
        self.finite = finite

    def __enter__(self) -> None:
        for part in self.parts:
            part.finite_step = self.finite  # type: ignore[assignment]

    def __exit__(self, *_: object) -> None:
        for part in self.parts:
            part.finite_step = None  # type: ignore[assignment]


def conditional_parts(net: nn.Module) -> list[nn.Module]:
    """Return the parts that can leave out a write by themselves."""
    return [part for part in net.modules() if hasattr(part, "finite_step")]


class Backup:
    """Tensors that a step may change, and that are restored if the step is skipped.

    Tensors of one type are copied together, because a GPU takes as long for a small kernel as for a
    large one.
    """

    def __init__(self, tensors: Iterable[Tensor]) -> None:
        by_type: dict[tuple[torch.dtype, torch.device], list[Tensor]] = {}
        for tensor in tensors:
            by_type.setdefault((tensor.dtype, tensor.device), []).append(tensor)
        self.groups = list(by_type.values())

    @torch.no_grad()
    def copies(self) -> list[Tensor]:
        """Return a copy of all tensors."""
        return [torch.cat([tensor.flatten() for tensor in group]) for group in self.groups]

    @torch.no_grad()
    def restore(self, copies: list[Tensor], finite: Tensor) -> None:
        """Write the copies back if the step is not finite."""
        for group, old, new in zip(self.groups, copies, self.copies(), strict=True):
            sizes = [tensor.numel() for tensor in group]
            parts = torch.split(torch.where(finite, new, old), sizes)
            shaped = [part.view(tensor.shape) for part, tensor in zip(parts, group, strict=True)]
            torch._foreach_copy_(group, shaped)


def changing(learner: nn.Module) -> list[Tensor]:
    """Return the tensors that a step of a learner changes without looking at the flag.

    These are all buffers, except the learner's own and those of parts with an attribute
    `finite_step`. Weights of a twin that are not trained are added, unless such a part updates
    them.
    """
    direct = {id(value) for value in learner.buffers(recurse=False)}
    for part in conditional_parts(learner):
        direct |= {id(value) for value in part.buffers(recurse=False)}
        direct |= {id(value) for value in part.parameters()}
    twin = getattr(learner, "twin", None)
    weights = [] if twin is None else [p for p in twin.parameters() if not p.requires_grad]
    return [value for value in (*learner.buffers(), *weights) if id(value) not in direct]
