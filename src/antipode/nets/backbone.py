"""Backbones: ResNets of any width, timm's models by name, or any module.

The ResNets have torchvision's parameter names. torchvision's own `ResNet` fixes the width at 64 and
the stem at ImageNet's. EqCo's table 7 needs ResNet-50 at two and four times the width, and small
images need another stem. Shapes: N images, C channels, H W pixels, D features, T tokens.
"""

import copy
from collections.abc import Callable
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from antipode.limits import check_limit
from antipode.names import unknown
from antipode.nets import timm_net
from antipode.nets.blocks import BasicBlock, Bottleneck, last_norms
from antipode.types import check_kind

Stem = Literal["imagenet", "half", "small"]

# kernel, stride and padding of the first convolution; whether a max pool follows
STEMS: dict[Stem, tuple[int, int, int, bool]] = {
    "imagenet": (7, 2, 3, True),
    "half": (3, 2, 1, False),  # for 64 px, or for 32 px on a CPU
    "small": (3, 1, 1, False),  # of the papers with 32 px images
}


class Shape(NamedTuple):
    """The architecture of a ResNet.

    Args:
        block: the class of its residual blocks.
        layers: the number of blocks in each of the four stages.
        width: the number of channels of the first stage.
        groups: the number of groups of the 3x3 convolutions.
        per_group: scales the width of the 3x3 convolutions, see `Bottleneck`.
    """

    block: type[BasicBlock] | type[Bottleneck]
    layers: tuple[int, int, int, int]
    width: int = 64
    groups: int = 1
    per_group: int = 64


RESNETS = {
    "resnet10-slim": Shape(BasicBlock, (1, 1, 1, 1), 16),  # 0.3 M weights, for CPUs and tests
    "resnet10-slimx2": Shape(BasicBlock, (1, 1, 1, 1), 32),
    "resnet18": Shape(BasicBlock, (2, 2, 2, 2)),
    "resnet18x2": Shape(BasicBlock, (2, 2, 2, 2), 128),
    "resnet34": Shape(BasicBlock, (3, 4, 6, 3)),
    "resnet50": Shape(Bottleneck, (3, 4, 6, 3)),
    "resnet101": Shape(Bottleneck, (3, 4, 23, 3)),
    "resnet152": Shape(Bottleneck, (3, 8, 36, 3)),
    # every layer is twice or four times as wide, as in EqCo's table 7
    "resnet50x2": Shape(Bottleneck, (3, 4, 6, 3), 128),
    "resnet50x4": Shape(Bottleneck, (3, 4, 6, 3), 256),
    # torchvision's: only the 3x3 convolutions are wider
    "wide_resnet50_2": Shape(Bottleneck, (3, 4, 6, 3), 64, 1, 128),
    "resnext50_32x4d": Shape(Bottleneck, (3, 4, 6, 3), 64, 32, 4),
}
# the ResNets that torchvision has ImageNet weights for
SUPERVISED = tuple(name for name in RESNETS if not name.endswith(("-slim", "x2", "x4")))


class ResNet(nn.Module):
    """A ResNet without classifier: images (N,C,H,W) -> features (N,width).

    The keys of its state dict are those of torchvision's ResNet, without `fc`.
    """

    def __init__(self, shape: Shape, *, stem: Stem = "imagenet", channels: int = 3) -> None:
        super().__init__()
        if not isinstance(stem, str) or stem not in STEMS:
            raise ValueError(f"the stem must be one of {', '.join(STEMS)}, got {stem!r}")
        check_kind(int, channels=channels)
        if channels < 1:
            raise ValueError(f"images need at least one channel, got {channels}")
        check_limit("channels", "channels", channels)
        first = shape.width
        self.stem: Stem = stem
        kernel, stride, padding, pool = STEMS[stem]
        self.conv1 = nn.Conv2d(channels, first, kernel, stride, padding, bias=False)
        self.bn1 = nn.BatchNorm2d(first)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, 2, 1) if pool else nn.Identity()
        self.layer1 = _layer(shape, first, 0)
        self.layer2 = _layer(shape, first * shape.block.expansion, 1)
        self.layer3 = _layer(shape, first * shape.block.expansion * 2, 2)
        self.layer4 = _layer(shape, first * shape.block.expansion * 4, 3)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.width = first * 8 * shape.block.expansion
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        """Return features (N,width) of images (N,C,H,W)."""
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        features: Tensor = self.avgpool(x).flatten(1)
        return features


def _layer(shape: Shape, inner: int, number: int) -> nn.Sequential:
    """Return stage `number` of a ResNet, which has `inner` input channels.

    Every stage except the first halves the resolution.
    """
    planes = shape.width << number
    stride = 1 if number == 0 else 2
    outer = planes * shape.block.expansion
    shortcut = None
    if stride > 1 or inner != outer:
        shortcut = nn.Sequential(
            nn.Conv2d(inner, outer, 1, stride, bias=False), nn.BatchNorm2d(outer)
        )
    options = (shape.groups, shape.per_group)
    blocks = [shape.block(inner, planes, stride, shortcut, *options)]
    blocks += [
        shape.block(outer, planes, 1, None, *options) for _ in range(shape.layers[number] - 1)
    ]
    return nn.Sequential(*blocks)


class Wrapped(nn.Module):
    """Any network as a backbone.

    A feature map (N,D,H,W) or tokens (N,T,D) are averaged to features (N,D).

    Args:
        net: the network.
        channels: the number of channels of its images.
        size: the side of its images in pixels, if it accepts no other size.
    """

    def __init__(self, net: nn.Module, channels: int = 3, size: int | None = None) -> None:
        super().__init__()
        self.net = net
        self.width, self.pools = self._measure(channels, size)

    def forward(self, x: Tensor) -> Tensor:
        """Return features (N,width) of images (N,C,H,W)."""
        out = self._output(x)
        if out.ndim == 4:
            return out.mean((2, 3))
        return out.mean(1) if out.ndim == 3 else out

    def _output(self, x: Tensor) -> Tensor:
        """Return the output of the network itself."""
        out = self.net(x)
        if not isinstance(out, Tensor):
            raise ValueError(f"a backbone must return one tensor, got {type(out).__name__}")
        return out

    def tried(self, channels: int, size: int) -> Tensor:
        """Return the features (1,width) of one grey image, computed in eval mode.

        Raises ValueError if the network does not accept such an image.
        """
        return self._try(self.forward, channels, size)

    @torch.no_grad()
    def _try(self, compute: Callable[[Tensor], Tensor], channels: int, size: int) -> Tensor:
        like = next(self.net.parameters(), torch.zeros(()))
        modes = {module: module.training for module in self.net.modules()}
        self.net.eval()
        try:
            return compute(like.new_full((1, channels, size, size), 0.5))
        except (RuntimeError, AssertionError, ValueError) as error:
            raise ValueError(
                f"the backbone does not accept {size} px images of {channels} channels: {error}"
            ) from None
        finally:
            for module, mode in modes.items():
                module.training = mode

    def _measure(self, channels: int, size: int | None) -> tuple[int, bool]:
        """Return the number of features, and whether the output must be averaged to get them.

        Without a size, CIFAR's 32 px are tried first, then ImageNet's 224 px.
        """
        try:
            out = self._try(self._output, channels, size or 32)
        except ValueError:
            if size:
                raise
            out = self._try(self._output, channels, 224)
        if out.ndim not in (2, 3, 4):
            raise ValueError(
                "a backbone must return features (N,D), a map (N,D,H,W) or tokens (N,T,D), "
                f"got a tensor with {out.ndim} axes"
            )
        return out.shape[2 if out.ndim == 3 else 1], out.ndim > 2


def backbone(
    net: str | nn.Module, *, stem: Stem | None = None, channels: int = 3, size: int | None = None
) -> nn.Module:
    """Return a backbone with an attribute `width`, its number of features.

    Args:
        net: a name, such as "resnet18" or "timm:vit_small_patch16_224?drop_path_rate=0.1", or your
            own module. The weights of a module are used and not copied, so that training the
            backbone trains your module. The classifier of a torchvision model is left out, because
            logits are not features.
        stem: the first layers of a ResNet by name, "imagenet" by default.
        channels: the number of channels of the images.
        size: the side of the images in pixels. It is needed for a module that accepts no other size
            and does not state its `width`. A transformer of timm is built for this size, unless its
            name states `img_size`.
    """
    if isinstance(net, nn.Module):
        if stem is not None:
            raise ValueError(f"the stem {stem!r} is for backbones by name; a module has its own")
        return _from_module(net, channels, size)
    if not isinstance(net, str):
        raise ValueError(f"a backbone is a name or a module, not {net!r}")
    if net.startswith("timm:"):
        if stem is not None:
            raise ValueError(f"the stem {stem!r} is for antipode's ResNets; {net} has its own")
        return Wrapped(
            timm_net.network(net, channels, size), channels, timm_net.image_size(net, size)
        )
    if net not in RESNETS:
        raise unknown("backbone", net, [*RESNETS, "timm:NAME"])
    return ResNet(RESNETS[net], stem="imagenet" if stem is None else stem, channels=channels)


def width(net: nn.Module) -> int:
    """Return the number of features of a backbone."""
    size = getattr(net, "width", None)
    if not isinstance(size, int):
        raise ValueError(
            f"{type(net).__name__} has no attribute `width`, its number of features: pass it to "
            "antipode.nets.backbone.backbone first"
        )
    return size


def _from_module(net: nn.Module, channels: int, size: int | None) -> nn.Module:
    """Return your own module as a backbone.

    It is the module itself if it states its `width` and returns features (N,width), else a wrapper.
    """
    if isinstance(net, ResNet | Wrapped):
        return net
    stated = getattr(net, "width", None)
    try:
        wrapped = Wrapped(_without_classifier(net), channels, size)
    except ValueError:
        # the size of its images is unknown, so the stated width cannot be checked
        if size is None and type(stated) is int:
            return net
        raise
    return net if stated == wrapped.width and not wrapped.pools else wrapped


def _without_classifier(net: nn.Module) -> nn.Module:
    """Return a torchvision model without its classifier, or any other module as it is."""
    names = [name for name in ("fc", "classifier", "heads", "head") if name in net._modules]
    if not type(net).__module__.startswith("torchvision.models") or not names:
        return net
    bare = copy.copy(net)  # the caller's model keeps its classifier
    bare._modules = {**net._modules, names[0]: nn.Identity()}
    return bare


def zero_residuals(net: nn.Module) -> None:
    """Set the scale of the last batch norm of every residual branch to 0 (SimSiam, SiMo).

    Every residual block is then the identity at the start of training. A scale that is not 1
    everywhere was trained, and is not changed.
    """
    for norm in last_norms(net):
        if bool((norm.weight == 1).all()):
            nn.init.zeros_(norm.weight)
