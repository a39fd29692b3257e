"""The data-set layer: network, size of the views, length of the run, and the views where the images need their own."""

from typing import Literal, NamedTuple

from antipode.recipe.layer import Layer, policy, with_source

LISTED = ("shapes", "digits", "cifar10", "cifar100", "stl10", "imagenet100", "imagenet")


class DatasetDefaults(NamedTuple):
    """A data set: how far it is from the papers' ImageNet, its images for pretraining, its layer, its own views."""

    scale: Literal[
        "tiny", "small", "large"
    ]  # for a CPU, for the 32 to 96 px papers, for ImageNet's numbers
    images: int | None
    layer: Layer
    views: Layer = {}  # noqa: RUF012  (nobody writes to it)


def _set(
    source: str, backbone: str, stem: str, size: int, /, *, epochs: int = 200, batch: int = 256
) -> Layer:
    layer = with_source(
        source,
        {
            "backbone.name": backbone,
            "backbone.stem": stem,
            "views.size": size,
            "train.epochs": epochs,
            "train.batch": batch,
        },
    )
    return layer if backbone == "resnet10-slim" else layer | _seldom()


def _seldom() -> Layer:
    """A GPU waits for each line: with one every 10 steps an H200 lost 7 % of its speed on CIFAR-10."""
    return with_source(
        "ours: a GPU waits for each line", {"monitor.log_every": 50, "monitor.health_every": 500}
    )


def _large(name: str, images: int | None, backbone: str = "resnet50") -> DatasetDefaults:
    # ResNet-50 at 224 px, 200 epochs, batch 256: what MoCo, AdCo, EqCo, JCL and DCL all report
    return DatasetDefaults("large", images, _set(name, backbone, "imagenet", 224) | _often(name))


def _often(name: str) -> Layer:
    return with_source(f"{name}: an epoch is long", {"train.checkpoint_every": 1})


# the colours of CIFAR's recipes: SimCLR's without blur, also those of MoCo's CIFAR-10 demo
CIFAR = "SimCLR on CIFAR-10 (simclr: README): no blur"

DATASETS: dict[str, DatasetDefaults] = {
    # ours, for 2 CPU cores and 3 minutes
    "shapes": DatasetDefaults(
        "tiny",
        5000,
        _set("shapes", "resnet10-slim", "half", 32, epochs=50, batch=128),
        policy("shapes: colour would tell the images apart", "shapes"),
    ),
    # ours; larger crops than SimCLR's, since a fifth of 8 pixels shows nothing
    "digits": DatasetDefaults(
        "tiny",
        1437,
        _set("digits", "resnet10-slim", "small", 8, epochs=100, batch=64),
        policy("digits: grey images, 8 px", "simclr-cifar", scale=(0.5, 1.0)),
    ),
    # ResNet-18, 200 epochs, batch 256: DCL 4.1; a 3x3 stem without max pool: CLD, DCL's small-scale protocol
    "cifar10": DatasetDefaults(
        "small",
        50000,
        _set("cifar10 (DCL 4.1, CLD)", "resnet18", "small", 32),
        policy(CIFAR, "simclr-cifar"),
    ),
    "cifar100": DatasetDefaults(
        "small",
        50000,
        _set("cifar100 (DCL 4.1, CLD)", "resnet18", "small", 32),
        policy(CIFAR, "simclr-cifar"),
    ),
    "stl10": DatasetDefaults(
        "small", 105000, _set("stl10 (DCL 4.1, CLD)", "resnet18", "small", 96)
    ),
    "fashionmnist": DatasetDefaults(
        "small", 60000, _set("fashionmnist", "resnet18", "small", 28), policy(CIFAR, "simclr-cifar")
    ),
    "tinyimagenet": DatasetDefaults("small", 100000, _set("tinyimagenet", "resnet18", "half", 64)),
    # ResNet-18: JCL supplement 4, MSBReg supplement 1.2; DCL has ResNet-50 (pairs.py)
    "imagenet100": _large("imagenet100", 126689, "resnet18"),
    "imagenet": _large("imagenet", 1281167),
    "places205": _large("places205", 2448873),
    "inat18": _large("inat18", 437513),
    "voc07": _large("voc07", 5011),
    "voc07+12": _large("voc07+12", 16551),
    "coco": _large("coco", 118287),
}


def known(name: str) -> DatasetDefaults:
    """The data set of a name; ImageNet's numbers for images of one's own."""
    return DATASETS[name] if name in DATASETS else _large(name.partition(":")[0], None)
