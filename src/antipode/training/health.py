"""Is it learning anything? Answered without labels, from the keys of a step (N,D) and its numbers."""

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from antipode.core.learner import Learner
from antipode.core.loss import Gaussian, coupled
from antipode.core.negatives import Queue
from antipode.core.objective import Adversarial, Align, Contrast
from antipode.core.regularise import potential
from antipode.core.scores import product, unit

YOUNG = 100  # steps in which a network may still be as narrow as it was made: heads without BN start that way
FLAT = 0.1  # below this share of an even spread, or of the possible rank, embeddings have collapsed
ENOUGH = 4096  # keys that are looked at: their products are a square matrix
BLUR = 10  # logged losses that the trend is the mean of
STILL, WHILE = (
    1e-4,
    50,
)  # a bank that turns less than this, as 1 - cos, in so many steps or more; on shapes 1e-2 lives
FAR, LOST = (
    1.0,
    0.9,
)  # a rise of this much, and of this share of what had been gained, is a divergence


def settling(kept: int, batch: int, per_epoch: int) -> int:
    """Steps until a queue or bank of `kept` vectors is full of keys, and an epoch more, but not more than 1,000.

    MoCo v2 on CIFAR-10 is as narrow as a collapsed network at step 100 (spread .05), and recovers by itself.
    """
    return min(max(YOUNG, per_epoch), 1000) + math.ceil(kept / batch)


@torch.no_grad()
def measure(learner: Learner, keys: Tensor) -> dict[str, float]:
    """Spread, rank, uniformity and mean similarity of a batch of keys (N,D), and the state of a bank.

    spread: mean standard deviation of a dimension, times sqrt(D): 1 for vectors all over the sphere, 0 in collapse.
    rank: RankMe (Garrido et al. 2023), the exponential of the entropy of the singular values, of at most min(N,D).
    """
    z = unit(subsample(keys))
    if not z.isfinite().all():
        return {}
    n, d = z.shape
    spectrum = torch.linalg.svdvals(z)
    share = spectrum / spectrum.sum() + 1e-7
    own = torch.arange(n, device=z.device)
    values = {
        "spread": z.std(0).mean() * math.sqrt(d),
        "rank": (-(share * share.log()).sum()).exp(),
        "uniformity": potential(z, z, own, own).log() if n > 1 else z.new_tensor(torch.nan),
        "similarity": (product(z, z).sum() - n) / max(n * (n - 1), 1),
    }
    if isinstance(learner.objective, Adversarial):
        values["bank_length"] = learner.objective.bank.weight.norm(dim=1).mean()
    return {name: float(value) for name, value in values.items()}


def subsample(keys: Tensor) -> Tensor:
    """All keys (N,D), or every second, third and so on of a batch that is larger than needed."""
    return keys[:: -(-len(keys) // ENOUGH)]


def alignment(learner: Learner, row: dict[str, Any]) -> float:
    """Mean squared distance of positive pairs (Wang & Isola), from the numbers of a step: 2 - 2 cos of unit vectors."""
    objective = learner.objective
    if isinstance(objective, Align) and objective.squared:
        return float(row["align"])  # centroids need not have length one
    return 2 - 2 * float(row["positive"])


def bound(learner: Learner, contrast: float, negatives: int) -> float | None:
    """EqCo's lower bound on mutual information, where the loss is InfoNCE's: JCL's has a variance term besides."""
    objective = learner.objective
    if not isinstance(objective, Contrast) or objective.coupling is not coupled or not negatives:
        return None
    if isinstance(objective.positives, Gaussian):
        return None
    alpha = getattr(objective.margin, "keywords", {}).get("alpha", negatives)
    return math.log1p(alpha) - contrast


def age(learner: Learner, images: int, step: int) -> float | None:
    """Mean age in steps of the keys that the queries of `step` met in a queue, which takes in `images` keys a step.

    The random vectors that a queue starts with are no keys and have no age.
    """
    size = next((len(part.vectors) for part in learner.modules() if isinstance(part, Queue)), 0)
    if not size or not step:
        return None
    new = min(images, size)
    held = min(size, new * step)
    whole, rest = divmod(held, new)
    return (new * whole * (whole + 1) / 2 + rest * (whole + 1)) / held


class Trouble(NamedTuple):
    """What is wrong: its name, a sentence with the likely cause, and whether to go on is in vain."""

    kind: str
    sentence: str
    fatal: bool = True


class HealthMonitor:
    """What a check must know of earlier ones: how the loss went, and where the bank was. Part of a checkpoint.

    The first `settling` steps do not count: while a queue or bank fills, or keys replace its random start, a
    loss rises for good reasons.
    """

    def __init__(self, settling: int = YOUNG) -> None:
        self.settling, self.rows = settling, 0
        self.start = self.level = self.lowest = (
            0.0  # of the trend: its first value, the present one, the lowest
        )
        self.bank: Tensor | None = None  # (K,D) unit
        self.checked = self.span = (
            0  # the step at which a bank was looked at last, and the steps before that
        )

    @torch.no_grad()
    def drift(self, learner: Learner) -> float | None:
        """Mean 1 - cos between the vectors of a trained bank and where they were when this was last asked."""
        objective = learner.objective
        if not isinstance(objective, Adversarial) or objective.bank.filling:
            return None
        before, self.bank = self.bank, unit(objective.bank.weight.detach())
        return None if before is None else float(1 - (before * self.bank).sum(1).mean())

    def note(self, row: dict[str, Any]) -> None:
        """Follow a row."""
        if "bank_drift" in row:
            self.checked, self.span = row["step"], row["step"] - self.checked
        _, value = followed(row)
        if row["step"] < self.settling or not math.isfinite(value):
            return
        self.rows += 1
        self.level += (value - self.level) / min(self.rows, BLUR)
        if self.rows == 1:
            self.start = self.lowest = self.level
        self.lowest = min(self.lowest, self.level)

    def trouble(self, row: dict[str, Any], limit: int) -> Trouble | None:
        """What is wrong with a row that was noted; `limit` is min(N,D) of its keys."""
        return complaint(row, limit, self.settling) or self._divergence(row) or self._idle(row)

    def _idle(self, row: dict[str, Any]) -> Trouble | None:
        if row.get("bank_drift", 1.0) >= STILL or self.span < WHILE or row["step"] < self.settling:
            return None
        return Trouble(
            "idle",
            f"the bank's negatives stand still at step {row['step']} (drift {row['bank_drift']:.1e}): too far from the "
            "queries to feel a gradient, they hardly repel; a higher method.tau_bank or a lower method.bank_lr keeps "
            "them near",
            fatal=False,
        )

    def _divergence(self, row: dict[str, Any]) -> Trouble | None:
        if not self.rows or self.level - self.lowest <= max(FAR, LOST * (self.start - self.lowest)):
            return None
        whose = "the bank's or the network's" if "rival" in row else "the learning"
        return Trouble(
            "diverged",
            f"the {followed(row)[0]} has risen to {self.level:.3g} at step {row['step']} from {self.lowest:.3g} at "
            f"best: training diverges, {whose} rate is likely too high or the warm-up too short",
        )

    def state(self) -> dict[str, Any]:
        """For a checkpoint."""
        return {
            name: getattr(self, name)
            for name in ("rows", "start", "level", "lowest", "bank", "checked", "span")
        }

    def load(self, state: dict[str, Any]) -> None:
        """From a checkpoint."""
        for name, value in state.items():
            setattr(self, name, value)


def followed(row: dict[str, Any]) -> tuple[str, float]:
    """The number of a row that should fall, and its name.

    Not the loss itself: AdCo's is a difference without meaning, and the scale of those without negatives varies.
    """
    if "contrast" in row:
        return "contrast", row["contrast"]
    return (
        ("squared distance of positives", 2 - 2 * row["positive"])
        if "positive" in row
        else ("loss", row["loss"])
    )


def complaint(row: dict[str, Any], limit: int, young: int = YOUNG) -> Trouble | None:
    """What is wrong by the numbers of one row alone; None where nothing is, or in the first `young` steps.

    `limit` is min(N,D).
    """
    if not math.isfinite(row["loss"]):
        sentence = (
            f"the loss is {row['loss']} at step {row['step']}: the learning rate is likely too high"
        )
        return Trouble("not finite", sentence)
    if row["step"] < young:
        return None
    if row.get("spread", 1.0) < FLAT:
        return Trouble(
            "collapsed",
            f"the embeddings have collapsed at step {row['step']} (spread {row['spread']:.3f} of 1): "
            "a missing predictor, stop-gradient or batch norm, or too high a rate",
        )
    if row.get("rank", limit) < max(1.5, FLAT * 0.2 * limit):
        return Trouble(
            "narrow",
            f"the embeddings of step {row['step']} fill only {row['rank']:.1f} of {limit} dimensions: "
            "a temperature or rate out of range",
        )
    return None
