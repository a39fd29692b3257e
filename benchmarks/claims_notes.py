"""What we think about single claims, for claims_page.py.

The keys are an item and the text of a claim. The values are the verdict that a note explains, and
the note. If the verdict has changed since, the note is not shown.
"""

FAILS = "does not hold"
COUPLING = (
    "The temperature decides this (`benchmarks/coupling.py`, `results/coupling.json`, one seed). "
    "The same embeddings of the trained run give a mean q_B at batch size 1,024 of .19 at a "
    "temperature of .05, .33 at .07 (that of training), .67 at .1 and .98 at .2. The length of "
    "training matters, too: at .07 the mean q_B falls from .80 after 5 epochs to .33 after 50. The "
    "mean cosine of positives meanwhile rises from .74 to .77, and that of negatives falls from "
    ".15 to 0. The paper does not state which network its figure shows. It trains with a "
    "temperature of .1 on ImageNet and of .07 on CIFAR-10. So q_B approaches 1 with the batch "
    "size, but the batch size that is needed depends on the temperature: more than 1,024 at .07, "
    "and about 256 at .2."
)

NOTES: dict[tuple[str, str], tuple[str, str]] = {
    (
        "dcl.fig1",
        "the mean of q_B approaches 1: its distance to 1 is at least .5 at the smallest batch "
        "size, and less than half of that at the largest",
    ): (FAILS, COUPLING),
    (
        "dcl.fig1",
        "q_B is below .5 for most anchors at batch size 32, and above .5 for most at 1,024",
    ): (FAILS, "The same cause as above: the temperature of .07."),
}
