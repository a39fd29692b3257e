"""JCL (Cai et al., NeurIPS 2020): figures M.2a to M.2c and M.3, and section 2 of the supplement.

The settings are those of the supplement. The figures are in the main paper.
"""

from collections.abc import Iterable, Mapping
from functools import partial
from statistics import fmean
from typing import Any

from antipode.papers.jcl.analyses import KEYS
from antipode.reproduction import laws
from antipode.reproduction.intervals import interval
from antipode.reproduction.item import (
    REFERENCE_PANEL,
    Cells,
    Grid,
    Item,
    Law,
    Measure,
    Panel,
    Trial,
    Verdict,
    analysis,
    cross,
    score,
    untrained,
    vary,
)

PAPER = "JCL, supplement"
JCL = "JCL"
VANILLA = "vanilla: M' ordinary losses"
MOCO = "MoCo v2"
# Table 1 of the supplement. The recipe for ImageNet-100 has these values, ResNet-18, 100 epochs
# and a batch size of 128.
SETTINGS = {"method.keys": 5, "method.strength": 4.0, "method.tau": 0.2}
SMOKE = {"train.epochs": 2, "train.batch": 64}
SMALL = {"train.epochs": 50}
# a learning rate of .2 at batch size 256 is .1 at 128
MOCO_IN100 = {"train.epochs": 100, "train.batch": 128, "optim.network.lr": 0.2}
DIGITS = "digits, resnet10-slim, 2 epochs, batch 64; logistic regression on frozen features"
CIFAR = "CIFAR-10, ResNet-18, 50 epochs; logistic regression on frozen features"
IN100 = (
    "ImageNet-100, ResNet-18, 100 epochs, batch 128, linear evaluation; the supplement does not "
    "state the grid, so the grid is ours"
)
LINEAR = (score("linear-jcl"),)
FAST = (score("linear-fast"),)
# The supplement's text claims that JCL is better if both losses cost similar memory. With as many
# keys, the vanilla loss costs more.
COMPARED = "figure M.2a; supplement, section 2, claims it for equal memory"
UNTRAINED = (untrained("resnet18", "cifar10", "linear-fast"),)
UNTRAINED_IN100 = (untrained("resnet18", "imagenet100", "linear-jcl"),)


def _varied(
    data: str,
    name: str,
    values: Iterable[float],
    measures: tuple[Measure, ...],
    common: Mapping[str, Any],
) -> tuple[Trial, ...]:
    """Return JCL with one argument varied and the others as in table 1."""
    return cross(
        {JCL: (f"{data}.jcl", {})}, vary(name, values), measures, common={**SETTINGS, **common}
    )


def _vanilla(
    data: str, values: Iterable[int], measures: tuple[Measure, ...], common: Mapping[str, Any]
) -> Any:
    """Return the mean of M' ordinary losses, without JCL's closed form, for each M'."""
    form = {"method.form": "each", "method.tau": 0.2, **common}
    return cross({VANILLA: (f"{data}.jcl", {})}, vary("method.keys", values), measures, common=form)


def _moco(data: str, measures: tuple[Measure, ...], common: Mapping[str, Any]) -> tuple[Trial, ...]:
    """Return MoCo v2, which is both losses with a single key."""
    return (Trial(f"{data}.mocov2", common, measures, MOCO, 1),)


def _always(cells: Cells) -> Verdict:
    """Check that JCL is above the vanilla loss at the M' where it is least so."""
    curves = {row: dict(line) for row, line in laws.lines(cells, "").items()}
    ahead = {m: y - curves[VANILLA][m] for m, y in curves[JCL].items()}
    least = min(ahead, key=lambda m: ahead[m])
    ours, theirs = (("", row, least) for row in (JCL, VANILLA))
    return laws.gain(cells, better=ours, worse=theirs, among=len(ahead))


def _chosen(cells: Cells, *, at: float) -> Verdict:
    """Check that no value of an argument is better than the chosen one by more than the noise.

    Some value must be worse: an argument without effect has no best value.
    """
    others = {x: y for x, y in laws.lines(cells, "")[JCL] if x != at}
    best, worst = (("", JCL, pick(others, key=lambda x: others[x])) for pick in (max, min))
    chosen = ("", JCL, at)
    near = laws.cost(cells, few=chosen, full=best, paper=0.0)
    above = laws.gain(cells, better=chosen, worse=worst)
    margin = min(near.margin, above.margin)
    half_width = interval(cells, (chosen, worst), among=len(others))
    return Verdict(margin, f"{near.text}; {above.text}", half_width)


def _figure(
    letter: str,
    what: str,
    question: str,
    x: str,
    grids: Mapping[Any, Grid],
    laws_: tuple[Law, ...],
    trend: str = "the supplement states the settings",
) -> Item:
    """Return one panel of figure M.2."""
    return Item(
        title=f"Accuracy against {what}",
        question=question,
        source=(
            f"{PAPER}, table 1 (settings of figure M.2{letter}); the figure is in the main paper"
        ),
        trend=f"the main paper shows the numbers only in a figure; {trend}",
        panels=(Panel("", "curve", x, "top-1 accuracy (%)"), REFERENCE_PANEL),
        grids=grids,
        laws=laws_,
    )


M2A = _figure(
    "a",
    "the number of positive keys M'",
    "Is JCL better than the mean of as many ordinary losses, and than MoCo v2 with one key?",
    "M', positive keys",
    {
        "smoke": Grid(
            _varied("digits", "method.keys", (2, 5), FAST, SMOKE)
            + _vanilla("digits", (2, 5), FAST, SMOKE)
            + _moco("digits", FAST, SMOKE),
            DIGITS,
        ),
        "small": Grid(
            _varied("cifar10", "method.keys", (2, 5, 9), FAST, SMALL)
            + _vanilla("cifar10", (2, 5, 9), FAST, SMALL)
            + _moco("cifar10", FAST, SMALL)
            + UNTRAINED,
            CIFAR,
            3,
        ),
        "paper": Grid(
            _varied("imagenet100", "method.keys", (2, 3, 5, 7, 9, 11), LINEAR, {})
            + _vanilla("imagenet100", (2, 3, 5, 7, 9, 11), LINEAR, {})
            + _moco("imagenet100", LINEAR, MOCO_IN100)
            + UNTRAINED_IN100,
            IN100,
        ),
    },
    (
        Law(
            "JCL is better than the mean of as many ordinary losses, on average over M'",
            partial(laws.ahead, panel="", row=JCL, than=VANILLA),
            source=COMPARED,
            headline=True,
        ),
        Law(
            "JCL is always better than the mean of as many ordinary losses, at every M'",
            _always,
            source=COMPARED,
        ),
        Law(
            "JCL is better than MoCo v2, whose loss needs as much memory as JCL's",
            partial(laws.gain, better=("", JCL, 5), worse=("", MOCO, 1)),
            source="supplement, sections 2 and 5",
            headline=True,
        ),
    ),
    "JCL always offers better performance than the vanilla form if both cost similar memory "
    "(supplement, section 2)",
)

M2B = _figure(
    "b",
    "the strength lambda of the variance term",
    "How strongly should the variance of the positives be weighted?",
    "lambda",
    {
        "smoke": Grid(_varied("digits", "method.strength", (0.0, 4.0, 10.0), FAST, SMOKE), DIGITS),
        "small": Grid(
            _varied("cifar10", "method.strength", (0.0, 2.0, 4.0, 10.0), FAST, SMALL) + UNTRAINED,
            f"{CIFAR}; lambda = 0 is InfoNCE with the mean key",
            3,
        ),
        "paper": Grid(
            _varied(
                "imagenet100", "method.strength", (0.0, 1.0, 2.0, 4.0, 6.0, 8.0, 10.0), LINEAR, {}
            )
            + UNTRAINED_IN100,
            f"{IN100}; lambda = 0 is InfoNCE with the mean key",
        ),
    },
    (
        Law(
            "the variance term helps: lambda = 4 is better than lambda = 0",
            partial(laws.gain, better=("", JCL, 4.0), worse=("", JCL, 0.0)),
            source="supplement, equation 3 and table 1",
        ),
        Law(
            "no other lambda is better than the chosen 4, and some are worse",
            partial(_chosen, at=4.0),
            source="supplement, table 1",
        ),
    ),
)

M2C = _figure(
    "c",
    "the temperature tau",
    "Is the temperature of .2 the best one for JCL?",
    "tau",
    {
        "smoke": Grid(_varied("digits", "method.tau", (0.07, 0.2, 0.5), FAST, SMOKE), DIGITS),
        "small": Grid(
            _varied("cifar10", "method.tau", (0.07, 0.2, 0.5), FAST, SMALL) + UNTRAINED, CIFAR, 3
        ),
        "paper": Grid(
            _varied("imagenet100", "method.tau", (0.05, 0.07, 0.1, 0.2, 0.3, 0.5), LINEAR, {})
            + UNTRAINED_IN100,
            IN100,
        ),
    },
    (
        Law(
            "no other temperature is better than the chosen .2, and some are worse",
            partial(_chosen, at=0.2),
            source="supplement, table 1",
        ),
    ),
)


MEANS = "means over images"
TOP = "top-1 (%)"
NINE = {"method.keys": 9, "method.strength": 4.0, "method.tau": 0.2}
# Share by which the views of an image must be closer with JCL. The paper prints no number. Two
# networks that are equal, and random vectors, differ by less than a hundredth.
CLOSER = 0.05


def _spread(
    data: str, protocol: str, jcl: Mapping[str, Any], moco: Mapping[str, Any]
) -> tuple[Trial, ...]:
    """Return JCL and MoCo v2, each evaluated, and analysed with 32 views of each image."""
    views = partial(analysis, "similarity-variance")
    measures = (
        views("histograms.similarity, backbone", panel="(a) similarity"),
        views("histograms.variance, backbone", panel="(b) variance"),
        views("values.mean similarity, backbone", panel=MEANS, column="similarity"),
        views("values.mean variance, backbone", panel=MEANS, column="variance"),
        score(protocol, panel=MEANS, column=TOP),
    )
    return cross({JCL: (f"{data}.jcl", jcl), MOCO: (f"{data}.mocov2", moco)}, {"": {}}, measures)


def _closer(cells: Cells, *, column: str, largest: float | None = None) -> Verdict:
    """Check that the views of an image are closer with JCL, in networks that have learned.

    The spread of views is the number in a column, or its distance to the `largest` value. An
    untrained or collapsed network has hardly any spread.
    """
    means = {row: fmean(cells[MEANS, row, column]) for row in (JCL, MOCO)}
    spread = means if largest is None else {row: largest - mean for row, mean in means.items()}
    text = f"mean {column}: {JCL} {means[JCL]:.4g}, {MOCO} {means[MOCO]:.4g}"
    verdict = Verdict((1 - CLOSER) * spread[MOCO] - spread[JCL], text)
    return laws.if_learned(cells, verdict, [(MEANS, row, TOP) for row in (JCL, MOCO)])


M3 = Item(
    title="Similarity and variance of the features of an image's views",
    question="Are the features of an image's views closer together with JCL than with MoCo v2?",
    source=f"{PAPER}, section 5 (how figure M.3 is made); the figure is in the main paper",
    trend=(
        "the main paper shows the numbers only in a figure; JCL's loss penalises the variance of "
        "an image's keys"
    ),
    panels=(
        Panel("(a) similarity", "histogram", "mean cosine of an image's views", "share of images"),
        Panel("(b) variance", "histogram", "mean variance of a feature", "share of images"),
        Panel(MEANS),
        REFERENCE_PANEL,
    ),
    grids={
        "smoke": Grid(
            _spread(
                "digits",
                "linear-fast",
                {**NINE, "train.epochs": 3, "train.batch": 64},
                {"train.epochs": 3, "train.batch": 64},
            ),
            "digits, resnet10-slim, 3 epochs; backbone features of 512 images",
        ),
        "small": Grid(
            _spread("cifar10", "linear-fast", {**NINE, **SMALL}, SMALL) + UNTRAINED,
            "CIFAR-10, ResNet-18, 50 epochs; backbone features",
            3,
        ),
        "paper": Grid(
            _spread("imagenet100", "linear-jcl", NINE, MOCO_IN100) + UNTRAINED_IN100,
            "ImageNet-100, ResNet-18, 100 epochs, batch 128; the paper does not state the layer, "
            "so we use backbone features",
        ),
    },
    laws=(
        Law(
            "the views of an image are more similar with JCL than with MoCo v2",
            partial(_closer, column="similarity", largest=1.0),
            source="figure M.3a; supplement, section 5",
        ),
        Law(
            "the features of an image's views vary less with JCL than with MoCo v2",
            partial(_closer, column="variance"),
            source="figure M.3b; supplement, section 5",
        ),
    ),
)


# Section 2 of the supplement

TIME = "time of the loss"
MEMORY = "memory of the loss"
MOST = KEYS[-1]  # the largest M'


def _complexity(data: str, common: Mapping[str, Any]) -> tuple[Trial, ...]:
    """Return a run of JCL, with time and memory of both forms of its loss against M'."""
    measures = tuple(
        analysis("jcl-complexity", f"curves.{what}, {form}", panel=panel, row=row)
        for what, panel in (("time", TIME), ("memory", MEMORY))
        for form, row in (("closed form", JCL), ("vanilla", VANILLA))
    )
    return (Trial(f"{data}.jcl", {**SETTINGS, **common}, measures),)


def _grows_less(cells: Cells, *, panel: str, least: float) -> Verdict:
    """Check that the vanilla loss grows with M' and the closed form by less than a tenth of that.

    From the smallest to the largest M', the vanilla loss must grow by `least` times its first
    value.
    """
    curves = laws.lines(cells, panel)
    growth = {row: curves[row][-1][1] / curves[row][0][1] - 1 for row in (JCL, VANILLA)}
    text = ", ".join(f"{row} {1 + share:.3g} times" for row, share in growth.items())
    margin = min(0.1 * growth[VANILLA] - growth[JCL], growth[VANILLA] - least)
    return Verdict(margin, f"from M' = {curves[JCL][0][0]:g} to {curves[JCL][-1][0]:g}: {text}")


def _saves(cells: Cells) -> Verdict:
    """Check that the vanilla loss needs M' times the memory of the closed form, at the largest M'.

    At least half of the relative difference must be found.
    """
    most, _ = laws.lines(cells, MEMORY)[VANILLA][-1]
    places = {row: (MEMORY, row, most) for row in (VANILLA, JCL)}
    return laws.ratio(cells, larger=places[VANILLA], smaller=places[JCL], paper=most)


COMPLEXITY = Item(
    title="Time and memory of JCL's closed form and of M' ordinary losses",
    question="Does JCL use many keys without the time and memory of as many losses?",
    source=f"{PAPER}, section 2",
    trend=(
        "the vanilla form has a batch that is M times larger; that of JCL stays the same, with "
        "fewer multiplications of queries and keys"
    ),
    panels=(
        Panel(TIME, "curve", "M', positive keys", "forward and backward pass (ms)"),
        Panel(MEMORY, "curve", "M', positive keys", "kept for the backward pass (MiB)"),
    ),
    grids={
        "smoke": Grid(_complexity("digits", SMOKE), "digits, batch 64, the loss alone"),
        "small": Grid(
            _complexity("cifar10", SMALL),
            "CIFAR-10, batch 256, a queue of 4,096; the loss alone",
            3,
        ),
        "paper": Grid(
            _complexity("imagenet100", {}),
            "ImageNet-100, batch 128, a queue of 65,536; the loss alone",
        ),
    },
    laws=(
        Law(
            "with M' keys the vanilla loss needs M' times the memory of JCL's",
            _saves,
            source="supplement, section 2",
            paper="a batch that is M times larger",
        ),
        Law(
            "the memory of the vanilla loss grows with M', and that of JCL's does not",
            partial(_grows_less, panel=MEMORY, least=laws.HALF * (MOST - 1)),
            source="supplement, section 2",
            paper="a batch that is M times larger",
        ),
        Law(
            "the time of the vanilla loss grows with M', and that of JCL's does not",
            partial(_grows_less, panel=TIME, least=1.0),
            source="supplement, section 2",
        ),
    ),
)

ITEMS = {
    "jcl.figM2a": M2A,
    "jcl.figM2b": M2B,
    "jcl.figM2c": M2C,
    "jcl.figM3": M3,
    "jcl.complexity": COMPLEXITY,
}
