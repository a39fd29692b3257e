"""DCL (Yeh et al.): figure 1, the multiplier q_B of a trained SimCLR."""

from functools import partial

from antipode.papers.dcl.grids import CIFAR, PAPER, RECORDED, SAME, SMALL, SMOKE
from antipode.reproduction import laws
from antipode.reproduction.item import (
    SCALES,
    Cells,
    Grid,
    Item,
    Law,
    Panel,
    Trial,
    Verdict,
    analysis,
)

MEAN = "mean of q_B"
VARIATION = "coefficient of variation of q_B"
MULTIPLIERS = (
    analysis("npc", "curves.mean", panel="(a)", row=MEAN),
    analysis("npc", "curves.coefficient of variation", panel="(a)", row=VARIATION),
    *(
        analysis("npc", f"histograms.batch {size}", panel="(b)", row=f"batch size {size}")
        for size in (32, 64, 128, 256, 512, 1024)
    ),
)
# Margins of figure 1. The paper prints no numbers, so the margins exclude embeddings that are
# unrelated to the image. If these are equal, or on average if they are random, q_B is 1 - 1/(2N-1)
# at batch size N: .86 at 4, .98 at 32 and .9995 at 1,024. Its coefficient of variation is at most
# .35, at 4. An untrained ResNet-18 on CIFAR-10 is close to them: .81 and .15 at 4.
HALF = 0.5
RISE = 2 / 7  # of the mean: twice that of unrelated embeddings
FALL = 0.5  # of the coefficient of variation


def weakened(cells: Cells, *, smallest: int) -> Verdict:
    """Check that the mean of q_B is less than half of that of unrelated embeddings.

    It is checked at the first batch size that is not below `smallest`.
    """
    points = [point for point in laws.lines(cells, "(a)")[MEAN] if point[0] >= smallest]
    size, mean = points[0]
    unrelated = 1 - 1 / (2 * size - 1)
    text = f"{MEAN} {mean:.3f} at batch size {size:g}; {unrelated:.3f} for unrelated embeddings"
    return Verdict(HALF * unrelated - mean, text)


def clustered(cells: Cells) -> Verdict:
    """Check that most anchors have q_B < .5 at the smallest batch size, and > .5 at the largest."""
    shares = {
        row: sum(y for x, y in line if x < 0.5) for row, line in laws.lines(cells, "(b)").items()
    }
    few, many = shares["batch size 32"], shares["batch size 1024"]
    text = f"share of anchors with q_B < .5: {few:.3f} at 32, {many:.3f} at 1024"
    return Verdict(min(few - 0.5, 0.5 - many), text)


FIG1 = Item(
    title="The negative-positive-coupling multiplier q_B",
    question="How much does a small batch weaken SimCLR's gradient?",
    source=f"{PAPER}, figure 1",
    trend=(
        "as the batch grows, q_B approaches 1 with a small coefficient of variation; small batches "
        "push q_B towards 0"
    ),
    panels=(
        Panel("(a)", "curve", "batch size", "q_B of a trained SimCLR", log=True),
        Panel("(b)", "histogram", "q_B", "share of anchors"),
    ),
    grids={
        "smoke": Grid(
            (Trial("digits.simclr", {**SMOKE, "train.epochs": 6}, MULTIPLIERS),), "digits, 6 epochs"
        ),
        "small": Grid((Trial("cifar10.simclr-paper", SMALL | RECORDED, MULTIPLIERS),), CIFAR, 3),
        "paper": Grid(
            (Trial("imagenet.simclr", SAME, MULTIPLIERS),),
            "ImageNet, ResNet-50, 200 epochs; the paper does not say which model it analysed",
        ),
    },
    laws=(
        Law(
            "at batch size 4 the mean of q_B is less than half of that of unrelated embeddings",
            partial(weakened, smallest=4),
            ("smoke",),
            source="section 3",
        ),
        Law(
            "at batch size 32 the mean of q_B is less than half of that of unrelated embeddings",
            partial(weakened, smallest=32),
            source="section 3",
        ),
        Law(
            "the mean of q_B rises with the batch size, at least twice as much as that of "
            "unrelated embeddings",
            partial(laws.rises, panel="(a)", row=MEAN, by=RISE, slack=1e-3),
            SCALES,
            source="figure 1 (a)",
        ),
        Law(
            "the mean of q_B approaches 1: its distance to 1 is at least .5 at the smallest batch "
            "size, and less than half of that at the largest",
            partial(laws.nears, panel="(a)", row=MEAN, limit=1.0, share=HALF, start=0.5),
            SCALES,
            source="figure 1 (a)",
        ),
        Law(
            "the coefficient of variation of q_B falls with the batch size, by at least .5",
            partial(laws.falls, panel="(a)", row=VARIATION, by=FALL, slack=1e-3),
            SCALES,
            source="figure 1 (a)",
        ),
        Law(
            "q_B is below .5 for most anchors at batch size 32, and above .5 for most at 1,024",
            clustered,
            source="figure 1 (b)",
        ),
    ),
)
