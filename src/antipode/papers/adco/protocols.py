"""AdCo's linear evaluations (maple-research-lab/AdCo)."""

from antipode.evaluation.linear import Linear, protocol

PROTOCOLS = {
    # [adco: lincls.py at 79b9292]: per epoch from 10 to .01
    "linear-adco": protocol(
        Linear(
            about="AdCo's: SGD, learning rate 10, cosine",
            rates=(10.0,),
            schedule="cosine",
            floor=0.001,
        )
    ),
    # [adco: README --sgdr=1 --lr=5; lincls.py]: CosineAnnealingLR with T_max 12 is called with
    # epoch + i/len for all of the 100 epochs, so the rate goes up and down and ends at 3/4 of its
    # start. There it lags by one step, which is left out
    "linear-adco-places205": protocol(
        Linear(
            about="AdCo's on Places205: SGD, learning rate 5, a cosine that turns every 12 epochs",
            data="places205",
            rates=(5.0,),
            schedule="cosine",
            period=12,
            per="step",
        )
    ),
}
