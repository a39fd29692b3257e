"""Data sets that live in memory as one uint8 tensor: shapes, digits, CIFAR, STL-10, Fashion-MNIST."""

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
from antipode.data.sources.splits import Splits, base


def shapes(root: Path | None, download: bool, seed: int) -> Splits:
    """Ten kinds of shapes, 32 px, drawn from the seed: 5,000 + 1,000."""
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
    labels, classes = (
        torch.from_numpy(bunch.target).long(),
        [str(name) for name in bunch.target_names],
    )
    train, test = (
        Memory(images[:1437], labels[:1437], classes),
        Memory(images[1437:], labels[1437:], classes),
    )
    return Splits("digits", train, train, test, 8, (0.305,), (0.376,))


def cifar10(root: Path | None, download: bool, seed: int) -> Splits:
    """CIFAR-10, 32 px: 50,000 + 10,000."""
    train, test = _cifar("cifar10", "CIFAR10", root, download)
    return Splits(
        "cifar10", train, train, test, 32, (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)
    )


def cifar100(root: Path | None, download: bool, seed: int) -> Splits:
    """CIFAR-100, 32 px: 50,000 + 10,000."""
    train, test = _cifar("cifar100", "CIFAR100", root, download)
    return Splits(
        "cifar100", train, train, test, 32, (0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)
    )


def _cifar(name: str, kind: str, root: Path | None, download: bool) -> list[Memory]:
    def pixels(data: Any) -> np.ndarray[Any, Any]:
        return np.ascontiguousarray(data.data.transpose(0, 3, 1, 2))

    return [_open(name, kind, root, download, pixels, train=train) for train in (True, False)]


def stl10(root: Path | None, download: bool, seed: int) -> Splits:
    """STL-10, 96 px: pretraining on train and unlabeled (105,000), labelled train (5,000), test (8,000)."""
    pretrain, test = (
        _open("stl10", "STL10", root, download, lambda data: data.data, split=split)
        for split in ("train+unlabeled", "test")
    )
    assert pretrain.labels is not None
    count = int(
        (pretrain.labels >= 0).sum()
    )  # the labelled ones come first; torchvision marks the others -1
    train = Memory(pretrain.images[:count], pretrain.labels[:count], pretrain.classes)
    pretrain = Memory(pretrain.images, None, pretrain.classes)
    return Splits(
        "stl10", pretrain, train, test, 96, (0.4467, 0.4398, 0.4066), (0.2603, 0.2566, 0.2713)
    )


def fashionmnist(root: Path | None, download: bool, seed: int) -> Splits:
    """Fashion-MNIST, 28 px, grey: 60,000 + 10,000."""
    train, test = (
        _open(
            "fashionmnist",
            "FashionMNIST",
            root,
            download,
            lambda data: data.data.numpy()[:, None],
            train=train,
        )
        for train in (True, False)
    )
    return Splits("fashionmnist", train, train, test, 28, (0.2860,), (0.3530,))


def _open(
    name: str,
    kind: str,
    root: Path | None,
    download: bool,
    pixels: Callable[[Any], np.ndarray[Any, Any]],
    **split: Any,
) -> Memory:
    """One split of a torchvision data set as a Memory."""
    import torchvision.datasets  # noqa: PLC0415

    how = f"pretrain with data.download=true fetches it, or put torchvision's {kind} files there"
    folder = base(name, root, _folder(kind), how)
    try:
        with redirect_stdout(
            sys.stderr
        ):  # where torchvision says what it fetches; ours is for results
            data = getattr(torchvision.datasets, kind)(str(folder), download=download, **split)
    except RuntimeError as error:
        raise FileNotFoundError(
            f"{name} is not there, or a file of it is damaged: looked for {_folder(kind)} in {folder}; {how}"
        ) from error
    labels = data.labels if kind == "STL10" else data.targets
    return Memory(torch.from_numpy(pixels(data)), _integers(labels), list(data.classes))


def _folder(kind: str) -> str:
    known = {
        "CIFAR10": "cifar-10-batches-py",
        "CIFAR100": "cifar-100-python",
        "STL10": "stl10_binary",
    }
    return known.get(kind, f"{kind}/raw")


def _integers(labels: Any) -> Tensor:
    return torch.as_tensor(np.asarray(labels), dtype=torch.int64)
