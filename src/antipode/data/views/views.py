"""Views of images: a policy by name, drawn and computed for a whole batch at once on the images' own device.

N images, V views, U uniform numbers per view, C channels, H W pixels, S pixels of a view's side.
"""

import difflib
import inspect
import math
from collections.abc import Callable, Sequence
from typing import Any, Self, overload

import torch
from torch import Tensor, nn

from antipode.data.sources.splits import IMAGENET_MEAN, IMAGENET_STD
from antipode.data.views.operation import Blur, Centre, Crop
from antipode.data.views.policy import POLICIES, View
from antipode.types import fitted

CACHED = 2**20  # values of the views that are computed at once on a CPU: 4 MB


def views(
    name: str,
    *,
    size: int,
    mean: float | Sequence[float] | Tensor = IMAGENET_MEAN,
    std: float | Sequence[float] | Tensor = IMAGENET_STD,
    **arguments: Any,
) -> "Views":
    """The views of a policy by name, `size` pixels wide, with arguments of the policy by keyword.

    >>> make = views("mocov2", size=32)
    >>> [tuple(view.shape) for view in make(torch.zeros(4, 3, 32, 32, dtype=torch.uint8))]
    [(4, 3, 32, 32), (4, 3, 32, 32)]
    """
    if name not in POLICIES:
        raise ValueError(
            f"unknown policy {name!r}{_nearest(name, POLICIES)}; there are {', '.join(POLICIES)}"
        )
    if not hasattr(size, "__index__") or size <= 0:
        raise ValueError(f"views need a size of at least 1 whole pixel, not {size!r}")
    policy = POLICIES[name]
    parameters = inspect.signature(policy).parameters
    known = {
        key: value.annotation
        for key, value in parameters.items()
        if value.kind is value.KEYWORD_ONLY
    }
    for argument in arguments:
        if argument not in known:
            allowed = ", ".join(known) or "none"
            raise ValueError(
                f"policy {name!r} takes no {argument!r}{_nearest(argument, known)}; it takes {allowed}"
            )
    normal = Normalise(_numbers("mean", mean), _numbers("std", std))
    made = policy(
        size, normal, **{key: fitted(key, value, known[key]) for key, value in arguments.items()}
    )
    if not made:
        raise ValueError(f"policy {name!r} with {arguments} makes no view")
    return Views(made, normal)


def _nearest(name: str, known: Any) -> str:
    close = difflib.get_close_matches(name, known, 1, 0.5)
    return f" (did you mean {close[0]!r}?)" if close else ""


def _numbers(name: str, values: Any) -> list[float]:
    """One number or several, of whatever kind, as a list."""
    try:
        found: list[float] = torch.as_tensor(values, dtype=torch.float64).flatten().tolist()
    except (TypeError, ValueError, RuntimeError):
        raise ValueError(f"{name} is a number or one for each channel, not {values!r}") from None
    return found


class Normalise(nn.Module):
    """Minus the mean, over the standard deviation, of each channel.

    One number serves any count of channels, and the average of three serves grey images.
    """

    slots = 0

    def __init__(self, mean: Sequence[float], std: Sequence[float]) -> None:
        super().__init__()
        finite = all(math.isfinite(value) for value in (*mean, *std))
        if len(mean) != len(std) or not finite or min(std, default=0) <= 0:
            raise ValueError(
                f"normalise needs as many means as positive deviations, not {tuple(mean)} and {tuple(std)}"
            )
        self.mean = nn.Buffer(torch.tensor(mean, dtype=torch.float32).view(-1, 1, 1))
        self.std = nn.Buffer(torch.tensor(std, dtype=torch.float32).view(-1, 1, 1))

    def forward(self, images: Tensor, unit: Tensor) -> Tensor:
        """Images (N,C,H,W), normalised."""
        if (len(self.mean), images.shape[1]) == (3, 1):
            return (images - self.mean.mean(0)) / self.std.mean(0)
        if len(self.mean) not in (1, images.shape[1]):
            raise ValueError(
                f"normalise has {len(self.mean)} means but the images have {images.shape[1]} channels"
            )
        return (images - self.mean) / self.std


class Views(nn.Module):
    """uint8 images (N,C,H,W) to a list of V float32 views (N,C,S,S), each image and view with a draw of its own.

    All randomness is one tensor of uniform numbers (N,V,U): `draw` makes it, `apply` is a pure function of it.
    """

    def __init__(self, policy: list[View], normal: Normalise) -> None:
        super().__init__()
        for view in policy:
            _check_blur(view)
        self.policy, self.normal = policy, normal
        self.count = len(policy)
        self.sizes = [view.size for view in policy]
        self.slots = max(sum(operation.slots for operation in view.operations) for view in policy)
        # views that are alike are computed as one batch
        self.alike: dict[View, list[int]] = {}
        for place, view in enumerate(policy):
            self.alike.setdefault(view, []).append(place)

    def forward(self, images: Tensor, generator: torch.Generator | None = None) -> list[Tensor]:
        """Views of the images; the same again for the same state of the generator."""
        _check(images)
        return self.apply(images, self.draw(len(images), generator, images.device))

    def draw(
        self,
        n: int,
        generator: torch.Generator | None = None,
        device: torch.device | str | None = None,
    ) -> Tensor:
        """Uniform numbers (N,V,U) in [0,1) for n images."""
        source = device if generator is None else generator.device
        return torch.rand(n, self.count, self.slots, generator=generator, device=source).to(device)

    @overload
    def apply(self, images: Callable[[nn.Module], None]) -> Self: ...
    @overload
    def apply(self, images: Tensor, uniforms: Tensor) -> list[Tensor]: ...
    def apply(self, images: Any, uniforms: Tensor | None = None) -> Any:
        """Views decided by uniform numbers (N,V,U); with a function alone it is nn.Module's own `apply`."""
        if uniforms is None:
            return super().apply(images)
        _check(images)
        shape = (len(images), self.count, self.slots)
        if tuple(uniforms.shape) != shape:
            raise ValueError(
                f"these views need uniform numbers (N,V,U) of {shape}, not {tuple(uniforms.shape)}"
            )
        return self._each([images] * self.count, uniforms, lambda view: 0)

    def cut(self, image: Tensor, uniforms: Tensor) -> list[Tensor]:
        """V crops uint8 (C,S,S) of one image (C,H,W) of any size, decided by uniform numbers (V,U): a worker's part."""
        _check(image[None])
        crops = []
        for view, unit in zip(self.policy, uniforms, strict=True):
            part, after = image[None], 0
            for operation in view.operations[: _sized(view)]:
                part = operation.cut(part, unit[None, after : after + operation.slots])  # type: ignore[attr-defined]
                after += operation.slots
            crops.append(part[0])
        return crops

    def finish(self, crops: list[Tensor], uniforms: Tensor) -> list[Tensor]:
        """Views of V crops uint8 (N,C,S,S), decided by the uniform numbers (N,V,U) that decided the crops."""
        return self._each(crops, uniforms, _sized)

    def _each(
        self, images: list[Tensor], uniforms: Tensor, start: Callable[[View], int]
    ) -> list[Tensor]:
        """Every view from its images by its operations from `start(view)` on."""
        made: dict[int, Tensor] = {}
        for view, places in self.alike.items():
            batch = torch.cat([images[place] for place in places])
            unit = torch.cat([uniforms[:, place] for place in places])
            done = _run_in_parts(view, batch, unit, start(view))
            made.update(zip(places, done.chunk(len(places)), strict=True))
        return [made[place] for place in range(self.count)]


def _run_in_parts(view: View, images: Tensor, unit: Tensor, start: int) -> Tensor:
    """On a CPU without compiler in parts that fit its caches: 4 times as fast at 224 pixels in large batches."""
    if images.is_cpu and not torch.compiler.is_compiling():
        part = max(1, CACHED // (images.shape[1] * view.size**2))
        if part < len(images):
            parts = zip(torch.split(images, part), torch.split(unit, part), strict=True)
            return torch.cat([_run(view, few, mine, start) for few, mine in parts])
    return _run(view, images, unit, start)


def _run(view: View, images: Tensor, unit: Tensor, start: int) -> Tensor:
    """The view's operations from `start` on, each with the uniform numbers that are its own."""
    images, after = images.float() / 255, 0
    for place, operation in enumerate(view.operations):
        if place >= start:
            images = operation(images, unit[:, after : after + operation.slots])
        after += operation.slots
    return images


def _sized(view: View) -> int:
    """How many of the operations a worker does: all up to the one that gives the view its size."""
    return 1 + next(
        i for i, operation in enumerate(view.operations) if isinstance(operation, Crop | Centre)
    )


def _check_blur(view: View) -> None:
    for operation in view.operations:
        if isinstance(operation, Blur):
            operation.fits(view.size)


def _check(images: Tensor) -> None:
    if images.dtype != torch.uint8 or images.ndim != 4:
        raise ValueError(
            f"views are made of uint8 images (N,C,H,W), not of {images.dtype} {tuple(images.shape)}"
        )
    if 0 in images.shape[1:]:
        raise ValueError(f"images need channels and pixels, but these are {tuple(images.shape)}")
