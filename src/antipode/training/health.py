"""Health checks of a run without labels, from the keys (N,D) and the metrics of a step."""

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from antipode import measures
from antipode.core.learner import Learner
from antipode.core.loss import Gaussian, coupled
from antipode.core.negatives import Queue
from antipode.core.objective import Adversarial, Align, Contrast
from antipode.core.scores import unit
from antipode.training.filling import filling_steps
from antipode.wording import option

# Steps in which narrow embeddings are no cause for concern: heads without batch norm start that
# way.
YOUNG = 100
# The largest number of keys that a check uses, because their products are a square matrix.
ENOUGH = 4096
# The number of logged losses that the trend averages.
BLUR = 10
# A bank is idle if it turned less than STILL (as 1 - cos) in at least STILL_STEPS steps. A bank
# that works turns by 1e-2 on shapes.
STILL = 1e-4
STILL_STEPS = 50
# The number of skipped steps in a row after which training ends, if they are at least a whole
# logging interval. A skipped step leaves the network as it was, so a broken network never recovers.
# Damaged images are in few batches: if they are in one batch of ten, 20 such batches follow each
# other with a probability of 1e-20.
HOPELESS = 20
# Training diverges if the loss rises by more than RISE, and by more than RISE_SHARE of what it had
# fallen.
RISE = 1.0
RISE_SHARE = 0.9


def settling(kept: int, batch: int, per_epoch: int) -> int:
    """Return the number of steps after which the health of a run counts.

    These are the steps until a queue or bank of `kept` vectors is full of keys, and one epoch more
    (at least 100 and at most 1,000 steps). MoCo v2 on CIFAR-10 is as narrow as a collapsed network
    at step 100 (spread .05), and recovers by itself.
    """
    return min(max(YOUNG, per_epoch), 1000) + filling_steps(kept, batch)


@torch.no_grad()
def measure(learner: Learner, keys: Tensor) -> dict[str, float]:
    """Return spread, rank, uniformity and mean similarity of a batch of keys (N,D).

    The keys are scaled to unit length and not centred. The rank is at most min(N,D). For a method
    with a bank, the mean length of the bank's vectors is added. Returns {} if a key is not finite.
    """
    z = unit(subsample(keys))
    if not z.isfinite().all():
        return {}
    values = {
        "spread": float(measures.spread(z)),
        "rank": measures.effective_rank(measures.singular_values(z)),
        "uniformity": float(measures.uniformity(z)) if len(z) > 1 else math.nan,
        "similarity": float(measures.mean_similarity(z)),
    }
    if isinstance(learner.objective, Adversarial):
        values["bank_length"] = float(learner.objective.bank.weight.norm(dim=1).mean())
    return values


def subsample(keys: Tensor) -> Tensor:
    """Return at most ENOUGH of the keys (N,D): all, every second, every third and so on."""
    return keys[:: -(-len(keys) // ENOUGH)]


def alignment(learner: Learner, row: dict[str, Any]) -> float:
    """Return the mean squared distance of positive pairs (Wang & Isola 2020) in a row of metrics.

    For unit vectors it is 2 - 2 cos.
    """
    objective = learner.objective
    if isinstance(objective, Align) and objective.squared:
        return float(row["align"])  # centroids need not have unit length
    return 2 - 2 * float(row["positive"])


def bound(learner: Learner, contrast: float, negatives: int) -> float | None:
    """Return EqCo's lower bound on the mutual information, None if the loss is not InfoNCE.

    JCL's loss is not: it has a variance term in addition.
    """
    objective = learner.objective
    if not isinstance(objective, Contrast) or objective.coupling is not coupled or not negatives:
        return None
    if isinstance(objective.positives, Gaussian):
        return None
    alpha = getattr(objective.margin, "keywords", {}).get("alpha", negatives)
    return math.log1p(alpha) - contrast


def age(learner: Learner, images: int, step: int) -> float | None:
    """Return the mean age, in steps, of the keys in the queue at `step`.

    The queue takes in `images` keys per step. Its initial random vectors are not keys and do not
    count. Returns None if there is no queue, or if it holds no keys yet.
    """
    size = next((len(part.vectors) for part in learner.modules() if isinstance(part, Queue)), 0)
    if not size or not step:
        return None
    new = min(images, size)
    count = min(size, new * step)
    whole, rest = divmod(count, new)
    return (new * whole * (whole + 1) / 2 + rest * (whole + 1)) / count


class Trouble(NamedTuple):
    """A problem of a run; `fatal` means that it is useless to continue."""

    kind: str
    sentence: str  # with the likely cause
    fatal: bool = True


class HealthMonitor:
    """Check the health of a run; keeps the trend of the loss and the bank of the last check.

    Its state is part of a checkpoint. The first `settling` steps do not count. While a queue or
    bank fills, or while keys replace its initial random vectors, a rising loss is normal.
    """

    def __init__(self, settling: int = YOUNG) -> None:
        self.settling = settling
        self.rows = 0  # noted since the run has settled
        # the trend of the loss: its first, its present and its lowest value
        self.start = 0.0
        self.level = 0.0
        self.lowest = 0.0
        self.bank: Tensor | None = None  # (K,D) unit, at the last check
        self.checked = 0  # the step of the last check of a bank
        self.span = 0  # the number of steps between the last two checks

    @torch.no_grad()
    def drift(self, learner: Learner) -> float | None:
        """Return how far a trained bank has turned since the last call, as the mean 1 - cos.

        Returns None at the first call, while the bank fills, and for methods without a trained
        bank.
        """
        objective = learner.objective
        if not isinstance(objective, Adversarial) or objective.bank.filling:
            return None
        before = self.bank
        self.bank = unit(objective.bank.weight.detach())
        return None if before is None else float(1 - (before * self.bank).sum(1).mean())

    def note(self, row: dict[str, Any]) -> None:
        """Update the state with a row of metrics."""
        if "bank_drift" in row:
            self.span = row["step"] - self.checked
            self.checked = row["step"]
        _, value = followed(row)
        if row["step"] < self.settling or not math.isfinite(value):
            return
        self.rows += 1
        self.level += (value - self.level) / min(self.rows, BLUR)
        if self.rows == 1:
            self.start = self.level
            self.lowest = self.level
        self.lowest = min(self.lowest, self.level)

    def trouble(self, row: dict[str, Any], limit: int) -> Trouble | None:
        """Return the problem that a row shows, None if there is none.

        The row must have been passed to `note` before. `limit` is min(N,D) of its keys.
        """
        return complaint(row, limit, self.settling) or self._divergence(row) or self._idle(row)

    def _idle(self, row: dict[str, Any]) -> Trouble | None:
        """Return the problem of a bank that has stopped moving, None if it moves."""
        settled = row["step"] >= self.settling
        if row.get("bank_drift", 1.0) >= STILL or self.span < STILL_STEPS or not settled:
            return None
        return Trouble(
            "idle",
            f"the negatives of the bank have stopped moving at step {row['step']} "
            f"(drift {row['bank_drift']:.1e}): they are too far from the queries to get a "
            "gradient, and hardly repel them; a higher method.tau_bank or a lower method.bank_lr "
            "keeps them near",
            fatal=False,
        )

    def _divergence(self, row: dict[str, Any]) -> Trouble | None:
        """Return the problem of a loss that rises again, None if it does not."""
        allowed = max(RISE, RISE_SHARE * (self.start - self.lowest))
        if not self.rows or self.level - self.lowest <= allowed:
            return None
        adversarial = "rival" in row
        rate = "the learning rate of bank or network" if adversarial else "the learning rate"
        return Trouble(
            "diverged",
            f"the {followed(row)[0]} has risen to {self.level:.3g} at step {row['step']}, from a "
            f"minimum of {self.lowest:.3g}: training diverges, {rate} is likely too high or the "
            "warm-up too short",
        )

    def state(self) -> dict[str, Any]:
        """Return the state for a checkpoint."""
        return {name: getattr(self, name) for name in STATE}

    def load(self, state: dict[str, Any]) -> None:
        """Load the state of a checkpoint."""
        check_state(state)
        for name, value in state.items():
            setattr(self, name, value)


# what a checkpoint holds of a monitor
STATE: dict[str, tuple[type, ...]] = {
    "rows": (int,),
    "start": (float, int),
    "level": (float, int),
    "lowest": (float, int),
    "bank": (Tensor, type(None)),
    "checked": (int,),
    "span": (int,),
}


def check_state(state: dict[str, Any]) -> None:
    """Raise ValueError if the state of a monitor has unknown entries or wrong types."""
    for name, value in state.items():
        if not isinstance(value, STATE.get(str(name), ())) or isinstance(value, bool):
            raise ValueError(f"its entry 'health.{name}' cannot be a {type(value).__name__}")


def advice() -> str:
    """Return what to try against a loss or weights that are not finite."""
    return f"try a lower optim.network.lr, a longer warm-up or {option('precision', 'fp32')}"


def survived(skipped: int, step: int) -> str:
    """Return a sentence about steps that were skipped, and after which training continues."""
    of = f"{skipped} of {step + 1} steps" if skipped > 1 else f"1 step of {step + 1}"
    return (
        f"{of} had a loss or a gradient that is not finite and {'were' if skipped > 1 else 'was'} "
        f"skipped, without a change to the network: look at the images, or {advice()}"
    )


def hopeless(streak: int, step: int) -> str:
    """Return a sentence about a network that cannot be trained any more."""
    last = f"the last {streak} steps up to" if streak > 1 else "the last step,"
    return (
        f"loss or gradient were not finite in {last} step {step}, so training cannot continue: the "
        f"learning rate is likely too high, or the images are damaged; {advice()}"
    )


def broken(name: str, done: int) -> str:
    """Return a sentence about weights that are not finite; `name` is that of a tensor."""
    return (
        f"the weights are not finite after {done} steps ({name}), so they are not written: the "
        f"learning rate is likely too high; {advice()}"
    )


def followed(row: dict[str, Any]) -> tuple[str, float]:
    """Return name and value of the metric that should fall during training.

    It is not the loss itself. AdCo's loss is a difference whose value has no meaning, and the
    losses of methods without negatives have different scales.
    """
    if "contrast" in row:
        return "contrast", row["contrast"]
    if "positive" in row:
        return "squared distance of positives", 2 - 2 * row["positive"]
    return "loss", row["loss"]


def complaint(row: dict[str, Any], limit: int, young: int = YOUNG) -> Trouble | None:
    """Return the problem that one row alone shows, None if there is none.

    Nothing is checked in the first `young` steps. `limit` is min(N,D) of the keys.
    """
    step = row["step"]
    if step < young:
        return None
    if row.get("spread", 1.0) < measures.FLAT:
        return Trouble(
            "collapsed",
            f"the embeddings have collapsed at step {step} (spread {row['spread']:.3f} of 1): "
            "likely causes are a missing predictor, stop-gradient or batch norm, or too high a "
            "learning rate",
        )
    if is_narrow(row.get("rank", limit), limit):
        return Trouble(
            "narrow",
            f"the embeddings use only {row['rank']:.1f} of {limit} dimensions at step {step}: the "
            "temperature or the learning rate is likely out of range",
        )
    return None


def is_narrow(rank: float, limit: int) -> bool:
    """Return True if an effective rank is too low; `limit` is the largest possible rank."""
    return rank < max(1.5, measures.FLAT * 0.2 * limit)
