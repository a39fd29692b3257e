"""MSBReg's linear evaluations (supplement 2.1 and 2.4)."""

from antipode.evaluation.linear import Linear, protocol

PROTOCOLS = {
    # For its own data MSBReg only cites Kolesnikov et al. (CVPR 2019). Their settings are in
    # config/evaluation of google/revisiting-self-supervised at c350d4a, "for the reported results",
    # and in trainer.py (momentum .9). They crop 224 from 256 px and do not flip; the crops here are
    # those of all linear protocols.
    "linear-msbreg": protocol(
        Linear(
            about="MSBReg's, settings of Kolesnikov et al.: SGD, .1 per 256 images, 520 epochs",
            rates=(0.1,),
            rule="linear",
            batch=2048,
            epochs=520,
            at=(480, 500),
        )
    ),
    # supplement 2.4: two drops at equal intervals
    "linear-places205": protocol(
        Linear(
            about="MSBReg's on Places205: SGD, learning rate .2, 28 epochs",
            data="places205",
            rates=(0.2,),
            weight_decay=1e-4,
            epochs=28,
            at=(9, 19),
        )
    ),
    "linear-inat18": protocol(
        Linear(
            about="MSBReg's on iNaturalist 2018: SGD, learning rate .2, 84 epochs",
            data="inat18",
            rates=(0.2,),
            weight_decay=1e-4,
            epochs=84,
            at=(28, 56),
        )
    ),
}
