"""Checks of what a checkpoint holds, before any of it is used.

A file may be damaged or written by someone else. Every check raises ValueError with the reason as
the rest of a sentence about the file.
"""

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from antipode.training import health

# the entries of a checkpoint; earlier versions wrote fewer of the last five
ENTRIES: dict[str, type] = {
    "step": int,
    "learner": dict,
    "optim": dict,
    "torch": Tensor,
    "cuda": list,
    "format": int,
    "images": int,
    "stamp": dict,
    "health": dict,
    "skipped": int,
}
NETWORK = ("step", "learner")  # what an analysis of the network needs
WHOLE = (*NETWORK, "optim", "torch", "cuda")  # what resuming needs


def check_content(content: Any, needed: tuple[str, ...]) -> None:
    """Raise ValueError if entries are missing or have a wrong type, or if numbers are not finite.

    Only `needed` entries may not be missing. If these are all that resuming needs, weights that are
    not finite raise ValueError, too.
    """
    for name, kind in ENTRIES.items():
        if name in content:
            check_type(name, content[name], kind)
        elif name in needed:
            raise ValueError(f"it has no entry {name!r}")
    if not 0 <= content["step"] < 2**62:
        raise ValueError(f"its step is {content['step']}")
    for name, value in content["learner"].items():
        check_type(f"learner.{name}", value, Tensor)
    for name, value in content.get("optim", {}).items():
        check_type(f"optim.{name}", value, dict)
    health.check_state(content.get("health", {}))
    broken = non_finite(content) if needed == WHOLE else ""
    if broken:
        raise ValueError(f"its weights are not finite ({broken})")


def check_type(name: str, value: Any, kind: type) -> None:
    """Raise ValueError if an entry of a checkpoint does not have its type."""
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        found = type(value).__name__
        raise ValueError(f"its entry {name!r} is a {found} and not a {kind.__name__}")


def non_finite(content: Any) -> str:
    """Return the name of a tensor or number that is not finite, an empty text if all are finite.

    There is only one transfer from the device.
    """
    names: list[str] = []
    flags: list[Tensor] = []
    for name, value in _leaves(content):
        if isinstance(value, float) and not math.isfinite(value):
            return name
        if isinstance(value, Tensor) and value.is_floating_point():
            names.append(name)
            flags.append(value.detach().isfinite().all())
    if not flags:
        return ""
    devices = {flag.device for flag in flags}
    if len(devices) > 1:  # AdamW may keep its step count on the CPU
        flags = [flag.cpu() for flag in flags]
    finite = torch.stack(flags).tolist()
    return "" if all(finite) else names[finite.index(False)]


def _leaves(content: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the values in nested dictionaries and lists, with their dotted names."""
    if isinstance(content, dict | list | tuple):
        pairs = content.items() if isinstance(content, dict) else enumerate(content)
        for name, value in pairs:
            yield from _leaves(value, f"{prefix}.{name}" if prefix else str(name))
    else:
        yield prefix, content
