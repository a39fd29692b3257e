"""Pretrain: lock the run folder, open the data, resolve the recipe, train."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from torch import nn

from antipode import dist
from antipode.core.learner import Learner
from antipode.data.sources.catalog import SETS, Given, load
from antipode.data.sources.splits import Splits
from antipode.data.views.policy import evaluation_policy, standardises
from antipode.data.views.views import views as make_views
from antipode.evaluation.features import extract
from antipode.evaluation.nearest import accuracy
from antipode.paths import absolute
from antipode.recipe.recipe import Recipe, difference
from antipode.recipe.resolve import Request, resolve
from antipode.runs.folder import RunFolder
from antipode.runs.images import fitting
from antipode.runs.run import Run
from antipode.training.loop import train
from antipode.training.record import Monitor


class Options(NamedTuple):
    """What to do with a run that the folder already holds, and whether to show no progress."""

    resume: bool = True
    overwrite: bool = False
    quiet: bool = False


def pretrain(
    request: Request,
    out: Path | None,
    data: Given | None,
    module: nn.Module | None,
    options: Options,
) -> Run:
    """Train what was requested and return the run.

    The same request with the same folder resumes the run. `data` and `module` are your own data set
    and backbone, if they were passed from Python.
    """
    name = f"{request.data.replace('/', '-').replace(':', '-')}.{request.method}"
    folder = RunFolder(out or Path("runs") / name)
    with claimed(folder):
        options = _intended(folder, options)
        splits = _open_data(request, data)
        if module is not None:
            splits = fitting(f"your own module ({type(module).__name__})", module, splits)
        # the size of a memory or queue may depend on the number of images
        recipe = resolve(request, images=len(splits.pretrain))
        _train(recipe, folder, splits, module, options)
    return Run(folder.path, module, None if isinstance(data, str) else data)


def pretrain_recipe(recipe: Recipe, out: Path, *, quiet: bool = False) -> Run:
    """Train a resolved recipe on a data set that can be opened by name, and return the run."""
    folder = RunFolder(out)
    options = Options(quiet=quiet)
    with claimed(folder):
        splits = load(recipe.data.name, recipe.data.root, recipe.data.download)
        _train(recipe, folder, splits, None, options)
    return Run(folder.path)


def _train(
    recipe: Recipe, folder: RunFolder, splits: Splits, module: nn.Module | None, options: Options
) -> None:
    """Train a resolved recipe in a folder that this process has locked."""
    if dist.first():
        _warn_of_surprises(recipe, splits)
    _check_folder(folder, recipe, options)
    train(
        recipe,
        folder,
        splits=splits,
        backbone=module,
        monitor=knn_monitor(recipe, splits),
        overwrite=options.overwrite,
        again=_resuming_command(options),
        quiet=options.quiet,
    )


@contextmanager
def claimed(folder: RunFolder) -> Iterator[None]:
    """Lock the folder for this process.

    At the end it is removed if this function created it and nothing was written to it.
    """
    created = [place for place in (folder.path, *folder.path.parents) if not place.exists()]
    try:
        if dist.first():
            folder.claim()
            folder.recover()
        yield
    finally:
        content = {file.name for file in folder.path.glob("*")}
        if created and folder.lock and content == {".lock"}:
            (folder.path / ".lock").unlink(missing_ok=True)
            with suppress(OSError):  # another process may have put something there
                for place in created:
                    place.rmdir()
        folder.release()


def _intended(folder: RunFolder, options: Options) -> Options:
    """Return the options, changed to resume if torchrun has restarted this run.

    Raises ValueError if the folder holds a run that is to be neither resumed nor replaced.
    """
    if dist.restarted() and folder.read_object("env.json").get("launch") == dist.launch():
        # the run in the folder is the previous attempt, not one that was to be replaced
        return options._replace(resume=True, overwrite=False)
    if not options.resume and not options.overwrite and folder.holds_run() and folder.has_trained():
        raise ValueError(
            f"{folder.path} holds a run already: resume it with --resume, or replace it with "
            "--overwrite"
        )
    return options


def _open_data(request: Request, data: Given | None) -> Splits:
    """Open the data set of a request, or your own."""
    if data is None or isinstance(data, str):
        root = request.get("data.root")
        return load(request.data, root, bool(request.get("data.download")))
    # training needs no labels, so the items of your own data set are not read only to get them
    return load(data, ask=bool(request.get("monitor.knn_every")))


def _warn_of_surprises(recipe: Recipe, splits: Splits) -> None:
    """Warn if the views skip operations, or enlarge your own images."""
    if splits.channels not in (1, 3) and not standardises(recipe.views.policy):
        warnings.warn(
            f"the images have {splits.channels} channels: the views leave out saturation, hue and "
            "greyscale, which need red, green and blue",
            stacklevel=4,
        )
    size = recipe.views.size
    if recipe.data.name not in SETS and 2 * splits.size <= size:
        suited = f"--set views.size={splits.size}"
        suited += " --set backbone.stem=small" if splits.size <= 64 else ""
        warnings.warn(
            f"images of {splits.size} px are enlarged to views of {size} px, which takes "
            f"{(size / splits.size) ** 2:.0f} times as long: use {suited} for their own size",
            stacklevel=4,
        )


def _check_folder(folder: RunFolder, recipe: Recipe, options: Options) -> None:
    """Raise ValueError if the folder holds something that this recipe cannot resume."""
    if options.overwrite:
        return
    if folder.has_checkpoint():
        _check_same(folder, recipe)
    elif (folder.path / "network.json").exists():
        raise ValueError(
            f"{folder.path} holds the scores of a network that no run trained: use another --out"
        )


def _check_same(folder: RunFolder, recipe: Recipe) -> None:
    """Raise ValueError if the run was started with another recipe, or if its recipe is missing."""
    if not folder.holds_run():
        raise ValueError(
            f"{folder.path} holds checkpoints but no recipe.json: restore it, or use --overwrite"
        )
    file = folder.path / "recipe.json"
    started = Recipe.read(file)
    changed = difference(started, recipe)
    if _moved(started.data.name, recipe.data.name):  # the stamp of the images is compared later
        changed = [line for line in changed if not line.startswith("data.name: ")]
        if not changed and dist.first():
            warnings.warn(
                f"the images of {started.data.name} are now read from {recipe.data.name}",
                stacklevel=4,
            )
    if changed:
        text = "; ".join(changed[:3])
        more = f" and {len(changed) - 3} more" if len(changed) > 3 else ""
        raise ValueError(
            f"{folder.path} was started with another recipe ({text}{more}); use another --out, or "
            f"resume it with its own recipe, {file}"
        )


def _moved(old: str, new: str) -> bool:
    """Return True if two names of a folder, pack or shards may mean the same images.

    They do if the paths are the same, or if the old path does not exist any more. Of shards, the
    folder is compared. The stamp of the images decides later.
    """
    kind, _, before = old.partition(":")
    other, _, after = new.partition(":")
    if old == new or kind != other or kind not in ("folder", "packed", "webdataset"):
        return False
    old_path = absolute(before).resolve()
    new_path = absolute(after).resolve()
    if kind == "webdataset":
        if old_path.name != new_path.name or "://" in before:
            return False
        old_path = old_path.parent
        new_path = new_path.parent
    return old_path == new_path or not old_path.exists()


def _resuming_command(options: Options) -> str:
    """Return a description of the command that resumes the run, for messages."""
    fresh = []
    if not options.resume:
        fresh.append("--no-resume")
    if options.overwrite:
        fresh.append("--overwrite")
    return f"the same command without {' and '.join(fresh)}" if fresh else "the same command"


def knn_monitor(recipe: Recipe, splits: Splits) -> Monitor | None:
    """Return a function that computes kNN accuracy on the test split, None if none is asked for.

    The accuracy is recorded and has no influence on training.
    """
    if not recipe.monitor.knn_every:
        return None
    test = splits.test
    missing = _missing_for_knn(splits)
    if test is None or missing:
        warnings.warn(
            f"monitor.knn_every has no effect: {splits.name} has no {missing}", stacklevel=4
        )
        return None
    policy = evaluation_policy(recipe.views.policy)
    normal: dict[str, Any] = {"mean": splits.mean, "std": splits.std} if policy == "eval" else {}

    def monitor(learner: Learner, epoch: int) -> dict[str, float]:
        device = next(learner.parameters()).device
        eval_view = make_views(policy, size=recipe.views.size, **normal).to(device)
        train_set = extract(learner.backbone, eval_view, splits.train)
        test_set = extract(learner.backbone, eval_view, test)
        k = min(200, len(train_set.x))
        classes = int(train_set.y.max()) + 1
        return {"knn": accuracy(train_set, test_set, k=k, tau=0.07, classes=classes)}

    return monitor


def _missing_for_knn(splits: Splits) -> str:
    """Return what a data set lacks for kNN, an empty text if nothing."""
    if splits.train.labels is None:
        return "labels"
    if splits.test is None:
        return "test images"
    labels = [splits.train.labels, splits.test.labels]
    single = all(each is not None and each.ndim == 1 and int(each.min()) >= 0 for each in labels)
    return "" if single else "one label for each image"
