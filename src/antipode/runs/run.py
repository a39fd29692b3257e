"""What is evaluated: a run, or a network that no run made - untrained, supervised, or out of somebody's file."""

import warnings
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from antipode.data.sources.splits import IMAGENET_MEAN, IMAGENET_STD
from antipode.recipe.parsing import nearest
from antipode.recipe.resolve import Recipe, resolve
from antipode.runs.restore import restored
from antipode.runs.folder import WEIGHTS, RunFolder
from antipode.nets.weights import Normal, bare, fit, normal, read, reopened, start
from antipode.nets.backbone import SUPERVISED, Stem
from antipode.nets.backbone import backbone as make_backbone

FOREIGN = ("random", "torchvision", "file")


@dataclass(frozen=True)
class Subject:
    """A backbone in eval mode, the folder for its scores, and the recipe that says how it sees images.

    The recipe of a network that no run made is the one that its data set would have.
    """

    name: str
    folder: RunFolder
    backbone: nn.Module
    recipe: Recipe
    run: bool = True
    module: nn.Module | None = None  # what a run of one's own trained
    normal: Normal | None = None  # of the pixels it was trained on; None: nobody knows, or it was not trained
    read: tuple[int, int] = (0, 0)  # which file the weights of a run are from

    def head(self) -> nn.Module | None:
        """The projection, which only the checkpoint of a run has."""
        if not self.run or not self.folder.has_checkpoint():
            return None
        try:
            return restored(self.folder.path, self.module).online.head.eval()
        except ValueError as error:
            warnings.warn(f"the head is not known, and protocols of the backbone do without it: {error}", stacklevel=3)
            return None

    def replaced(self) -> bool:
        """Whether another run has taken the folder since this one was opened."""
        return self.run and _which(self.folder.path / WEIGHTS) != self.read


def subject(
    text: str,
    *,
    data: str | None = None,
    out: Path | None = None,
    seed: int = 0,
    module: nn.Module | None = None,
) -> Subject:
    """A run folder, `random:NAME`, `torchvision:NAME` or `file:PATH@NAME`; `data` decides how the latter see images.

    `module` takes the weights of a run that trained a module of one's own.
    """
    kind, colon, rest = text.partition(":")
    if not colon or kind not in FOREIGN:
        return _run(Path(text).expanduser(), module, colon)
    path, _, name = rest.rpartition("@") if kind == "file" else ("", "", rest)
    if kind == "file" and not (path and name):
        raise ValueError(f"{text} names no file and network: write file:PATH@NAME, such as file:moco.pth@resnet50")
    folder = out or Path("runs") / f"{kind}-{Path(path).stem or name}".replace(":", "-")
    data = data or RunFolder(folder).read_object("network.json").get("data", "shapes")  # what it was scored on first
    return _foreign(text, kind, path, name, data=data, folder=folder, seed=seed)


def _run(path: Path, module: nn.Module | None, colon: str) -> Subject:
    file = path / "backbone.safetensors"
    if not file.exists():
        other = "; networks that no run made are random:NAME, torchvision:NAME and file:PATH@NAME" if colon else ""
        raise FileNotFoundError(f"{path} holds no finished run: there is no backbone.safetensors{other}")
    recipe = Recipe.read(path / "recipe.json")
    which, weights = _which(file), read(file)
    if not recipe.backbone.name.startswith("python:"):
        module = None
    elif module is None:
        own = f"{path} trained a module of one's own ({recipe.backbone.name}), which cannot be built again"
        raise ValueError(
            f"{own}: in Python, give the Run that pretrain returned, or a module of that kind for the weights"
        )
    net, _ = reopened(weights, recipe.backbone.name, recipe.backbone.stem, module, recipe.views.size)
    fit(bare(net), weights, str(file))
    return Subject(path.name, RunFolder(path), net.eval(), recipe, module=module, normal=normal(file), read=which)


def _which(file: Path) -> tuple[int, int]:
    """What tells a file from another one of its name."""
    found = file.stat() if file.exists() else None
    return (0, 0) if found is None else (found.st_ino, found.st_mtime_ns)


def _foreign(text: str, kind: str, path: str, name: str, *, data: str, folder: Path, seed: int) -> Subject:
    """A network that no run made: an untrained one has the stem that its data ask for, weights bring their own."""
    if kind == "torchvision" and name not in SUPERVISED:
        raise ValueError(f"torchvision has no ImageNet weights for {name!r}{nearest(name, SUPERVISED)}")
    recipe = resolve(method="simclr", data=data, flags={"backbone.name": name, "train.seed": seed})
    torch.manual_seed(seed)
    stem, channels = recipe.backbone.stem, _channels(data)
    if kind == "random":
        net, seen = make_backbone(name, stem=stem, channels=channels), None
    else:
        net, stem = _filled(name, "torchvision" if kind == "torchvision" else path, stem, channels)
        # weights with ImageNet's stem are ImageNet's, or of something that was seen as it is
        like = Normal(IMAGENET_MEAN, IMAGENET_STD) if stem == "imagenet" and channels == 3 else None
        seen = normal(Path(path).expanduser()) or like
    return Subject(text, RunFolder(folder), net.eval(), recipe, run=False, normal=seen)


def _filled(name: str, weights: str, stem: Stem | None, channels: int) -> tuple[nn.Module, Stem | None]:
    """The network with these weights and its stem: of two that their shapes fit, the one that the data ask for."""
    others: tuple[Stem, ...] = ("imagenet", "small")
    stems = [stem, *(one for one in others if one != stem)] if stem else [None]
    for one in stems:
        net = make_backbone(name, stem=one, channels=channels)
        try:
            start(net, name, weights)
        except ValueError as error:
            if "the stem differs" not in str(error) or one is stems[-1]:
                raise
        else:
            break
    return net, one


def _channels(data: str) -> int:
    """Images of all but two of the data sets have colours."""
    return 1 if data in ("digits", "fashionmnist") else 3
