"""Pretrain: lock the run folder, open the data, resolve the recipe, train."""

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from torch import nn

from antipode import dist
from antipode.data.sources.catalog import SETS, Given, load
from antipode.data.sources.located import located
from antipode.data.sources.splits import Splits
from antipode.data.views.policy import standardises
from antipode.paths import absolute
from antipode.recipe.opening import open_data, open_recipe
from antipode.recipe.origin import directory, located_path
from antipode.recipe.recipe import Recipe, difference
from antipode.recipe.request import Request
from antipode.runs.folder import RunFolder, check_results
from antipode.runs.images import fitting
from antipode.runs.run import Run
from antipode.training import checkpoint
from antipode.training.knn_monitor import knn_monitor
from antipode.training.loop import train
from antipode.training.plan import Plan, describe, measured
from antipode.wording import counted, option, overrides, same_call


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
    folder = run_folder(request, out)
    with claimed(folder):
        options = _intended(folder, options)
        recipe, splits = _prepared(request, folder, data, module, options)
        shown = dist.first() and not options.quiet
        opening = describe(recipe, splits).lines() if shown else []
        _train(recipe, folder, splits, module, options, opening)
    return Run(folder.path, module, None if isinstance(data, str) else data)


def plan(
    request: Request,
    out: Path | None,
    data: Given | None,
    module: nn.Module | None,
    options: Options,
) -> Plan:
    """Return what `pretrain` would do, with the time and memory of a few steps.

    Nothing is written, and nothing of the steps is kept. The arguments are those of `pretrain`. A
    folder that `pretrain` would not train in raises the same ValueError.
    """
    folder = run_folder(request, out)
    options = _intended(folder, options)
    recipe, splits = _prepared(request, folder, data, module, options)
    _check_folder(folder, recipe, options)
    if dist.first():
        _warn_of_surprises(recipe, splits)
    found = describe(recipe, splits)
    if folder.has_checkpoint() and not options.overwrite:
        found = replace(found, done=_steps_done(folder, found.steps))
    if found.done and found.done == found.steps:
        return replace(found, seconds=0.0)
    return measured(found, recipe, splits, module)


def _steps_done(folder: RunFolder, steps: int) -> int:
    """Return how many of its steps a run has taken: to the checkpoint that it resumes from.

    A folder without numbered checkpoints, which only has last.pt, is judged by the end of its log.
    """
    if folder.has_ended():
        return steps
    saved = checkpoint.saved_steps(folder)
    if saved is None:
        saved = max((int(row["step"]) for row in folder.rows()), default=0)
    return min(saved, steps - 1)


def run_folder(request: Request, out: Path | None) -> RunFolder:
    """Return the run folder, by default runs/DATA.METHOD.

    Raises ValueError if it is a file, the folder of the images, where nothing may be written, or
    the folder of a classifier or a sweep.
    """
    name = f"{request.data.replace('/', '-').replace(':', '-')}.{request.method}"
    folder = RunFolder(out or Path("runs") / name)
    kind, _, images = request.data.partition(":")
    if kind == "folder" and absolute(images).resolve() == folder.path.resolve():
        raise ValueError(
            f"{folder.path} is the folder of the images: name another folder for the run with "
            f"{option('out')}"
        )
    for place in (folder.path, *folder.path.parents):
        if place.is_file():
            raise ValueError(f"{place} is a file, but a folder is needed")
    check_results(folder.path, "recipe.json", "network.json")
    return folder


def _prepared(
    request: Request,
    folder: RunFolder,
    data: Given | None,
    module: nn.Module | None,
    options: Options,
) -> tuple[Recipe, Splits]:
    """Open the data set and resolve the recipe. Nothing is written."""
    resumes = folder.has_checkpoint() and folder.holds_run() and not options.overwrite
    stored = Recipe.read(folder.path / "recipe.json") if resumes else None
    splits, settled = open_data(request, data, stored)
    if module is not None:
        splits = fitting(f"your own module ({type(module).__name__})", module, splits)
    return open_recipe(settled, splits, stored), splits


def pretrain_recipe(recipe: Recipe, out: Path, *, quiet: bool = False) -> Run:
    """Train a resolved recipe on a data set that can be opened by name, and return the run."""
    folder = RunFolder(out)
    options = Options(quiet=quiet)
    with claimed(folder):
        section = recipe.data
        splits = load(section.name, section.root, section.download, labels=section.labels)
        _train(recipe, folder, splits, None, options)
    return Run(folder.path)


def _train(
    recipe: Recipe,
    folder: RunFolder,
    splits: Splits,
    module: nn.Module | None,
    options: Options,
    opening: Sequence[str] = (),
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
        opening=opening,
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
            f"{folder.path} holds a run already: resume it with {option('resume', True)}, or "
            f"replace it with {option('overwrite', True)}"
        )
    return options


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
        suited: dict[str, object] = {"views.size": splits.size}
        suited |= {"backbone.stem": "small"} if splits.size <= 64 else {}
        warnings.warn(
            f"images of {splits.size} px are enlarged to views of {size} px, which takes "
            f"{(size / splits.size) ** 2:.0f} times as long: use {overrides(suited)} for "
            "their own size",
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
            f"{folder.path} holds the scores of a network that no run trained: use another "
            f"{option('out')}"
        )


def _check_same(folder: RunFolder, recipe: Recipe) -> None:
    """Raise ValueError if the run was started with another recipe, or if its recipe is missing."""
    if not folder.holds_run():
        raise ValueError(
            f"{folder.path} holds checkpoints but no recipe.json: restore it, or use "
            f"{option('overwrite', True)}"
        )
    file = folder.path / "recipe.json"
    started = Recipe.read(file)
    home = directory(folder.read_object("env.json"))
    changed = _changes(started, recipe, home)
    longer = recipe.train.epochs > started.train.epochs and folder.has_ended()
    if longer and all(line.startswith("train.epochs: ") for line in changed):
        raise ValueError(_not_extended(folder, started, recipe))
    # the stamp of the images is compared later
    if _moved(started.data.name, recipe.data.name, home):
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
            f"{folder.path} was started with another recipe ({text}{more}); use another "
            f"{option('out')}, or resume it with its own recipe, {file}"
        )


def _changes(started: Recipe, recipe: Recipe, home: Path | None) -> list[str]:
    """Return what differs between two recipes, except for the spelling of a path of weights.

    The first recipe is that of a run that was started in `home`.
    """
    lines = difference(started, recipe)
    old, new = started.backbone.weights, recipe.backbone.weights
    if old and new and absolute(located_path(old, home)) == absolute(new):
        return [line for line in lines if not line.startswith("backbone.weights: ")]
    return lines


def _not_extended(folder: RunFolder, started: Recipe, recipe: Recipe) -> str:
    """Return the error message for a finished run that is to be trained for more epochs."""
    weights = overrides({"backbone.weights": str(folder.path / "backbone.safetensors")})
    return (
        f"{folder.path} has ended after {counted(started.train.epochs, 'epoch')} and cannot be "
        f"extended to {recipe.train.epochs:,}, because its learning rate has followed its schedule "
        f"to the end: start a new run from its weights with {weights} and another {option('out')}"
    )


def _moved(old: str, new: str, home: Path | None) -> bool:
    """Return True if two names of a folder, pack or shards may mean the same images.

    They do if the paths are the same, or if the old path does not exist any more. Of shards, the
    folder is compared. The stamp of the images decides later. The old name is that of a run that
    was started in `home`.
    """
    kind, _, before = located(old, home).partition(":")
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
        fresh.append(option("resume", False))
    if options.overwrite:
        fresh.append(option("overwrite", True))
    return f"{same_call()} without {' and '.join(fresh)}" if fresh else same_call()
