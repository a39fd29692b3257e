"""Compare matrix products and convolutions of half precision with float64.

    python -m antipode.launch.products [DEVICE]

The exit status is 0 if they agree, else 1. Libraries choose their algorithms by the number of
multiprocessors that a process may use, and some choices have been wrong: see `mps.part_of_gpu`.
"""

import sys
from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn import functional as F

# Rows, inner size and columns of products: backbones, heads and scores, forward and backward.
SHAPES = ((64, 512, 128), (512, 512, 128), (512, 512, 512), (4096, 512, 4096), (512, 128, 4096))
CHANNELS = ((64, 16), (256, 8), (512, 4))  # of convolutions, and the side of their images
# Largest relative errors: rounding gives .003, .0004 and at most .0003 (TF32).
MOST = {torch.bfloat16: 0.02, torch.float16: 0.003, torch.float32: 0.002}


def errors(device: torch.device) -> Iterator[tuple[torch.dtype, float]]:
    """Yield the relative error of every product and convolution, with its type."""
    torch.manual_seed(0)
    for rows, inner, columns in SHAPES:
        left = torch.randn(rows, inner, dtype=torch.float64, device=device)
        right = torch.randn(inner, columns, dtype=torch.float64, device=device)
        exact = left @ right
        for dtype in MOST:
            a, b = left.to(dtype), right.to(dtype)
            for first in (a, a.T.contiguous().T):
                for second in (b, b.T.contiguous().T):
                    yield dtype, _error(first @ second, exact)
    for channels, side in CHANNELS:
        images = torch.randn(64, channels, side, side, device=device)
        weights = torch.randn(channels, channels, 3, 3, device=device) / (9 * channels) ** 0.5
        exact = F.conv2d(images.double(), weights.double(), padding=1)
        for dtype in MOST:
            yield dtype, _error(F.conv2d(images.to(dtype), weights.to(dtype), padding=1), exact)


def _error(value: Tensor, exact: Tensor) -> float:
    return float((value.double() - exact).norm() / exact.norm())


def are_right(device: torch.device) -> bool:
    """Return True if no error is larger than rounding explains; NaN is an error."""
    return all(error < MOST[dtype] for dtype, error in errors(device))


if __name__ == "__main__":
    sys.exit(not are_right(torch.device(sys.argv[1] if len(sys.argv) > 1 else "cuda")))
