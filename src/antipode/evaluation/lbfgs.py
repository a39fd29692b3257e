"""L-BFGS for a smooth convex function of many parameters, on the device of the parameters.

torch.optim.LBFGS reads a number back from the device for every stored pair of vectors. Here the
stored pairs are the rows of one matrix, and only their scalar products are read back, once per
step (Chen et al. 2014, "Large-scale L-BFGS using MapReduce"). Shapes: P parameters, M stored pairs.
"""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

Function = Callable[[Tensor], tuple[Tensor, Tensor]]  # (P,) -> value (), gradient (P,)

PAIRS = 10  # M; 20 need as many steps
DECREASE, SLOPE = 1e-4, 0.9  # the constants of the Wolfe conditions
TRIALS = 10  # evaluations in one line search
GAIN = 1e-9  # smaller gains are hidden by the rounding errors of float32
QUIET = 2  # it ends after this many steps in a row that gain less


def minimise(function: Function, start: Tensor, *, tolerance: float, steps: int) -> Tensor:
    """Return the parameters (P,) in float64 that minimise a function, beginning at `start` (P,).

    It ends when no entry of the gradient exceeds `tolerance`, when QUIET steps in a row gain less
    than GAIN each, or after `steps` steps.
    """
    point = start.double()
    value, gradient = function(point)
    pairs = Pairs(gradient)
    height = float(value)
    quiet = 0
    for _ in range(steps):
        if float(gradient.abs().max()) <= tolerance:
            break
        direction, slope = pairs.direction()
        found = line_search(function, point, direction, height, slope)
        if found is None:
            break
        new_point, new_height, new_gradient = found
        pairs.add(new_point - point, new_gradient - gradient, new_gradient)
        quiet = quiet + 1 if height - new_height < GAIN else 0
        point, height, gradient = new_point, new_height, new_gradient
        if quiet == QUIET:
            break
    return point


def line_search(
    function: Function, point: Tensor, direction: Tensor, height: float, slope: float
) -> tuple[Tensor, float, Tensor] | None:
    """Return a point (P,) on the line that meets the weak Wolfe conditions, its value and gradient.

    The first trial is a full step, which is almost always accepted. Returns None if the value does
    not fall in TRIALS trials, as when rounding errors hide the slope.
    """
    low, high, step = 0.0, float("inf"), 1.0
    for _ in range(TRIALS):
        trial = point + step * direction
        value, gradient = function(trial)
        new_height, new_slope = torch.stack([value, gradient @ direction]).tolist()
        # `not <=` also holds for NaN
        if not new_height <= height + DECREASE * step * slope + GAIN:
            high = step
        elif new_slope < SLOPE * slope:
            low = step
        else:
            return trial, new_height, gradient
        step = (low + high) / 2 if high < float("inf") else 2 * step
    return (trial, new_height, gradient) if new_height < height else None


class Pairs:
    """The last M steps and changes of the gradient, and the scalar products of all of them.

    The rows of `vectors` (2M+1,P) are the steps, the changes of the gradient, and the gradient.
    """

    def __init__(self, gradient: Tensor) -> None:
        self.vectors = gradient.new_zeros(2 * PAIRS + 1, len(gradient))
        self.products = np.zeros((2 * PAIRS + 1, 2 * PAIRS + 1))
        self.used: list[int] = []  # the pairs that are stored, the oldest first
        self._store([2 * PAIRS], gradient[None])

    def _store(self, rows: list[int], vectors: Tensor) -> None:
        """Write rows of the matrix, and update the scalar products."""
        for row, vector in zip(rows, vectors, strict=True):
            self.vectors[row] = vector
        products = (self.vectors @ vectors.T).cpu().numpy()
        self.products[:, rows] = products
        self.products[rows] = products.T

    def add(self, step: Tensor, change: Tensor, gradient: Tensor) -> None:
        """Store a step (P,), the change of the gradient (P,) along it, and the new gradient (P,).

        A pair without measurable curvature is left out.
        """
        if len(self.used) == PAIRS:
            del self.used[0]
        slot = next(slot for slot in range(PAIRS) if slot not in self.used)
        self._store([slot, PAIRS + slot, 2 * PAIRS], torch.stack([step, change, gradient]))
        lengths = self.products[slot, slot] * self.products[PAIRS + slot, PAIRS + slot]
        if self.products[slot, PAIRS + slot] > 1e-10 * lengths**0.5:
            self.used.append(slot)

    def direction(self) -> tuple[Tensor, float]:
        """Return the search direction (P,), and the slope of the function along it."""
        weights = self._weights()
        on_device = torch.from_numpy(weights).to(self.vectors)
        return on_device @ self.vectors, float(weights @ self.products[2 * PAIRS])

    def _weights(self) -> "np.ndarray[tuple[int], np.dtype[np.float64]]":
        """Return the direction as weights (2M+1,) of the stored vectors: the two-loop recursion."""
        products = self.products
        weights = np.zeros(2 * PAIRS + 1)
        weights[2 * PAIRS] = -1
        alphas = {}
        for pair in reversed(self.used):
            alphas[pair] = products[pair] @ weights / products[pair, PAIRS + pair]
            weights[PAIRS + pair] -= alphas[pair]
        if self.used:
            last = self.used[-1]
            weights *= products[last, PAIRS + last] / products[PAIRS + last, PAIRS + last]
        for pair in self.used:
            beta = products[PAIRS + pair] @ weights / products[pair, PAIRS + pair]
            weights[pair] += alphas[pair] - beta
        return weights
