"""Random views of images: a policy by name, computed for a whole batch on the images' device.

Shapes: N images, V views, U uniform numbers per view, C channels, H and W pixels of an image, S
pixels of the side of a view.
"""

import inspect
import math
from collections.abc import Callable, Sequence
from typing import Any, Self, overload

import torch
from torch import Tensor, nn

from antipode.data.sources.splits import IMAGENET_MEAN, IMAGENET_STD
from antipode.data.views.compute import compute
from antipode.data.views.flat import crop_flat
from antipode.data.views.operation import Blur, Centre, Crop
from antipode.data.views.policy import View, policies
from antipode.limits import LIMITS, check_limit
from antipode.names import brief, check_name, did_you_mean
from antipode.types import check_kind, fitted


def views(
    name: str,
    *,
    size: int,
    mean: float | Sequence[float] | Tensor = IMAGENET_MEAN,
    std: float | Sequence[float] | Tensor = IMAGENET_STD,
    **arguments: Any,
) -> "Views":
    """Create the `Views` of the policy `name` with a side of `size` pixels.

    `arguments` are the keyword arguments of the policy. Raises ValueError for an unknown policy or
    argument.

    Examples:
        >>> make = views("shapes", size=32)
        >>> [tuple(view.shape) for view in make(torch.zeros(4, 3, 32, 32, dtype=torch.uint8))]
        [(4, 3, 32, 32), (4, 3, 32, 32)]
    """
    check_name("view policy", name, policies())
    size = fitted("the size of views", size, int)
    if size < 1:
        raise ValueError(f"the size of views must be a whole number of at least 1, not {size!r}")
    policy = policies()[name]
    parameters = inspect.signature(policy).parameters
    known = {
        key: value.annotation
        for key, value in parameters.items()
        if value.kind is value.KEYWORD_ONLY
    }
    for argument in arguments:
        if argument not in known:
            raise ValueError(
                f"view policy {name!r} has no argument {argument!r}{did_you_mean(argument, known)}"
            )
    normal = Normalise(_numbers("mean", mean), _numbers("std", std))
    checked = {key: fitted(key, value, known[key]) for key, value in arguments.items()}
    for key, value in {"size": size, **checked}.items():
        if key in LIMITS:
            check_limit(key, key, value)
    view_list = policy(size, normal, **checked)
    if not view_list:
        raise ValueError(f"policy {name!r} with arguments {arguments} makes no view")
    return Views(view_list, normal)


def _numbers(name: str, values: Any) -> list[float]:
    """Return a number, a sequence, an array or a tensor as a list of floats."""
    try:
        numbers: list[float] = torch.as_tensor(values, dtype=torch.float64).flatten().tolist()
    except (TypeError, ValueError, RuntimeError):
        raise ValueError(
            f"{name} must be one number or one number per channel, not {values!r}"
        ) from None
    return numbers


class Normalise(nn.Module):
    """Subtract the mean of each channel and divide by its standard deviation.

    A single mean and standard deviation apply to any number of channels. Three means and standard
    deviations are averaged for images with one channel.
    """

    slots = 0

    def __init__(self, mean: Sequence[float], std: Sequence[float]) -> None:
        super().__init__()
        finite = all(math.isfinite(value) for value in (*mean, *std))
        if len(mean) != len(std) or not finite or min(std, default=0) <= 0:
            raise ValueError(
                "normalisation needs finite means and as many positive, finite deviations, "
                f"not mean {tuple(mean)} and std {tuple(std)}"
            )
        self.mean = nn.Buffer(torch.tensor(mean, dtype=torch.float32).view(-1, 1, 1))
        self.std = nn.Buffer(torch.tensor(std, dtype=torch.float32).view(-1, 1, 1))

    def forward(self, images: Tensor, unit: Tensor) -> Tensor:
        """Return normalised images (N,C,H,W); `unit` is not used."""
        count, channels = len(self.mean), images.shape[1]
        if (count, channels) == (3, 1):
            return (images - self.mean.mean(0)) / self.std.mean(0)
        if count not in (1, channels):
            raise ValueError(
                f"normalisation has {count} means but the images have {channels} channels"
            )
        return (images - self.mean) / self.std


class Views(nn.Module):
    """A module that maps uint8 images (N,C,H,W) to a list of V float32 views (N,C,S,S).

    Each image and each view has independent random parameters. All randomness comes from one tensor
    of uniform numbers (N,V,U): `draw` creates it, and `apply` is a pure function of it.
    """

    def __init__(self, policy: list[View], normal: Normalise) -> None:
        super().__init__()
        for view in policy:
            _check_blur(view)
        self.policy = policy
        self.normal = normal
        self.count = len(policy)
        self.sizes = [view.size for view in policy]
        self.slots = max(sum(operation.slots for operation in view.operations) for view in policy)
        # the first operation that the device does, without and with workers that cut the crops
        self.all_operations = dict.fromkeys(policy, 0)
        self.after_cut = {view: _host_operations(view) for view in policy}
        # every view begins with a random crop, so that a box determines its pixels
        self.boxed = all(isinstance(view.operations[0], Crop) for view in policy)
        # the indices of equal views, which are computed as one batch
        self.indices: dict[View, list[int]] = {}
        for index, view in enumerate(policy):
            self.indices.setdefault(view, []).append(index)

    def forward(self, images: Tensor, generator: torch.Generator | None = None) -> list[Tensor]:
        """Return random views of the images; equal generator states give equal views."""
        _check(images)
        return self.apply(images, self.draw(len(images), generator, images.device))

    def draw(
        self,
        n: int,
        generator: torch.Generator | None = None,
        device: torch.device | str | None = None,
    ) -> Tensor:
        """Draw uniform numbers (N,V,U) in [0,1) for n images."""
        check_kind(torch.Generator | None, generator=generator)
        source = device if generator is None else generator.device
        return torch.rand(n, self.count, self.slots, generator=generator, device=source).to(device)

    @overload
    def apply(self, images: Callable[[nn.Module], None]) -> Self: ...
    @overload
    def apply(self, images: Tensor, uniforms: Tensor) -> list[Tensor]: ...
    def apply(self, images: Any, uniforms: Tensor | None = None) -> Any:
        """Return the views that the uniform numbers (N,V,U) determine.

        With a function as the only argument, this is `nn.Module.apply`.
        """
        if uniforms is None:
            return super().apply(images)
        _check(images)
        shape = (len(images), self.count, self.slots)
        if tuple(uniforms.shape) != shape:
            raise ValueError(
                f"these views need uniform numbers (N,V,U) of shape {shape}, "
                f"not {tuple(uniforms.shape)}"
            )
        return self._each([images] * self.count, uniforms, self.all_operations)

    def cut(self, image: Tensor, uniforms: Tensor) -> list[Tensor]:
        """Return V crops uint8 (C,S,S) of one image (C,H,W) of any size.

        The uniform numbers (V,U) determine the crops. This is the part that data loader workers do.
        """
        _check(image[None])
        pairs = zip(self.policy, uniforms, strict=True)
        return [self._cut(view, image, unit) for view, unit in pairs]

    def _cut(self, view: View, image: Tensor, unit: Tensor) -> Tensor:
        """Return the crop uint8 (C,S,S) of one view."""
        part = image[None]
        slot = 0
        for operation in view.operations[: self.after_cut[view]]:
            numbers = unit[None, slot : slot + operation.slots]
            part = operation.cut(part, numbers)  # type: ignore[attr-defined]
            slot += operation.slots
        return part[0]

    def cut_all(self, images: list[Tensor], uniforms: Tensor, out: list[Tensor]) -> None:
        """Write the crops of n images (C,H,W) of any sizes to V tensors uint8 (n,C,S,S).

        They are those of `cut`. The boxes of all images are drawn at once, which takes a tenth of
        the time that n draws take. `uniforms` are (n,V,U).
        """
        sizes = torch.tensor([image.shape[1:] for image in images])
        for index, view in enumerate(self.policy):
            crop = view.operations[0]
            if not isinstance(crop, Crop):
                for row, image in enumerate(images):
                    out[index][row] = self._cut(view, image, uniforms[row, index])
                continue
            boxes, *flips = crop.draw(uniforms[:, index, : crop.slots], *sizes.T)
            choices = zip(images, boxes.tolist(), *(flip.tolist() for flip in flips), strict=True)
            for row, (image, box, mirror, upend) in enumerate(choices):
                out[index][row] = crop.resample(image[None], box, mirror, upend)[0]

    def boxes(self, uniforms: Tensor, sides: Tensor) -> Tensor:
        """Return the boxes and flips (V,n,6) of images with sides int64 (n,2).

        They are those of `cut_all` with the same uniforms (n,V,U): top, left, height, width, and
        whether to flip horizontally and vertically.
        """
        rows = []
        for index, view in enumerate(self.policy):
            crop = view.operations[0]
            assert isinstance(crop, Crop)
            boxes, *flips = crop.draw(uniforms[:, index, : crop.slots], *sides.T)
            rows.append(torch.cat([boxes, *(flip[:, None] for flip in flips)], 1))
        return torch.stack(rows)

    def cut_flat(self, view: int, flat: Tensor, places: Tensor, boxes: Tensor, out: Tensor) -> None:
        """Write the crops of one view to `out` uint8 (n,C,S,S), see `flat.crop_flat`."""
        crop_flat(flat, places, boxes, out, cubic=self.cubic(view))

    def cubic(self, view: int) -> bool:
        """Return True if the crops of a view are interpolated bicubically."""
        crop = self.policy[view].operations[0]
        return isinstance(crop, Crop) and crop.cubic

    def finish(self, crops: list[Tensor], uniforms: Tensor) -> list[Tensor]:
        """Return the views of V crops uint8 (N,C,S,S).

        `uniforms` are the uniform numbers (N,V,U) that `cut` used for these crops.
        """
        return self._each(crops, uniforms, self.after_cut)

    def _each(self, images: list[Tensor], uniforms: Tensor, start: dict[View, int]) -> list[Tensor]:
        """Compute every view from its images, beginning with the operation at `start[view]`."""
        results: dict[int, Tensor] = {}
        for view, indices in self.indices.items():
            batch = torch.cat([images[index] for index in indices])
            unit = torch.cat([uniforms[:, index] for index in indices])
            result = compute(view, batch, unit, start[view])
            results.update(zip(indices, result.chunk(len(indices)), strict=True))
        return [results[index] for index in range(self.count)]


def _host_operations(view: View) -> int:
    """Return how many operations a worker does: all up to the one that sets the view's size."""
    kinds = [isinstance(operation, Crop | Centre) for operation in view.operations]
    return 1 + kinds.index(True) if True in kinds else 0


def _check_blur(view: View) -> None:
    for operation in view.operations:
        if isinstance(operation, Blur):
            operation.fits(view.size)


def _check(images: Tensor) -> None:
    if not isinstance(images, Tensor):
        raise ValueError(f"views need a uint8 tensor (N,C,H,W), not {brief(images)}")
    if images.dtype != torch.uint8 or images.ndim != 4:
        raise ValueError(
            "views need uint8 images of shape (N,C,H,W), "
            f"not {images.dtype} of shape {tuple(images.shape)}"
        )
    if 0 in images.shape[1:]:
        raise ValueError(
            "images need at least one channel and one pixel, "
            f"but have the shape {tuple(images.shape)}"
        )
