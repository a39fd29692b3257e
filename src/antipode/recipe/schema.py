"""The sections of a recipe: their keys, types, ranges and the defaults that no paper gives."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from antipode.schedule import Schedule

Positive = Annotated[int, Field(ge=1)]
NotNegative = Annotated[float, Field(ge=0)]
Share = Annotated[float, Field(ge=0, le=1)]


class Section(BaseModel):
    """Frozen, and strict about keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Open(Section):
    """A section whose further keys are the keyword arguments of what it names; `resolve` checks them."""

    model_config = ConfigDict(extra="allow")

    @property
    def arguments(self) -> dict[str, Any]:
        """The keyword arguments."""
        return dict(self.model_extra or {})


class Method(Open):
    """A preset and its arguments."""

    name: str


class Backbone(Section):
    """`weights` is none, "torchvision" or the path of a checkpoint to start from."""

    name: str
    stem: Literal["imagenet", "half", "small"] | None = None
    weights: str | None = None


class Data(Section):
    """`root` none is the folder in ANTIPODE_DATA, `workers` none as many as the machine can feed."""

    name: str
    root: str | None = None
    download: bool = False
    workers: Annotated[int, Field(ge=0)] | None = None


class Views(Open):
    """A policy, its side in pixels and its arguments."""

    policy: str
    size: Positive


class Group(Section):
    """The optimiser of one parameter group.

    The rate is `lr` by `rule`, for B images a step and V views: linear lr B/256, sqrt lr sqrt(B) (SimCLR's .075),
    fixed lr, views lr B/256 V (MSBReg). `floor`, where the cosine ends, is a share of the rate.
    A warm-up rises from the share `warmup_start` to 1. "then": the schedule follows over the epochs that are left;
    "times": the schedule runs over all epochs and is multiplied by it.
    `factor` is one number that multiplies the rate at each epoch of `at`, or its share from each of them on.
    `exclude`: biases and norms get neither decay nor LARS's adaptation. `variant`: LARS's rate enters the momentum
    buffer ("inside", SimCLR) or multiplies it ("after", BYOL).
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
        """The factor on the rate over a run."""
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
    """`batch` is the number of images per step over all ranks; `checkpoint_every` counts epochs.

    `precision` auto is bf16 on a GPU that has it and fp32 elsewhere; fp64 is for comparing runs, and slow.
    """

    epochs: Positive
    batch: Positive
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    precision: Literal["auto", "fp32", "bf16", "fp64"] = "auto"
    compile: Literal["auto", "on", "off"] = "auto"
    channels_last: bool = True
    accumulate: Positive = 1
    deterministic: bool = False
    checkpoint_every: Positive = 10
    keep: Positive = 2
    on_collapse: Literal["warn", "stop"] = "warn"


class Monitor(Section):
    """Steps between log lines and health checks, epochs between kNN scores; 0 is never."""

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


def fields() -> dict[str, tuple[Any, Any]]:
    """Annotation and default (`...` where there is none) of every key that does not depend on method or policy."""
    found: dict[str, tuple[Any, Any]] = {}
    for section, model in SECTIONS.items():
        for prefix in [f"optim.{group}" for group in GROUPS] if model is Group else [section]:
            for name, field in model.model_fields.items():
                kind = (
                    Annotated[field.annotation, *field.metadata]
                    if field.metadata
                    else field.annotation
                )
                found[f"{prefix}.{name}"] = kind, ... if field.is_required() else field.default
    return found
