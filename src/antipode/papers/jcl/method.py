"""JCL (Cai et al., NeurIPS 2020)."""

from typing import Literal

from torch import nn

from antipode.core.learner import Encoder, Learner
from antipode.core.loss import Gaussian, average
from antipode.core.negatives import Queue
from antipode.core.objective import Contrast
from antipode.core.pairing import each_key, many_keys
from antipode.core.twin import Ema, constant
from antipode.nets.norm import convert
from antipode.papers import Method
from antipode.papers.jcl.recipe import LENGTHS, recipe
from antipode.papers.moco import head


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
    """JCL (Cai et al., NeurIPS 2020, arXiv 2009.14776): infinitely many positives in closed form.

    loss = logaddexp(a + lambda/2 var, r) - a over M' keys. `strength` is lambda at the 1/(2 tau^2)
    scale: the released script has 2.0, the ablations 4.0. It rises once per epoch to its full
    value; `ramp` is the number of epochs (200), and 0 keeps it constant. The queue takes in the
    mean of an image's keys, not renormalised. All keys of a batch pass through the key encoder
    together. form="each" is the vanilla baseline of the supplement: the mean of M' ordinary losses,
    each with its own product with the queue, which takes in the first key. Disagreement: the script
    makes 4 keys, the paper says 5.
    """
    if form not in ("gaussian", "each"):
        raise ValueError(f"JCL's form is 'gaussian' or 'each', not {form!r}")
    if form == "each" and (strength is not None or ramp is not None):
        raise ValueError(
            "the vanilla baseline (form='each') has no variance term for strength and ramp to act "
            "on"
        )
    closed_form = form == "gaussian"
    gaussian = Gaussian(2.0 if strength is None else strength, 200 if ramp is None else ramp)
    projection = head(backbone, dim, hidden)
    contrast = Contrast(Queue(queue, dim), tau=tau, positives=gaussian if closed_form else average)
    online = convert(Encoder(backbone, projection), groups)
    return Learner(
        online=online,
        twin=Ema(online, constant(momentum), shuffle=groups > 1, joint=True),
        pairing=many_keys(keys) if closed_form else each_key(keys),
        objective=contrast,
    )


METHODS = {"jcl": Method(build=jcl, recipe=recipe, lengths=LENGTHS)}
