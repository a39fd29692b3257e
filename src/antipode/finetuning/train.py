"""Fine-tune the backbone of a run on labelled images, and write the classifier to a folder."""

import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from torch import nn

from antipode import dist
from antipode.data.sources.catalog import Given, from_path, load, python_name
from antipode.data.sources.label_folders import unlike_classes
from antipode.data.sources.splits import Splits
from antipode.devices import pick_device
from antipode.evaluation.classifier import decoding
from antipode.evaluation.evaluate import task_for
from antipode.evaluation.finetune import chosen, graded_result
from antipode.evaluation.linear import one_label
from antipode.evaluation.score import Score
from antipode.evaluation.task import Task, is_unlabelled
from antipode.evaluation.tuning import Tuned, Tuning, tune
from antipode.finetuning.model import Classifier, Network, check_out, load_classifier, write
from antipode.names import printable
from antipode.nets.weight_file import Normal
from antipode.paths import absolute
from antipode.runs.images import channels_of
from antipode.runs.run import Run, Runs, opened
from antipode.types import check_kind, check_seed
from antipode.wording import counted, option

LISTED = 6  # classes that the first line names


@torch.inference_mode(False)  # weights are trained, whatever mode the caller is in
@torch.enable_grad()
def finetune(
    run: Runs,
    data: Given | Splits,
    out: str | Path,
    *,
    epochs: int | None = None,
    lr: float | None = None,
    batch: int | None = None,
    freeze: bool = False,
    balanced: bool = False,
    flip: bool = True,
    seed: int = 0,
    device: str = "auto",
    overwrite: bool = False,
    backbone: nn.Module | None = None,
    quiet: bool = False,
) -> Classifier:
    """Train a backbone and a classifier on labelled images, and return the classifier.

    The folder `out` gets model.safetensors, model.json and scores.json. They are written when
    training has ended. After an interruption, the same call trains again from the start.

    Args:
        run: a run, or what `evaluate` takes in its place. `random:NAME` trains from scratch.
        data: the labelled data set. The subfolders of `folder:` are the classes.
        out: the folder for the classifier.
        epochs: the number of epochs; by default 100, 50 or 30, with fewer for more images.
        lr: the learning rate of the backbone, or of the classifier if the backbone is frozen.
        batch: the number of images per step; by default 64, and 256 from 10,000 images.
        freeze: whether the backbone keeps its weights, so that only the classifier is trained.
        balanced: whether every class is shown equally often.
        flip: whether images may be flipped horizontally. Text, for example, should not.
        seed: the seed of the classifier's weights, the order of images and the crops.
        device: "auto", "cpu", "cuda" or "mps".
        overwrite: whether to replace a classifier that the folder holds.
        backbone: for a run that trained your own module, a module of that kind for the weights.
        quiet: whether to print nothing.
    """
    seed = check_seed(seed)
    check_kind(bool, freeze=freeze, balanced=balanced, flip=flip, overwrite=overwrite, quiet=quiet)
    data = from_path(data)
    out = absolute(out)
    check_out(out, overwrite)
    where = pick_device(device)
    dist.setup(where.type)
    if dist.world() > 1:
        raise ValueError("finetune trains on one device: start it without torchrun")
    subject = opened(run, data=_name(data), seed=seed, module=backbone)
    task = _task(subject, data, where, seed)
    scratch = subject.network is not None and subject.network.kind == "random"
    tuning = chosen(
        task,
        epochs=epochs,
        lr=lr,
        batch=batch,
        freeze=bool(freeze),
        balanced=bool(balanced),
        flip=bool(flip),
        scratch=scratch,
    )
    if not quiet:
        print("\n".join(planned(subject, task, tuning)), file=sys.stderr, flush=True)
    with _folder(out):
        tuned = tune(task, tuning)
        _write(out, subject, task, tuning, tuned)
    return load_classifier(out, tuned.backbone)


def _task(subject: Run, data: Given | Splits, device: torch.device, seed: int) -> Task:
    """Return the backbone on the labelled images. Raises ValueError for an unfinished run."""
    if subject.network is None:
        subject.check_finished()
    # subfolders are classes, even if the run was trained on the same folder without labels
    images = load(data, subject.root) if isinstance(data, str) else data
    task = task_for(subject, images, device, seed)
    _check_labels(task.splits)
    return task


def _name(data: Given | Splits) -> str:
    """Return the name of a data set, for a network that no run trained."""
    if isinstance(data, Splits):
        return data.name
    return data if isinstance(data, str) else python_name(data)


def _check_labels(splits: Splits) -> None:
    """Raise ValueError if the train images have no labels, or all the same."""
    if is_unlabelled(splits.train):
        raise ValueError(
            printable(
                f"{splits.name} has no labels, and fine-tuning needs them: put the images of each "
                "class into a folder of its own, of which there must be at least two"
            )
        )


@contextmanager
def _folder(path: Path) -> Iterator[None]:
    """Create a folder, so that a path that cannot be written is found before training.

    If the block fails, the folder is removed if it is empty.
    """
    path.mkdir(parents=True, exist_ok=True)
    try:
        yield
    except BaseException:
        with suppress(OSError):  # it is not empty
            path.rmdir()
        raise


def planned(run: Run, task: Task, tuning: Tuning) -> list[str]:
    """Return in two lines what will be trained on which images, and a third if classes are odd."""
    names = _classes(task)
    shown = ", ".join([*names[:LISTED], *(["..."] if len(names) > LISTED else [])])
    train = one_label(task, "train")
    assert train.labels is not None
    counts = train.labels.bincount(minlength=len(names))
    tested = 0 if task.splits.test is None else len(task.splits.test)
    few, many = int(counts.min()), int(counts.max())
    hint = f"; {option('balanced', True)} shows classes equally often"
    if few * 3 > many or tuning.balanced:
        hint = ""
    rate = f"classifier {tuning.classifier_lr:g}"
    if tuning.lr is not None:
        rate = f"backbone {tuning.lr:g}, {rate}"
    frozen = " (frozen)" if tuning.lr is None else ""
    each = f"{few}" if few == many else f"{few} to {many}"
    lines = [
        f"data: {len(train)} train and {tested} test images of {len(names)} classes ({shown}), "
        f"{each} train images each{hint}",
        f"training: {run.backbone_name}{frozen} at {task.size} px, "
        f"{counted(tuning.epochs, 'epoch')} of {counted(len(train) // tuning.batch, 'step')} with "
        f"{tuning.batch} images, {tuning.optimiser}, learning rate {rate}, on {task.device.type}",
    ]
    doubt = unlike_classes(names) if task.splits.name.startswith("folder:") else ""
    if doubt:
        lines.insert(1, f"note: {doubt}; here they are the classes that the classifier learns")
    return [printable(line) for line in lines]  # classes and networks have names from files


def _classes(task: Task) -> list[str]:
    """Return the names of the classes; classes without names have their numbers."""
    named = list(task.splits.classes or ())
    return named + [str(number) for number in range(len(named), task.classes)]


def _write(out: Path, run: Run, task: Task, tuning: Tuning, tuned: Tuned) -> None:
    """Score the classifier on the test images, and write it to its folder."""
    splits = task.splits
    network = Network(
        run.backbone_name,
        run.stem,
        channels_of(task.backbone, run.normal) or splits.channels,
        task.size,
        run.policy,
        Normal(splits.mean, splits.std),
    )
    about: dict[str, Any] = {
        "classes": _classes(task),
        "trained": {
            "from": run.network.text if run.network else str(run.path),
            "data": splits.name,
            "images": len(splits.train),
            "seed": task.seed,
            "device": task.device.type,
            "torch": torch.__version__,
            "settings": tuning.__dict__,
            "loss": tuned.losses,
            **decoding(tuned.heads),
        },
    }
    fc = (tuned.heads.weights[0], tuned.heads.biases[0])
    write(out, tuned.backbone, fc, network, about, _scores(task, tuning, tuned))


def _scores(task: Task, tuning: Tuning, tuned: Tuned) -> dict[str, Any]:
    """Return the content of scores.json: the accuracy on the test images, if there are any."""
    if is_unlabelled(task.splits.test):
        warnings.warn(
            printable(
                f"{task.splits.name} has no labelled test images, so the classifier has no score"
            ),
            stacklevel=4,
        )
        return {}
    result = graded_result(task, tuning, tuned, one_label(task, "test"))
    score = Score(
        result.value,
        result.unit,
        "finetune",
        {"size": task.size, **result.settings},
        task.splits.name,
        n=result.n,
        seed=task.seed,
        more=result.more,
        low=result.low,
        high=result.high,
        chance=result.chance,
    )
    return {"finetune": score.json()}
