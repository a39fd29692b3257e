"""Semi-supervised learning: a classifier, and from a tenth on the backbone with it, trained on few labels."""

import copy
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from antipode import optim, rng
from antipode.data.sources.source import Decoded, Source, subset
from antipode.data.sources.splits import base
from antipode.evaluation.classifier import Features, Heads, embed, fit, judge, width
from antipode.evaluation.linear import Linear, further, one_label, precision, trained
from antipode.evaluation.score import Result
from antipode.evaluation.task import Task
from antipode.schedule import Schedule

CHOSEN = "not stated by MSBReg: epochs, cosine per step to 0, no weight decay, rates fixed"


@dataclass(frozen=True, kw_only=True)
class Semi:
    """MSBReg's settings (supplement, section 2.2): SGD with Nesterov momentum .9, batch 1024, two rates.

    It states neither epochs nor schedule nor weight decay, nor how rates follow a batch that is smaller because there
    are fewer images. 50 epochs are the longer of the two that BYOL, whose protocol it mostly follows, tries (from
    memory of its appendix, not from a source at hand); the rest of CHOSEN is ours.
    """

    classifier: float
    encoder: float | None = None  # frozen, in eval mode
    file: str = ""  # the images on ImageNet
    batch: int = 1024
    epochs: int = 50  # chosen
    momentum: float = 0.9
    nesterov: bool = True


# the lists of google-research/simclr, one image name per line; MSBReg uses them
SEMI = {
    0.01: Semi(classifier=2.0, file="imagenet_subsets/1percent.txt"),
    0.1: Semi(classifier=0.25, encoder=2.5e-4, file="imagenet_subsets/10percent.txt"),
}


def run(task: Task, share: float, settings: Semi | None = None) -> Result:
    """Top-1 accuracy on the test images after the last epoch of training with a share of the train labels."""
    if settings is None and share not in SEMI:
        raise ValueError(
            f"semi-supervised learning has settings for shares {', '.join(map(str, SEMI))}, not {share:g}"
        )
    settings = settings or SEMI[share]
    train, test = one_label(task, "train"), one_label(task, "test")
    images, drawn = few(task, train, share, settings.file)
    features: Features = partial(embed, task.backbone)
    state = precision(task)
    if settings.encoder is None:
        heads = trained(task, _frozen(settings), images, (settings.classifier,))
    else:
        heads, features = tuned(task, settings, settings.encoder, images)
        state = {"backbone": "fine-tuned", "precision": "fp32"}
    top1, top5 = judge(task, heads, test, features)
    values = {name: value for name, value in asdict(settings).items() if name != "file"} | state
    values |= {
        "share": share,
        "images": len(images),
        "drawn": drawn,
        "batch": min(settings.batch, len(images)),
    }
    return Result(
        top1[0], "% top-1", values | {"chosen": CHOSEN}, len(test), further(task, top5[0])
    )


def few(task: Task, train: Source, share: float, file: str) -> tuple[Source, str]:
    """A share of the train images, and how they were drawn: ImageNet's by SimCLR's list, else as many of each class."""
    if task.splits.name == "imagenet":
        return subset(train, listed(task, train, file)), file
    assert train.labels is not None
    return subset(
        train, balanced(train.labels.cpu(), task.classes, share, task.seed)
    ), "balanced, from the seed"


def balanced(labels: Tensor, classes: int, share: float, seed: int) -> Tensor:
    """Ascending ids of a share of the images, the same number of each class: 1 at least, all where it has fewer."""
    if not 0 < share <= 1:
        raise ValueError(f"a share of the labels lies in (0, 1], but is {share:g}")
    counts = labels.bincount(minlength=classes)
    if int(counts.min()) == 0:
        raise ValueError(
            f"class {int(counts.argmin())} of {classes} has no train image to learn it from"
        )
    each = max(1, round(share * len(labels) / classes))
    order = rng.permutation(rng.key(seed, "few labels"), len(labels))
    kinds = labels[order]
    picked = [order[kinds == kind][:each] for kind in range(classes)]
    return torch.cat(picked).sort().values


def listed(task: Task, train: Source, file: str) -> Tensor:
    """Ids of the images that a file in the folder of data sets names, one on each line: n01440764_10026.JPEG."""
    path = _find(base("imagenet", task.root, file, "put SimCLR's lists of images there"), file)
    if not isinstance(train, Decoded):
        raise ValueError(f"the images of {file} are found by name, but this imagenet has none")
    wanted = dict.fromkeys(line.strip() for line in path.read_text().splitlines() if line.strip())
    at = {name.rsplit("/", 1)[-1]: index for index, name in enumerate(train.names)}
    absent = [name for name in wanted if name not in at]
    if absent or not wanted:
        first = f", the first: {absent[0]}" if absent else ""
        raise ValueError(
            f"{len(absent)} of the {len(wanted)} images of {path} are not in the train split{first}"
        )
    return torch.tensor(sorted(at[name] for name in wanted))


def _find(root: Path, file: str) -> Path:
    for path in (root / file, root / "imagenet" / file):
        if path.is_file():
            return path
    raise FileNotFoundError(
        f"few labels of imagenet means SimCLR's own choice of images: put {file} of github.com/google-research/simclr "
        f"at {root / file}"
    )


def _frozen(settings: Semi) -> Linear:
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
    """A classifier and a copy of the backbone, trained together, batch norm and all, in float32."""
    net = copy.deepcopy(task.backbone).requires_grad_(True).train()
    heads = Heads(1, task.classes, width(task), std=0.01, seed=task.seed).to(task.device)
    moves = [
        (_optimiser(settings, list(heads.parameters())), settings.classifier),
        (_optimiser(settings, list(net.parameters())), rate),
    ]
    factor = Schedule(name="cosine", epochs=settings.epochs).factor
    batch = min(settings.batch, len(source))
    fit(task, heads, source, net, moves, factor, batch=batch, epochs=settings.epochs)
    if not all(heads.finite()):
        raise ValueError(
            f"the weights of the classifier are not finite: a rate of {settings.classifier:g} is too high"
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
