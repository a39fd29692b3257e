"""A run, opened once. Recipe, metrics, scores, networks and data are loaded when needed."""

import warnings
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import nn

from antipode.core.learner import Learner
from antipode.data.sources.catalog import Given, from_path, load
from antipode.data.sources.label_folders import Labels
from antipode.data.sources.located import is_relative, located, path_of, same_place
from antipode.data.sources.splits import Splits
from antipode.data.views.policy import evaluation_policy, standardises
from antipode.data.views.views import Views
from antipode.data.views.views import views as make_views
from antipode.early import not_finished
from antipode.json_text import number
from antipode.names import brief
from antipode.nets.backbone import Stem
from antipode.nets.weight_file import About, Normal, about, read
from antipode.nets.weights import bare, fit, reopened
from antipode.papers import build as build_learner
from antipode.recipe.origin import directory as started_in
from antipode.recipe.origin import located_path
from antipode.recipe.recipe import ABOUT, Recipe
from antipode.runs.folder import WEIGHTS, RunFolder
from antipode.runs.images import as_seen, channels_of, fitting
from antipode.runs.log import Log, read_log
from antipode.runs.network import Network, parsed
from antipode.runs.own_images import OwnImages
from antipode.runs.transform import Transform
from antipode.training import checkpoint
from antipode.types import check_kind


class Run:
    """A run folder, or a folder with the scores of a network that no run trained.

    Args:
        path: the folder.
        module: your own backbone, if the run was trained with one. It cannot be opened by name.
        data: your own data set, if the run was trained on one. It cannot be opened by name.
        network: the network that no run trained.
    """

    def __init__(
        self,
        path: str | Path,
        module: nn.Module | None = None,
        data: Any = None,
        network: Network | None = None,
    ) -> None:
        self.folder = RunFolder(path)
        self.module = module
        self.data = data
        self.network = network
        self.label = self.name  # the name of the run on a page or in a table
        self._shown: dict[str, Any] | None = None
        self.left_out: list[str] = []  # what a page does not show of the files, in words

    @property
    def path(self) -> Path:
        """The run folder."""
        return self.folder.path

    @property
    def name(self) -> str:
        """The name of the folder, or the text of a network that no run trained."""
        return self.network.text if self.network else self.path.name

    def __repr__(self) -> str:
        return f"Run({str(self.path)!r})"

    def __eq__(self, other: object) -> bool:
        return self.path == other.path if isinstance(other, Run) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.path)

    # What the folder holds

    @cached_property
    def recipe(self) -> Recipe:
        """The recipe that the run was started with."""
        return Recipe.read(self.path / "recipe.json")

    @cached_property
    def values(self) -> dict[str, Any]:
        """The values in recipe.json by dotted key, not validated; empty without a recipe."""
        content = self.folder.read_object("recipe.json")
        return _leaves({key: value for key, value in content.items() if key not in ABOUT})

    @cached_property
    def sources(self) -> dict[str, str]:
        """The texts in recipe.json that say where each value comes from, by dotted key."""
        texts = self.folder.read_object("recipe.json").get("sources", {})
        if not isinstance(texts, dict):
            return {}
        return {str(key): str(text) for key, text in texts.items()}

    @cached_property
    def replaced(self) -> dict[str, Any]:
        """The values of the recipe that the user replaced, by dotted key."""
        content = self.folder.read_object("recipe.json").get("replaced", {})
        return content if isinstance(content, dict) else {}

    @property
    def scores(self) -> dict[str, Any]:
        """The content of scores.json."""
        return self.folder.read_object("scores.json")

    @property
    def analysis(self) -> dict[str, Any]:
        """The content of analysis.json."""
        return self.folder.read_object("analysis.json")

    @cached_property
    def environment(self) -> dict[str, Any]:
        """The content of env.json: versions, device and commit."""
        return self.folder.read_object("env.json")

    def metrics(self) -> list[dict[str, Any]]:
        """Return the lines of metrics.jsonl."""
        return self.folder.metrics()

    @cached_property
    def log(self) -> Log:
        """The numbers in metrics.jsonl by metric, read once."""
        return read_log(self.folder.row_blocks())

    def value(self, key: str, default: Any = None) -> Any:
        """Return a value in recipe.json by dotted key, or `default` if there is none."""
        return self.values.get(key, default)

    @property
    def method(self) -> str:
        """The name of the method, or "no recipe"."""
        return str(self.value("method.name", "no recipe"))

    @property
    def shown_scores(self) -> dict[str, Any]:
        """The scores with a finite value, by the names that a page shows."""
        if self._shown is None:
            content = self.folder.read_object("scores.json")
            self._shown = {
                name: score
                for name, score in content.items()
                if isinstance(score, dict) and number(score.get("value"))
            }
        return self._shown

    @shown_scores.setter
    def shown_scores(self, scores: dict[str, Any]) -> None:
        self._shown = scores

    @property
    def finished(self) -> bool:
        """True if training has ended and the folder holds the backbone."""
        return (self.path / WEIGHTS).exists()

    @property
    def network_name(self) -> str:
        """The name of a network that no run trained, such as `random:resnet18`, or empty."""
        return str(self.folder.read_object("network.json").get("network", ""))

    @property
    def is_untrained(self) -> bool:
        """True for a network with random weights, such as `random:resnet18`."""
        return self.network_name.startswith("random:")

    # The data set and the views

    @property
    def data_name(self) -> str:
        """The data set that the run was trained on.

        For a network that no run trained, it is the data set that it was scored on first.
        """
        if self.network is None:
            return self.recipe.data.name
        return str(self.folder.read_object("network.json").get("data", self.network.data))

    @property
    def root(self) -> str | None:
        """The folder with data sets that the recipe names, or None."""
        root = None if self.network else self.recipe.data.root
        return located_path(root, self.directory) if root and is_relative(root) else root

    @property
    def labels(self) -> Labels:
        """Whether subfolders of the run's own `folder:` are classes."""
        return "folders" if self.network else self.recipe.data.labels

    @property
    def seed(self) -> int:
        """The seed of the run."""
        return self.network.seed if self.network else self.recipe.train.seed

    @property
    def size(self) -> int:
        """The side of a view in pixels."""
        return self.network.size if self.network else self.recipe.views.size

    @property
    def policy(self) -> str:
        """The view policy of training, or of its data set for a network that no run trained."""
        return self.network.policy if self.network else self.recipe.views.policy

    @cached_property
    def normal(self) -> Normal | None:
        """The normalisation of the pixels that the network was trained on, None if unknown."""
        if self.network is None:
            return about(self.path).normal
        _, stem = self._foreign
        return self.network.normal(stem)

    @cached_property
    def directory(self) -> Path | None:
        """The folder in which the run was started, None if unknown. Relative paths start there."""
        return started_in(self.folder.read_object("network.json") or self.environment)

    @property
    def own_images(self) -> OwnImages:
        """The name and the place of the images that the run was trained on."""
        is_known = not is_relative(path_of(self.data_name))  # env.json is then not needed
        return OwnImages(self.folder, self.data_name, None if is_known else self.directory)

    def own_splits(self) -> Splits:
        """Return the images that the run was trained on, as they are now.

        Raises FileNotFoundError if they are not there, and ValueError if there are others.
        """
        own = self.own_images
        try:
            splits = load(own.place, self.root, labels=self.labels)
        except FileNotFoundError as error:
            raise own.not_found(error) from error
        own.check(splits)
        return own.named(splits)

    def splits(
        self, data: "Given | Splits | None" = None, backbone: nn.Module | None = None
    ) -> Splits:
        """Return a data set, by default the run's own, as the network takes it.

        Grey images become colour images if the network has three channels. The pixels are
        normalised as in training, if that is known. The run's own folder has the classes that it
        had in training. The subfolders of another folder are classes.
        """
        chosen = from_path(self.data if data is None else data)
        if chosen is None:
            splits = self.own_splits()
        else:
            is_own = isinstance(chosen, str) and same_place(chosen, self.own_images.place)
            splits = load(chosen, self.root, labels=self.labels if is_own else "folders")
        net = self.frozen_backbone if backbone is None else backbone
        return as_seen(fitting(str(self.path), net, splits, self.normal), self.normal)

    def eval_view(self, pixels: Splits | Normal | None) -> Views:
        """Return the evaluation view that fits how the run was trained.

        `pixels` has the normalisation. It is not needed if each image is standardised on its own.
        """
        policy = evaluation_policy(self.policy)
        if standardises(self.policy):
            return make_views(policy, size=self.size)
        assert pixels is not None
        return make_views(policy, size=self.size, mean=pixels.mean, std=pixels.std)

    def transform(self) -> Transform:
        """Return the evaluation transform: it maps an image to what evaluation feeds the network.

        It takes a Pillow image, an array (H,W,C) or a uint8 tensor (C,H,W), and returns a
        normalised tensor (C,S,S). The data set is opened only if the run does not state how its
        pixels are normalised, as with untrained networks and runs of earlier versions.
        """
        pixels = self.normal
        channels = channels_of(self.frozen_backbone, pixels)
        known = standardises(self.policy) or (pixels is not None and len(pixels.mean) == channels)
        if channels is not None and known:
            return Transform(self.eval_view(pixels), channels)
        splits = self.splits()
        return Transform(self.eval_view(splits), splits.channels)

    def training_views(self, splits: Splits) -> Views:
        """Return the views that the run was trained with."""
        section = self.recipe.views
        return make_views(
            section.policy,
            size=section.size,
            mean=splits.mean,
            std=splits.std,
            **section.arguments,
        )

    # Networks

    @property
    def backbone_name(self) -> str:
        """The name of the backbone, such as "resnet50"."""
        return self.network.name if self.network else self.recipe.backbone.name

    @property
    def stem(self) -> Stem | None:
        """The stem of a ResNet, None for other networks."""
        return self._foreign[1] if self.network else self.recipe.backbone.stem

    def backbone(self) -> nn.Module:
        """Return the trained backbone without its head, in eval mode.

        Every call returns a new object, except for a network that no run trained.
        """
        return self._loaded()

    @cached_property
    def frozen_backbone(self) -> nn.Module:
        """The backbone that evaluations share. It must not be modified."""
        return self._loaded()

    def learner(self, file: Path | None = None) -> Learner:
        """Return the learner of the last readable checkpoint, in eval mode on the CPU.

        `file` names another checkpoint. The learner has the networks, heads, twin, queue and bank.
        """
        self._check_module()
        if file is None:
            content = checkpoint.load(self.folder, torch.device("cpu"))
        else:
            content = checkpoint.read(file, torch.device("cpu"))
        if content is None:
            raise FileNotFoundError(
                f"{self.path} holds no checkpoint, so its head and its bank are unknown"
            )
        return restored(self.recipe, content, self.module)

    def head(self) -> nn.Module | None:
        """Return the projection head, or None if there is no checkpoint that holds it.

        Warns and returns None if the checkpoints cannot be read.
        """
        if self.network is not None or not self.folder.has_checkpoint():
            return None
        try:
            return self.learner().online.head.eval()
        except ValueError as error:
            warnings.warn(
                f"the head is unknown, so protocols use the backbone alone: {error}", stacklevel=3
            )
            return None

    def check_finished(self) -> None:
        """Raise FileNotFoundError if the folder does not hold the backbone of a finished run."""
        if not self.finished:
            raise FileNotFoundError(not_finished(self.path))

    def was_replaced(self) -> bool:
        """Return True if another run was trained in the folder since the backbone was loaded."""
        return self.network is None and _identity(self.path / WEIGHTS) != self._weights_file

    def _loaded(self) -> nn.Module:
        if self.network is not None:
            net, _ = self._foreign
            return net
        self.check_finished()
        self._check_module()
        file = self.path / WEIGHTS
        recipe = self.recipe
        self._weights_file = _identity(file)
        weights = read(file)
        _check_header(file, about(file), recipe)
        module = self.module if recipe.backbone.name.startswith("python:") else None
        net, _ = reopened(
            weights, recipe.backbone.name, recipe.backbone.stem, module, recipe.views.size
        )
        fit(bare(net), weights, str(file))
        return net.eval()

    _weights_file: tuple[int, int] = (0, 0)  # what identifies the file of the loaded backbone

    @cached_property
    def _foreign(self) -> tuple[nn.Module, Stem | None]:
        """The network that no run trained, and its stem."""
        assert self.network is not None
        return self.network.build()

    def _check_module(self) -> None:
        """Raise ValueError if the run needs your own module, and it was not given."""
        if self.network is None and self.module is None:
            name = self.recipe.backbone.name
            if name.startswith("python:"):
                raise ValueError(
                    f"{self.path} trained your own module ({name}), which cannot be built again by "
                    "name: in Python, pass the Run that pretrain returned, or "
                    f"antipode.Run({str(self.path)!r}, module) with a module of that kind"
                )


Runs: TypeAlias = "str | Path | Run"


def opened(
    run: Runs,
    *,
    data: str | None = None,
    out: Path | None = None,
    seed: int = 0,
    module: nn.Module | None = None,
) -> Run:
    """Open a run folder, `random:NAME`, `torchvision:NAME` or `file:PATH@NAME`.

    Args:
        run: the folder, the text of a network that no run trained, or an open run.
        data: the data set for a network that no run trained.
        out: the folder for the scores of a network that no run trained.
        seed: the seed of untrained weights.
        module: a module for the weights of a run that trained your own module.
    """
    check_kind(nn.Module | None, backbone=module)
    if isinstance(run, Run):
        return run if module is None else Run(run.path, module, run.data, run.network)
    if not isinstance(run, str | Path):
        raise ValueError(
            "a run must be its folder, a network such as random:resnet50, or what pretrain "
            f"returned, not {brief(run)}"
        )
    text = str(run)
    parts = parsed(text)
    if parts is None:
        return Run(text, module)
    folder = out or Path("runs") / f"{parts.kind}-{Path(parts.path).stem or parts.name}".replace(
        ":", "-"
    )
    stored = RunFolder(folder).read_object("network.json")
    on = data or located(str(stored.get("data", "shapes")), started_in(stored))
    network = Network(text, parts.kind, parts.path, parts.name, on, seed, parts.stem)
    return Run(folder, network=network)


def listed(runs: "Sequence[Runs] | Runs") -> list[Run]:
    """Return one run or several as a list of open runs."""
    if not isinstance(runs, str | Path | Run | Iterable):
        raise ValueError(f"runs must be one run or a list of runs, not {brief(runs)}")
    several = [runs] if isinstance(runs, str | Path | Run) else list(runs)
    return [run if isinstance(run, Run) else Run(run) for run in several]


def restored(
    recipe: Recipe, content: Mapping[str, Any], module: nn.Module | None = None
) -> Learner:
    """Return the learner of a recipe with the state of a checkpoint, in eval mode."""
    state = content["learner"]
    weights = {key.removeprefix("online.backbone."): value for key, value in state.items()}
    net, channels = reopened(
        weights, recipe.backbone.name, recipe.backbone.stem, module, recipe.views.size
    )
    learner = build_learner(
        recipe.method.name,
        net,
        channels=channels,
        seed=recipe.train.seed,
        **recipe.method.arguments,
    )
    try:
        learner.load_state_dict(state)
    except RuntimeError as error:  # torch lists all names that differ, one in a line
        first = " ".join(str(error).split())[:200]
        raise ValueError(f"the checkpoint belongs to another network ({first})") from None
    return learner.eval()


def _check_header(file: Path, header: About, recipe: Recipe) -> None:
    """Raise ValueError if weights say that they belong to another network than the recipe's."""
    pairs = {
        "backbone.name": (header.backbone, recipe.backbone.name),
        "backbone.stem": (header.stem, recipe.backbone.stem),
        "views.size": (header.size, recipe.views.size),
        "views.policy": (header.policy, recipe.views.policy),
    }
    for key, (stated, expected) in pairs.items():
        if stated not in (None, expected):
            raise ValueError(
                f"{file} belongs to another run than recipe.json beside it: {key} is {stated!r} in "
                f"its header and {expected!r} in the recipe"
            )


def _identity(file: Path) -> tuple[int, int]:
    """Return what differs between two files that had the same name at different times."""
    if not file.exists():
        return 0, 0
    status = file.stat()
    return status.st_ino, status.st_mtime_ns


def _leaves(content: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return the values of nested dictionaries by dotted key."""
    values: dict[str, Any] = {}
    for key, value in content.items():
        name = f"{prefix}{key}"
        values |= _leaves(value, f"{name}.") if isinstance(value, dict) else {name: value}
    return values
