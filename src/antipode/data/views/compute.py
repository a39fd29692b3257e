"""Compute one view of a batch of images from uniform numbers.

Shapes: N images, U uniform numbers, C channels, H and W pixels of an image, S pixels of the side of
a view.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from antipode.data.views.operation import Crop, Mix, Operation, Turn
from antipode.data.views.policy import View

CACHED = 2**18  # values of the views that a CPU computes at once: 1 MB, the size of an L2 cache
FEWEST = 8  # images that a CPU computes at once, even if they are larger

Step = tuple[Operation, int, int]  # an operation, and where its uniform numbers begin and end


def compute(view: View, images: Tensor, unit: Tensor, start: int) -> Tensor:
    """Apply the operations of a view from index `start` to uint8 images (N,C,H,W).

    A mix of all images to grey is computed before the rotation and the crop. They treat every
    channel alike, so only one channel is left to rotate and to crop.
    """
    at = _early_mix(view) if start == 0 else None
    if at is None:
        return _run_in_parts(view.size, list(_steps(view, start)), images, unit)
    steps = list(_steps(view, 0))
    mix, first, last = steps.pop(at)
    assert isinstance(mix, Mix)
    grey = mix.grey(images.float() / 255, unit[:, first:last])
    result = _run_in_parts(view.size, steps, grey, unit)
    return result.expand(-1, images.shape[1], -1, -1).contiguous()


def _early_mix(view: View) -> int | None:
    """Return the index of a mix of all images that only rotations and linear crops precede."""
    for index, operation in enumerate(view.operations):
        if isinstance(operation, Mix) and operation.p == 1:
            return index
        linear = isinstance(operation, Crop) and not operation.cubic  # a cubic crop is clamped
        if not (linear or isinstance(operation, Turn)):
            return None
    return None


def _steps(view: View, start: int) -> Iterator[Step]:
    """Yield the operations from index `start`, each with the range of its uniform numbers."""
    slot = 0
    for index, operation in enumerate(view.operations):
        if index >= start:
            yield operation, slot, slot + operation.slots
        slot += operation.slots


def _run_in_parts(size: int, steps: list[Step], images: Tensor, unit: Tensor) -> Tensor:
    """Apply operations to images, which are uint8, or float in [0,1].

    On a CPU without compilation, the batch is computed in parts that fit the caches. This is 4
    times as fast for large batches at 224 pixels.
    """
    if images.is_cpu and not torch.compiler.is_compiling():
        part = max(FEWEST, CACHED // (images.shape[1] * size**2))
        if part < len(images):
            parts = zip(torch.split(images, part), torch.split(unit, part), strict=True)
            return torch.cat([_run(steps, chunk, numbers) for chunk, numbers in parts])
    return _run(steps, images, unit)


def _run(steps: list[Step], images: Tensor, unit: Tensor) -> Tensor:
    """Apply operations, each with its own uniform numbers."""
    images = images if images.is_floating_point() else images.float() / 255
    for operation, first, last in steps:
        images = operation(images, unit[:, first:last])
    return images
