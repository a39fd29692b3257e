"""JCL's linear evaluation."""

from antipode.evaluation.linear import Linear, protocol

PROTOCOLS = {
    # supplement, section 4 (ImageNet-100); weight decay is not stated: MoCo's, on which it builds.
    # On ImageNet its script has MoCo's learning rate of 30, so that `linear` is the protocol there
    "linear-jcl": protocol(
        Linear(
            about="JCL's ablations: SGD, learning rate 10, 100 epochs", rates=(10.0,), at=(60, 80)
        )
    )
}
