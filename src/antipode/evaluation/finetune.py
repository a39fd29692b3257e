"""Fine-tuning: train a backbone and a linear classifier on labelled images.

The test images decide nothing: the weights of the last epoch are the result. Shapes: N images, C
classes, D features, H W pixels.
"""

import math
from dataclasses import asdict
from typing import Literal, NamedTuple

from torch import nn

from antipode.data.sources.source import Source
from antipode.evaluation.accuracy import classification, top5
from antipode.evaluation.classifier import decoding, graded
from antipode.evaluation.linear import one_label
from antipode.evaluation.score import Result
from antipode.evaluation.task import Task
from antipode.evaluation.tuning import Tuned, Tuning, half, tune
from antipode.limits import check_limit
from antipode.nets.norm import BatchNorm
from antipode.schedule import scaled
from antipode.types import fitted

FACTOR = 10  # the learning rate of the classifier over that of a pretrained backbone
# by the number of train images: an upper limit, and the number of epochs below it
EPOCHS = ((2_000, 100), (20_000, 50), (math.inf, 30))
SMALL = 10_000  # with fewer train images, batches have 64 instead of 256 images


class Base(NamedTuple):
    """The defaults of an optimiser: its learning rate at a batch size of 256, and weight decay."""

    lr: float
    weight_decay: float


# SGD for networks with batch norm, as SimCLR and BYOL fine-tune them, and AdamW for others, as MAE
# fine-tunes ViTs. The values are our choice. From scratch, they are those that
# are usual for training on CIFAR-10 and for ViTs.
PRETRAINED = {"sgd": Base(0.04, 1e-4), "adamw": Base(1e-4, 0.05)}
SCRATCH = {"sgd": Base(0.1, 5e-4), "adamw": Base(5e-4, 0.05)}


def chosen(
    task: Task,
    *,
    epochs: int | None = None,
    lr: float | None = None,
    batch: int | None = None,
    freeze: bool = False,
    balanced: bool = False,
    flip: bool = True,
    scratch: bool = False,
) -> Tuning:
    """Return the settings of a fine-tuning. Values that are None follow from the data.

    Args:
        task: the backbone and the data set.
        epochs: the number of epochs.
        lr: the learning rate of the backbone, or of the classifier if the backbone is frozen.
        batch: the batch size.
        freeze: whether the backbone keeps its weights.
        balanced: whether every class is shown equally often.
        flip: whether half of the crops are flipped.
        scratch: whether the backbone is untrained.
    """
    images = len(one_label(task, "train"))
    # numbers of NumPy become Python's
    epochs, batch = (
        fitted(name, value, int | None) for name, value in (("epochs", epochs), ("batch", batch))
    )
    lr = fitted("lr", lr, float | None)
    _check(images, epochs, lr, batch)
    epochs = epochs or next(value for most, value in EPOCHS if images < most)
    batch = batch or min(images, max(16, min(images // 4, 64 if images < SMALL else 256)))
    name: Literal["sgd", "adamw"] = "sgd" if has_batch_norm(task.backbone) else "adamw"
    base = (SCRATCH if scratch and not freeze else PRETRAINED)[name]
    rate = scaled(base.lr, "linear", batch) if lr is None else lr
    if freeze:
        classifier_lr = FACTOR * rate if lr is None else lr
    else:
        classifier_lr = rate if scratch else FACTOR * rate
    return Tuning(
        epochs=epochs,
        batch=batch,
        lr=None if freeze else rate,
        classifier_lr=classifier_lr,
        optimiser=name,
        weight_decay=base.weight_decay,
        warmup=min(5.0, epochs / 10),
        balanced=balanced,
        flip=0.5 if flip else 0.0,
        standardised=freeze or not scratch,
    )


def has_batch_norm(net: nn.Module) -> bool:
    """Return True if a network has a batch norm layer."""
    kinds = (nn.modules.batchnorm._BatchNorm, BatchNorm)
    return any(isinstance(module, kinds) for module in net.modules())


def _check(images: int, epochs: int | None, lr: float | None, batch: int | None) -> None:
    """Raise ValueError for settings out of range."""
    check_limit("epochs", "epochs", epochs)
    check_limit("batch", "batch", batch)
    if epochs is not None and epochs < 1:
        raise ValueError(f"fine-tuning needs at least one epoch, got {epochs}")
    if lr is not None and not 0 < lr < math.inf:
        raise ValueError(f"the learning rate must be finite and above 0, got {lr}")
    if images < 2:
        raise ValueError(f"fine-tuning needs at least two train images, got {images}")
    if batch is not None and not 2 <= batch <= images:
        raise ValueError(
            f"the batch size must be between 2 and the {images} train images, got {batch}"
        )


def run(task: Task) -> Result:
    """Compute the top-1 test accuracy after fine-tuning on all train labels."""
    test = one_label(task, "test")
    tuning = chosen(task)
    return graded_result(task, tuning, tune(task, tuning), test)


def graded_result(task: Task, tuning: Tuning, tuned: Tuned, test: Source) -> Result:
    """Return the top-1 accuracy on test images as the result of a protocol.

    The balanced accuracy is always stated, in float32 like predictions.
    """
    right, labels = graded(task, tuned.heads, test, tuned.backbone)
    values = asdict(tuning) | {
        "backbone": "frozen" if tuning.lr is None else "fine-tuned",
        "precision": "bf16" if half(task.device) else "fp32",
        "images": len(one_label(task, "train")),
    }
    values |= decoding(tuned.heads)
    more = top5(right[0].any(1), task.classes)
    result = classification(right[0, :, 0], labels, values, seed=task.seed, more=more)
    return result._replace(more={"balanced": result.value} | result.more)
