"""The embedded data set: ten kinds of shapes, drawn from signed distances. N images, H W pixels.

Colour, place, size, turn, background gradient and noise are drawn apart from the kind, so that pixels tell little.
A distance is in units of the shape's own radius, negative inside; its edge is softened over one pixel.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from antipode import rng

Distance = Callable[[Tensor, Tensor], Tensor]  # x, y (N,H,W) -> signed distance (N,H,W)


def _disc(x: Tensor, y: Tensor, radius: float = 1.0) -> Tensor:
    return torch.hypot(x, y) - radius


def _box(x: Tensor, y: Tensor, width: float, height: float) -> Tensor:
    dx, dy = x.abs() - width, y.abs() - height
    return torch.hypot(dx.clamp(min=0), dy.clamp(min=0)) + torch.maximum(dx, dy).clamp(max=0)


def _square(x: Tensor, y: Tensor) -> Tensor:
    return _box(x, y, 0.8, 0.8)


def _triangle(x: Tensor, y: Tensor) -> Tensor:
    sides = [
        math.cos(turn) * x + math.sin(turn) * y
        for turn in (math.pi / 2, math.pi * 7 / 6, math.pi * 11 / 6)
    ]
    return torch.maximum(torch.maximum(sides[0], sides[1]), sides[2]) - 0.55


def _ring(x: Tensor, y: Tensor) -> Tensor:
    return (torch.hypot(x, y) - 0.75).abs() - 0.22


def _cross(x: Tensor, y: Tensor) -> Tensor:
    return torch.minimum(_box(x, y, 1.0, 0.3), _box(x, y, 0.3, 1.0))


def _star(x: Tensor, y: Tensor) -> Tensor:
    """Five points: the angle is folded into half a point, whose edge runs from a tip (1.1,0) straight to a notch."""
    fifth = 2 * math.pi / 5
    angle = (torch.remainder(torch.atan2(y, x), fifth) - fifth / 2).abs()
    radius = torch.hypot(x, y)
    edge_x, edge_y = 0.45 * math.cos(fifth / 2) - 1.1, 0.45 * math.sin(fifth / 2)
    return (
        (radius * torch.cos(angle) - 1.1) * edge_y - radius * torch.sin(angle) * edge_x
    ) / math.hypot(edge_x, edge_y)


def _bar(x: Tensor, y: Tensor) -> Tensor:
    return _box(x, y, 1.1, 0.3)


def _crescent(x: Tensor, y: Tensor) -> Tensor:
    return torch.maximum(_disc(x, y), -_disc(x - 0.5, y, 0.8))


def _two_discs(x: Tensor, y: Tensor) -> Tensor:
    return torch.minimum(_disc(x - 0.6, y, 0.5), _disc(x + 0.6, y, 0.5))


def _frame(x: Tensor, y: Tensor) -> Tensor:
    return (_box(x, y, 0.65, 0.65)).abs() - 0.2


KINDS: dict[str, Distance] = {
    "disc": _disc,
    "square": _square,
    "triangle": _triangle,
    "ring": _ring,
    "cross": _cross,
    "star": _star,
    "bar": _bar,
    "crescent": _crescent,
    "two discs": _two_discs,
    "frame": _frame,
}


def draw(count: int, *, seed: int, split: str, size: int = 32) -> tuple[Tensor, Tensor]:
    """`count` images (N,3,size,size) uint8 and their kinds (N,), as many of each kind as of any other."""
    key = rng.key(seed, "shapes", split)
    labels = rng.permutation(key, count) % len(KINDS)
    chance = rng.uniform(rng.fold(key, torch.arange(count)), 16)  # (N,16)
    noise = rng.generator(seed, "shapes", split, "noise")
    images = torch.empty(count, 3, size, size, dtype=torch.uint8)
    for number, distance in enumerate(KINDS.values()):
        mine = (labels == number).nonzero().flatten()
        images[mine] = _paint(distance, chance[mine], noise, size)
    return images, labels


def _paint(distance: Distance, chance: Tensor, noise: torch.Generator, size: int) -> Tensor:
    """One kind's images (N,3,size,size) uint8; `chance` (N,16) decides all but the noise."""
    u = chance[:, :, None, None]  # (N,16,1,1)
    grid = torch.arange(size) + 0.5
    row, column = grid[None, :, None], grid[None, None, :]
    radius = size * (0.18 + 0.14 * u[:, 0])  # (N,1,1)
    room = size / 2 - radius
    x = (column - size / 2 - (2 * u[:, 1] - 1) * room) / radius
    y = (row - size / 2 - (2 * u[:, 2] - 1) * room) / radius
    sine, cosine = torch.sin(2 * math.pi * u[:, 3]), torch.cos(2 * math.pi * u[:, 3])
    inside = (0.5 - distance(cosine * x + sine * y, cosine * y - sine * x) * radius).clamp(0, 1)[
        :, None
    ]  # (N,1,H,W)

    base = u[:, 4:7]
    # a channel of the shape is 0.3 to 0.7 away from the background's, up or down: always visible, never a fixed colour
    colour = torch.remainder(base + 0.3 + 0.4 * u[:, 7:10], 1)
    slope = (
        torch.cos(2 * math.pi * u[:, 10]) * column + torch.sin(2 * math.pi * u[:, 10]) * row
    ) / size
    ground = base + (u[:, 11:14] - 0.5) * slope[:, None]
    picture = ground + inside * (colour - ground)
    picture += 0.1 * u[:, 14:15] * torch.randn(picture.shape, generator=noise)
    return (picture * 255).round().clamp(0, 255).to(torch.uint8)
