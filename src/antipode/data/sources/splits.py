"""The splits of a data set, and the folders in which its files are searched."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from antipode.data.sources.source import Source, grey_to_rgb
from antipode.names import printable
from antipode.paths import absolute

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)


@dataclass(frozen=True)
class Splits:
    """A data set, divided by use.

    `pretrain` and `train` are the same object, unless only a part of the images is labelled, as in
    STL-10.
    """

    name: str
    pretrain: Source
    train: Source  # labelled: the bank of kNN, the training set of linear evaluation
    test: Source | None
    size: int  # the native side in pixels, or the side that is customary for evaluation
    mean: tuple[float, ...] = IMAGENET_MEAN
    std: tuple[float, ...] = IMAGENET_STD
    labelling: str = ""  # why the folders of a data set are classes or not, if that was decided

    @property
    def classes(self) -> list[str] | None:
        """The class names, or None."""
        return self.train.classes

    @property
    def channels(self) -> int:
        """The number of channels C."""
        return self.pretrain.channels


def splits_to_rgb(splits: Splits) -> Splits:
    """Return a data set of grey images with three channels, for a network that needs three."""
    train = grey_to_rgb(splits.train)
    pretrain = train if splits.pretrain is splits.train else grey_to_rgb(splits.pretrain)
    test = None if splits.test is None else grey_to_rgb(splits.test)
    return replace(
        splits, pretrain=pretrain, train=train, test=test, mean=splits.mean * 3, std=splits.std * 3
    )


def mean_and_std(source: Source) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return the mean and standard deviation of each channel, for pixels in [0,1].

    For three channels these are ImageNet's. Otherwise they are measured on up to 100 images.
    """
    if source.channels == 3:
        return IMAGENET_MEAN, IMAGENET_STD
    images, _ = source.take(torch.arange(0, len(source), -(-len(source) // 100)))
    pixels = images.transpose(0, 1).flatten(1).double() / 255
    return tuple(pixels.mean(1).tolist()), tuple(pixels.std(1).clamp(min=0.01).tolist())


def data_root(name: str, root: str | Path | None, contents: str, how: str) -> Path:
    """Return the folder with data sets: `root`, else the environment variable ANTIPODE_DATA.

    Raises FileNotFoundError if neither is set. Its message says which `contents` of the folder the
    data set `name` needs, and `how` to get them.
    """
    folder = root or os.environ.get("ANTIPODE_DATA")
    if not folder:
        raise FileNotFoundError(
            f"{name} needs a data folder: set ANTIPODE_DATA or data.root to the folder in which to "
            f"look for {contents}; {how} (shapes and digits need no data folder)"
        )
    return absolute(folder)


def locate(
    name: str, root: Path | None, folders: Sequence[str], inside: Sequence[str], how: str
) -> Path:
    """Return the first of `folders` in the data folder that contains everything in `inside`.

    Raises FileNotFoundError if there is none. Its message says `how` to get the files.
    """
    root = data_root(name, root, f"{', '.join(inside)} in {folders[0]}", how)
    for folder in folders:
        if all((root / folder / entry).exists() for entry in inside):
            return root / folder
    where = " or ".join(str(root / folder) for folder in folders)
    text = f"{name} was not found: looked for {', '.join(inside)} in {where}; {how}"
    raise FileNotFoundError(printable(text))
