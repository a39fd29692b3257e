"""Features on disk: one .npz file with features x (N,D) and image ids (N,).

The arrays are stored without compression, so large features are read as a memory map.
"""

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from antipode.data.sources.arrays import DAMAGED, member
from antipode.evaluation import storage
from antipode.files import atomic_write

Rows = tuple[Tensor, Tensor]  # features (N,D), image ids (N,)


def write(file: Path, x: Tensor, ids: Tensor) -> None:
    """Write features to a file, or warn if the folder is not writable.

    NumPy writes an array in small portions, so x may be a memory map.
    """
    try:
        with atomic_write(file) as handle:
            np.savez(handle, x=x.numpy(), ids=ids.numpy())
    except OSError as error:
        warnings.warn(
            f"cannot write features to {file.parent} ({error.strerror or error}); "
            "the next evaluation computes them again",
            stacklevel=4,
        )


def read(file: Path) -> Rows | None:
    """Return features (N,D) and image ids (N,) of a file, or None if it is missing or damaged.

    Features that take more than half of the free memory are a memory map, which must not be
    written to. The file may be removed or replaced meanwhile.
    """
    try:
        if file.stat().st_size > storage.host_budget():
            with np.load(file) as content:
                ids = content["ids"]
            x: Any = member(file, "x")
        else:
            with np.load(file) as content:
                x, ids = content["x"], content["ids"]
    except DAMAGED:
        return None
    if x.ndim != 2 or ids.shape != x.shape[:1] or not np.issubdtype(x.dtype, np.floating):
        return None
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")
        return torch.from_numpy(x), torch.from_numpy(ids)
