"""What a data set is made of, and where its files are looked for."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from antipode.data.sources.source import Source, three

IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


@dataclass(frozen=True)
class Splits:
    """A data set by its uses. `pretrain` and `train` are one object where the labels cover all of it."""

    name: str
    pretrain: Source
    train: Source  # labelled: the bank of kNN, the training set of linear evaluation
    test: Source | None
    size: int  # native side in pixels, or what the field evaluates at
    mean: tuple[float, ...] = IMAGENET_MEAN
    std: tuple[float, ...] = IMAGENET_STD

    @property
    def classes(self) -> list[str] | None:
        """Class names, or None."""
        return self.train.classes

    @property
    def channels(self) -> int:
        """C."""
        return self.pretrain.channels


def coloured(splits: Splits) -> Splits:
    """A data set of grey images for a network that takes three channels."""
    train = three(splits.train)
    pretrain = train if splits.pretrain is splits.train else three(splits.pretrain)
    test = None if splits.test is None else three(splits.test)
    return replace(
        splits, pretrain=pretrain, train=train, test=test, mean=splits.mean * 3, std=splits.std * 3
    )


def normal(source: Source) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation per channel: ImageNet's for three, else those of up to 100 images of the source."""
    if source.channels == 3:
        return IMAGENET_MEAN, IMAGENET_STD
    images, _ = source.take(torch.arange(0, len(source), -(-len(source) // 100)))
    pixels = images.transpose(0, 1).flatten(1).double() / 255
    return tuple(pixels.mean(1).tolist()), tuple(pixels.std(1).clamp(min=0.01).tolist())


def base(name: str, root: str | Path | None, looked: str, how: str) -> Path:
    """The folder with data sets: `root`, else ANTIPODE_DATA; a sentence where neither says what to look in."""
    found = root or os.environ.get("ANTIPODE_DATA")
    if not found:
        raise FileNotFoundError(
            f"{name} is not there: set ANTIPODE_DATA or data.root to a folder, where {looked} will be looked for; {how}"
            " (shapes and digits need no folder)"
        )
    return Path(found).expanduser()


def locate(
    name: str, root: Path | None, folders: Sequence[str], inside: Sequence[str], how: str
) -> Path:
    """The first of `folders` under the one with data sets that holds all of `inside`; a sentence if there is none."""
    root = base(name, root, f"{', '.join(inside)} in {folders[0]}", how)
    for folder in folders:
        if all((root / folder / entry).exists() for entry in inside):
            return root / folder
    where = " or ".join(str(root / folder) for folder in folders)
    raise FileNotFoundError(
        f"{name} is not there: looked for {', '.join(inside)} in {where}; {how}"
    )
