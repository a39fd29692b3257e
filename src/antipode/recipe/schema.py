"""The sections of a recipe: their keys, types and ranges, and the defaults that no paper gives."""

import inspect
from collections.abc import Callable, Mapping
from functools import cache
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from antipode.schedule import Schedule

Positive = Annotated[int, Field(ge=1)]
NotNegative = Annotated[float, Field(ge=0)]
Share = Annotated[float, Field(ge=0, le=1)]


class Section(BaseModel):
    """A section of a recipe. It is immutable, and unknown keys raise an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Open(Section):
    """A section whose other keys are keyword arguments of the method or view policy that it names.

    `recipe.recipe.schema` lists these arguments, and recipes are checked against it.
    """

    model_config = ConfigDict(extra="allow")

    @property
    def arguments(self) -> dict[str, Any]:
        """The keyword arguments, by name."""
        return dict(self.model_extra or {})


class Method(Open):
    """The name of the method and its arguments."""

    name: str


class Backbone(Section):
    """The network.

    `stem` is the form of the first layers; None if the network has its own. `weights` are the
    weights to start from: None (random), "torchvision" (supervised on ImageNet) or the path of a
    checkpoint. `freeze_patches` keeps the patch projection of a vision transformer at its initial
    weights, as in MoCo v3.
    """

    name: str
    stem: Literal["imagenet", "half", "small"] | None = None
    weights: str | None = None
    freeze_patches: bool = False


class Data(Section):
    """The data set.

    `root` is the folder that holds it; None uses the environment variable ANTIPODE_DATA. `workers`
    is the number of loader processes; None chooses as many as suit the machine. `labels` says
    whether the subfolders of `folder:` are classes; `pretrain` decides and stores "folders" or
    "none". `decoder` says where JPEG files are decoded: by the workers ("cpu"), by the GPU ("gpu"),
    by both ("both"), or where a measurement at the start of a long run finds it fastest
    ("auto"). Pixels differ. With `reduced_decode`, workers decode large JPEG files at a half, a
    quarter or an eighth of their size where the crops allow it, which also changes pixels slightly.
    """

    name: str
    labels: Literal["auto", "folders", "none"] = "folders"
    root: str | None = None
    download: bool = False
    workers: Annotated[int, Field(ge=0)] | None = None
    decoder: Literal["auto", "cpu", "gpu", "both"] = "auto"
    reduced_decode: bool = False


class Views(Open):
    """The view policy (the augmentations), its arguments, and the side of a view in pixels."""

    policy: str
    size: Positive


class Group(Section):
    """The optimiser and learning-rate schedule of one parameter group.

    Args:
        name: optimiser.
        lr: base learning rate.
        rule: how the learning rate depends on B images per step and V views of each image. "linear"
            is lr B/256, "sqrt" is lr sqrt(B) (SimCLR, with lr .075), "fixed" is lr, and "views" is
            lr B/256 V (MSBReg).
        momentum: momentum of SGD and LARS.
        weight_decay: weight decay.
        exclude: if True, biases and the parameters of norm layers get no weight decay and no
            adaptation by LARS.
        nesterov: whether to use Nesterov momentum.
        variant: form of LARS. The learning rate enters the momentum buffer ("inside", SimCLR) or
            multiplies it ("after", BYOL). "larc" and "larc_clip" are apex's LARC; see `optim.Lars`.
        schedule: learning-rate schedule.
        warmup: length of the linear warm-up in epochs.
        warmup_form: "then" runs the schedule over the epochs after the warm-up; "times" runs it
            over all epochs and multiplies it by the warm-up.
        warmup_start: factor on the learning rate at which the warm-up starts. It ends at 1.
        floor: factor on the learning rate at which the cosine schedule ends.
        at: epochs at which the learning rate of a step schedule changes.
        factor: one number that multiplies the learning rate at each epoch of `at`, or a list with
            the factor on the initial learning rate from each of these epochs on.
        per: whether the schedule is updated at every step or at every epoch.
        clip: largest norm of the gradient; None does not clip.
    """

    name: Literal["sgd", "adamw", "lars"] = "sgd"
    lr: NotNegative
    rule: Literal["linear", "sqrt", "fixed", "views"] = "linear"
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.9
    weight_decay: NotNegative = 0.0
    exclude: bool = False
    nesterov: bool = False
    variant: Literal["inside", "after", "larc", "larc_clip"] = "after"
    schedule: Literal["constant", "cosine", "steps"] = "cosine"
    warmup: NotNegative = 0.0
    warmup_form: Literal["then", "times"] = "then"
    warmup_start: Share = 0.0
    floor: Share = 0.0
    at: tuple[Positive, ...] = ()
    factor: Share | tuple[Share, ...] = 0.1
    per: Literal["step", "epoch"] = "step"
    clip: Annotated[float, Field(gt=0)] | None = None

    def scheduled(self, epochs: int) -> Schedule:
        """Return the schedule of the factor on the learning rate over a run of `epochs`."""
        return Schedule(
            name=self.schedule,
            epochs=epochs,
            warmup=self.warmup,
            form="before" if self.warmup_form == "then" else "times",
            start=self.warmup_start,
            floor=self.floor,
            at=self.at,
            factors=self.factor,
            per=self.per,
        )


class Train(Section):
    """The training run.

    Args:
        epochs: number of passes over the data set.
        batch: number of images per step, over all ranks.
        seed: seed of weights, image order, views and noise.
        device: device; "auto" chooses an accelerator if there is one.
        precision: "auto" is bf16 on a GPU that supports it and fp32 elsewhere. fp64 is slow and
            meant for comparing runs.
        compile: "auto" and "on" compile the step on a GPU; "off" never compiles.
        channels_last: whether to use the channels-last memory format.
        accumulate: number of parts of a batch, whose gradients are accumulated.
        negatives: with several parts, "part" computes the loss of each part on its own. "batch"
            computes the loss of the whole batch, which takes about 40 % more time.
        deterministic: whether to use only deterministic algorithms.
        checkpoint_every: epochs between checkpoints.
        checkpoint_steps: steps between further checkpoints; None writes none.
        keep: number of checkpoints to keep.
        on_collapse: what to do if the representation collapses or training diverges. A network
            that is not finite ends the run in either case.
    """

    epochs: Positive
    batch: Positive
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    precision: Literal["auto", "fp32", "bf16", "fp64"] = "auto"
    compile: Literal["auto", "on", "off"] = "auto"
    channels_last: bool = True
    accumulate: Positive = 1
    negatives: Literal["part", "batch"] = "part"
    deterministic: bool = False
    checkpoint_every: Positive = 10
    checkpoint_steps: Positive | None = None
    keep: Positive = 2
    on_collapse: Literal["warn", "stop"] = "warn"


class Monitor(Section):
    """What is recorded while a run trains.

    `log_every` and `health_every` count steps between log lines and health checks. `knn_every`
    counts epochs between kNN scores. 0 means never. `tensorboard` and `wandb` enable these loggers.
    """

    log_every: Positive = 10
    health_every: Annotated[int, Field(ge=0)] = 100
    knn_every: Annotated[int, Field(ge=0)] = 0
    tensorboard: bool = False
    wandb: bool = False


SECTIONS: dict[str, type[Section]] = {
    "method": Method,
    "backbone": Backbone,
    "data": Data,
    "views": Views,
    "optim": Group,
    "train": Train,
    "monitor": Monitor,
}
GROUPS = ("network", "predictor", "bank")


@cache
def fields() -> Mapping[str, tuple[Any, Any]]:
    """Return the annotation and the default of every key, except arguments of methods and policies.

    The default is `...` if the key has none.
    """
    keys: dict[str, tuple[Any, Any]] = {}
    for section, model in SECTIONS.items():
        prefixes = [f"optim.{group}" for group in GROUPS] if model is Group else [section]
        for prefix in prefixes:
            for name, field in model.model_fields.items():
                kind = field.annotation
                if field.metadata:
                    kind = Annotated[kind, *field.metadata]  # type: ignore[assignment]
                default = ... if field.is_required() else field.default
                keys[f"{prefix}.{name}"] = kind, default
    return keys


def argument_fields(function: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """Return the keyword-only parameters of a function, which are those that a recipe can set."""
    signature = inspect.signature(function, eval_str=True)
    return {
        name: parameter
        for name, parameter in signature.parameters.items()
        if parameter.kind is parameter.KEYWORD_ONLY
    }
