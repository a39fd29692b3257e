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
from typing import Any, NamedTuple

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


class Slot(NamedTuple):
    """The place of a tensor: the buffers or parameters of a module, and its name among them."""

    entries: dict[str, Any]
    name: str

    @property
    def tensor(self) -> Tensor | None:
        """The tensor that is there now: a module may replace a buffer by a new tensor."""
        value: Tensor | None = self.entries[self.name]
        return value


class Copies(NamedTuple):
    """The tensors of some slots at the start of a step, by type, with a copy of each type."""

    slots: list[list[Slot]]
    tensors: list[list[Tensor]]
    values: list[Tensor]


class Backup:
    """Tensors that a step may change, and that are restored if the step is skipped.

    Tensors of one type are copied together, because a GPU takes as long for a small kernel as for a
    large one.
    """

    def __init__(self, slots: Iterable[Slot]) -> None:
        self.slots = list(slots)

    @torch.no_grad()
    def copies(self) -> Copies:
        """Return a copy of all tensors."""
        by_type: dict[tuple[torch.dtype, torch.device], list[tuple[Slot, Tensor]]] = {}
        for slot in self.slots:
            tensor = slot.tensor
            if tensor is not None:
                by_type.setdefault((tensor.dtype, tensor.device), []).append((slot, tensor))
        slots = [[slot for slot, _ in group] for group in by_type.values()]
        tensors = [[tensor for _, tensor in group] for group in by_type.values()]
        return Copies(slots, tensors, [_joined(group) for group in tensors])

    @torch.no_grad()
    def restore(self, copies: Copies, finite: Tensor) -> None:
        """Write the copies back if the step is not finite.

        The host waits for the flag only if a module has replaced a tensor by another one.
        """
        for group, old in zip(copies.tensors, copies.values, strict=True):
            sizes = [tensor.numel() for tensor in group]
            parts = torch.split(torch.where(finite, _joined(group), old), sizes)
            shaped = [part.view(tensor.shape) for part, tensor in zip(parts, group, strict=True)]
            torch._foreach_copy_(group, shaped)
        replaced = [
            (slot, tensor)
            for slots, group in zip(copies.slots, copies.tensors, strict=True)
            for slot, tensor in zip(slots, group, strict=True)
            if slot.tensor is not tensor
        ]
        if replaced and not finite:
            for slot, tensor in replaced:
                slot.entries[slot.name] = tensor


def _joined(tensors: Iterable[Tensor]) -> Tensor:
    """Return the numbers of tensors of one type as one tensor in new memory."""
    return torch.cat([tensor.flatten() for tensor in tensors])


def changing(learner: nn.Module) -> list[Slot]:
    """Return the places of tensors that a step of a learner changes without looking at the flag.

    These are all buffers, except the learner's own and those of parts with an attribute
    `finite_step`. Weights of a twin that are not trained are added, unless such a part updates
    them.
    """
    direct = {id(value) for value in learner.buffers(recurse=False)}
    for part in conditional_parts(learner):
        direct |= {id(value) for value in part.buffers(recurse=False)}
        direct |= {id(value) for value in part.parameters()}
    twin = getattr(learner, "twin", None)
    slots = [Slot(part._buffers, name) for part in learner.modules() for name in part._buffers]
    for part in () if twin is None else twin.modules():
        weights = part._parameters
        slots += [Slot(weights, name) for name, p in weights.items() if is_frozen(p)]
    return [slot for slot in slots if id(slot.tensor) not in direct]


def is_frozen(weight: nn.Parameter | None) -> bool:
    """Return True for a weight that is not trained."""
    return weight is not None and not weight.requires_grad
