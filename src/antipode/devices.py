"""Choose the device that a command runs on."""

import torch

from antipode.wording import option


def pick_device(name: str) -> torch.device:
    """Return a device by name; "auto" is a GPU (CUDA, else MPS) if there is one, else the CPU.

    Raises ValueError for an unknown name, and for a device that this machine does not have.
    """
    if name not in ("auto", "cpu", "cuda", "mps"):
        raise ValueError(f"the device must be one of auto, cpu, cuda, mps, not {name!r}")
    mps = torch.backends.mps.is_available()
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "mps" if mps else "cpu"
    if name == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"there is no CUDA device here; use {option('device', 'cpu')}")
    if name == "mps" and not mps:
        raise ValueError(f"there is no MPS device here; use {option('device', 'cpu')}")
    return torch.device(name)
