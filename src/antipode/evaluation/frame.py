"""Standardised principal components of features. N images, D features.

The features may be larger than the memory of the device: they are processed in pieces.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from antipode import dist
from antipode.core.pieces import cut, on_device
from antipode.core.scores import product, raised

# Numbers in one piece of the features or logits. On a CPU, a piece stays in the cache for both
# matrix products of a step, and more threads have larger caches together. On a GPU, it is large
# enough to keep the device busy.
PIECE = 1 << 20
THREADS = 4  # that share one PIECE
CUDA_PIECE = 1 << 26
NUMBERS = "logistic regression needs finite features, but some are NaN or infinite"


class Frame(NamedTuple):
    """A map of features to their standardised principal components: (x - mean) @ axes.

    The rotation changes neither the objective nor its minimum, but makes the Hessian at the minimum
    almost diagonal. On correlated features L-BFGS then needs tens of steps instead of hundreds.
    """

    mean: Tensor  # (D,)
    axes: Tensor  # (D,D), includes the division by the standard deviations
    spread: Tensor  # (D,) variances of the components, in float64 on the CPU

    def __call__(self, x: Tensor) -> Tensor:
        """Return features (N,D) in this frame, on the frame's device."""
        return product(x.to(self.axes) - self.mean, self.axes.T)


def standard(x: Tensor, device: torch.device | str) -> Frame:
    """Return the frame of features (N,D), computed on a device.

    With several ranks, x has the rows of this rank, and the frame is that of all rows. A feature
    that is constant up to rounding errors is not rescaled.
    """
    device = torch.device(device)
    dtype = raised(x[:0]).dtype
    slices = cut(len(x), rows_of(x, device=device))
    count, sums = _sums(x, slices, device)
    mean = sums / count
    if not mean.isfinite().all():
        raise ValueError(NUMBERS)
    centre = mean.to(device, dtype)
    covariance = _covariance(x, slices, centre) / count
    if not covariance.isfinite().all():
        raise ValueError(NUMBERS)
    deviation = covariance.diagonal().clamp(min=0).sqrt()
    rounding = 10 * torch.finfo(dtype).eps * mean.abs()
    scale = torch.where(deviation > rounding, deviation, torch.ones_like(deviation))
    spread, axes = torch.linalg.eigh(covariance.cpu() / scale.cpu().outer(scale.cpu()))
    axes = axes / scale.cpu()[:, None]
    return Frame(centre, axes.to(device, dtype), spread.clamp(min=0))


def turned(x: Tensor, frame: Frame, out: Tensor | None = None) -> Tensor:
    """Return features (N,D) in a frame, computed in pieces on its device.

    `out` may be x itself, or a matrix elsewhere. By default it is on the frame's device.
    """
    if out is None:
        out = torch.empty(x.shape, dtype=frame.axes.dtype, device=frame.axes.device)
    slices = cut(len(x), rows_of(x, device=frame.axes.device))
    for rows, piece in on_device(x, slices, frame.axes.device):
        out[rows] = frame(piece).to(out.device)
    return out


def rows_of(x: Tensor, classes: int = 1, *, device: torch.device | None = None) -> int:
    """Return the number of rows in one piece of features (N,D) or of their logits (N,C)."""
    numbers = PIECE * max(1, torch.get_num_threads() // THREADS)
    if (device or x.device).type == "cuda":
        numbers = CUDA_PIECE
    return max(1, numbers // max(x.shape[1], classes))


def wide(device: torch.device) -> torch.device:
    """Return the device for float64: the device itself, or the CPU if it has no float64."""
    return device if device.type == "cuda" else torch.device("cpu")


def _sums(x: Tensor, slices: list[slice], device: torch.device) -> tuple[int, Tensor]:
    """Return the number of rows of all ranks, and the sums (D,) of their features in float64."""
    sums = torch.zeros(x.shape[1] + 1, dtype=torch.float64, device=wide(device))
    sums[-1] = len(x)
    for _, piece in on_device(x, slices, device):
        # torch adds in pairs, so that float32 loses little within a piece
        sums[:-1] += raised(piece).sum(0).to(sums)
    sums = dist.total(sums)
    return int(sums[-1]), sums[:-1]


def _covariance(x: Tensor, slices: list[slice], mean: Tensor) -> Tensor:
    """Return the sum of products (D,D) of centred features over the rows of all ranks."""
    device = mean.device
    total = torch.zeros(len(mean), len(mean), dtype=torch.float64, device=wide(device))
    for _, piece in on_device(x, slices, device):
        centred = (piece.to(mean) - mean).T
        total += product(centred, centred).to(total)
    return dist.total(total)
