"""MSBReg (Moon et al. 2022)."""

import math
from typing import Literal, TypeVar

from torch import nn

from antipode.core import regularise
from antipode.core.learner import Encoder, Learner, Weighted
from antipode.core.objective import Align
from antipode.core.pairing import Pairing, everything, halves, leave_one_out, repeated
from antipode.core.twin import Ema, cosine
from antipode.nets.backbone import width
from antipode.nets.heads import Norm, mlp
from antipode.nets.norm import convert
from antipode.papers import Method
from antipode.papers.msbreg.recipe import LENGTHS, recipe

T = TypeVar("T")
Centroid = Literal["halves", "leave-one-out", "all", "repeat"]


def msbreg(
    backbone: nn.Module,
    *,
    views: int = 4,
    centroid: Centroid = "halves",
    renormalise: bool = True,
    singular_value: float = 0.004,
    singular_form: Literal["gram", "nuclear", "correlation"] = "gram",
    brownian: float = 0.5,
    brownian_form: Literal["image", "view", "gaussian"] = "image",
    uniform: float = 0.0,
    on: Literal["prediction", "projection"] = "prediction",
    norm: Norm = "batch",
    momentum: float = 0.99,
    dim: int | None = None,
    hidden: int | None = None,
) -> Learner:
    """MSBReg (Moon et al. 2022, arXiv 2207.03552): BYOL on centroids of V views, regularised.

    loss = BYOL's on centroids + l_s L_s + l_b L_b. L_s makes the singular values of the embeddings
    equal, L_b kicks each image in a random direction. With two views and no regulariser it is BYOL.
    No formula of the paper is public; the defaults are the forms that agree with all it states, and
    the arguments select the alternatives (docs/methods/msbreg.md). The weights are the best for
    ImageNet-100. `uniform` adds Wang & Isola's uniformity (table 3). norm="layer" and "weight"
    replace the batch norm of the heads (table 4). centroid="repeat" is batch repetition, V/2
    independent pairs, for comparison. The heads have 512 hidden and 128 output units for up to 512
    features (ResNet-18), else 2048 and 256. The momentum of .99 is BYOL's; the paper's own is
    unknown.
    """
    small = width(backbone) <= 512
    hidden = (512 if small else 2048) if hidden is None else hidden
    dim = (128 if small else 256) if dim is None else dim
    projector = mlp([width(backbone), hidden, dim], norm=norm, last_bias=False)
    online = convert(Encoder(backbone, projector), groups=1)
    pairing, scale = _pairing(centroid, views)
    terms = {
        "singular_value": (singular_value, _pick(regularise.SINGULAR_VALUE, singular_form)),
        "brownian": (brownian, _pick(regularise.BROWNIAN, brownian_form)),
        "uniform": (uniform, regularise.uniform),
    }
    return Learner(
        online=online,
        twin=Ema(online, cosine(momentum)),
        pairing=pairing,
        objective=Align(squared=True, renormalise=renormalise),
        predictor=mlp([dim, hidden, dim], norm=norm, last_bias=False),
        regularisers=weighed(terms),
        scale=scale,
        renormalise=renormalise,
        on=on,
    )


def weighed(terms: dict[str, tuple[float, regularise.Regulariser]]) -> list[Weighted]:
    """Return the regularisers whose weight is not 0."""
    for name, (weight, _) in terms.items():
        if not 0 <= weight < math.inf:
            raise ValueError(
                f"the weight of the regulariser {name} is a finite number of 0 or more, got "
                f"{weight}"
            )
    return [(name, weight, term) for name, (weight, term) in terms.items() if weight]


def _pairing(centroid: str, views: int) -> tuple[Pairing, float]:
    """Return the pairs, and the factor that makes every form but "all" BYOL's sum at V=2."""
    forms = {
        "halves": (halves, 2.0),
        "leave-one-out": (leave_one_out, 2.0),
        "all": (everything, 1.0),
    }
    pairs, scale = _pick({**forms, "repeat": (repeated, 2.0)}, centroid)
    return pairs(views), scale


def _pick(choices: dict[str, T], name: str) -> T:
    if name not in choices:
        raise ValueError(f"MSBReg knows the forms {', '.join(choices)}, not {name!r}")
    return choices[name]


METHODS = {"msbreg": Method(build=msbreg, recipe=recipe, lengths=LENGTHS)}
