"""The linear evaluations of EqCo's release (poodarchu/SelfSup), and its detector on COCO."""

from functools import partial

from antipode.evaluation.linear import Linear, protocol
from antipode.evaluation.protocol import detection
from antipode.evaluation.task import Protocol

PROTOCOLS = {
    # [selfsup: examples/simo, lin_cls config]: MoCo's with 90 epochs
    "linear-simo": protocol(
        Linear(about="SiMo's: MoCo's with 90 epochs", rates=(30.0,), epochs=90, at=(60, 80))
    ),
    # [selfsup: examples/simclr, lin_cls config]: no cosine, no Nesterov momentum, unlike SimCLR's
    # own
    "linear-eqco-simclr": protocol(
        Linear(
            about="EqCo's for SimCLR: SGD, learning rate .1, 90 epochs",
            rates=(0.1,),
            weight_decay=1e-6,
            epochs=90,
            at=(60, 80),
        )
    ),
    "detect-eqco": Protocol(
        partial(detection, settings="COCO_AS_PRINTED"),
        "Faster R-CNN FPN, fine-tuned for 12 epochs with a learning rate of .2 (EqCo's text)",
        "coco",
    ),
}
