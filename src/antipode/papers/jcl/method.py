from typing import Literal

from torch import nn

from antipode.core.learner import Learner
from antipode.core.loss import Gaussian, average
from antipode.core.negatives import Queue
from antipode.core.objective import Contrast
from antipode.core.pairing import each_key, many_keys
from antipode.papers.frames import moco_frame, moco_head


def jcl(
    backbone: nn.Module,
    *,
    keys: int = 5,
    strength: float | None = None,
    ramp: int | None = None,
    form: Literal["gaussian", "each"] = "gaussian",
    tau: float = 0.2,
    queue: int = 65536,
    momentum: float = 0.999,
    dim: int = 128,
    hidden: int | None = None,
    groups: int = 8,
) -> Learner:
    """JCL (Cai et al., NeurIPS 2020, arXiv 2009.14776): loss = logaddexp(a + lambda/2 var, r) - a over M' keys.

    `strength` is lambda at the 1/(2 tau^2) scale, 2.0 in the released script, 4.0 in the ablations. It rises once an
    epoch to its full value: `ramp` is the number of epochs (200), 0 holds it constant. The queue takes in the mean of
    an image's keys, not renormalised; all keys of a batch pass the key encoder together. form="each" is the vanilla
    baseline of the supplement: the mean of M' ordinary losses, each with its own product with the queue, which takes in
    the first key. Disagreement: the script makes 4 keys, the paper says 5.
    """
    if form not in ("gaussian", "each"):
        raise ValueError(f"JCL's form is 'gaussian' or 'each', not {form!r}")
    if form == "each" and (strength is not None or ramp is not None):
        raise ValueError(
            "the vanilla baseline (form='each') has no variance term for strength and ramp to act on"
        )
    gaussian = Gaussian(2.0 if strength is None else strength, 200 if ramp is None else ramp)
    return moco_frame(
        backbone,
        moco_head(backbone, dim, hidden),
        Contrast(Queue(queue, dim), tau=tau, positives=gaussian if form == "gaussian" else average),
        momentum=momentum,
        groups=groups,
        pairing=many_keys(keys) if form == "gaussian" else each_key(keys),
        joint_keys=True,
    )
