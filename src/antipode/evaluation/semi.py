"""Semi-supervised learning: training on 1 % or 10 % of the labels.

With 1 % only a classifier is trained, with 10 % the backbone is fine-tuned with it.
"""

import copy
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from antipode import optim, rng
from antipode.data.sources.source import Decoded, Source, subset
from antipode.data.sources.splits import data_root
from antipode.evaluation.accuracy import classification, top5
from antipode.evaluation.classifier import (
    Features,
    Heads,
    decoding,
    embed,
    fit,
    graded,
    width,
)
from antipode.evaluation.linear import Linear, one_label, precision, trained
from antipode.evaluation.score import Result
from antipode.evaluation.shares import over_ranks
from antipode.evaluation.task import Task
from antipode.schedule import Schedule

CHOSEN = (
    "not stated by MSBReg: number of epochs, cosine schedule per step to 0, no weight decay, "
    "learning rates not scaled with the batch size"
)


@dataclass(frozen=True, kw_only=True)
class Semi:
    """MSBReg's settings (supplement, section 2.2).

    They are SGD with Nesterov momentum 0.9, batch size 1024, and one learning rate each for the
    classifier and the encoder. MSBReg does not state the number of epochs, the schedule or the
    weight decay. Nor does it state how the learning rates change if there are fewer images than the
    batch size. It mostly follows BYOL's protocol; 50 epochs are the longer of the two lengths that
    BYOL tries (from memory of BYOL's appendix, not checked against the source). The other values in
    `CHOSEN` are our choice.

    Args:
        classifier: the learning rate of the classifier.
        encoder: the learning rate of the backbone, or None to freeze it in eval mode.
        file: the list of the images to use on ImageNet.
    """

    classifier: float
    encoder: float | None = None
    file: str = ""
    batch: int = 1024
    epochs: int = 50  # our choice
    momentum: float = 0.9
    nesterov: bool = True


# The lists of google-research/simclr, with one image name per line. MSBReg uses the same lists.
SEMI = {
    0.01: Semi(classifier=2.0, file="imagenet_subsets/1percent.txt"),
    0.1: Semi(classifier=0.25, encoder=2.5e-4, file="imagenet_subsets/10percent.txt"),
}


def run(task: Task, share: float, settings: Semi | None = None) -> Result:
    """Compute the top-1 test accuracy after training with a share of the train labels.

    The accuracy is that of the last epoch. Without `settings`, `share` must be a key of `SEMI`.
    """
    if settings is None and share not in SEMI:
        raise ValueError(
            f"there are settings for the shares {', '.join(map(str, SEMI))}, but not for {share:g}"
        )
    settings = settings or SEMI[share]
    train, test = one_label(task, "train"), one_label(task, "test")
    images, selection = few(task, train, share, settings.file)
    features: Features = partial(embed, task.backbone)
    state = precision(task)
    if settings.encoder is None:
        heads = trained(task, _frozen(settings), images, (settings.classifier,))
    else:
        heads, features = tuned(task, settings, settings.encoder, images)
        state = {"backbone": "fine-tuned", "precision": "fp32"}
    right, labels = graded(task, heads, test, features)
    values = {name: value for name, value in asdict(settings).items() if name != "file"} | state
    values |= {
        "share": share,
        "images": len(images),
        "drawn": selection,
        "batch": min(settings.batch, len(images)),
        "chosen": CHOSEN,
    }
    values |= decoding(heads)
    more = top5(right[0].any(1), task.classes)
    return classification(right[0, :, 0], labels, values, seed=task.seed, more=more)


def few(task: Task, train: Source, share: float, file: str) -> tuple[Source, str]:
    """Return a share of the train images and a description of how they were selected.

    On ImageNet they are those of SimCLR's list `file`. On other data they are a random sample with
    the same number of images of each class.
    """
    if task.splits.name == "imagenet":
        return subset(train, listed(task, train, file)), file
    assert train.labels is not None
    ids = balanced(train.labels.cpu(), task.classes, share, task.seed)
    return subset(train, ids), "random, the same number of images per class, from the seed"


def balanced(labels: Tensor, classes: int, share: float, seed: int) -> Tensor:
    """Return the ids of a random share of the images, in ascending order.

    Each class has the same number of images: at least 1, or all images of a class that has fewer.
    """
    if not 0 < share <= 1:
        raise ValueError(f"the share of labels must lie in (0, 1], got {share:g}")
    counts = labels.bincount(minlength=classes)
    if int(counts.min()) == 0:
        raise ValueError(f"class {int(counts.argmin())} of {classes} has no train image")
    per_class = max(1, round(share * len(labels) / classes))
    order = rng.permutation(rng.key(seed, "few labels"), len(labels))
    shuffled = labels[order]
    picked = [order[shuffled == label][:per_class] for label in range(classes)]
    return torch.cat(picked).sort().values


def listed(task: Task, train: Source, file: str) -> Tensor:
    """Return the ids, in ascending order, of the train images that a list names.

    `file` is relative to the folder of data sets and has one name per line, such as
    n01440764_10026.JPEG.
    """
    path = _find(data_root("imagenet", task.root, file, "put SimCLR's lists of images there"), file)
    if not isinstance(train, Decoded):
        raise ValueError(
            f"{file} lists images by file name, but the images of this imagenet have no file names"
        )
    names = dict.fromkeys(line.strip() for line in path.read_text().splitlines() if line.strip())
    if not names:
        raise ValueError(f"{path} lists no images")
    index = {name.rsplit("/", 1)[-1]: at for at, name in enumerate(train.names)}
    absent = [name for name in names if name not in index]
    if absent:
        raise ValueError(
            f"{len(absent)} of the {len(names)} images in {path} are not in the train split; "
            f"the first is {absent[0]}"
        )
    return torch.tensor(sorted(index[name] for name in names))


def _find(root: Path, file: str) -> Path:
    """Return the path of a list of images in the folder of data sets."""
    for path in (root / file, root / "imagenet" / file):
        if path.is_file():
            return path
    raise FileNotFoundError(
        f"semi-supervised learning on imagenet uses SimCLR's lists of images: put {file} of "
        f"github.com/google-research/simclr at {root / file}"
    )


def _frozen(settings: Semi) -> Linear:
    """Return the settings as those of a linear evaluation, for a frozen backbone."""
    return Linear(
        about="",
        rates=(settings.classifier,),
        batch=settings.batch,
        epochs=settings.epochs,
        momentum=settings.momentum,
        nesterov=settings.nesterov,
        schedule="cosine",
        per="step",
    )


def tuned(task: Task, settings: Semi, rate: float, source: Source) -> tuple[Heads, nn.Module]:
    """Train a classifier and a copy of the backbone together, in float32, and return both.

    `rate` is the learning rate of the backbone. Batch norm is in training mode: it uses the
    statistics of batches, over all ranks, and updates its running statistics.
    """
    batch = min(settings.batch, len(source))
    net = over_ranks(copy.deepcopy(task.backbone), batch).requires_grad_(True).train()
    heads = Heads(1, task.classes, width(task), std=0.01, seed=task.seed).to(task.device)
    moves = [
        (_optimiser(settings, list(heads.parameters())), settings.classifier),
        (_optimiser(settings, list(net.parameters())), rate),
    ]
    factor = Schedule(name="cosine", epochs=settings.epochs).factor
    fit(task, heads, source, net, moves, factor, batch=batch, epochs=settings.epochs)
    if not all(heads.finite()):
        raise ValueError(
            "the weights of the classifier are not finite: "
            f"the learning rate {settings.classifier:g} is too high"
        )
    return heads, net.eval()


def _optimiser(settings: Semi, weights: list[Tensor]) -> Optimizer:
    return optim.make(
        weights,
        name="sgd",
        lr=0.0,  # set at every step
        momentum=settings.momentum,
        nesterov=settings.nesterov,
        capturable=weights[0].is_cuda,
    )
