"""Open runs and analyse them."""

from collections.abc import Sequence
from typing import Any

import torch

from antipode.analysis.catalog import check_names, perform
from antipode.analysis.embeddings import RunEmbeddings
from antipode.data.sources.catalog import load
from antipode.data.sources.splits import Splits
from antipode.devices import pick_device
from antipode.early import no_run
from antipode.runs.images import fitting
from antipode.runs.run import Run
from antipode.types import check_seed, fitted


def analyse(
    runs: list[Run],
    names: Sequence[str] | None,
    *,
    data: Any = None,
    images: int | None = None,
    seed: int = 0,
    device: str = "auto",
) -> dict[str, dict[str, Any]]:
    """Analyse runs and return the results by run and analysis.

    The arguments are those of `antipode.analyse`.
    """
    if names is not None:
        check_names(names)
    seed = check_seed(seed)
    images = fitted("images", images, int | None)
    if images is not None and images < 2:
        raise ValueError(f"an analysis needs at least two images, got {images}")
    where = pick_device(device)
    _check_runs(runs)
    where = torch.device("cpu") if where.type == "mps" else where  # mps has no float64
    loaded: dict[Any, Splits] = {}
    subjects = [
        _embeddings(run, label, loaded, data, where, seed, images)
        for run, label in zip(runs, _labels(runs), strict=True)
    ]
    return perform(subjects, names)


def _check_runs(runs: list[Run]) -> None:
    """Raise FileNotFoundError for a folder without a run, and ValueError for a repeated folder."""
    absent = [run.path for run in runs if not run.folder.holds_run()]
    if not runs or absent:
        raise FileNotFoundError(no_run(absent[0]) if absent else "there is no run in an empty list")
    paths = [run.path.resolve() for run in runs]
    for place, run in enumerate(runs):
        if paths[place] in paths[:place]:
            raise ValueError(f"{run.path} is given twice")


def _labels(runs: list[Run]) -> list[str]:
    """Return a name for each run: its folder's name, or its path if two folders share a name."""
    names = [run.path.resolve().name for run in runs]
    return [
        name if names.count(name) == 1 else str(run.path)
        for name, run in zip(names, runs, strict=True)
    ]


def _embeddings(
    run: Run,
    label: str,
    loaded: dict[Any, Splits],
    data: Any,
    device: torch.device,
    seed: int,
    images: int | None,
) -> RunEmbeddings:
    """Return a run with its networks, images and views on the device.

    `loaded` holds the data sets that were loaded for other runs, and is extended in place. Runs on
    the same data set share it. The folder is opened again, in case it has changed since `run` read
    it.
    """
    run = Run(run.path, run.module, run.data, run.network)
    given = run.data if data is None else data
    place = run.own_images.place, run.root, run.labels, id(given)
    learner = run.learner()
    if place not in loaded:
        loaded[place] = run.own_splits() if given is None else load(given, run.root)
    elif given is None:
        run.own_images.check(loaded[place])
    splits = fitting(str(run.path), learner.backbone, loaded[place])
    return RunEmbeddings(
        run,
        label,
        learner.to(device),
        splits,
        run.training_views(splits).to(device),
        run.eval_view(splits).to(device),
        device,
        seed,
        images,
    )
