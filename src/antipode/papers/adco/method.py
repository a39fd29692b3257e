"""AdCo (Hu et al., CVPR 2021)."""

import math

from torch import nn

from antipode.core.learner import Encoder, Learner
from antipode.core.negatives import Bank, InBatch
from antipode.core.objective import Adversarial, Contrast
from antipode.core.pairing import crops as multi_crop
from antipode.core.pairing import one_way, swap
from antipode.core.twin import Ema, constant
from antipode.nets.norm import convert
from antipode.papers import Method
from antipode.papers.adco.recipe import recipe
from antipode.papers.moco import head


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
    """AdCo (Hu et al., CVPR 2021, arXiv 2011.08435): the negatives are trained against the encoder.

    loss = softplus(r - a); the bank of negatives climbs it at temperature tau_bank. `in_batch` adds
    the other keys of the batch to r, as in the authors' code but not in the paper. `symmetric`
    averages both directions. `crops` query crops (5 in the paper) are compared with one large key
    crop, and their losses are summed; with `symmetric`, there are two large key crops. `fill`: the
    bank first takes in keys, step by step, while the network trains against the bank alone; then
    the key encoder restarts from the query encoder. As in the authors' code, these steps train one
    way also with `symmetric` or `crops`: only the first pair of views counts. (Up to commit d2454dc
    all pairs did, so the results of such runs have changed.) The bank is the parameter group
    "bank", trained by SGD at a constant learning rate. For bank=8192 the authors use tau .14,
    tau_bank .03 and .04 as learning rate of the network.

    Deviations: the key of filling is a large crop, where the authors' multi-crop filling takes the
    smallest one. Filling lasts until the bank is full, where theirs ends with the first pass over
    the data.
    """
    in_batch_negatives = [InBatch("pair")] if in_batch else []
    contrast = Contrast(*in_batch_negatives, Bank(bank, dim, fill), tau=tau)
    if crops:
        pairing = multi_crop(2 if symmetric else 1, 1 + crops)
    else:
        pairing = swap() if symmetric else one_way()
    online = convert(Encoder(backbone, head(backbone, dim, hidden)), groups)
    return Learner(
        online=online,
        twin=Ema(online, constant(momentum), shuffle=groups > 1),
        pairing=pairing,
        objective=Adversarial(contrast, tau=tau_bank),
        scale=float(max(crops, 1)),
        options={"bank": bank_options(bank_lr, bank_momentum, bank_decay)},
    )


def bank_options(lr: float | None, momentum: float | None, decay: float | None) -> dict[str, float]:
    """Return the optimiser settings of the bank; the authors' values stand in for None."""
    given = {"lr": lr, "momentum": momentum, "weight_decay": decay}
    authors = {"lr": 3.0, "momentum": 0.9, "weight_decay": 1e-4}
    chosen = {name: authors[name] if value is None else value for name, value in given.items()}
    if not all(0 <= value < math.inf for value in chosen.values()) or chosen["momentum"] >= 1:
        numbers = ", ".join(f"{name} {value:g}" for name, value in chosen.items())
        raise ValueError(
            "the bank's settings are finite numbers of 0 or more, its momentum below 1, "
            f"not {numbers}"
        )
    return chosen


METHODS = {"adco": Method(build=adco, recipe=recipe)}
