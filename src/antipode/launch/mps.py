"""NVIDIA's Multi-Process Service: processes share one GPU at the same time, not in turns."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

import torch

CONTROL = "nvidia-cuda-mps-control"
PLACES = ("CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY")


@contextmanager
def shared_gpu(device: torch.device) -> Iterator[None]:
    """Run MPS for processes that start inside this context, if the device is an NVIDIA GPU.

    Nothing happens if MPS is not installed, cannot be started, or was set up by the user, which the
    environment variable CUDA_MPS_PIPE_DIRECTORY shows.
    """
    control = shutil.which(CONTROL)
    if device.type != "cuda" or control is None or PLACES[0] in os.environ:
        yield
        return
    folder = tempfile.mkdtemp(prefix="antipode-mps-")
    os.environ.update(dict.fromkeys(PLACES, folder))
    started = _call([control, "-d"])
    if not started:
        _forget(folder)
    try:
        yield
    finally:
        if started:
            _call([control], "quit\n")
            _forget(folder)


def _forget(folder: str) -> None:
    """Remove the variables and the folder of the service."""
    for name in PLACES:
        os.environ.pop(name, None)
    shutil.rmtree(folder, ignore_errors=True)


def _call(command: list[str], text: str = "") -> bool:
    """Run a command with a text as its input; return True if it succeeded within 20 seconds."""
    try:
        done = subprocess.run(
            command, check=False, input=text, text=True, capture_output=True, timeout=20
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0
