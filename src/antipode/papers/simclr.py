from torch import nn

from antipode.core.learner import Learner
from antipode.papers.frames import on_base


def simclr(
    backbone: nn.Module, *, tau: float = 0.1, dim: int = 128, hidden: int | None = None
) -> Learner:
    """SimCLR (Chen et al., ICML 2020, arXiv 2002.05709): loss = softplus(r - a), r over the 2N-2 views of other images.

    Head of version 1: hidden size = feature width, BN on both layers, no bias. tau .1 is ImageNet's, .5 CIFAR-10's.
    Deviations from the authors' TensorFlow code: the mean over all 2N anchors, where it adds the means of the two views
    (under LARS, which they train with, a factor on the loss changes nothing); the last BN has a shift; linear layers
    and residual branches start as torch's, where theirs start at N(0, .01^2) and at zero.
    """
    return on_base(backbone, "simclr", tau=tau, dim=dim, hidden=hidden, momentum=None, groups=None)
