"""Projectors and predictors of all papers: one function."""

import itertools
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from antipode.nets.norm import BatchNorm

Norm = Literal["batch", "layer", "weight", "none"]


def mlp(
    sizes: list[int],
    *,
    norm: Norm = "none",
    last_norm: bool = False,
    last_affine: bool = True,
    hidden_bias: bool = True,
    last_bias: bool = True,
    std: float | None = None,
) -> nn.Sequential:
    """Linear layers through `sizes`, ReLU between them, a norm after the hidden ones and, if asked, after the last.

    norm: "batch", "layer", "weight" (weight-standardised linear layers and no norm), or "none".
    std: linear weights from N(0, std^2) instead of torch's default.
    """
    if norm not in ("batch", "layer", "weight", "none"):
        raise ValueError(f"a head's norm is batch, layer, weight or none, not {norm!r}")
    if len(sizes) < 2 or min(sizes) < 1:
        raise ValueError(
            f"a head needs at least an input and an output size, all positive, got {sizes}"
        )
    layers: list[nn.Module] = []
    last = len(sizes) - 2
    for number, (inner, outer) in enumerate(itertools.pairwise(sizes)):
        bias = last_bias if number == last else hidden_bias
        linear = (
            StandardLinear(inner, outer, bias=bias)
            if norm == "weight"
            else nn.Linear(inner, outer, bias=bias)
        )
        if std is not None:
            nn.init.normal_(linear.weight, std=std)
        layers.append(linear)
        if norm in ("batch", "layer") and (number < last or last_norm):
            affine = number < last or last_affine
            layers.append(
                BatchNorm(outer, affine=affine)
                if norm == "batch"
                else nn.LayerNorm(outer, elementwise_affine=affine)
            )
        if number < last:
            layers.append(nn.ReLU(inplace=True))
    return nn.Sequential(*layers)


class StandardLinear(nn.Linear):
    """A linear layer whose weights are standardised per output (Qiao et al. 2019): mean 0, variance 1/in.

    One of the ways MSBReg's supplement (1.2) tries in place of batch norm. The scale keeps unit-variance inputs at unit
    variance; eps keeps a constant row finite.
    """

    def forward(self, x: Tensor) -> Tensor:
        """Outputs (N,out) of inputs (N,in)."""
        var, mean = torch.var_mean(self.weight, 1, keepdim=True)
        return F.linear(
            x, (self.weight - mean) * torch.rsqrt(var * self.in_features + 1e-8), self.bias
        )
