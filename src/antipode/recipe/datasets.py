"""The values that each data set contributes to its recipes.

These are network, view size, length of training, and for small images the view policy.
"""

from antipode import json_text
from antipode.paths import expanded
from antipode.recipe.layer import DatasetDefaults, Layer, policy, with_source

# data sets whose recipes are listed; every other data set can be combined with every method as well
LISTED = ("shapes", "digits", "cifar10", "cifar100", "stl10", "imagenet100", "imagenet")


def _values(
    source: str, backbone: str, stem: str, size: int, /, *, epochs: int = 200, batch: int = 256
) -> Layer:
    """Return network, view size and length of training of a data set."""
    values = {
        "backbone.name": backbone,
        "backbone.stem": stem,
        "views.size": size,
        "train.epochs": epochs,
        "train.batch": batch,
    }
    layer = with_source(source, values)
    return layer if backbone == "resnet10-slim" else layer | _rare_logging()


def _rare_logging() -> Layer:
    """Return longer logging intervals, since a GPU waits while a log line is written.

    With a line every 10 steps, training on CIFAR-10 was 7 % slower on an H200.
    """
    values = {"monitor.log_every": 50, "monitor.health_every": 500}
    return with_source("ours: a GPU waits for each log line", values)


def _large(name: str, images: int | None, backbone: str = "resnet50") -> DatasetDefaults:
    """Return the defaults of a data set with ImageNet's settings.

    MoCo, AdCo, EqCo, JCL and DCL all report ResNet-50 at 224 px, 200 epochs and batch size 256.
    """
    often = with_source(f"{name}: an epoch takes long", {"train.checkpoint_every": 1})
    return DatasetDefaults("large", images, _values(name, backbone, "imagenet", 224) | often)


# CIFAR's recipes use SimCLR's colour operations without blur, as MoCo's CIFAR-10 demo does
CIFAR = "SimCLR on CIFAR-10 (simclr: README): no blur"

DATASETS: dict[str, DatasetDefaults] = {
    # our settings; a run takes about 3 minutes on two idle CPU cores
    "shapes": DatasetDefaults(
        "tiny",
        5000,
        _values("shapes", "resnet10-slim", "half", 32, epochs=50, batch=128),
        policy("shapes: the colour alone would identify an image", "shapes"),
    ),
    # our settings; crops are larger than SimCLR's, since a fifth of 8 pixels shows nothing
    "digits": DatasetDefaults(
        "tiny",
        1437,
        _values("digits", "resnet10-slim", "small", 8, epochs=100, batch=64),
        policy("digits: grey images of 8 px", "simclr-cifar", scale=(0.5, 1.0)),
    ),
    # ResNet-18, 200 epochs and batch size 256 come from DCL 4.1. The 3x3 stem without max pool
    # comes from CLD, whose protocol DCL uses for small images.
    "cifar10": DatasetDefaults(
        "small",
        50000,
        _values("cifar10 (DCL 4.1, CLD)", "resnet18", "small", 32),
        policy(CIFAR, "simclr-cifar"),
    ),
    "cifar100": DatasetDefaults(
        "small",
        50000,
        _values("cifar100 (DCL 4.1, CLD)", "resnet18", "small", 32),
        policy(CIFAR, "simclr-cifar"),
    ),
    "stl10": DatasetDefaults(
        "small", 105000, _values("stl10 (DCL 4.1, CLD)", "resnet18", "small", 96)
    ),
    "fashionmnist": DatasetDefaults(
        "small",
        60000,
        _values("fashionmnist", "resnet18", "small", 28),
        policy(CIFAR, "simclr-cifar"),
    ),
    "tinyimagenet": DatasetDefaults(
        "small", 100000, _values("tinyimagenet", "resnet18", "half", 64)
    ),
    # ResNet-18 comes from JCL (supplement 4) and MSBReg (supplement 1.2); DCL's own recipe uses
    # ResNet-50
    "imagenet100": _large("imagenet100", 126689, "resnet18"),
    "imagenet": _large("imagenet", 1281167),
    "places205": _large("places205", 2448873),
    "inat18": _large("inat18", 437513),
    "voc07": _large("voc07", 5011),
    "voc07+12": _large("voc07+12", 16551),
    "coco": _large("coco", 118287),
}


def dataset_defaults(name: str) -> DatasetDefaults:
    """Return the defaults of a data set by name; your own images get ImageNet's settings."""
    name = stands_for(name)
    return DATASETS[name] if name in DATASETS else _large(name.partition(":")[0], None)


def stands_for(data: str) -> str:
    """Return the name of the data set whose settings apply.

    For a packed data set, this is the data set that it was made from, if that is a known one.
    """
    kind, _, folder = data.partition(":")
    if kind != "packed":
        return data
    try:
        content = json_text.read(expanded(folder) / "meta.json")
    except (OSError, ValueError):  # the loader reports the error
        return data
    name = content.get("name") if isinstance(content, dict) else None
    return name if isinstance(name, str) and name in DATASETS else data
