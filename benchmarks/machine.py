"""The machine that a benchmark runs on: cores, hardware, versions and the commit of this code."""

import os
import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

HERE = Path(__file__).parent
CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def commit() -> str:
    """Return the commit of this code: ANTIPODE_COMMIT, or what git says; empty if it is unknown."""
    if given := os.environ.get("ANTIPODE_COMMIT"):
        return given
    command = ["git", "-C", str(HERE), "describe", "--always", "--dirty=+", "--exclude=*"]
    try:
        return subprocess.run(command, check=False, capture_output=True, text=True).stdout.strip()
    except OSError:
        return ""


def surroundings(*packages: str) -> dict[str, Any]:
    """Return hardware, load, the commit, and the versions of some packages."""
    versions = {}
    for package in packages:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            versions[package] = "not installed"
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    cpu = platform.processor() or platform.machine()
    machine = {"cores": CORES, "cpu": cpu, "gpu": gpu, "load": os.getloadavg()}
    return {**machine, "commit": commit(), **versions}
