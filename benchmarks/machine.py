"""The machine that a benchmark runs on: cores, hardware and versions."""

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch

CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def surroundings(*packages: str) -> dict[str, Any]:
    """Return hardware, load, and the versions of some packages."""
    versions = {}
    for package in packages:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            versions[package] = "not installed"
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    cpu = platform.processor() or platform.machine()
    return {"cores": CORES, "cpu": cpu, "gpu": gpu, "load": os.getloadavg(), **versions}
