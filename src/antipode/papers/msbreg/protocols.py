"""MSBReg's linear evaluations on other data sets (supplement 2.4): two drops at equal intervals."""

from antipode.evaluation.linear import Linear, protocol

PROTOCOLS = {
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
