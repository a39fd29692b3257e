"""The environment of a run: versions, device, command and commit."""

import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

import antipode
from antipode import dist


def environment(device: str) -> dict[str, Any]:
    """Return versions, device, command and commit, which are needed to repeat a run."""
    # slow to import, and evaluations do not need it: torchvision loads torch's compiler
    import torchvision  # noqa: PLC0415

    return {
        "antipode": antipode.__version__,
        "commit": commit(),
        "torch": torch.__version__,
        "torchvision": torchvision.__version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "device": torch.cuda.get_device_name() if device == "cuda" else device,
        "command": sys.argv,
        "launch": dist.launch(),
        "ranks": dist.world(),
    }


def commit() -> str | None:
    """Return the commit of antipode's own checkout, with a + if it has uncommitted changes.

    Returns None if antipode was installed as a package. The installation may lie inside the
    checkout of another project, whose commit is not ours.
    """
    home = Path(__file__).resolve().parents[3]
    try:
        top = Path(_git(home, "rev-parse", "--show-toplevel"))
        if top.resolve() != home:
            return None
        return _git(home, "describe", "--always", "--dirty=+", "--abbrev=40")
    except (OSError, subprocess.SubprocessError):
        return None


def _git(folder: Path, *words: str) -> str:
    """Return the output of a git command in a folder."""
    result = subprocess.run(
        ["git", "-C", str(folder), *words], capture_output=True, text=True, check=True, timeout=10
    )
    return result.stdout.strip()
