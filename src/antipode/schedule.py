"""Learning rates in time and in size: a factor on the base rate for every step, and the base rate for every batch.

Steps and epochs come in as whole numbers: a float progress such as 120/200 may round below the epoch it stands for.
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
    """Always the base rate: SimSiam's predictor, AdCo's bank."""
    return 1.0


def cosine(progress: float, floor: float = 0.0) -> float:
    """Half a cosine from 1 to the floor, itself a share of the base rate: .0006/.03 for AdCo, else 0."""
    return floor + (1 - floor) * (1 + math.cos(math.pi * progress)) / 2


def steps(epoch: int, at: Sequence[int], factors: float | Sequence[float] = 0.1) -> float:
    """One number multiplies at each of the epochs (MoCo v1: .1 at 120, 160); several are the factor from each epoch on
    (Inv. Spread: .1, .05, .01 from 120, 160, 200). Epochs count from 0.
    """
    passed = sum(epoch >= mark for mark in at)
    if isinstance(factors, Sequence):
        return factors[passed - 1] if passed else 1.0
    return math.prod([factors] * passed)


def ramp(progress: float, start: float = 0.0) -> float:
    """The line of a warm-up, from `start` to 1, and 1 ever after."""
    return start + (1 - start) * min(progress, 1.0)


def scaled(base: float, rule: Rule, batch: int, views: int = 1) -> float:
    """The rate of a global batch of images: linear in it per 256 (Goyal et al. 2017), with its square root (SimCLR,
    whose .075 sqrt(B) and .3 B/256 meet at 4096), linear and times the views (MSBReg), or fixed.
    """
    if batch < 1 or views < 1:
        raise ValueError(
            f"a rate is scaled by at least one image and one view, got {batch} and {views}"
        )
    growth = {
        "fixed": 1.0,
        "linear": batch / 256,
        "sqrt": math.sqrt(batch),
        "views": batch / 256 * views,
    }
    _known("the rule of a learning rate", rule, Rule)
    return base * growth[rule]


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """The factor on the base rate at every step of a run of `epochs`.

    A warm-up is a line over its first `warmup` epochs in one of two forms. "before": from `start` to 1, then the
    schedule over the rest; SimCLR, BYOL and MSBReg start at 0 over 10 epochs, CLD at .01 over 5. "times": the schedule
    runs over all epochs and is multiplied by the line; SiMo starts at .001 over 10. The epochs `at` which a step
    schedule falls are those of the run in both. Counted per "epoch", the rate stands still within an epoch (MoCo, AdCo,
    JCL, SimSiam); per "step" it moves at every one.
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
        for name in ("at", "factors"):  # lists come from JSON
            if isinstance(value := getattr(self, name), list):
                object.__setattr__(self, name, tuple(value))
        _known("a schedule", self.name, Name)
        _known("the form of a warm-up", self.form, Form)
        _known("the pace of a schedule", self.per, Per)
        if self.epochs < 1:
            raise ValueError(f"a schedule needs at least one epoch, got {self.epochs}")
        self._check_warmup()
        self._check_fall()

    def factor(self, step: int, per_epoch: int) -> float:
        """The factor at a step, counted from 0, of a run with `per_epoch` steps in an epoch."""
        total = self.epochs * per_epoch
        if per_epoch < 1 or not 0 <= step <= total:
            raise ValueError(f"step {step} lies outside {self.epochs} epochs of {per_epoch} steps")
        if self.per == "epoch":
            step -= step % per_epoch
        warm = self.warmup * per_epoch
        line = ramp(step / warm, self.start) if warm else 1.0
        if self.form == "times":
            return line * self._plain(step, step / total, per_epoch)
        return line if step < warm else self._plain(step, (step - warm) / (total - warm), per_epoch)

    def _plain(self, step: int, progress: float, per_epoch: int) -> float:
        if self.name == "steps":
            return steps(step // per_epoch, self.at, self.factors)
        return cosine(progress, self.floor) if self.name == "cosine" else constant(progress)

    def _check_warmup(self) -> None:
        if not 0 <= self.warmup < self.epochs:
            raise ValueError(
                f"a warm-up of {self.warmup} epochs does not fit into a run of {self.epochs}"
            )
        if not 0 <= self.start <= 1:
            raise ValueError(f"a warm-up starts at a share of the rate in [0,1], got {self.start}")
        if self.warmup and not self.start and self.per == "epoch":
            raise ValueError(
                "a warm-up from 0 per epoch would leave the first epoch at rate 0: count it per step"
            )

    def _check_fall(self) -> None:
        if not 0 <= self.floor <= 1:
            raise ValueError(
                f"the floor of a schedule is a share of the rate in [0,1], got {self.floor}"
            )
        if self.floor and self.name != "cosine":
            raise ValueError(
                f"a floor of {self.floor} belongs to a cosine schedule, but this one is {self.name}"
            )
        if bool(self.at) != (self.name == "steps"):
            raise ValueError(
                f"a steps schedule, and no other, needs epochs to fall at; {self.name} got {self.at}"
            )
        if list(self.at) != sorted({epoch for epoch in self.at if epoch >= 0}):
            raise ValueError(
                f"the epochs of a steps schedule must rise from 0 or later, got {self.at}"
            )
        if isinstance(self.factors, tuple) and len(self.factors) != len(self.at):
            raise ValueError(
                f"{len(self.at)} epochs to fall at need as many factors or one, got {len(self.factors)}"
            )
        if not all(
            factor >= 0
            for factor in (self.factors if isinstance(self.factors, tuple) else (self.factors,))
        ):
            raise ValueError(
                f"the factors of a steps schedule must not be negative, got {self.factors}"
            )


def _known(what: str, value: str, names: object) -> None:
    if value not in get_args(names):
        raise ValueError(f"{what} is one of {', '.join(get_args(names))}, not {value!r}")
