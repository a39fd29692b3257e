import math

from torch import nn

from antipode.core.learner import Learner
from antipode.core.negatives import Bank, InBatch
from antipode.core.objective import Adversarial, Contrast
from antipode.core.pairing import crops as multi_crop
from antipode.core.pairing import one_way, swap
from antipode.papers.frames import moco_frame, moco_head


def adco(
    backbone: nn.Module,
    *,
    bank: int = 65536,
    tau: float = 0.12,
    tau_bank: float = 0.02,
    symmetric: bool = False,
    crops: int = 0,
    in_batch: bool = True,
    fill: bool = True,
    bank_lr: float = 3.0,
    bank_momentum: float = 0.9,
    bank_decay: float = 1e-4,
    momentum: float = 0.999,
    dim: int = 128,
    hidden: int | None = None,
    groups: int = 8,
) -> Learner:
    """AdCo (Hu et al., CVPR 2021, arXiv 2011.08435): loss = softplus(r - a); the negatives climb it at tau_bank.

    in_batch adds the other keys of the batch to r, as the authors' code does and the paper does not. symmetric averages
    both directions. `crops` query crops (5 in the paper) meet one large key crop, losses summed; with symmetric, two
    large crops answer. fill: the bank first takes in keys, step by step, while the network trains on it alone, then the
    key encoder restarts from the query encoder. The bank is the parameter group "bank": SGD at a constant rate.
    For bank=8192 the authors use tau .14, tau_bank .03 and a network rate of .04.
    Deviations: filling uses the method's own pairs, where the authors' multi-crop filling takes the last crop as key,
    and goes on until the bank is full, where theirs ends with the first pass over the data.
    """
    negatives = [InBatch("pair")] if in_batch else []
    contrast = Contrast(*negatives, Bank(bank, dim, fill), tau=tau)
    if crops:
        pairing = multi_crop(2 if symmetric else 1, 1 + crops)
    else:
        pairing = swap() if symmetric else one_way()
    learner = moco_frame(
        backbone,
        moco_head(backbone, dim, hidden),
        Adversarial(contrast, tau=tau_bank),
        momentum=momentum,
        groups=groups,
        pairing=pairing,
    )
    learner.scale = float(max(crops, 1))
    learner.options["bank"] = bank_options(bank_lr, bank_momentum, bank_decay)
    return learner


def bank_options(lr: float | None, momentum: float | None, decay: float | None) -> dict[str, float]:
    """What the optimiser's group of the bank gets; the authors' numbers where none are given."""
    given = {"lr": lr, "momentum": momentum, "weight_decay": decay}
    authors = {"lr": 3.0, "momentum": 0.9, "weight_decay": 1e-4}
    chosen = {name: authors[name] if value is None else value for name, value in given.items()}
    if not all(0 <= value < math.inf for value in chosen.values()) or chosen["momentum"] >= 1:
        numbers = ", ".join(f"{name} {value:g}" for name, value in chosen.items())
        raise ValueError(
            f"the bank's settings are finite numbers of 0 or more, its momentum below 1, not {numbers}"
        )
    return chosen
