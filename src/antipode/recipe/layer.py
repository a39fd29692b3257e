"""A layer of a recipe: values by dotted key, each with its source.

Layers are put on top of each other, and the topmost value is used. Sources are typed. Whether a
value is computed again when other values change depends on the class of its source, never on the
text.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple


@dataclass(frozen=True)
class Source:
    """Where a value comes from: a paper, released code, a data set or our own measurement."""

    text: str


@dataclass(frozen=True)
class Default(Source):
    """The value is a default of the schema, of a method or of a view policy."""


@dataclass(frozen=True)
class Given(Source):
    """The user gave the value: by a command-line option, by `--set` or in Python."""


@dataclass(frozen=True)
class Derived(Source):
    """The value is computed from another setting, `from_`, and again when that setting changes."""

    from_: str


Layer = dict[str, tuple[Any, Source]]

VIEWS = Derived("the method's number of views", "method.name")
IMAGES = Derived("the number of images in the data set", "data.name")
NETWORK = Derived("as optim.network", "optim.network")
OWN_STEM = Derived("the network has its own stem", "backbone.name")
IMAGE_SIZE = Derived("img_size of the network", "backbone.name")


class DatasetDefaults(NamedTuple):
    """The values that a data set contributes to its recipes.

    Args:
        scale: "tiny" data sets can be trained on a CPU; "small" ones have images of 28 to 96 px, as
            in the small experiments of the papers; "large" ones use ImageNet's settings.
        images: number of images for pretraining; None if unknown.
        layer: network, view size and length of training.
        views: the view policy, if these images need a special one.
    """

    scale: Literal["tiny", "small", "large"]
    images: int | None
    layer: Layer
    views: Layer = {}  # noqa: RUF012  (never modified)


class RecipeContext(NamedTuple):
    """What the values that a paper suggests may depend on.

    Args:
        method: name of the method.
        data: name of the data set.
        dataset: defaults of the data set.
        arguments: those arguments of the method that the user gave.
        epochs: length of the run.
        images: number of images in the data set; None if it is unknown until the data are opened.
        backbone: name of the network.
        batch: batch size, if a queue must not be smaller; otherwise 0.
    """

    method: str
    data: str
    dataset: DatasetDefaults
    arguments: Mapping[str, Any]
    epochs: int
    images: int | None
    backbone: str = ""
    batch: int = 0


class Variant(NamedTuple):
    """A named recipe that puts another layer on top of the recipe of a data set and a method."""

    data: str
    method: str
    layer: Callable[[RecipeContext], Layer]


def with_source(source: str | Source, values: Mapping[str, Any]) -> Layer:
    """Return a layer whose values all have the same source."""
    typed = Source(source) if isinstance(source, str) else source
    return {key: (value, typed) for key, value in values.items()}


def method(source: str | Source, **values: Any) -> Layer:
    """Return a layer with arguments of the method."""
    return with_source(source, {f"method.{key}": value for key, value in values.items()})


def optimiser(source: str | Source, name: str, lr: float, **values: Any) -> Layer:
    """Return a layer with the optimiser of the network.

    The defaults, momentum .9 and a cosine schedule, are common to nearly all papers.
    """
    common = {"rule": "linear", "momentum": 0.9, "schedule": "cosine"}
    settings = {"name": name, "lr": lr, **common, **values}
    return with_source(source, {f"optim.network.{key}": value for key, value in settings.items()})


def policy(source: str | Source, name: str, **values: Any) -> Layer:
    """Return a layer with a view policy and its arguments."""
    settings = {"policy": name, **values}
    return with_source(source, {f"views.{key}": value for key, value in settings.items()})


def run_length(source: str | Source, **values: int) -> Layer:
    """Return a layer with settings of the section `train`, such as `epochs` and `batch`."""
    return with_source(source, {f"train.{key}": value for key, value in values.items()})


def warm_up(context: RecipeContext, source: str, epochs: int = 10) -> Layer:
    """Return a layer with a warm-up of `epochs`, but at most a tenth of the run."""
    length = min(epochs, round(context.epochs / 10))
    text = f"{epochs} epochs, or a tenth of a short run; {source}"
    return with_source(Derived(text, "train.epochs"), {"optim.network.warmup": length})


def steps(context: RecipeContext, source: str, *at: int, of: int = 200) -> Layer:
    """Return a layer with the epochs at which the learning rate drops.

    A paper's epochs `at`, in a run of `of` epochs, are scaled to the length of this run.
    """
    scaled: list[int] = []
    for epoch in at:
        earliest = scaled[-1] + 1 if scaled else 1
        scaled.append(max(round(epoch * context.epochs / of), earliest))
    text = f"epochs {', '.join(map(str, at))} of {of}, in proportion; {source}"
    return with_source(Derived(text, "train.epochs"), {"optim.network.at": tuple(scaled)})


def stack(*layers: Layer) -> Layer:
    """Return the values of all layers; later layers replace the values of earlier ones.

    A layer that names an optimiser removes all settings of the optimiser below it. A layer that
    names a view policy removes all arguments of the policy below it.
    """
    values: Layer = {}
    replaced_sections = {"optim.network.name": "optim.network.", "views.policy": "views."}
    for layer in layers:
        for name, section in replaced_sections.items():
            if name in layer:
                values = {
                    key: value
                    for key, value in values.items()
                    if not key.startswith(section) or key == "views.size"
                }
        values |= layer
    return values
