"""Backbones: ResNets of any width with torchvision's key names, timm's by name, any module.

The residual blocks are torchvision's. The assembly is ours because torchvision's `ResNet` fixes the width at 64 and
the stem at ImageNet's; EqCo's table 7 needs ResNet-50 at two and four times the width, small images another stem.
"""

import copy
import difflib
from collections.abc import Callable
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn
from torchvision.models.resnet import BasicBlock, Bottleneck

Stem = Literal["imagenet", "half", "small"]

STEMS = {  # kernel, stride, padding of the first convolution; is there a max pool
    "imagenet": (7, 2, 3, True),
    "half": (3, 2, 1, False),  # 64 px, or 32 px on a CPU
    "small": (3, 1, 1, False),  # the 32 px papers'
}


class Shape(NamedTuple):
    """What makes one ResNet."""

    block: type[BasicBlock] | type[Bottleneck]
    layers: tuple[int, int, int, int]
    width: int = 64
    groups: int = 1
    per_group: int = 64


RESNETS = {
    "resnet10-slim": Shape(BasicBlock, (1, 1, 1, 1), 16),  # for CPUs and tests: 0.3 M weights
    "resnet10-slimx2": Shape(BasicBlock, (1, 1, 1, 1), 32),
    "resnet18": Shape(BasicBlock, (2, 2, 2, 2)),
    "resnet18x2": Shape(BasicBlock, (2, 2, 2, 2), 128),
    "resnet34": Shape(BasicBlock, (3, 4, 6, 3)),
    "resnet50": Shape(Bottleneck, (3, 4, 6, 3)),
    "resnet101": Shape(Bottleneck, (3, 4, 23, 3)),
    "resnet152": Shape(Bottleneck, (3, 8, 36, 3)),
    "resnet50x2": Shape(
        Bottleneck, (3, 4, 6, 3), 128
    ),  # every layer twice as wide, as in EqCo's table 7
    "resnet50x4": Shape(Bottleneck, (3, 4, 6, 3), 256),
    "wide_resnet50_2": Shape(
        Bottleneck, (3, 4, 6, 3), 64, 1, 128
    ),  # torchvision's: only the inner 3x3 is wider
    "resnext50_32x4d": Shape(Bottleneck, (3, 4, 6, 3), 64, 32, 4),
}
SUPERVISED = tuple(
    name for name in RESNETS if not name.endswith(("-slim", "x2", "x4"))
)  # torchvision has weights


class ResNet(nn.Module):
    """Images (N,C,H,W) -> features (N,width). Keys as torchvision's, without fc."""

    def __init__(self, shape: Shape, *, stem: Stem = "imagenet", channels: int = 3) -> None:
        super().__init__()
        if stem not in STEMS:
            raise ValueError(f"the stem is one of {', '.join(STEMS)}, not {stem!r}")
        if channels < 1:
            raise ValueError(f"images need at least one channel, got {channels}")
        first = shape.width
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
        """Features (N,width) of images (N,C,H,W)."""
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        features: Tensor = self.avgpool(x).flatten(1)
        return features


def _layer(shape: Shape, inner: int, number: int) -> nn.Sequential:
    """Stage `number` of a ResNet, from `inner` channels; all but the first halve the resolution."""
    planes, stride = shape.width << number, 1 if number == 0 else 2
    outer = planes * shape.block.expansion
    shortcut = None
    if stride > 1 or inner != outer:
        shortcut = nn.Sequential(
            nn.Conv2d(inner, outer, 1, stride, bias=False), nn.BatchNorm2d(outer)
        )
    # torchvision scales the bottleneck's inner width by per_group/64; BasicBlock takes the default only
    options = (shape.groups, shape.per_group)
    blocks = [shape.block(inner, planes, stride, shortcut, *options)]
    blocks += [
        shape.block(outer, planes, 1, None, *options) for _ in range(shape.layers[number] - 1)
    ]
    return nn.Sequential(*blocks)


class Wrapped(nn.Module):
    """Any network as a backbone: its output is pooled to (N,width) if it is a map or a sequence of tokens."""

    def __init__(self, net: nn.Module, channels: int = 3, size: int | None = None) -> None:
        super().__init__()
        self.net = net
        self.width, self.pools = self._measure(channels, size)

    def forward(self, x: Tensor) -> Tensor:
        """Features (N,width) of images (N,C,H,W)."""
        out = self._answer(x)
        if out.ndim == 4:
            return out.mean((2, 3))
        return out.mean(1) if out.ndim == 3 else out

    def _answer(self, x: Tensor) -> Tensor:
        """What the network itself returns."""
        out = self.net(x)
        if not isinstance(out, Tensor):
            raise ValueError(f"a backbone must return one tensor, got {type(out).__name__}")
        return out

    def tried(self, channels: int, size: int) -> Tensor:
        """What comes of one grey image, in eval mode; what the network refuses is a ValueError."""
        return self._try(self.forward, channels, size)

    @torch.no_grad()
    def _try(self, answer: Callable[[Tensor], Tensor], channels: int, size: int) -> Tensor:
        where = next(self.net.parameters(), torch.zeros(()))
        modes = {module: module.training for module in self.net.modules()}
        self.net.eval()
        try:
            return answer(where.new_full((1, channels, size, size), 0.5))
        except (RuntimeError, AssertionError, ValueError) as error:
            raise ValueError(
                f"the backbone takes no {size} px images of {channels} channels: {error}"
            ) from None
        finally:
            for module, mode in modes.items():
                module.training = mode

    def _measure(self, channels: int, size: int | None) -> tuple[int, bool]:
        """The feature width and whether it takes pooling; without a size CIFAR's or, if refused, ImageNet's."""
        try:
            out = self._try(self._answer, channels, size or 32)
        except ValueError:
            if size:
                raise
            out = self._try(self._answer, channels, 224)
        if out.ndim not in (2, 3, 4):
            raise ValueError(
                f"a backbone must return (N,D), a map (N,D,H,W) or tokens (N,T,D), got {out.ndim} axes"
            )
        return out.shape[2 if out.ndim == 3 else 1], out.ndim > 2


def backbone(
    net: str | nn.Module, *, stem: Stem | None = None, channels: int = 3, size: int | None = None
) -> nn.Module:
    """A backbone with `.width`, by name ("resnet18", "timm:vit_small_patch16_224") or from a module of one's own.

    The weights of a module are used as they are, not copied: training it trains the caller's. A classifier of
    torchvision's is left out, since logits are no features. `stem` ("imagenet" by default) is for our ResNets. `size`
    is that of the images, for a network that takes no other; one that states its `width` needs none.
    """
    if isinstance(net, nn.Module):
        if stem is not None:
            raise ValueError(f"the stem {stem!r} is for backbones by name; this one has its own")
        return _given(net, channels, size)
    if not isinstance(net, str):
        raise ValueError(f"a backbone is a name or a module, not {net!r}")
    if net.startswith("timm:"):
        if stem is not None:
            raise ValueError(f"the stem {stem!r} is for our ResNets; {net} has its own")
        return _timm(net.removeprefix("timm:"), channels, size)
    if net not in RESNETS:
        near = difflib.get_close_matches(net, RESNETS, 1)
        names = f"{', '.join(RESNETS)} or timm:NAME"
        plain = ", ".join(one for one in RESNETS if not one.endswith(("x2", "x4")))
        hint = (
            f", did you mean {near[0]!r}? (known are {plain}, wider ones and timm:NAME)"
            if near
            else f": choose from {names}"
        )
        raise ValueError(f"there is no backbone {net!r}{hint}")
    return ResNet(RESNETS[net], stem="imagenet" if stem is None else stem, channels=channels)


def width(net: nn.Module) -> int:
    """The feature size of a backbone."""
    size = getattr(net, "width", None)
    if not isinstance(size, int):
        raise ValueError(
            f"{type(net).__name__} has no feature size: pass it through antipode.nets.backbone first"
        )
    return size


def _given(net: nn.Module, channels: int, size: int | None) -> nn.Module:
    """A module of one's own: itself where it states its width and returns (N,width), else wrapped."""
    if isinstance(net, ResNet | Wrapped):
        return net
    stated = getattr(net, "width", None)
    try:
        wrapped = Wrapped(_without_classifier(net), channels, size)
    except ValueError:
        if (
            size is None and type(stated) is int
        ):  # images of a size that nobody said: its word is taken
            return net
        raise
    return net if stated == wrapped.width and not wrapped.pools else wrapped


def _without_classifier(net: nn.Module) -> nn.Module:
    """A torchvision model without its last layers; any other module as it is."""
    names = [name for name in ("fc", "classifier", "heads", "head") if name in net._modules]
    if not type(net).__module__.startswith("torchvision.models") or not names:
        return net
    bare = copy.copy(net)  # the caller's own keeps its classifier
    bare._modules = {**net._modules, names[0]: nn.Identity()}
    return bare


def _timm(name: str, channels: int, size: int | None) -> nn.Module:
    try:
        import timm  # noqa: PLC0415
    except ImportError:
        raise ValueError("backbones of timm need the extra: pip install 'antipode[timm]'") from None
    if not timm.is_model(name):
        near = difflib.get_close_matches(name, timm.list_models(), 1)
        raise ValueError(
            f"timm has no model {name!r}" + (f", did you mean {near[0]!r}?" if near else "")
        )
    return Wrapped(timm.create_model(name, num_classes=0, in_chans=channels), channels, size)


def zero_residuals(net: nn.Module) -> None:
    """Start every residual branch at zero: the last batch norm's scale is 0 (SimSiam, SiMo).

    Only where that scale is still at its own start, 1 everywhere: weights that were trained are left alone.
    """
    for module in net.modules():
        if isinstance(module, Bottleneck | BasicBlock):
            last = module.bn3 if isinstance(module, Bottleneck) else module.bn2
            if bool((last.weight == 1).all()):
                nn.init.zeros_(last.weight)
