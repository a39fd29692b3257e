"""The defaults for data that has no recipe of its own: your own images, shards, packs and Datasets.

All of these rules are in this file. Network, view size, batch size and epochs follow from the
number and the size of the images, and from whether there is a GPU. The intervals of log lines,
health checks and checkpoints follow from the number of steps. docs/recipes.md explains the rules.
"""

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

from antipode.nets.backbone import RESNETS
from antipode.nets.weight_file import About
from antipode.recipe.layer import DatasetDefaults, Derived, Layer, Source, policy, with_source

# the largest view in pixels, with and without a GPU
LARGEST = {True: 224, False: 64}
# the largest batch, with and without a GPU
BATCH = {True: 256, False: 128}
PER_EPOCH = 8  # steps of an epoch, at least, with 128 images or more
FEWEST = 16  # images of a batch
STEPS = 300  # of a run, at least
# epochs by number of images: below the first number the first length, and so on
EPOCHS = {
    True: ((2_000, 400), (50_000, 200), (0, 100)),
    False: ((2_000, 50), (20_000, 30), (0, 10)),
}
MANY = 50_000  # from this many images on, and with views of DETAILED pixels, a GPU trains ResNet-50
DETAILED = 128
LINES = 100  # log lines of a run, at least
CHECKS = 50  # health checks of a run, at least
# a GPU waits for each log line (benchmarks/RESULTS.md), so intervals are longer there
LOG_EVERY = {True: 50, False: 10}
HEALTH_EVERY = {True: 500, False: 100}
CHECKPOINTS = 20  # of a run
SUPERVISED = "resnet18"  # the smallest network that torchvision has weights for
LONG_EPOCH = 1_000  # steps; longer epochs have checkpoints in between

STEM = Derived("ours: the stem suits the size of the views", "views.size")
OF_WEIGHTS = Derived("as the weights to start from", "backbone.weights")


class OwnData(NamedTuple):
    """What the defaults depend on.

    Args:
        images: number of images for pretraining.
        size: median of the shorter sides of the images in pixels, at most 224.
        gpu: whether training runs on an accelerator.
    """

    images: int
    size: int
    gpu: bool

    @property
    def text(self) -> str:
        """The facts as the end of a source text."""
        return f"for {self.images:,} images {'on a GPU' if self.gpu else 'without a GPU'}"


def own_defaults(own: OwnData, given: Mapping[str, Any], weights: About) -> DatasetDefaults:
    """Return the defaults for data that has no recipe of its own.

    Args:
        own: number and size of the images, and the device.
        given: values that the user gave, by dotted key. Other values follow from them.
        weights: what is known about the weights to start from.
    """
    size = int(given.get("views.size") or view_size(own))
    start = given.get("backbone.weights")
    network, reason = _network(own, size, start, weights)
    layer = with_source(reason, {"backbone.name": network}) | _stem(own, size, start, weights)
    sides = f"ours: the images' median side of {own.size} px, at most {LARGEST[own.gpu]}"
    layer |= with_source(f"{sides} {'on' if own.gpu else 'without'} a GPU", {"views.size": size})
    # SimCLR leaves out the blur on images of 32 px
    views = policy("SimCLR on CIFAR-10 (simclr: README): no blur", "simclr-cifar")
    return DatasetDefaults(
        _scale(own, size, str(given.get("backbone.name") or network)),
        own.images,
        layer | length(own, given),
        views if size <= 32 else {},
    )


def view_size(own: OwnData) -> int:
    """Return the side of a view: that of the images, in steps of 16 px from 32 px on."""
    side = min(own.size, LARGEST[own.gpu])
    return max(8, side) if side < 32 else side // 16 * 16


def _network(own: OwnData, size: int, start: Any, weights: About) -> tuple[str, Source]:
    """Return the name of the network, and why it was chosen."""
    if weights.backbone in RESNETS:
        return weights.backbone, OF_WEIGHTS
    large = own.images >= MANY and size >= DETAILED
    if own.gpu:
        return "resnet50" if large else "resnet18", Source(f"ours: {own.text}")
    if start == "torchvision":
        return SUPERVISED, Source("ours: the smallest network that torchvision has weights for")
    return "resnet10-slim", Source("ours: a small network, without a GPU")


def _stem(own: OwnData, size: int, start: Any, weights: About) -> Layer:
    """Return the stem: that of the weights to start from, or one that suits the view size."""
    if weights.backbone in RESNETS and weights.stem:
        return with_source(OF_WEIGHTS, {"backbone.stem": weights.stem})
    if start == "torchvision":
        return with_source(OF_WEIGHTS, {"backbone.stem": "imagenet"})
    small, half = (64, 128) if own.gpu else (16, 96)
    stem = "small" if size <= small else "half" if size <= half else "imagenet"
    return with_source(STEM, {"backbone.stem": stem})


def _scale(own: OwnData, size: int, network: str) -> Literal["tiny", "small", "large"]:
    """Return the scale of the papers' settings that suits the data (see `DatasetDefaults`)."""
    if network.endswith("-slim"):
        return "tiny"
    return "large" if own.images >= MANY and size >= DETAILED else "small"


def length(own: OwnData, given: Mapping[str, Any]) -> Layer:
    """Return batch size and epochs."""
    usual = batch_size(own)
    batch = int(given.get("train.batch") or usual)
    chosen = next(epochs for below, epochs in EPOCHS[own.gpu] if own.images < below or not below)
    epochs = max(chosen, -(-STEPS // max(1, own.images // batch)))
    share = f"ours: at most 1/{PER_EPOCH} of the images, at least {FEWEST} if there are as many"
    steps = f"{share}, and at most {BATCH[own.gpu]}"
    run = f"ours: {own.text}, and at least {STEPS} steps"
    return with_source(steps, {"train.batch": usual}) | with_source(run, {"train.epochs": epochs})


def batch_size(own: OwnData) -> int:
    """Return the batch size: a power of two, at most an eighth of the images.

    Fewer than 128 images make batches of 16, if there are as many.
    """
    share = max(own.images // PER_EPOCH, min(FEWEST, own.images), 1)
    return int(min(BATCH[own.gpu], 2 ** (share.bit_length() - 1)))


def intervals(own: OwnData, batch: int, epochs: int) -> Layer:
    """Return the intervals of log lines, health checks and checkpoints for the length of a run."""
    per_epoch = max(1, own.images // batch)
    steps = per_epoch * epochs
    source = Derived(f"ours: {steps:,} steps, see docs/recipes.md", "train.epochs")
    values = {
        "monitor.log_every": max(1, min(LOG_EVERY[own.gpu], steps // LINES)),
        "monitor.health_every": max(1, min(HEALTH_EVERY[own.gpu], steps // CHECKS)),
        "train.checkpoint_every": max(1, epochs // CHECKPOINTS),
        "train.checkpoint_steps": LONG_EPOCH if per_epoch > LONG_EPOCH else None,
    }
    return with_source(source, values)
