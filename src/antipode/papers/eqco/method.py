from torch import nn

from antipode.core.learner import Encoder, Learner
from antipode.core.loss import eqco as margin
from antipode.core.negatives import InBatch
from antipode.core.objective import Contrast
from antipode.core.pairing import one_way
from antipode.core.twin import Ema, constant
from antipode.nets.backbone import width, zero_residuals
from antipode.nets.heads import mlp
from antipode.nets.norm import convert
from antipode.papers.frames import Base, on_base


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
    """EqCo (Zhu et al. 2020, arXiv 2010.01929): loss = softplus(r - a + log(alpha/K)).

    K negatives per query act like alpha of them. On MoCo v1 and v2 alpha is 65,536 and `negatives` (256) the size of
    the queue; below the batch size it holds K random keys of the previous batch (section 2.3). On SimCLR alpha is 256
    and each query draws its own K of the 2(N-1) views of other images, all of them by default. tau and the rest are
    the base's own. K counts the negatives really used. Unknown: whether the paper's SimCLR pool has one view or both.
    """
    on_batch = base == "simclr"
    alpha = alpha if alpha is not None else (256 if on_batch else 65536)
    return on_base(
        backbone,
        base,
        margin=margin(alpha),
        tau=tau,
        dim=dim,
        hidden=hidden,
        negatives=negatives if on_batch else None,
        queue=None if on_batch else (256 if negatives is None else negatives),
        draw=not on_batch,
        momentum=momentum,
        groups=groups,
    )


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
    """SiMo (Zhu et al. 2020, arXiv 2010.01929): MoCo v2 without a queue, EqCo's margin on the batch's own keys.

    loss = softplus(r - a + log(alpha/K)), r over `negatives` of the other N-1 keys of the batch; all by default, which
    the paper calls K = 256 at N = 256. Fewer are one draw for all queries, as released, or with shared=False one for
    each: the paper allows both (remark 2). Batch norm over the whole batch in both encoders (groups=1), and after each
    layer of the head; groups > 1 with shuffled keys is the paper's table 4. momentum=0 is its table 3. The released
    code has the factor alpha/K commented out; here it acts.
    """
    zero_residuals(backbone)
    size = width(backbone)
    sizes = [size, size if hidden is None else hidden, dim]
    head = mlp(sizes, norm="batch", last_norm=True, hidden_bias=False, last_bias=False, std=0.01)
    online = convert(Encoder(backbone, head), groups)
    return Learner(
        online=online,
        twin=Ema(online, constant(momentum), shuffle=groups > 1),
        pairing=one_way(),
        objective=Contrast(
            InBatch("pair", subset=negatives, shared=shared), tau=tau, margin=margin(alpha)
        ),
    )
