"""Commands that are one task: `pretrain`, and `embed` and `pack`, on this machine or a cluster."""

import hashlib
from functools import partial
from pathlib import Path
from typing import Any

from torch import nn
from torch.utils.data import Dataset

from antipode.data.sources import pack as packing
from antipode.data.sources.catalog import Given, from_path
from antipode.data.sources.label_folders import Labels
from antipode.data.sources.splits import Splits
from antipode.launch.dispatch import check, perform
from antipode.launch.place import Asked, Place, Resources
from antipode.launch.place import place as placed
from antipode.launch.place import resources as wanted
from antipode.launch.ray_data import embed_on_ray, pack_on_ray
from antipode.launch.task import JobFailed, Task
from antipode.paths import absolute
from antipode.recipe.request import Request
from antipode.runs import features
from antipode.runs.run import Run, Runs, opened
from antipode.training import pretrain as training
from antipode.types import Features
from antipode.wording import option


def pretrain_at(
    request: Request,
    out: Path | None,
    data: Given | None,
    module: nn.Module | None,
    options: training.Options,
    on: str | Place = "local",
    resources: Asked = None,
) -> Run:
    """Train what was requested at a place, and return the run. See `training.pretrain`.

    Raises JobFailed if the job of a cluster failed.
    """
    place = placed(on)
    asked = wanted(resources)
    check(place, asked)
    if place.kind == "local":
        return training.pretrain(request, out, data, module, options)
    folder = absolute(training.run_folder(request, out).path)
    finished = (folder / "backbone.safetensors").exists() and not options.overwrite
    task = Task(
        f"{request.data} {request.method}",
        folder,
        partial(_pretrain, request, folder, data, module, options),
        work=0.0 if finished else 1.0,
        key=hashlib.blake2b(repr(request).encode(), digest_size=8).hexdigest(),
    )
    _perform(task, place, asked, str(request.get("train.device") or "auto"), options.quiet)
    return Run(folder, module, None if isinstance(data, str) else data)


def _pretrain(
    request: Request,
    folder: Path,
    data: Given | None,
    module: nn.Module | None,
    options: training.Options,
    quiet: bool,
) -> None:
    """Train what was requested. A job of a cluster calls this."""
    options = options._replace(quiet=options.quiet or quiet)
    training.pretrain(request, folder, data, module, options)


def _perform(
    task: Task, place: Place, asked: Resources, device: str = "auto", quiet: bool = False
) -> None:
    """Perform one task on a cluster. Raises JobFailed if it failed."""
    failed = perform([task], place=place, resources=asked, device=device, quiet=quiet)
    if failed:
        raise JobFailed(failed[task.folder])


def embed(
    run: Runs,
    data: Given,
    out: str | Path | None = None,
    *,
    backbone: nn.Module | None = None,
    on: str | Place = "local",
    resources: Asked = None,
) -> Features:
    """Return features (N,D) and labels (N,) of a data set, first of train and then of test images.

    If a data set has labels for only a part of its images, only labelled images are used.

    Args:
        run: a run, or what `evaluate` takes in its place.
        data: name of a data set, the path of a folder of images, a Dataset of torch or Hugging
            Face, or a pair (train, test) of Datasets.
        out: .npz or .parquet file to write; needed on a SLURM cluster.
        backbone: for a run that trained your own module, a module of that kind for the weights.
        on: "local", "slurm", "ray" or "ray://HOST:PORT".
        resources: what a job gets, as a text such as "gpus=1,hours=2" or a mapping.
    """
    place = placed(on)
    asked = wanted(resources)
    check(place, asked)
    file = absolute(out) if out is not None else None
    given = from_path(data)
    if place.kind == "local":
        return features.embed(opened(run, module=backbone), given, file)
    if file is not None:
        features.check(file)
    if place.kind == "ray":
        opened_run = opened(run, module=backbone)
        return embed_on_ray(opened_run, given, file, address=place.address, resources=asked)
    if file is None:
        raise ValueError(f"{option('on', 'slurm')} needs {option('out')}, the file to write")
    beside = file.with_name(f"{file.name}.jobs")
    _perform(
        Task(file.name, beside, partial(_embed, run, given, file, backbone), work=1.0), place, asked
    )
    return features.read(file)


def _embed(run: Runs, data: Given, file: Path, backbone: nn.Module | None, quiet: bool) -> None:
    """Write the features of a data set. A job of a cluster calls this."""
    features.embed(opened(run, module=backbone), data, file)


def pack(
    data: "str | Dataset[Any] | Splits",
    out: str | Path,
    *,
    size: int | None = None,
    quality: int | None = None,
    root: str | Path | None = None,
    download: bool = False,
    seed: int = 0,
    workers: int | None = None,
    progress: bool = True,
    labels: Labels = "folders",
    on: str | Place = "local",
    resources: Asked = None,
) -> Path:
    """Pack all splits of a data set into the folder `out` and return that folder.

    Call it again with the same arguments to resume after an interruption.

    Args:
        data: name of a data set, or a Dataset.
        out: folder to write.
        size: reduce images to this length of the shorter side, and store pixels.
        quality: with `size`: store JPEG of this quality.
        root: folder that holds the data set.
        download: whether to download a data set that is not there.
        seed: seed of the split, if the data set has none of its own.
        workers: threads that read and encode images; by default one per core.
        progress: whether to show a progress bar.
        labels: whether the subfolders of `folder:` are classes: "folders", "none" or "auto".
        on: "local", "slurm", "ray" or "ray://HOST:PORT".
        resources: what a job gets, as a text such as "cpus=16,hours=2" or a mapping.
    """
    place = placed(on)
    asked = wanted(resources)
    check(place, asked)
    options: dict[str, Any] = {
        "size": size,
        "quality": quality,
        "root": root,
        "download": download,
        "seed": seed,
        "workers": workers,
        "progress": progress,
        "labels": labels,
    }
    if place.kind == "local":
        return packing.pack(data, out, **options)
    home = absolute(out)
    if place.kind == "ray":
        return pack_on_ray(data, home, options, address=place.address, resources=asked)
    beside = home.with_name(f"{home.name}.jobs")
    _perform(Task(home.name, beside, partial(_pack, data, home, options), work=1.0), place, asked)
    return home


def _pack(data: Any, home: Path, options: dict[str, Any], quiet: bool) -> None:
    """Pack a data set. A job of a cluster calls this."""
    packing.pack(data, home, **options | {"progress": not quiet})
