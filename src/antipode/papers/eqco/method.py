"""EqCo and SiMo (Zhu et al. 2020)."""

from torch import nn

from antipode.core.learner import Encoder, Learner
from antipode.core.loss import eqco as margin
from antipode.core.negatives import InBatch, Queue
from antipode.core.objective import Contrast
from antipode.core.pairing import one_way
from antipode.core.twin import Ema, constant
from antipode.nets.backbone import width, zero_residuals
from antipode.nets.heads import mlp
from antipode.nets.norm import convert
from antipode.papers import Method
from antipode.papers.eqco.recipe import eqco_recipe, simo_recipe
from antipode.papers.frameworks import Base, contrast, on_framework, takes


def eqco(
    backbone: nn.Module,
    *,
    base: Base = "mocov2",
    negatives: int | None = None,
    alpha: float | None = None,
    tau: float | None = None,
    momentum: float | None = None,
    dim: int = 128,
    hidden: int | None = None,
    groups: int | None = None,
) -> Learner:
    """EqCo (Zhu et al. 2020, arXiv 2010.01929): K negatives per query act like alpha of them.

    loss = softplus(r - a + log(alpha/K)), where K counts the negatives really used. On MoCo v1 and
    v2 alpha is 65,536 and `negatives` (256) is the size of the queue; below the batch size the
    queue holds K random keys of the previous batch (section 2.3). On SimCLR alpha is 256, and each
    query draws its own K of the 2(N-1) views of other images, all of them by default. The
    temperature and the rest are the base's. Unknown: whether the paper's pool on SimCLR holds one
    view of an image or both.
    """
    learner = on_framework(
        base,
        backbone,
        tau=tau,
        dim=dim,
        hidden=hidden,
        momentum=momentum,
        groups=groups,
        # on MoCo the queue holds the negatives; SimCLR has none, and draws them from the batch
        **{"queue": 256 if negatives is None else negatives} if takes(base, "queue") else {},
    )
    objective = contrast(learner)
    [part] = objective.negatives
    if isinstance(part, Queue):
        part.draw = True
        rule = margin(65536 if alpha is None else alpha)
        return learner.replace(objective=objective.replace(margin=rule))
    pool = InBatch("all", subset=negatives, shared=False)
    rule = margin(256 if alpha is None else alpha)
    return learner.replace(objective=Contrast(pool, tau=objective.tau, margin=rule))


def simo(
    backbone: nn.Module,
    *,
    negatives: int | None = None,
    shared: bool = True,
    alpha: float = 256,
    tau: float = 0.2,
    momentum: float = 0.999,
    dim: int = 128,
    hidden: int | None = None,
    groups: int = 1,
) -> Learner:
    """SiMo (Zhu et al. 2020, arXiv 2010.01929): MoCo v2 without a queue, with EqCo's margin.

    loss = softplus(r - a + log(alpha/K)), where r runs over `negatives` of the other N-1 keys of
    the batch. The default is all of them, which the paper calls K = 256 at N = 256. Fewer are drawn
    once for all queries, as in the release, or with shared=False for each query; the paper allows
    both (remark 2). Batch norm runs over the whole batch in both encoders (groups=1) and follows
    each layer of the head; groups > 1 with shuffled keys is the paper's table 4. momentum=0 is its
    table 3. The released code has the factor alpha/K commented out; here it acts.
    """
    zero_residuals(backbone)
    features = width(backbone)
    sizes = [features, features if hidden is None else hidden, dim]
    head = mlp(sizes, norm="batch", last_norm=True, hidden_bias=False, last_bias=False, std=0.01)
    online = convert(Encoder(backbone, head), groups)
    pool = InBatch("pair", subset=negatives, shared=shared)
    return Learner(
        online=online,
        twin=Ema(online, constant(momentum), shuffle=groups > 1),
        pairing=one_way(),
        objective=Contrast(pool, tau=tau, margin=margin(alpha)),
    )


METHODS = {
    "eqco": Method(build=eqco, recipe=eqco_recipe),
    "simo": Method(build=simo, recipe=simo_recipe),
}
