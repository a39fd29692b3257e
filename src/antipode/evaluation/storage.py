"""Memory for large matrices: on a device, on the host, or in a memory-mapped temporary file."""

import os
import tempfile
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from antipode.core.pieces import free_memory

SHARE = 0.5  # the largest share of the free memory that one matrix takes
# of the free memory of a GPU, which nothing else uses during an evaluation
DEVICE_SHARE = 0.7
MEMORY_FILES = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


def empty(
    shape: tuple[int, ...],
    dtype: torch.dtype = torch.float32,
    *,
    device: torch.device | None = None,
    folder: Path | None = None,
) -> Tensor:
    """Return a matrix without initial values, in the fastest memory that has room for it.

    That is the memory of `device`, else that of the host, else a file in `folder`, or in the
    system's folder for temporary files. The file has no name, so that it vanishes with the matrix,
    even if the process is killed.
    """
    size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    if device is not None and device.type == "cuda":
        if size <= DEVICE_SHARE * free_memory(device):
            return torch.empty(shape, dtype=dtype, device=device)
        device = None
    if size <= host_budget():  # the memory of an Apple GPU is that of the host
        return torch.empty(shape, dtype=dtype, device=device)
    return mapped(shape, dtype, folder)


def mapped(shape: tuple[int, ...], dtype: torch.dtype, folder: Path | None = None) -> Tensor:
    """Return a matrix in a memory-mapped file without a name."""
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
    size = max(1, int(np.prod(shape, dtype=np.int64)) * dtype.itemsize)
    with tempfile.TemporaryFile(dir=folder, prefix="antipode-") as file:
        _reserve(file.fileno(), size, Path(folder or tempfile.gettempdir()))
        memory = np.memmap(file, np.uint8, "r+", shape=(size,))
    whole = torch.from_numpy(memory)
    count = size // dtype.itemsize if 0 not in shape else 0
    return whole[: count * dtype.itemsize].view(dtype).view(shape)


def _reserve(descriptor: int, size: int, folder: Path) -> None:
    """Reserve the bytes of a file; a full disk is an error now, and not a crash while writing."""
    try:
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(descriptor, 0, size)
        else:
            os.ftruncate(descriptor, size)
    except OSError as error:
        raise OSError(
            error.errno,
            f"{folder} has no room for {size / 2**30:.1f} GiB of features, which do not fit into "
            f"memory ({error.strerror}); set TMPDIR to a folder with more room",
        ) from None


def host_budget() -> int:
    """Return the largest number of bytes that one matrix of this rank may take in host memory."""
    ranks = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    return int(SHARE * available_memory() / max(1, ranks))


def available_memory() -> int:
    """Return the bytes of host memory that this process can still use.

    The limit of a container counts as a whole, because what is used of it includes caches of files.
    """
    try:
        physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # not on Windows
        physical = 8 << 30
    limits = [physical, *_container_limits()]
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        limits += [int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable")]
    except (OSError, ValueError, IndexError):
        limits.append(physical // 2)
    return min(limits)


def _container_limits() -> list[int]:
    """Return the memory limits of the container that this process runs in, if there are any."""
    texts = [Path(name).read_text().strip() for name in MEMORY_FILES if Path(name).is_file()]
    return [int(text) for text in texts if text.isdigit()]
