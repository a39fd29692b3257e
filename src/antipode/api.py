"""What the command line and Python users call."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import Dataset

from antipode import dist
from antipode.data.catalog import load
from antipode.data.splits import Splits
from antipode.data.views import Views
from antipode.data.views import views as make_views
from antipode.engine import table
from antipode.engine.export import export as write_export
from antipode.engine.recipe import Recipe, difference, resolve
from antipode.engine.rundir import RunDir
from antipode.engine.train import Monitor, pick_device, train
from antipode.engine.weights import bare, fit, read
from antipode.evaluation import protocol
from antipode.evaluation.features import extract
from antipode.evaluation.protocol import Score
from antipode.files import whole
from antipode.nets.backbone import backbone as make_backbone
from antipode.reporting.page import page
from antipode.types import Features


@dataclass(frozen=True)
class Run:
    """A run folder."""

    path: Path

    @property
    def recipe(self) -> Recipe:
        """What it was started with."""
        return Recipe.read(self.path / "recipe.json")

    @property
    def scores(self) -> dict[str, Any]:
        """What evaluations have added."""
        content: dict[str, Any] = RunDir(self.path).read_json("scores.json")
        return content

    def metrics(self) -> list[dict[str, Any]]:
        """The lines of metrics.jsonl."""
        return RunDir(self.path).metrics()

    def backbone(self) -> nn.Module:
        """The trained backbone, in eval mode."""
        return load_backbone(self.path)


def pretrain(
    recipe: str | Path | Mapping[str, Any] | None = None,
    *,
    method: str | None = None,
    data: "str | Dataset[Any] | None" = None,
    backbone: str | nn.Module | None = None,
    epochs: int | None = None,
    batch: int | None = None,
    out: str | Path | None = None,
    seed: int | None = None,
    device: str | None = None,
    precision: str | None = None,
    resume: bool = True,
    overwrite: bool = False,
    overrides: Mapping[str, Any] | Sequence[str] = (),
    quiet: bool = False,
) -> Run:
    """Train; the same call with the same `out` goes on where it stopped. Returns the run."""
    module = backbone if isinstance(backbone, nn.Module) else None
    flags = {
        "backbone.name": backbone if module is None else f"python:{type(module).__name__}",
        "train.epochs": epochs,
        "train.batch": batch,
        "train.seed": seed,
        "train.device": device,
        "train.precision": precision,
    }
    named = data if isinstance(data, str) or data is None else f"python:{type(data).__name__}"
    asked = partial(resolve, recipe, method=method, data=named, overrides=overrides, flags=flags)
    wanted = asked()
    run = RunDir(out or Path("runs") / f"{wanted.data.name.replace('/', '-').replace(':', '-')}.{wanted.method.name}")
    if not resume and not overwrite and run.holds_run():
        raise ValueError(f"{run.path} holds a run already: go on with --resume, or replace it with --overwrite")
    splits = load(data) if isinstance(data, Dataset) else load(wanted.data.name, wanted.data.root, wanted.data.download)
    wanted = asked(images=len(splits.pretrain))  # a memory or queue may depend on their number
    if run.holds_run() and run.begun() and not overwrite:
        _same(run, wanted)
    try:
        watch = _monitor(wanted, splits)
        train(wanted, run, splits=splits, backbone=module, monitor=watch, overwrite=overwrite, quiet=quiet)
    finally:
        dist.leave()
    return Run(run.path)


def _same(run: RunDir, wanted: Recipe) -> None:
    """Refuse to go on with a run that was started with another recipe."""
    changed = difference(Recipe.read(run.path / "recipe.json"), wanted)
    if changed:
        more = f" and {len(changed) - 3} more" if len(changed) > 3 else ""
        text = "; ".join(changed[:3])
        raise ValueError(f"{run.path} was started with another recipe ({text}{more}); use another --out")


def _monitor(recipe: Recipe, splits: Splits) -> Monitor | None:
    """kNN accuracy of the backbone on the test split, as training goes; it decides nothing."""
    test = splits.test
    if not recipe.monitor.knn_every or test is None or splits.train.labels is None:
        return None

    def monitor(learner: Any, epoch: int) -> dict[str, float]:
        look = eye(recipe, splits).to(next(learner.parameters()).device)
        train_set, test_set = (extract(learner.backbone, look, source) for source in (splits.train, test))
        k = min(200, len(train_set.x))
        return {"knn": protocol.nearest(train_set, test_set, k=k, tau=0.07)[0]}

    return monitor


def eye(recipe: Recipe, splits: Splits) -> Views:
    """The one view without chance that fits how a run saw its images."""
    if recipe.views.policy == "shapes":
        return make_views("shapes-eval", size=recipe.views.size)
    return make_views("eval", size=recipe.views.size, mean=splits.mean, std=splits.std)


def load_backbone(run: str | Path | Run) -> nn.Module:
    """The online backbone of a run, in eval mode, without its head."""
    path = run.path if isinstance(run, Run) else Path(run).expanduser()
    file = path / "backbone.safetensors"
    if not file.exists():
        raise FileNotFoundError(f"{path} holds no finished run: there is no backbone.safetensors")
    recipe = Recipe.read(path / "recipe.json")
    if recipe.backbone.name.startswith("python:"):
        raise ValueError(f"{path} trained a module of one's own ({recipe.backbone.name}): load {file.name} into it")
    weights = read(file)
    channels = weights["conv1.weight"].shape[1] if "conv1.weight" in weights else 3
    net = make_backbone(recipe.backbone.name, stem=recipe.backbone.stem, channels=channels)
    fit(bare(net), weights, str(file))
    return net.eval()


def evaluate(
    run: str | Path | Run, protocols: Sequence[str] = ("knn",), *, data: str | None = None
) -> dict[str, Score]:
    """Scores of a run's frozen backbone, added to its scores.json."""
    path = run.path if isinstance(run, Run) else Path(run).expanduser()
    for name in protocols:
        protocol.known(name)
    folder, recipe = RunDir(path), Recipe.read(path / "recipe.json")
    earlier, backbone = folder.read_json("scores.json"), load_backbone(path)
    splits = load(data or recipe.data.name, recipe.data.root)
    if splits.test is None:
        raise ValueError(f"{splits.name} has no test split to score on")
    _fits(path, backbone, splits)
    device = pick_device("auto")
    backbone, look = backbone.to(device), eye(recipe, splits).to(device)
    found = {part: extract(backbone, look, source) for part, source in (("train", splits.train), ("test", splits.test))}
    scores = {}
    for name in protocols:
        value, unit, settings = protocol.run(name, found["train"], found["test"])
        scores[name] = Score(
            value, unit, name, settings, data=splits.name, n=len(found["test"].x), seed=recipe.train.seed
        )
    folder.write_json("scores.json", earlier | {k: v.json() for k, v in scores.items()})
    return scores


def _fits(path: Path, backbone: nn.Module, splits: Splits) -> None:
    """Refuse images of another number of channels."""
    first = next((layer for layer in backbone.modules() if isinstance(layer, nn.Conv2d)), None)
    if first is not None and first.in_channels != splits.channels:
        trained = f"{path} was trained on images of {first.in_channels}"
        raise ValueError(f"{trained} channels, but {splits.name} has {splits.channels} channels")


def embed(run: str | Path | Run, data: "str | Dataset[Any]", out: str | Path | None = None) -> Features:
    """Features (N,D) and labels (N,) of all images of a data set, train then test; `out` is a .npz or .parquet file."""
    path = run.path if isinstance(run, Run) else Path(run).expanduser()
    file = Path(out).expanduser() if out is not None else None
    if file is not None:
        table.check(file)
    backbone, recipe = load_backbone(path), Recipe.read(path / "recipe.json")
    splits = load(data, recipe.data.root)
    _fits(path, backbone, splits)
    device = pick_device("auto")
    backbone, look = backbone.to(device), eye(recipe, splits).to(device)
    found = {part: source for part, source in (("train", splits.train), ("test", splits.test)) if source is not None}
    parts = {part: extract(backbone, look, source) for part, source in found.items()}
    features = Features(*(torch.cat(columns) for columns in zip(*parts.values(), strict=True)))
    if file is not None:
        named = [table.names_of(source) for source in found.values()]
        names = None if None in named else [name for part in named for name in part or ()]
        table.write(file, features, [part for part, own in parts.items() for _ in own.x], names)
    return features


def export(run: str | Path | Run, format: str, out: str | Path) -> Path:
    """Write the online backbone for other software: torchvision, timm, detectron2, onnx or safetensors."""
    path = run.path if isinstance(run, Run) else Path(run).expanduser()
    net, recipe = load_backbone(path), Recipe.read(path / "recipe.json")
    size, file = recipe.views.size, Path(out).expanduser()
    return write_export(net, file, format=format, name=recipe.backbone.name, stem=recipe.backbone.stem, size=size)


def report(runs: Sequence[str | Path | Run], out: str | Path | None = None) -> Path:
    """One HTML page for one or several runs."""
    paths = [run.path if isinstance(run, Run) else Path(run).expanduser() for run in runs]
    absent = [path for path in paths if not (path / "recipe.json").exists()]
    if not paths or absent:
        raise FileNotFoundError(f"there is no run in {absent[0] if absent else 'an empty list'}")
    file = Path(out).expanduser() if out else paths[0] / "report.html"
    with whole(file) as handle:
        handle.write(page(paths).encode())
    return file
