"""Networks that no run trained: untrained, supervised, or from a checkpoint file."""

from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from antipode.data.sources.catalog import load
from antipode.data.sources.splits import IMAGENET_MEAN, IMAGENET_STD
from antipode.names import did_you_mean, unknown
from antipode.nets.backbone import RESNETS, STEMS, SUPERVISED, Stem
from antipode.nets.backbone import backbone as make_backbone
from antipode.nets.timm_net import stated_size
from antipode.nets.weight_file import About, Normal, file_of
from antipode.nets.weight_file import about as about_file
from antipode.nets.weights import bare, channels_of, fit, network, settled_stem, start
from antipode.paths import expanded
from antipode.recipe.datasets import dataset_defaults
from antipode.recipe.layer import Layer
from antipode.recipe.opening import facts
from antipode.recipe.own_data import own_defaults

KINDS = ("random", "torchvision", "file")


class Network(NamedTuple):
    """A network that no run trained.

    Args:
        text: what the user wrote, such as `random:resnet50`.
        kind: one of `KINDS`.
        path: the checkpoint file, empty for the other kinds.
        name: the name of the backbone.
        data: the data set that decides what a file does not state: the view size, the policy and
            the number of channels. It also decides the stem of an untrained network.
        seed: the seed of untrained weights.
        stem: the stem that the user has named for the weights of a file.
    """

    text: str
    kind: str
    path: str
    name: str
    data: str
    seed: int
    stem: Stem | None = None

    @property
    def file(self) -> Path:
        """The checkpoint file."""
        return file_of(expanded(self.path))

    @property
    def about(self) -> About:
        """What the checkpoint file says about the network."""
        return about_file(self.file) if self.kind == "file" else About()

    @property
    def size(self) -> int:
        """The side of a view in pixels: as the name or the file states it, or as the data set asks.

        The name of a network of timm may state `img_size`.
        """
        stated = stated_size(self.name) or self.about.size
        return stated or int(self._default("views.size"))

    @property
    def policy(self) -> str:
        """The view policy that the file states, or that the data set asks for."""
        views = dataset_defaults(self.data).views
        return self.about.policy or (str(views["views.policy"][0]) if views else "eval")

    def build(self) -> tuple[nn.Module, Stem | None]:
        """Return the network in eval mode, and its stem.

        An untrained network has the stem that its data set asks for. Weights decide their own stem.
        """
        torch.manual_seed(self.seed)
        channels = self.about.channels or _channels(self.data)
        if self.kind == "file":
            net, stem = self._from_file(channels)
        elif self.kind == "torchvision":
            net, stem = self._supervised(channels), "imagenet"
        else:
            has_own_stem = self.name.startswith("timm:")
            stem = None if has_own_stem else self._default("backbone.stem")
            net = make_backbone(self.name, stem=stem, channels=channels, size=self.size)
        return net.eval(), stem

    def _default(self, key: str) -> Any:
        """Return the value of the data set's recipe.

        An untrained network for your own images has the values of a run on them. Weights come from
        other images, so they do not follow yours.
        """
        if self.kind == "random" and self.data.startswith("folder:"):
            return _own_layer(self.data, self.name)[key][0]
        return dataset_defaults(self.data).layer[key][0]

    def _supervised(self, channels: int) -> nn.Module:
        """Return torchvision's network with its ImageNet weights."""
        if self.name not in SUPERVISED:
            hint = did_you_mean(self.name, SUPERVISED)
            raise ValueError(f"torchvision has no ImageNet weights for {self.name!r}{hint}")
        net = make_backbone(self.name, channels=channels)
        start(net, self.name, "torchvision")
        return net

    def _from_file(self, channels: int) -> tuple[nn.Module, Stem | None]:
        """Return the network with the weights of the file, and its stem."""
        if self.name not in RESNETS:
            net = make_backbone(self.name, channels=channels, size=self.size)
            fit(bare(net), network(self.file, self.name, bare(net)), str(self.file))
            return net, None
        with torch.device("meta"):  # for the names and shapes of its tensors alone
            form = make_backbone(self.name, channels=channels)
        state = network(self.file, self.name, form)
        ask = f"write file:{self.path}@{self.name}:{{stem}}"
        stem = settled_stem(self.file, state, self.stem, ask)
        stored = channels_of(state, channels)
        # weights for colour images are summed to see grey images
        channels = channels if (stored, channels) == (3, 1) else stored
        net = make_backbone(self.name, stem=stem, channels=channels)
        fit(net, state, str(self.file))
        return net, stem

    def normal(self, stem: Stem | None) -> Normal | None:
        """Return the normalisation of the pixels that the network was trained on, None if unknown.

        Weights with ImageNet's stem were trained on ImageNet, or on images that were normalised
        like it, unless their file describes how they were trained.
        """
        if self.kind == "random":
            return None
        about = self.about
        like_imagenet = stem == "imagenet" and _channels(self.data) == 3
        if about.normal or about.policy or not like_imagenet:
            return about.normal
        return Normal(IMAGENET_MEAN, IMAGENET_STD)


@lru_cache(maxsize=16)
def _own_layer(data: str, name: str) -> Layer:
    """Return the default values of a run of a network on a folder of your own images."""
    own = facts(load(data, labels="none"))
    return own_defaults(own, {"backbone.name": name}, About()).layer


class Parsed(NamedTuple):
    """The parts of the text of a network that no run trained."""

    kind: str
    path: str
    name: str
    stem: Stem | None


def parsed(text: str) -> Parsed | None:
    """Return the parts of a network's text, or None if the text is that of a run folder."""
    kind, colon, rest = text.partition(":")
    if not colon or kind not in KINDS:
        return None
    if kind != "file":
        return Parsed(kind, "", rest, None)
    path, _, name = rest.rpartition("@")
    if not (path and name):
        raise ValueError(
            f"{text} does not name a file and a network: write file:PATH@NAME, such as "
            "file:moco.pth@resnet50"
        )
    if name.startswith("timm:"):
        return Parsed(kind, path, name, None)
    name, colon, stem = name.partition(":")
    if colon and stem not in STEMS:
        raise unknown("stem", stem, STEMS)
    return Parsed(kind, path, name, stem if colon else None)  # type: ignore[arg-type]


def _channels(data: str) -> int:
    """Return the number of channels of a data set: all but two have colours."""
    return 1 if data in ("digits", "fashionmnist") else 3
