"""The residual blocks of ResNets, with the parameter names and the arithmetic of torchvision's.

They are not imported from torchvision, because `import torchvision` imports torch's compiler
(torchvision 0.29.2, ops/roi_align.py). That takes 1.4 s of CPU time, as long as `import torch`, and
most commands do not need it. Shapes: N images, C channels, H W pixels.
"""

import sys
from typing import ClassVar

from torch import Tensor, nn


class BasicBlock(nn.Module):
    """Two 3x3 convolutions around a shortcut, as in ResNet-18 and ResNet-34.

    Args:
        inner: the number of input channels.
        planes: the number of output channels.
        stride: the stride of the first convolution.
        downsample: the shortcut, or None for the identity.
    """

    expansion: ClassVar[int] = 1

    def __init__(
        self,
        inner: int,
        planes: int,
        stride: int,
        downsample: nn.Module | None,
        groups: int = 1,
        per_group: int = 64,
    ) -> None:
        super().__init__()
        if (groups, per_group) != (1, 64):
            raise ValueError(
                f"a basic block has 1 group of width 64, got {groups} groups of width {per_group}"
            )
        self.conv1 = nn.Conv2d(inner, planes, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(planes)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(planes, planes, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(planes)
        self.downsample = downsample

    def forward(self, x: Tensor) -> Tensor:
        """Return maps (N,planes,H/stride,W/stride) of maps (N,C,H,W)."""
        out: Tensor = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        out += x if self.downsample is None else self.downsample(x)
        result: Tensor = self.relu(out)
        return result


class Bottleneck(nn.Module):
    """1x1, 3x3 and 1x1 convolutions around a shortcut, as in ResNet-50 and deeper networks.

    The stride is that of the 3x3 convolution, as in torchvision ("ResNet V1.5"). In the paper (He
    et al. 2016) it is that of the first convolution.

    Args:
        inner: the number of input channels.
        planes: a quarter of the number of output channels.
        stride: the stride of the 3x3 convolution.
        downsample: the shortcut, or None for the identity.
        groups: the number of groups of the 3x3 convolution.
        per_group: scales the width of the 3x3 convolution, which is planes * per_group / 64 *
            groups.
    """

    expansion: ClassVar[int] = 4

    def __init__(
        self,
        inner: int,
        planes: int,
        stride: int,
        downsample: nn.Module | None,
        groups: int = 1,
        per_group: int = 64,
    ) -> None:
        super().__init__()
        middle = int(planes * (per_group / 64)) * groups
        outer = planes * self.expansion
        self.conv1 = nn.Conv2d(inner, middle, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(middle)
        self.conv2 = nn.Conv2d(middle, middle, 3, stride, 1, groups=groups, bias=False)
        self.bn2 = nn.BatchNorm2d(middle)
        self.conv3 = nn.Conv2d(middle, outer, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(outer)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = downsample

    def forward(self, x: Tensor) -> Tensor:
        """Return maps (N,4*planes,H/stride,W/stride) of maps (N,C,H,W)."""
        out: Tensor = self.relu(self.bn1(self.conv1(x)))
        out = self.relu(self.bn2(self.conv2(out)))
        out = self.bn3(self.conv3(out))
        out += x if self.downsample is None else self.downsample(x)
        result: Tensor = self.relu(out)
        return result


def last_norms(net: nn.Module) -> list[nn.BatchNorm2d]:
    """Return the last batch norm of every residual branch of a network, ours or torchvision's."""
    names: dict[type[nn.Module], str] = {BasicBlock: "bn2", Bottleneck: "bn3"}
    theirs = sys.modules.get(
        "torchvision.models.resnet"
    )  # imported if the network is torchvision's
    if theirs is not None:
        names |= {theirs.BasicBlock: "bn2", theirs.Bottleneck: "bn3"}
    return [
        getattr(module, name)
        for module in net.modules()
        for block, name in names.items()
        if isinstance(module, block)
    ]
