"""The public functions. Each reads its arguments and calls one function of another module."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import Dataset

from antipode.analysis import run as analysis_run
from antipode.data.sources.catalog import Given, from_path
from antipode.data.sources.label_folders import Labels
from antipode.evaluation import evaluate as evaluation
from antipode.evaluation.score import Score
from antipode.launch.place import Asked
from antipode.launch.spread import pretrain_at
from antipode.names import several
from antipode.paths import absolute, absolute_or_none
from antipode.reporting import page
from antipode.runs.export import export_run
from antipode.runs.run import Run, Runs, listed, opened
from antipode.training import pretrain as training
from antipode.training.planning import run_request
from antipode.types import check_kind


def pretrain(
    recipe: str | Path | Mapping[str, Any] | None = None,
    *,
    method: str | None = None,
    data: Given | None = None,
    backbone: str | nn.Module | None = None,
    epochs: int | None = None,
    batch: int | None = None,
    out: str | Path | None = None,
    seed: int | None = None,
    device: str | None = None,
    precision: str | None = None,
    labels: Labels | None = None,
    resume: bool = True,
    overwrite: bool = False,
    overrides: Mapping[str, Any] | Sequence[str] = (),
    quiet: bool = False,
    on: str = "local",
    resources: Asked = None,
) -> Run:
    """Train on images without labels, and return the run.

    The same call with the same `out` resumes the run. At the start, it prints which images it found
    and which settings it uses.

    Args:
        recipe: `dataset.method`, a recipe file, a run folder or a mapping.
        method: name of a method.
        data: name of a data set, the path of a folder of images, a Dataset of torch or Hugging
            Face, or a pair (train, test) of Datasets.
        backbone: name of a network, or your own module.
        epochs: number of passes over the data set.
        batch: number of images per step, over all ranks.
        out: run folder; by default `runs/DATA.METHOD`.
        seed: seed of weights, image order, views and noise.
        device: "auto", "cpu", "cuda" or "mps".
        precision: "auto", "fp32", "bf16" or "fp64".
        labels: whether the subfolders of `folder:` are classes, whose images are divided into train
            and test: "folders", "none", or "auto" (the default), which decides by their names and
            numbers of images.
        resume: whether to resume a run that the folder holds. If False, such a run raises
            ValueError.
        overwrite: whether to replace a run that the folder holds.
        overrides: values of the recipe, by dotted key or as texts `section.key=value`.
        quiet: whether to print nothing.
        on: where to train: "local", "slurm", "ray" or "ray://HOST:PORT".
        resources: what the job of a cluster gets, as a text such as "gpus=4,nodes=2,hours=12" or a
            mapping.
    """
    check_kind(bool, resume=resume, overwrite=overwrite, quiet=quiet)
    data = from_path(data)
    flags = {
        "train.epochs": epochs,
        "train.batch": batch,
        "train.seed": seed,
        "train.device": device,
        "train.precision": precision,
        "data.labels": labels,
    }
    request = run_request(recipe, method, data, backbone, overrides, flags)
    module = backbone if isinstance(backbone, nn.Module) else None
    options = training.Options(resume, overwrite, quiet)
    folder = absolute_or_none(out)
    return pretrain_at(request, folder, data, module, options, on, resources)


@torch.inference_mode(False)  # classifiers are trained, whatever mode the caller is in
@torch.enable_grad()
def evaluate(
    run: Runs,
    protocols: Sequence[str] | str | None = None,
    *,
    data: Given | None = None,
    out: str | Path | None = None,
    seed: int | None = None,
    device: str = "auto",
    backbone: nn.Module | None = None,
) -> dict[str, Score]:
    """Evaluate the backbone of a run, add the scores to its scores.json, and return them.

    If some protocols do not fit, the scores of the others are stored before the error is raised.
    The attribute `scores` of the exception holds them.

    Args:
        run: a run or its folder. `random:resnet50`, `torchvision:resnet50` and `file:PATH@resnet50`
            are networks that no run trained.
        protocols: names of protocols; by default `knn` if there are labels (`knn20` with fewer than
            200 train images), otherwise `retrieval` and `alignment-uniformity`.
        data: data set; by default the one that the run was trained on. A score on another data set
            is stored as `protocol@data`.
        out: folder for the scores of a network that no run trained.
        seed: seed; by default that of the run.
        device: "auto", "cpu", "cuda" or "mps".
        backbone: for a run that trained your own module, a module of that kind for the weights.
    """
    names = several("protocols", protocols)
    folder = absolute_or_none(out)
    return evaluation.evaluate(
        run, names, data=from_path(data), out=folder, seed=seed, device=device, module=backbone
    )


@torch.inference_mode(False)  # gradients are analysed, whatever mode the caller is in
@torch.enable_grad()
def analyse(
    runs: "Sequence[Runs] | Runs",
    what: Sequence[str] | str | None = None,
    *,
    data: "Dataset[Any] | None" = None,
    images: int | None = None,
    seed: int = 0,
    device: str = "auto",
) -> dict[str, dict[str, Any]]:
    """Analyse runs, add the results to their analysis.json, and return them by run and analysis.

    Args:
        runs: one run or several.
        what: names of analyses; by default all. An analysis that does not fit a run then has the
            result {"skipped": reason}.
        data: the data set, if a run was trained on your own.
        images: largest number of images; by default each analysis has its own.
        seed: seed of images, views and random draws.
        device: "auto", "cpu", "cuda" or "mps".
    """
    return analysis_run.analyse(
        listed(runs), several("what", what), data=data, images=images, seed=seed, device=device
    )


def export(run: Runs, format: str, out: str | Path, *, overwrite: bool = False) -> Path:
    """Write the online backbone in a format that other software reads, and return the path.

    Args:
        run: a run, or what `evaluate` takes in its place.
        format: "torchvision", "timm", "detectron2", "onnx" or "safetensors".
        out: file to write. A file that exists is replaced, with a warning.
        overwrite: whether to replace a file without a warning.
    """
    check_kind(bool, overwrite=overwrite)
    return export_run(opened(run), format, absolute(out), overwrite=overwrite)


def report(
    runs: "Sequence[Runs] | Runs", out: str | Path | None = None, *, images: bool = True
) -> Path:
    """Write one self-contained HTML page about one or several runs, and return its path.

    Args:
        runs: one run or several. A folder that holds only scores is allowed.
        out: HTML file to write; by default report.html in the first folder.
        images: whether the page contains small copies of images of the data set.
    """
    check_kind(bool, images=images)
    return page.write(listed(runs), absolute_or_none(out), images=images)


def load_backbone(run: Runs, into: nn.Module | None = None) -> nn.Module:
    """Return the online backbone of a run, in eval mode and without its head.

    Args:
        run: a run, or what `evaluate` takes in its place.
        into: for a run that trained your own module, a module of that kind for the weights.
    """
    return opened(run, module=into).backbone()
