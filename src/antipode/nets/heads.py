"""Projection and prediction heads of all papers, built by one function."""

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
    """Build a multilayer perceptron with ReLU between its linear layers.

    Args:
        sizes: the number of features before the first layer and after every layer.
        norm: what follows a hidden linear layer: "batch", "layer" or "none". With "weight" nothing
            follows, and the weights of all linear layers are standardised.
        last_norm: whether a batch or layer norm also follows the last linear layer.
        last_affine: whether that norm has a learnable scale and bias.
        hidden_bias: whether hidden linear layers have a bias.
        last_bias: whether the last linear layer has a bias.
        std: the standard deviation of the initial linear weights, which then have mean 0. None
            keeps torch's initialisation.
    """
    if norm not in ("batch", "layer", "weight", "none"):
        raise ValueError(f"the norm of a head must be batch, layer, weight or none, got {norm!r}")
    if len(sizes) < 2 or min(sizes) < 1:
        raise ValueError(
            f"a head needs at least an input and an output size, all positive, got {sizes}"
        )
    layers: list[nn.Module] = []
    last = len(sizes) - 2
    for number, (inner, outer) in enumerate(itertools.pairwise(sizes)):
        bias = last_bias if number == last else hidden_bias
        kind = StandardLinear if norm == "weight" else nn.Linear
        linear = kind(inner, outer, bias=bias)
        if std is not None:
            nn.init.normal_(linear.weight, std=std)
        layers.append(linear)
        if norm in ("batch", "layer") and (number < last or last_norm):
            affine = number < last or last_affine
            if norm == "batch":
                layers.append(BatchNorm(outer, affine=affine))
            else:
                layers.append(nn.LayerNorm(outer, elementwise_affine=affine))
        if number < last:
            layers.append(nn.ReLU(inplace=True))
    return nn.Sequential(*layers)


class StandardLinear(nn.Linear):
    """A linear layer whose weights are standardised for each output (Qiao et al. 2019).

    They have mean 0 and variance 1/in. MSBReg's supplement (1.2) tries this in place of batch norm.
    The variance keeps inputs of unit variance at unit variance. The eps keeps a constant row
    finite.
    """

    def forward(self, x: Tensor) -> Tensor:
        """Return outputs (N,out) of inputs (N,in)."""
        var, mean = torch.var_mean(self.weight, 1, keepdim=True)
        weight = (self.weight - mean) * torch.rsqrt(var * self.in_features + 1e-8)
        return F.linear(x, weight, self.bias)
