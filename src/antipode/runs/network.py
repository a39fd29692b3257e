"""Networks that no run trained: untrained, supervised, or from a checkpoint file."""

from pathlib import Path
from typing import NamedTuple

import torch
from torch import nn

from antipode.data.sources.splits import IMAGENET_MEAN, IMAGENET_STD
from antipode.names import did_you_mean
from antipode.nets.backbone import SUPERVISED, Stem
from antipode.nets.backbone import backbone as make_backbone
from antipode.nets.weights import Normal, normal, start
from antipode.recipe.datasets import dataset_defaults

KINDS = ("random", "torchvision", "file")


class Network(NamedTuple):
    """A network that no run trained.

    Args:
        text: what the user wrote, such as `random:resnet50`.
        kind: one of `KINDS`.
        path: the checkpoint file, empty for the other kinds.
        name: the name of the backbone.
        data: the data set that decides the view size, the stem and the number of channels.
        seed: the seed of untrained weights.
    """

    text: str
    kind: str
    path: str
    name: str
    data: str
    seed: int

    @property
    def size(self) -> int:
        """The side of a view in pixels."""
        return int(dataset_defaults(self.data).layer["views.size"][0])

    @property
    def policy(self) -> str:
        """The view policy that the data set asks for."""
        views = dataset_defaults(self.data).views
        return str(views["views.policy"][0]) if views else "eval"

    def build(self) -> tuple[nn.Module, Stem | None]:
        """Return the network in eval mode, and its stem.

        An untrained network has the stem that its data set asks for. Weights decide their own stem.
        """
        if self.kind == "torchvision" and self.name not in SUPERVISED:
            hint = did_you_mean(self.name, SUPERVISED)
            raise ValueError(f"torchvision has no ImageNet weights for {self.name!r}{hint}")
        has_own_stem = self.name.startswith("timm:")
        stem = None if has_own_stem else dataset_defaults(self.data).layer["backbone.stem"][0]
        torch.manual_seed(self.seed)
        channels = _channels(self.data)
        if self.kind == "random":
            return make_backbone(self.name, stem=stem, channels=channels).eval(), stem
        weights = self.path if self.kind == "file" else "torchvision"
        net, fitting_stem = _with_weights(self.name, weights, stem, channels)
        return net.eval(), fitting_stem

    def normal(self, stem: Stem | None) -> Normal | None:
        """Return the normalisation of the pixels that the network was trained on, None if unknown.

        Weights with ImageNet's stem were trained on ImageNet, or on images that were normalised
        like it.
        """
        if self.kind == "random":
            return None
        stored = normal(Path(self.path).expanduser()) if self.path else None
        like_imagenet = stem == "imagenet" and _channels(self.data) == 3
        return stored or (Normal(IMAGENET_MEAN, IMAGENET_STD) if like_imagenet else None)


def parsed(text: str) -> tuple[str, str, str] | None:
    """Return the kind, path and name of a network, or None if the text is that of a run folder."""
    kind, colon, rest = text.partition(":")
    if not colon or kind not in KINDS:
        return None
    if kind != "file":
        return kind, "", rest
    path, _, name = rest.rpartition("@")
    if not (path and name):
        raise ValueError(
            f"{text} does not name a file and a network: write file:PATH@NAME, such as "
            "file:moco.pth@resnet50"
        )
    return kind, path, name


def _with_weights(
    name: str, weights: str, stem: Stem | None, channels: int
) -> tuple[nn.Module, Stem | None]:
    """Return the network with these weights and its stem, trying the data set's stem first."""
    others: tuple[Stem, ...] = ("imagenet", "small")
    stems = [stem, *(other for other in others if other != stem)] if stem else [None]
    for candidate in stems:
        net = make_backbone(name, stem=candidate, channels=channels)
        try:
            start(net, name, weights)
        except ValueError as error:
            if "the stem differs" not in str(error) or candidate is stems[-1]:
                raise
        else:
            break
    return net, candidate


def _channels(data: str) -> int:
    """Return the number of channels of a data set: all but two have colours."""
    return 1 if data in ("digits", "fashionmnist") else 3
