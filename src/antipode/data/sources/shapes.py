"""The built-in data set: ten kinds of shapes, drawn from signed distances. N images, H W pixels.

Colour, position, size, rotation, background gradient and noise are drawn independently of the kind
of shape, so that raw pixels say little about the kind.

A signed distance is negative inside the shape. Its unit is the radius of the shape. The edge of a
shape is softened over one pixel.
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
    dx = x.abs() - width
    dy = y.abs() - height
    return torch.hypot(dx.clamp(min=0), dy.clamp(min=0)) + torch.maximum(dx, dy).clamp(max=0)


def _square(x: Tensor, y: Tensor) -> Tensor:
    return _box(x, y, 0.8, 0.8)


def _triangle(x: Tensor, y: Tensor) -> Tensor:
    sides = [
        math.cos(angle) * x + math.sin(angle) * y
        for angle in (math.pi / 2, math.pi * 7 / 6, math.pi * 11 / 6)
    ]
    return torch.maximum(torch.maximum(sides[0], sides[1]), sides[2]) - 0.55


def _ring(x: Tensor, y: Tensor) -> Tensor:
    return (torch.hypot(x, y) - 0.75).abs() - 0.22


def _cross(x: Tensor, y: Tensor) -> Tensor:
    return torch.minimum(_box(x, y, 1.0, 0.3), _box(x, y, 0.3, 1.0))


def _star(x: Tensor, y: Tensor) -> Tensor:
    """Return the signed distance to a star with five points.

    The angle is folded into half a point. Its edge is a straight line from the tip at (1.1,0) to
    the notch at radius 0.45.
    """
    fifth = 2 * math.pi / 5
    angle = (torch.remainder(torch.atan2(y, x), fifth) - fifth / 2).abs()
    radius = torch.hypot(x, y)
    edge_x = 0.45 * math.cos(fifth / 2) - 1.1
    edge_y = 0.45 * math.sin(fifth / 2)
    cross = (radius * torch.cos(angle) - 1.1) * edge_y - radius * torch.sin(angle) * edge_x
    return cross / math.hypot(edge_x, edge_y)


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
    """Draw `count` images (N,3,size,size) uint8 and return them with their kinds (N,).

    All kinds are equally frequent.
    """
    key = rng.key(seed, "shapes", split)
    labels = rng.permutation(key, count) % len(KINDS)
    chance = rng.uniform(rng.fold(key, torch.arange(count)), 16)  # (N,16)
    noise = rng.generator(seed, "shapes", split, "noise")
    images = torch.empty(count, 3, size, size, dtype=torch.uint8)
    for number, distance in enumerate(KINDS.values()):
        members = (labels == number).nonzero().flatten()
        images[members] = _paint(distance, chance[members], noise, size)
    return images, labels


def _paint(distance: Distance, chance: Tensor, noise: torch.Generator, size: int) -> Tensor:
    """Paint images (N,3,size,size) uint8 of one kind.

    The random numbers `chance` (N,16) in [0,1) decide everything except the noise.
    """
    u = chance[:, :, None, None]  # (N,16,1,1)
    grid = torch.arange(size) + 0.5
    row, column = grid[None, :, None], grid[None, None, :]
    radius = size * (0.18 + 0.14 * u[:, 0])  # (N,1,1)
    room = size / 2 - radius  # the largest shift of the centre
    x = (column - size / 2 - (2 * u[:, 1] - 1) * room) / radius
    y = (row - size / 2 - (2 * u[:, 2] - 1) * room) / radius
    sine, cosine = torch.sin(2 * math.pi * u[:, 3]), torch.cos(2 * math.pi * u[:, 3])
    inside = 0.5 - distance(cosine * x + sine * y, cosine * y - sine * x) * radius  # (N,H,W)
    inside = inside.clamp(0, 1)[:, None]  # (N,1,H,W)

    base = u[:, 4:7]
    # every channel of the shape differs from the background by 0.3 to 0.7, up or down: the shape is
    # always visible, and its colour is not fixed
    colour = torch.remainder(base + 0.3 + 0.4 * u[:, 7:10], 1)
    direction = 2 * math.pi * u[:, 10]
    slope = (torch.cos(direction) * column + torch.sin(direction) * row) / size
    background = base + (u[:, 11:14] - 0.5) * slope[:, None]
    picture = background + inside * (colour - background)
    picture += 0.1 * u[:, 14:15] * torch.randn(picture.shape, generator=noise)
    return (picture * 255).round().clamp(0, 255).to(torch.uint8)
