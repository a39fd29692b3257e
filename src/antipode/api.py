"""What the command line and Python users call."""

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import Dataset

from antipode import dist
from antipode.analysis import catalog as analyses
from antipode.analysis.embeddings import Subject as Analysed
from antipode.analysis.embeddings import named
from antipode.data.sources.catalog import SETS, Given, datasets, load
from antipode.data.sources.folder import held_out
from antipode.data.sources.splits import Splits, coloured
from antipode.data.views.views import Views
from antipode.data.views.views import views as make_views
from antipode.evaluation import protocol
from antipode.evaluation.features import extract
from antipode.evaluation.nearest import accuracy
from antipode.evaluation.score import Score
from antipode.evaluation.task import Task
from antipode.files import atomic_write
from antipode.nets.weights import Normal, normal
from antipode.recipe.resolve import Recipe, difference, resolve
from antipode.reporting.page import page
from antipode.runs import features as table
from antipode.runs.export import export as write_export
from antipode.runs.folder import RunFolder
from antipode.runs.restore import restored
from antipode.runs.run import Subject, subject
from antipode.training.loop import Monitor, pick_device, train
from antipode.types import Features


@dataclass(frozen=True)
class Run:
    """A run folder; `module` and `data` are those of one's own that `pretrain` was given, for the calls that follow."""

    path: Path
    module: nn.Module | None = field(default=None, repr=False, compare=False)
    data: Any = field(default=None, repr=False, compare=False)

    @property
    def recipe(self) -> Recipe:
        """What it was started with."""
        return Recipe.read(self.path / "recipe.json")

    @property
    def scores(self) -> dict[str, Any]:
        """What evaluations have added."""
        content: dict[str, Any] = RunFolder(self.path).read_json("scores.json")
        return content

    def metrics(self) -> list[dict[str, Any]]:
        """The lines of metrics.jsonl."""
        return RunFolder(self.path).metrics()

    def backbone(self) -> nn.Module:
        """The trained backbone, in eval mode."""
        return load_backbone(self)


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
    named = (
        data
        if isinstance(data, str) or data is None
        else f"python:{type(datasets(data)[0]).__name__}"
    )
    asked = partial(resolve, recipe, method=method, data=named, overrides=overrides, flags=flags)
    wanted = asked()
    run = RunFolder(
        out
        or Path("runs")
        / f"{wanted.data.name.replace('/', '-').replace(':', '-')}.{wanted.method.name}"
    )
    with _claimed(run):
        return _pretrained(run, wanted, asked, data, module, resume, overwrite, quiet)


def _pretrained(
    run: RunFolder,
    wanted: Recipe,
    asked: Callable[..., Recipe],
    data: Given | None,
    module: nn.Module | None,
    resume: bool,
    overwrite: bool,
    quiet: bool,
) -> Run:
    """The same in a folder that is this process's."""
    resume, overwrite = _intended(run, resume, overwrite)
    if data is None or isinstance(data, str):
        splits = load(wanted.data.name, wanted.data.root, wanted.data.download)
    else:
        splits = load(data, ask=bool(wanted.monitor.knn_every))  # training itself needs no labels
    if dist.first():
        _tell(wanted, splits)
    if module is not None:
        splits = _fitting(f"a module of one's own ({type(module).__name__})", module, splits)
    wanted = asked(images=len(splits.pretrain))  # a memory or queue may depend on their number
    if run.has_checkpoint() and not overwrite:
        _same(run, wanted)
    elif (run.path / "network.json").exists() and not overwrite:
        raise ValueError(
            f"{run.path} holds the scores of a network that no run made: use another --out"
        )
    watch = _monitor(wanted, splits)
    fresh = [
        flag for flag, given in (("--no-resume", not resume), ("--overwrite", overwrite)) if given
    ]
    again = f"the same command without {' and '.join(fresh)}" if fresh else "the same command"
    train(
        wanted,
        run,
        splits=splits,
        backbone=module,
        monitor=watch,
        overwrite=overwrite,
        again=again,
        quiet=quiet,
    )
    return Run(run.path, module, None if isinstance(data, str) else data)


@contextmanager
def _claimed(run: RunFolder) -> Iterator[None]:
    """The folder for this process, before anybody looks what is in it; one that was made for nothing goes again."""
    made = [place for place in (run.path, *run.path.parents) if not place.exists()]
    try:
        if dist.first():
            run.claim()
            run.recover()
        yield
    finally:
        if made and run.lock and {file.name for file in run.path.glob("*")} == {".lock"}:
            (run.path / ".lock").unlink(missing_ok=True)
            with suppress(OSError):  # somebody else may have put something there
                for place in made:
                    place.rmdir()
        run.release()


def _intended(run: RunFolder, resume: bool, overwrite: bool) -> tuple[bool, bool]:
    """Whether to go on with a run that is there, and whether to replace it."""
    if dist.restarted() and run.read_json("env.json").get("launch") == dist.launch():
        return True, False  # what is there is the first attempt's, not what was to be replaced
    if not resume and not overwrite and run.holds_run() and run.has_trained():
        raise ValueError(
            f"{run.path} holds a run already: go on with --resume, or replace it with --overwrite"
        )
    return resume, overwrite


def _tell(recipe: Recipe, splits: Splits) -> None:
    """Say what a recipe does to images of one's own that a user may not expect."""
    if splits.channels not in (1, 3) and recipe.views.policy != "shapes":
        gone = (
            "the views go without saturation, hue and greyscale, which are of red, green and blue"
        )
        warnings.warn(f"images of {splits.channels} channels: {gone}", stacklevel=4)
    if recipe.data.name not in SETS and 2 * splits.size <= recipe.views.size:
        fit = f"--set views.size={splits.size}" + (
            " --set backbone.stem=small" if splits.size <= 64 else ""
        )
        warnings.warn(
            f"images of {splits.size} px are enlarged to views of {recipe.views.size}, which takes "
            f"{(recipe.views.size / splits.size) ** 2:.0f} times the time: {fit} suits them",
            stacklevel=4,
        )


def counted(recipe: Recipe, again: Callable[..., Recipe]) -> Recipe:
    """The recipe that `pretrain` would train by: resolved `again` with the number of images, which decides a queue."""
    try:
        return again(images=len(load(recipe.data.name, recipe.data.root).pretrain))
    except (ValueError, OSError) as error:
        warnings.warn(
            f"how many images there are is not known, and a queue or bank may follow ({error})",
            stacklevel=2,
        )
        return recipe


def _same(run: RunFolder, wanted: Recipe) -> None:
    """Refuse to go on with a run that was started with another recipe, or with one that is lost."""
    if not run.holds_run():
        raise ValueError(
            f"{run.path} holds checkpoints but no recipe.json: bring it back, or use --overwrite"
        )
    begun = Recipe.read(run.path / "recipe.json")
    changed = difference(begun, wanted)
    if _moved(begun.data.name, wanted.data.name):  # how many images there are is compared later
        changed = [line for line in changed if not line.startswith("data.name: ")]
        if not changed and dist.first():
            warnings.warn(
                f"the images of {begun.data.name} are read from {wanted.data.name} now",
                stacklevel=4,
            )
    if changed:
        more = f" and {len(changed) - 3} more" if len(changed) > 3 else ""
        text = "; ".join(changed[:3])
        own = f"the run's own {run.path / 'recipe.json'} goes on with it"
        raise ValueError(
            f"{run.path} was started with another recipe ({text}{more}); use another --out, or {own}"
        )


def _moved(old: str, new: str) -> bool:
    """Whether two names are of one folder or pack, spelled in another way or no longer where it was."""
    (kind, _, before), (other, _, after) = old.partition(":"), new.partition(":")
    if old == new or kind != other or kind not in ("folder", "packed"):
        return False
    there, here = (Path(place).expanduser().resolve() for place in (before, after))
    return there == here or not there.exists()


def _monitor(recipe: Recipe, splits: Splits) -> Monitor | None:
    """kNN accuracy of the backbone on the test split, as training goes; it decides nothing."""
    test = splits.test
    if not recipe.monitor.knn_every:
        return None
    absent = _unscorable(splits)
    if test is None or absent:
        warnings.warn(
            f"monitor.knn_every does nothing: {splits.name} has no {absent}", stacklevel=4
        )
        return None

    def monitor(learner: Any, epoch: int) -> dict[str, float]:
        eval_view = eye(recipe, splits).to(next(learner.parameters()).device)
        train_set, test_set = (
            extract(learner.backbone, eval_view, source) for source in (splits.train, test)
        )
        k = min(200, len(train_set.x))
        classes = int(train_set.y.max()) + 1
        return {"knn": accuracy(train_set, test_set, k=k, tau=0.07, classes=classes)}

    return monitor


def _unscorable(splits: Splits) -> str:
    """What a vote of neighbours lacks, or nothing."""
    if splits.train.labels is None:
        return "labels"
    if splits.test is None:
        return "test images"
    labels = [splits.train.labels, splits.test.labels]
    single = all(one is not None and one.ndim == 1 and int(one.min()) >= 0 for one in labels)
    return "" if single else "one label for each image"


def eye(recipe: Recipe, splits: Splits) -> Views:
    """The one view without chance that fits how a run saw its images."""
    if recipe.views.policy == "shapes":
        return make_views("shapes-eval", size=recipe.views.size)
    return make_views("eval", size=recipe.views.size, mean=splits.mean, std=splits.std)


def load_backbone(run: str | Path | Run, into: nn.Module | None = None) -> nn.Module:
    """The online backbone of a run, in eval mode, without its head; `into`: the module that a run of one's own had."""
    return subject(_text(run), module=into or _module(run)).backbone


def _text(run: str | Path | Run) -> str:
    return str(run.path if isinstance(run, Run) else run)


def _module(run: str | Path | Run) -> nn.Module | None:
    return run.module if isinstance(run, Run) else None


def _held(run: str | Path | Run) -> Any:
    return run.data if isinstance(run, Run) else None


@torch.inference_mode(False)  # whatever the caller is in: a classifier is trained
@torch.enable_grad()
def evaluate(
    run: str | Path | Run,
    protocols: Sequence[str] | str = ("knn",),
    *,
    data: Given | None = None,
    out: str | Path | None = None,
    seed: int | None = None,
    device: str = "auto",
    backbone: nn.Module | None = None,
) -> dict[str, Score]:
    """Scores of a run's backbone by protocol, added to its scores.json.

    In place of a run also `random:resnet50`, `torchvision:resnet50` or `file:PATH@resnet50`, with `data`, and `out` as
    the folder. A score on another data set than the run's own is filed under `protocol@data`. `backbone` is the module
    that a run of one's own had, to load its weights into. Protocols that do not fit raise when all others are filed;
    the exception's `scores` are those of the others.
    """
    wanted = {
        name: protocol.known(name)
        for name in ([protocols] if isinstance(protocols, str) else protocols)
    }
    if not wanted:
        raise ValueError(
            f"there is nothing to evaluate: choose protocols from {', '.join(protocol.PROTOCOLS)}"
        )
    home = (
        data
        if isinstance(data, str)
        else next((one.data for one in wanted.values() if one.data), None)
    )
    if data is not None and not isinstance(data, str):
        home = f"python:{type(datasets(data)[0]).__name__}"
    folder = Path(out).expanduser() if out else None
    _seed(seed or 0)
    found = subject(
        _text(run), data=home, out=folder, seed=seed or 0, module=backbone or _module(run)
    )
    if found.run and folder is not None:
        raise ValueError(
            f"the scores of {_text(run)} belong into that run: --out is for networks that no run made"
        )
    if not found.run:
        _own_folder(found)
    where = pick_device(device)
    dist.setup(where.type)
    seed = found.recipe.train.seed if seed is None else seed
    return _scores(found, wanted, data, where, seed, _held(run))


def _seed(seed: int) -> None:
    if not 0 <= seed < 2**63:
        raise ValueError(f"a seed is a whole number from 0 to 2^63 - 1, not {seed}")


def _own_folder(found: Subject) -> None:
    """Refuse to put the scores of a network among those of a run or of another network."""
    path, there, seed = (
        found.folder.path,
        found.folder.read_object("network.json"),
        found.recipe.train.seed,
    )
    if found.folder.holds_run():
        raise ValueError(
            f"{path} holds a run, and {found.name} is another network: give it another --out"
        )
    drawn = (
        found.name.startswith("random:") and there.get("seed", seed) != seed
    )  # others do not depend on a seed
    if there.get("network", found.name) != found.name or drawn:
        whose = there["network"] + (f" with seed {there['seed']}" if drawn else "")
        raise ValueError(f"{path} holds the scores of {whose}: give {found.name} another --out")


def _scores(
    found: Subject,
    wanted: "dict[str, protocol.Protocol]",
    data: Any,
    device: torch.device,
    seed: int,
    held: Any = None,
) -> dict[str, Score]:
    """The scores, each filed as it comes: the next may take hours. `held`: the run's own data, if of one's own."""
    found.folder.read_object(
        "scores.json"
    )  # what cannot be added to is refused now, not in an hour
    own = found.recipe.data.name
    if not found.run:  # what it was first scored on is its own
        own = found.folder.read_object("network.json").get("data", own)
    if _one(data, held):
        data = own
    tasks: dict[str, Task] = {}
    scores: dict[str, Score] = {}
    refused: dict[str, Exception] = {}
    for name, one in wanted.items():
        place = (one.data or own) if data is None else data
        try:
            if str(place) not in tasks:
                tasks[str(place)] = _task(
                    found, place if held is None or place != own else held, device, seed
                )
            task = tasks[str(place)]
            value, unit, settings, n, more, split, epoch = one.run(task)
        except (
            ValueError,
            FileNotFoundError,
        ) as error:  # one that does not fit is no reason to do without the others
            refused[name] = error
            continue
        lost = {part: len(_unread(task.splits, part)) for part in ("train", "test")}
        more = {
            **more,
            **{f"unreadable {part} images": count for part, count in lost.items() if count},
        }
        # packs of one data set may be of several sizes, and are not the data set itself
        reduced = place != own and isinstance(place, str) and place.startswith("packed:")
        on = str(place) if reduced else task.splits.name
        settings = {"size": task.size, **settings}
        scores[name] = Score(
            value, unit, name, settings, on, split=split, n=n, seed=seed, epoch=epoch, more=more
        )
        if dist.rank() == 0:
            _file(found, name if place == own else f"{name}@{on}", scores[name])
    _tell_unread(list(tasks.values()))
    if refused:
        raise _refusal(refused, scores, found.folder.path / "scores.json")
    return scores


def _one(data: Any, held: Any) -> bool:
    """Whether two things that were given as data are the same objects, if only in another tuple."""
    if held is None or isinstance(data, str):
        return False
    if isinstance(data, tuple) and isinstance(held, tuple):
        return len(data) == len(held) and all(
            one is other for one, other in zip(data, held, strict=True)
        )
    return data is held


def _unread(splits: Splits, part: str) -> dict[str, str]:
    """The images of a split that could not be read, by name, with the reason."""
    source = splits.train if part == "train" else splits.test
    failed = getattr(source, "failed", {})
    own = (
        set(getattr(source, "names", ())) if failed else set()
    )  # splits of one folder share what failed
    return {name: why for name, why in failed.items() if name in own}


def _tell_unread(tasks: list[Task]) -> None:
    """Say how many test images were judged as another one."""
    for task in tasks:
        lost = _unread(task.splits, "test")
        if lost and task.splits.test is not None:
            many = f"{len(lost)} of the {len(task.splits.test)} test images of {task.splits.name} cannot be read"
            warnings.warn(
                f"{many}: in their place the next that can is judged once more", stacklevel=4
            )


def _refusal(refused: dict[str, Exception], scores: dict[str, Score], file: Path) -> Exception:
    """Why some protocols gave no score; those that did are in its `scores`."""
    first = next(iter(refused.values()))
    if len(refused) == 1 and not scores:
        return first
    alike = {str(error) for error in refused.values()}
    why = (
        f"{', '.join(refused)}: {first}"
        if len(alike) == 1
        else "; ".join(f"{k}: {v}" for k, v in refused.items())
    )
    went = (
        f"; {' and '.join(scores)} went well and {'is' if len(scores) == 1 else 'are'} in {file}"
        if scores
        else ""
    )
    found = (FileNotFoundError if isinstance(first, FileNotFoundError) else ValueError)(
        f"{why}{went}"
    )
    found.__cause__ = first
    found.__dict__["scores"] = scores
    return found


def _file(found: Subject, name: str, score: Score) -> None:
    """Add a score to the others, and the name of a network that no run made."""
    if found.replaced():
        raise ValueError(
            f"{found.folder.path} holds another run by now: {name} of the one before is not filed"
        )
    found.folder.file("scores.json", {name: score.json()})
    if not found.run and not found.folder.read_object("network.json"):
        recipe = found.recipe
        network = {"network": found.name, "data": recipe.data.name, "seed": recipe.train.seed}
        found.folder.file("network.json", network)


def task(
    run: str | Path | Run,
    data: Given | None = None,
    *,
    seed: int | None = None,
    device: str = "auto",
) -> Task:
    """The backbone of a run on a data set, its own by default: what the functions of `antipode.evaluation` take."""
    found, held = (
        subject(_text(run), data=data if isinstance(data, str) else None, module=_module(run)),
        _held(run),
    )
    own = found.recipe.data.name if held is None else held
    seed = found.recipe.train.seed if seed is None else seed
    return _task(found, own if data is None else data, pick_device(device), seed)


def _task(found: Subject, data: Any, device: torch.device, seed: int) -> Task:
    """A subject on a data set."""
    recipe = found.recipe
    splits = load(data, recipe.data.root)
    if not isinstance(data, str | Splits) and splits.test is None:
        splits = _parted(splits)
    splits = _as_seen(
        _fitting(str(found.folder.path), found.backbone, splits, found.normal), found.normal
    )
    net, eval_view = found.backbone.to(device), eye(recipe, splits).to(device)
    cache = found.folder.path / "features"
    head = found.head()
    return Task(
        *(net, splits, recipe.views.size, eval_view, device, seed),
        head=None if head is None else head.to(device),
        root=recipe.data.root,
        cache=cache,
    )


def _parted(splits: Splits) -> Splits:
    """A labelled Dataset of one's own, with a tenth of each class as its test images; the order is not touched."""
    train, test = held_out(splits.train)
    if test is not None:
        held = f"{len(test)} of its labelled images, which pretraining may have seen without their labels"
        text = f"{splits.name} has no test images and is scored on {held}; data=(train, test) gives others"
        warnings.warn(text, stacklevel=5)
    return replace(splits, train=train, test=test)


def _as_seen(splits: Splits, known: Normal | None) -> Splits:
    """The images with the mean and deviation of those that the network was trained on, where these are known."""
    if known is None or len(known.mean) != splits.channels:
        return splits
    return replace(splits, mean=known.mean, std=known.std)


def _fitting(
    name: str, backbone: nn.Module, splits: Splits, pixels: Normal | None = None
) -> Splits:
    """The images with as many channels as the network takes: grey becomes colour, anything else is refused."""
    first = next((layer for layer in backbone.modules() if isinstance(layer, nn.Conv2d)), None)
    known = first.in_channels if first else len(pixels.mean) if pixels else splits.channels
    if known == splits.channels:
        return splits
    if (known, splits.channels) == (3, 1):
        return coloured(splits)
    raise ValueError(
        f"{name} sees images of {known} channels, but {splits.name} has {splits.channels} channels"
    )


@torch.inference_mode(False)  # whatever the caller is in: gradients are analysed
@torch.enable_grad()
def analyse(
    runs: "Sequence[str | Path | Run] | str | Path | Run",
    what: Sequence[str] | str | None = None,
    *,
    data: "Dataset[Any] | None" = None,
    images: int | None = None,
    seed: int = 0,
    device: str = "auto",
) -> dict[str, dict[str, Any]]:
    """Analyses of runs, added to their analysis.json: for each run its results by name.

    Without `what`, all that fit the runs; one that does not is {"skipped": why}. `images` caps how many images each
    uses, `data` is the data set of one's own that a run was trained on.
    """
    given = [runs] if isinstance(runs, str | Path | Run) else list(runs)
    paths, what = _paths(given), [what] if isinstance(what, str) else what
    if what is not None:
        analyses.known(what)
    absent = [path for path in paths if not (path / "recipe.json").exists()]
    if not paths or absent:
        raise FileNotFoundError(f"there is no run in {absent[0] if absent else 'an empty list'}")
    twice = [
        path
        for place, path in enumerate(paths)
        if path.resolve() in [one.resolve() for one in paths[:place]]
    ]
    if twice:
        raise ValueError(f"{twice[0]} is given twice")
    _seed(seed)
    if images is not None and images < 2:
        raise ValueError(f"an analysis needs at least two images, got {images}")
    where = pick_device(device)
    where = torch.device("cpu") if where.type == "mps" else where  # which has no float64
    loaded: dict[Any, Splits] = {}
    opened = [
        _analysed(path, loaded, data, where, run) for path, run in zip(paths, given, strict=True)
    ]
    for one, name in zip(opened, named(paths), strict=True):
        one.name, one.seed, one.images = name, seed, images
    return analyses.perform(opened, what)


def _analysed(
    path: Path,
    loaded: dict[Any, Splits],
    data: Any,
    device: torch.device,
    run: str | Path | Run = "",
) -> Analysed:
    """A run with its networks, data and views on the device; runs on one data set share what is loaded."""
    module, data = _module(run), _held(run) if data is None else data
    recipe, learner = Recipe.read(path / "recipe.json"), restored(path, module)
    place = recipe.data.name, recipe.data.root, id(data)
    if place not in loaded:
        loaded[place] = load(recipe.data.name if data is None else data, recipe.data.root)
    splits = _fitting(str(path), learner.backbone, loaded[place])
    seen = recipe.views
    views = make_views(
        seen.policy, size=seen.size, mean=splits.mean, std=splits.std, **seen.arguments
    ).to(device)
    eval_view = eye(recipe, splits).to(device)
    return Analysed(
        path.name, path, recipe, learner.to(device), splits, views, eval_view, device, module=module
    )


def embed(
    run: str | Path | Run,
    data: Given,
    out: str | Path | None = None,
    *,
    backbone: nn.Module | None = None,
) -> Features:
    """Features (N,D) and labels (N,) of the train images of a data set, then of the test images.

    Those of a data set with labels for a part of its images are that part. `out` is a .npz or .parquet file.
    `backbone` is the module that a run of one's own had, to load its weights into.
    """
    path = run.path if isinstance(run, Run) else Path(run).expanduser()
    file = Path(out).expanduser() if out is not None else None
    if file is not None:
        table.check(file)
    net, recipe = load_backbone(run, backbone), Recipe.read(path / "recipe.json")
    seen = normal(path)
    splits = _as_seen(_fitting(str(path), net, load(data, recipe.data.root), seen), seen)
    device = pick_device("auto")
    net, eval_view = net.to(device), eye(recipe, splits).to(device)
    found = {
        part: source
        for part, source in (("train", splits.train), ("test", splits.test))
        if source is not None
    }
    parts = {part: extract(net, eval_view, source) for part, source in found.items()}
    features = Features(*(torch.cat(columns) for columns in zip(*parts.values(), strict=True)))
    if file is not None:
        named = [table.names_of(source) for source in found.values()]
        names = None if None in named else [name for part in named for name in part or ()]
        table.write(file, features, [part for part, own in parts.items() for _ in own.x], names)
    return features


def export(run: str | Path | Run, format: str, out: str | Path) -> Path:
    """Write the online backbone for other software: torchvision, timm, detectron2, onnx or safetensors."""
    path = run.path if isinstance(run, Run) else Path(run).expanduser()
    net, recipe = load_backbone(run), Recipe.read(path / "recipe.json")
    named, stem, size = recipe.backbone.name, recipe.backbone.stem, recipe.views.size
    file = Path(out).expanduser()
    return write_export(
        net, file, format=format, name=named, stem=stem, size=size, normal=normal(path)
    )


def _paths(runs: "Sequence[str | Path | Run] | str | Path | Run") -> list[Path]:
    """The folders of one run or several."""
    given = [runs] if isinstance(runs, str | Path | Run) else list(runs)
    return [run.path if isinstance(run, Run) else Path(run).expanduser() for run in given]


def report(
    runs: "Sequence[str | Path | Run] | str | Path | Run", out: str | Path | None = None
) -> Path:
    """One self-contained HTML page for one or several runs; also for folders that hold scores and no run."""
    runs = [runs] if isinstance(runs, str | Path | Run) else list(runs)
    paths = _paths(runs)
    absent = [
        path
        for path in paths
        if not any((path / name).exists() for name in ("recipe.json", "scores.json"))
    ]
    if not paths or absent:
        raise FileNotFoundError(f"there is no run in {absent[0] if absent else 'an empty list'}")
    file = Path(out).expanduser() if out else paths[0] / "report.html"
    if file.is_dir():
        raise ValueError(
            f"{file} is a directory, and the page is a file: write --out {file}/report.html"
        )
    given = {path.resolve(): run for path, run in zip(paths, runs, strict=True)}

    with atomic_write(file) as handle:
        handle.write(
            page(paths, lambda path: task(given.get(path.resolve(), path))).encode(
                "utf-8", "backslashreplace"
            )
        )
    return file
