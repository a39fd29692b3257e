"""Learning rate schedules, and the scaling of the learning rate with the batch size.

A schedule is a factor on the base learning rate at every step. Schedules take steps and epochs as
integers, because a float progress such as 120/200 may be rounded to a value before epoch 120.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

Name = Literal["constant", "cosine", "steps"]
Form = Literal["before", "times"]
Per = Literal["step", "epoch"]
Rule = Literal["fixed", "linear", "sqrt", "views"]


def constant(progress: float) -> float:
    """Return 1: the base learning rate at all times (SimSiam's predictor, AdCo's bank)."""
    return 1.0


def cosine(progress: float, floor: float = 0.0) -> float:
    """Return the factor of a cosine schedule, which falls from 1 to `floor`.

    `floor` is a share of the base learning rate: .0006/.03 for AdCo, 0 for the other methods.
    """
    return floor + (1 - floor) * (1 + math.cos(math.pi * progress)) / 2


def steps(epoch: int, at: Sequence[int], factors: float | Sequence[float] = 0.1) -> float:
    """Return the factor of a step schedule in an epoch, counted from 0.

    If `factors` is one number, the learning rate is multiplied by it at each epoch in `at` (MoCo
    v1: .1 at epochs 120 and 160). If there are several, each is the factor from the corresponding
    epoch onwards (Inv. Spread: .1, .05 and .01 from epochs 120, 160 and 200).
    """
    passed = sum(epoch >= milestone for milestone in at)
    if isinstance(factors, Sequence):
        return factors[passed - 1] if passed else 1.0
    return math.prod([factors] * passed)


def ramp(progress: float, start: float = 0.0) -> float:
    """Return the factor of a linear warm-up from `start` to 1; it stays 1 for progress above 1."""
    return start + (1 - start) * min(progress, 1.0)


def scaled(base: float, rule: Rule, batch: int, views: int = 1) -> float:
    """Return the learning rate for a global batch size B, scaled from `base`.

    The rules are:
      fixed   base
      linear  base B/256 (Goyal et al. 2017)
      sqrt    base sqrt(B) (SimCLR; its .075 sqrt(B) and .3 B/256 are equal at B = 4096)
      views   base B/256 times the number of views (MSBReg)
    """
    if batch < 1 or views < 1:
        raise ValueError(
            "scaling a learning rate needs at least one image and one view, "
            f"got {batch} images and {views} views"
        )
    scale = {
        "fixed": 1.0,
        "linear": batch / 256,
        "sqrt": math.sqrt(batch),
        "views": batch / 256 * views,
    }
    _check_choice("the scaling rule of the learning rate", rule, Rule)
    return base * scale[rule]


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """The factor on the base learning rate at every step of a run of `epochs` epochs.

    `warmup` is the number of epochs of a linear warm-up from `start` to 1. It has two forms:
      before  the schedule runs over the epochs after the warm-up
              (SimCLR, BYOL and MSBReg start at 0 over 10 epochs, CLD at .01 over 5)
      times   the schedule runs over all epochs and is multiplied by the warm-up
              (SiMo starts at .001 over 10 epochs)

    `floor` is the final value of a cosine schedule.

    `at` lists the epochs at which a step schedule changes the factor. They count from the start of
    the run in both forms. `factors` is described in `steps`.

    `per` is how often the learning rate changes: "epoch" keeps it constant within an epoch (MoCo,
    AdCo, JCL, SimSiam), "step" changes it at every step.
    """

    name: Name = "constant"
    epochs: int
    warmup: float = 0.0
    form: Form = "before"
    start: float = 0.0
    floor: float = 0.0
    at: tuple[int, ...] = ()
    factors: float | tuple[float, ...] = 0.1
    per: Per = "step"

    def __post_init__(self) -> None:
        for name in ("at", "factors"):  # JSON gives lists
            if isinstance(value := getattr(self, name), list):
                object.__setattr__(self, name, tuple(value))
        _check_choice("the schedule", self.name, Name)
        _check_choice("the form of the warm-up", self.form, Form)
        _check_choice("`per` of a schedule", self.per, Per)
        if self.epochs < 1:
            raise ValueError(f"a schedule needs at least one epoch, got {self.epochs}")
        self._check_warmup()
        self._check_decay()

    def factor(self, step: int, per_epoch: int) -> float:
        """Return the factor at a step of a run with `per_epoch` steps per epoch.

        Steps are counted from 0.
        """
        total = self.epochs * per_epoch
        if per_epoch < 1 or not 0 <= step <= total:
            raise ValueError(
                f"step {step} is outside a run of {self.epochs} epochs with {per_epoch} steps each"
            )
        if self.per == "epoch":
            step -= step % per_epoch
        warmup_steps = self.warmup * per_epoch
        warmup = ramp(step / warmup_steps, self.start) if warmup_steps else 1.0
        if self.form == "times":
            return warmup * self._without_warmup(step, step / total, per_epoch)
        if step < warmup_steps:
            return warmup
        progress = (step - warmup_steps) / (total - warmup_steps)
        return self._without_warmup(step, progress, per_epoch)

    def _without_warmup(self, step: int, progress: float, per_epoch: int) -> float:
        if self.name == "steps":
            return steps(step // per_epoch, self.at, self.factors)
        return cosine(progress, self.floor) if self.name == "cosine" else constant(progress)

    def _check_warmup(self) -> None:
        if not 0 <= self.warmup < self.epochs:
            raise ValueError(
                f"a warm-up of {self.warmup} epochs does not fit into a run of {self.epochs} epochs"
            )
        if not 0 <= self.start <= 1:
            raise ValueError(
                f"the start of a warm-up is a share of the learning rate in [0,1], got {self.start}"
            )
        if self.warmup and not self.start and self.per == "epoch":
            raise ValueError(
                "a warm-up from 0 with per='epoch' gives the first epoch a learning rate of 0; "
                "use per='step' or a start above 0"
            )

    def _check_decay(self) -> None:
        if not 0 <= self.floor <= 1:
            raise ValueError(
                "the floor of a schedule is a share of the learning rate in [0,1], "
                f"got {self.floor}"
            )
        if self.floor and self.name != "cosine":
            raise ValueError(
                f"only a cosine schedule has a floor, but the schedule is {self.name} "
                f"and the floor {self.floor}"
            )
        if self.name == "steps" and not self.at:
            raise ValueError("a steps schedule needs at least one epoch in `at`, got none")
        if self.name != "steps" and self.at:
            raise ValueError(
                f"only a steps schedule has epochs in `at`, but the schedule is {self.name} "
                f"and `at` is {self.at}"
            )
        if list(self.at) != sorted({epoch for epoch in self.at if epoch >= 0}):
            raise ValueError(
                f"the epochs of a steps schedule must be ascending and at least 0, got {self.at}"
            )
        self._check_factors()

    def _check_factors(self) -> None:
        factors = self.factors if isinstance(self.factors, tuple) else (self.factors,)
        if isinstance(self.factors, tuple) and len(factors) != len(self.at):
            raise ValueError(
                f"a steps schedule with {len(self.at)} epochs needs {len(self.at)} factors or one "
                f"number, got {len(factors)} factors"
            )
        if not all(factor >= 0 for factor in factors):
            raise ValueError(
                f"the factors of a steps schedule must be at least 0, got {self.factors}"
            )


def _check_choice(what: str, value: str, choices: object) -> None:
    """Raise ValueError if the value is not one of the choices of a Literal."""
    if value not in get_args(choices):
        raise ValueError(f"{what} must be one of {', '.join(get_args(choices))}, not {value!r}")
