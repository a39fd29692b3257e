"""Data sets that are kept in memory as one uint8 tensor.

shapes, digits, CIFAR-10, CIFAR-100, STL-10 and Fashion-MNIST.
"""

import sys
from collections.abc import Callable
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from antipode.data.sources import shapes as drawing
from antipode.data.sources.source import Memory
from antipode.data.sources.splits import Splits, data_root
from antipode.names import printable

# where torchvision keeps the files of each data set, in the root folder
FOLDERS = {
    "CIFAR10": "cifar-10-batches-py",
    "CIFAR100": "cifar-100-python",
    "STL10": "stl10_binary",
    "FashionMNIST": "FashionMNIST/raw",
}


def shapes(root: Path | None, download: bool, seed: int) -> Splits:
    """Ten kinds of shapes, 32 px, drawn from the seed: 5,000 + 1,000 images."""
    train, test = (
        Memory(*drawing.draw(count, seed=seed, split=split), classes=list(drawing.KINDS))
        for split, count in (("train", 5000), ("test", 1000))
    )
    return Splits("shapes", train, train, test, 32, (0.5, 0.5, 0.5), (0.306, 0.306, 0.306))


def digits(root: Path | None, download: bool, seed: int) -> Splits:
    """Scikit-learn's handwritten digits, 8 px, grey: the first 1,437 train, the last 360 test."""
    from sklearn.datasets import load_digits  # noqa: PLC0415

    bunch = load_digits()
    images = torch.from_numpy(np.rint(bunch.images * (255 / 16)).astype(np.uint8))[:, None]
    labels = torch.from_numpy(bunch.target).long()
    classes = [str(name) for name in bunch.target_names]
    train = Memory(images[:1437], labels[:1437], classes)
    test = Memory(images[1437:], labels[1437:], classes)
    return Splits("digits", train, train, test, 8, (0.305,), (0.376,))


def cifar10(root: Path | None, download: bool, seed: int) -> Splits:
    """CIFAR-10, 32 px: 50,000 + 10,000 images."""
    train, test = _cifar("cifar10", "CIFAR10", root, download)
    mean, std = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)
    return Splits("cifar10", train, train, test, 32, mean, std)


def cifar100(root: Path | None, download: bool, seed: int) -> Splits:
    """CIFAR-100, 32 px: 50,000 + 10,000 images."""
    train, test = _cifar("cifar100", "CIFAR100", root, download)
    mean, std = (0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)
    return Splits("cifar100", train, train, test, 32, mean, std)


def _cifar(name: str, kind: str, root: Path | None, download: bool) -> list[Memory]:
    def pixels(data: Any) -> np.ndarray[Any, Any]:
        return np.ascontiguousarray(data.data.transpose(0, 3, 1, 2))

    return [_split(name, kind, root, download, pixels, train=train) for train in (True, False)]


def stl10(root: Path | None, download: bool, seed: int) -> Splits:
    """STL-10, 96 px: pretrain on train and unlabeled (105,000); train (5,000), test (8,000)."""
    pretrain, test = (
        _split("stl10", "STL10", root, download, lambda data: data.data, split=split)
        for split in ("train+unlabeled", "test")
    )
    assert pretrain.labels is not None
    # the labelled images come first; torchvision gives the others the label -1
    count = int((pretrain.labels >= 0).sum())
    train = Memory(pretrain.images[:count], pretrain.labels[:count], pretrain.classes)
    pretrain = Memory(pretrain.images, None, pretrain.classes)
    mean, std = (0.4467, 0.4398, 0.4066), (0.2603, 0.2566, 0.2713)
    return Splits("stl10", pretrain, train, test, 96, mean, std)


def fashionmnist(root: Path | None, download: bool, seed: int) -> Splits:
    """Fashion-MNIST, 28 px, grey: 60,000 + 10,000 images."""

    def pixels(data: Any) -> np.ndarray[Any, Any]:
        grey: np.ndarray[Any, Any] = data.data.numpy()[:, None]
        return grey

    train, test = (
        _split("fashionmnist", "FashionMNIST", root, download, pixels, train=train)
        for train in (True, False)
    )
    return Splits("fashionmnist", train, train, test, 28, (0.2860,), (0.3530,))


def _split(
    name: str,
    kind: str,
    root: Path | None,
    download: bool,
    pixels: Callable[[Any], np.ndarray[Any, Any]],
    **split: Any,
) -> Memory:
    """Return one split of torchvision's data set `kind` as a Memory."""
    import torchvision.datasets  # noqa: PLC0415

    files = FOLDERS[kind]
    how = (
        "run pretrain with data.download=true to download it, "
        f"or put torchvision's {kind} files there"
    )
    folder = data_root(name, root, files, how)
    try:
        # torchvision prints what it downloads; our stdout is reserved for results
        with redirect_stdout(sys.stderr):
            data = getattr(torchvision.datasets, kind)(str(folder), download=download, **split)
        images = torch.from_numpy(pixels(data))
        labels = _integers(data.labels if kind == "STL10" else data.targets)
    except OSError:  # of the disk or the network
        raise
    except Exception as error:  # torchvision's readers raise anything for a damaged file
        text = f"{name} was not found, or one of its files is damaged: looked for {files} in "
        raise FileNotFoundError(printable(f"{text}{folder}; {how}")) from error
    classes = list(data.classes)
    if len(labels) != len(images) or int(labels.max()) >= len(classes):
        text = f"a file of {name} in {folder} is damaged: there are {len(images)} images and "
        text += f"{len(labels)} labels up to {int(labels.max())} of {len(classes)} classes"
        raise ValueError(printable(text))
    return Memory(images, labels, classes)


def _integers(labels: Any) -> Tensor:
    return torch.as_tensor(np.asarray(labels), dtype=torch.int64)
