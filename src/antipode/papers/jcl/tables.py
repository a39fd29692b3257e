"""JCL (Cai et al., NeurIPS 2020): figures M.2a to M.2c and M.3.

The settings are those of the supplement. The figures are in the main paper.
"""

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

from antipode.reproduction import laws
from antipode.reproduction.item import (
    EMPIRICAL,
    Grid,
    Item,
    Law,
    Measure,
    Panel,
    Trial,
    analysis,
    cross,
    score,
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
SMALL = {"train.epochs": 100}
DIGITS = "digits, resnet10-slim, 2 epochs, batch 64; logistic regression on frozen features"
CIFAR = "CIFAR-10, ResNet-18, 100 epochs; logistic regression on frozen features"
IN100 = (
    "ImageNet-100, ResNet-18, 100 epochs, batch 128, linear evaluation; the supplement does not "
    "state the grid, so the grid is ours"
)
LINEAR = (score("linear-jcl"),)
FAST = (score("linear-fast"),)


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


def _figure(
    letter: str,
    what: str,
    question: str,
    x: str,
    grids: Mapping[Any, Grid],
    laws_: tuple[Law, ...] = (),
) -> Item:
    """Return one panel of figure M.2."""
    return Item(
        title=f"Accuracy against {what}",
        question=question,
        source=(
            f"{PAPER}, table 1 (settings of figure M.2{letter}); the figure is in the main paper"
        ),
        trend=(
            "the main paper shows the numbers only in a figure; the supplement states the settings"
        ),
        panels=(Panel("", "curve", x, "top-1 accuracy (%)"),),
        grids=grids,
        laws=laws_,
    )


M2A = _figure(
    "a",
    "the number of positive keys M'",
    "Do more keys help JCL, and is JCL better than the mean of as many ordinary losses?",
    "M', positive keys",
    {
        "smoke": Grid(
            _varied("digits", "method.keys", (2, 5), FAST, SMOKE)
            + _vanilla("digits", (2, 5), FAST, SMOKE),
            DIGITS,
        ),
        "small": Grid(
            _varied("cifar10", "method.keys", (2, 5, 9), FAST, SMALL)
            + _vanilla("cifar10", (2, 5, 9), FAST, SMALL),
            CIFAR,
            3,
        ),
        "paper": Grid(
            _varied("imagenet100", "method.keys", (2, 3, 5, 7, 9, 11), LINEAR, {})
            + _vanilla("imagenet100", (2, 3, 5, 7, 9, 11), LINEAR, {}),
            IN100,
        ),
    },
    (
        Law(
            "JCL is better than the mean of as many ordinary losses (supplement, section 2), on "
            "average over the first half of the values of M'",
            partial(laws.ahead, panel="", row=JCL, than=VANILLA),
            EMPIRICAL,
        ),
    ),
)

M2B = _figure(
    "b",
    "the strength lambda of the variance term",
    "How strongly should the variance of the positives be weighted?",
    "lambda",
    {
        "smoke": Grid(_varied("digits", "method.strength", (0.0, 4.0, 10.0), FAST, SMOKE), DIGITS),
        "small": Grid(
            _varied("cifar10", "method.strength", (0.0, 2.0, 4.0, 10.0), FAST, SMALL), CIFAR, 3
        ),
        "paper": Grid(
            _varied(
                "imagenet100", "method.strength", (0.0, 1.0, 2.0, 4.0, 6.0, 8.0, 10.0), LINEAR, {}
            ),
            f"{IN100}; lambda = 0 is InfoNCE with the mean key",
        ),
    },
)

M2C = _figure(
    "c",
    "the temperature tau",
    "How sensitive is JCL to its temperature?",
    "tau",
    {
        "smoke": Grid(_varied("digits", "method.tau", (0.07, 0.2, 0.5), FAST, SMOKE), DIGITS),
        "small": Grid(_varied("cifar10", "method.tau", (0.07, 0.2, 0.5), FAST, SMALL), CIFAR, 3),
        "paper": Grid(
            _varied("imagenet100", "method.tau", (0.05, 0.07, 0.1, 0.2, 0.3, 0.5), LINEAR, {}),
            IN100,
        ),
    },
)


def _spread(data: str, jcl: Mapping[str, Any], moco: Mapping[str, Any]) -> tuple[Trial, ...]:
    """Return JCL and MoCo v2, each analysed with 32 views of each image."""
    measures = (
        analysis("similarity-variance", "histograms.similarity, backbone", panel="(a) similarity"),
        analysis("similarity-variance", "histograms.variance, backbone", panel="(b) variance"),
        analysis(
            "similarity-variance",
            "values.mean similarity, backbone",
            panel=MEANS,
            column="similarity",
        ),
        analysis(
            "similarity-variance", "values.mean variance, backbone", panel=MEANS, column="variance"
        ),
    )
    return cross({JCL: (f"{data}.jcl", jcl), MOCO: (f"{data}.mocov2", moco)}, {"": {}}, measures)


MEANS = "means over images"
NINE = {"method.keys": 9, "method.strength": 4.0, "method.tau": 0.2}
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
    ),
    grids={
        "smoke": Grid(
            _spread(
                "digits",
                {**NINE, "train.epochs": 3, "train.batch": 64},
                {"train.epochs": 3, "train.batch": 64},
            ),
            "digits, resnet10-slim, 3 epochs; backbone features of 512 images",
        ),
        "small": Grid(
            _spread("cifar10", {**NINE, **SMALL}, SMALL),
            "CIFAR-10, ResNet-18, 100 epochs; backbone features",
            3,
        ),
        "paper": Grid(
            _spread(
                "imagenet100",
                NINE,
                {"train.epochs": 100, "train.batch": 128, "optim.network.lr": 0.2},
            ),  # a learning rate of .2 at batch size 256 is .1 at 128
            "ImageNet-100, ResNet-18, 100 epochs, batch 128; the paper does not state the layer, "
            "so we use backbone features",
        ),
    },
    laws=(
        Law(
            "the views of an image are more similar with JCL than with MoCo v2",
            partial(
                laws.beats, better=(MEANS, JCL, "similarity"), worse=(MEANS, MOCO, "similarity")
            ),
            EMPIRICAL,
        ),
    ),
)

ITEMS = {"jcl.figM2a": M2A, "jcl.figM2b": M2B, "jcl.figM2c": M2C, "jcl.figM3": M3}
