"""MSBReg (Moon et al. 2022): table 5 of the supplement, the number of views and both weights."""

from collections.abc import Iterable, Mapping
from functools import partial
from itertools import product
from typing import Any

from antipode.papers.msbreg.grids import (
    ABLATION,
    ACCURACY,
    CIFAR,
    DIGITS,
    FAST,
    LINEAR,
    OPTIMISER,
    PAPER,
    SMALL,
    SMOKE,
    arguments,
)
from antipode.reproduction import laws
from antipode.reproduction.item import (
    EMPIRICAL,
    REFERENCE_PANEL,
    Grid,
    Item,
    Law,
    Measure,
    Panel,
    Place,
    Scale,
    Trial,
    untrained,
)

OWN = "our optimiser"  # name of the panel with the runs of cifar10.msbreg
SOURCE = "section 5, table 5"
SINGULAR = (0.0, 0.002, 0.004, 0.01)
BROWNIAN = (0.0, 0.25, 0.5, 1.0, 2.0)
Setting = tuple[int, float, float]  # K, lambda_s, lambda_b
# accuracies of the paper: K and lambda_s by row, lambda_b by column
GRID = {
    (2, 0.0): (71.9, 72.3, 72.8, 72.3, 71.9),
    (2, 0.002): (72.2, 72.4, 72.4, 72.1, 71.9),
    (2, 0.004): (72.8, 72.8, 72.4, 72.1, 71.2),
    (2, 0.01): (71.1, 71.0, 71.0, 70.7, 70.3),
    (4, 0.0): (78.2, 79.1, 79.7, 79.2, 79.0),
    (4, 0.002): (78.9, 78.8, 79.1, 79.2, 79.2),
    (4, 0.004): (79.7, 80.2, 80.4, 80.1, 79.9),
    (4, 0.01): (79.3, 79.4, 79.2, 79.2, 79.0),
    (8, 0.0): (79.5, 80.1, 80.3, 80.3, 80.2),
    (8, 0.002): (79.8, 80.2, 80.9, 81.1, 80.8),
    (8, 0.004): (80.0, 80.9, 81.6, 81.5, 81.3),
    (8, 0.01): (79.9, 81.2, 81.4, 81.1, 79.8),
}
NUMBERS: dict[Setting, float] = {
    (views, singular, brownian): accuracy
    for (views, singular), line in GRID.items()
    for brownian, accuracy in zip(BROWNIAN, line, strict=True)
}
OFF_OR_ON = ((0.0, 0.0), (0.004, 0.5))  # lambda_s and lambda_b without and with both regularisers


def _grid(
    views: Iterable[int], singular: Iterable[float], brownian: Iterable[float]
) -> tuple[Setting, ...]:
    """Return all combinations of K, lambda_s and lambda_b."""
    return tuple((k, s, b) for b, k, s in product(brownian, views, singular))


WHOLE = _grid((2, 4, 8), SINGULAR, BROWNIAN)
# With two and four views: each regulariser alone, both and none. With four views also a larger
# weight of each, to see whether accuracy falls beyond the best weights. With two views also the
# weights of table 3.
REDUCED: tuple[Setting, ...] = (
    *_grid((2, 4), (0.0, 0.004), (0.0, 0.5)),
    (2, 0.004, 0.25),
    (4, 0.01, 0.5),
    (4, 0.004, 2.0),
)


def _place(setting: Setting, panel: str = "") -> Place:
    """Return the place of a setting: K and lambda_s are the row, lambda_b is the column."""
    views, singular, brownian = setting
    return panel, f"K = {views}, lambda_s = {singular:g}", f"lambda_b = {brownian:g}"


def _trials(
    recipe: str,
    settings: Iterable[Setting],
    measure: Measure,
    common: Mapping[str, Any],
    panel: str = "",
) -> tuple[Trial, ...]:
    """Return a trial for each setting."""
    trials = []
    for setting in settings:
        _, row, column = _place(setting)
        overrides = {**arguments(*setting), **common}
        trials.append(Trial(recipe, overrides, (measure,), row, column, panel))
    return tuple(trials)


def _gain(
    text: str,
    better: Setting,
    worse: Setting,
    *,
    panel: str = "",
    scales: tuple[Scale, ...] = EMPIRICAL,
    headline: bool = False,
) -> Law:
    """Return the law that a setting is more accurate than another one."""
    a, b = NUMBERS[better], NUMBERS[worse]
    check = partial(
        laws.gain, better=_place(better, panel), worse=_place(worse, panel), paper=a - b
    )
    return Law(text, check, scales, source=SOURCE, paper=f"{a} and {b}", headline=headline)


def _optimum(text: str, at: Setting, others: Iterable[Setting], scales: tuple[Scale, ...]) -> Law:
    """Return the law that a setting is more accurate than all others."""
    rivals = [setting for setting in others if setting != at]
    second = max(NUMBERS[setting] for setting in rivals)
    check = partial(
        laws.best,
        at=_place(at),
        others=tuple(_place(setting) for setting in rivals),
        paper=NUMBERS[at] - second,
    )
    return Law(text, check, scales, source=SOURCE, paper=f"{NUMBERS[at]}, the next best {second}")


def _comparison(
    panel: str, ending: str, scales: tuple[Scale, ...], headline: bool
) -> tuple[Law, ...]:
    """Return the laws on two and four views, without and with regularisers."""
    gain = partial(_gain, panel=panel, scales=scales, headline=headline)
    off, on = ([(views, *weights) for views in (2, 4)] for weights in OFF_OR_ON)
    return (
        gain(f"four views are better than two without regularisers{ending}", off[1], off[0]),
        gain(f"four views are better than two with both regularisers{ending}", on[1], on[0]),
        gain(f"both regularisers improve MSBReg with four views{ending}", on[1], off[1]),
    )


def _eight() -> tuple[Law, ...]:
    """Return the laws on the whole grid, with eight views, which is trained at scale paper only."""
    scales: tuple[Scale, ...] = ("paper",)
    best = "lambda_s = .004 and lambda_b = .5 are the best weights in the whole grid"
    return (
        _gain("eight views are better than four", (8, 0.004, 0.5), (4, 0.004, 0.5), scales=scales),
        *(
            _optimum(
                f"with {name} views {best}",
                (views, 0.004, 0.5),
                _grid((views,), SINGULAR, BROWNIAN),
                scales,
            )
            for views, name in ((4, "four"), (8, "eight"))
        ),
    )


LAWS = (
    *_comparison("", "", EMPIRICAL, headline=True),
    _gain("L_s alone improves MSBReg with four views", (4, 0.004, 0.0), (4, 0.0, 0.0)),
    _gain("L_b alone improves MSBReg with four views", (4, 0.0, 0.5), (4, 0.0, 0.0)),
    _gain("L_s improves BYOL, which is MSBReg with two views", (2, 0.004, 0.0), (2, 0.0, 0.0)),
    _gain("L_b improves BYOL, which is MSBReg with two views", (2, 0.0, 0.5), (2, 0.0, 0.0)),
    _optimum(
        "with four views accuracy rises up to lambda_s = .004 and falls beyond",
        (4, 0.004, 0.5),
        _grid((4,), (0.0, 0.004, 0.01), (0.5,)),
        EMPIRICAL,
    ),
    _optimum(
        "with four views accuracy rises up to lambda_b = .5 and falls beyond",
        (4, 0.004, 0.5),
        _grid((4,), (0.004,), (0.0, 0.5, 2.0)),
        EMPIRICAL,
    ),
    *_eight(),
    *_comparison(OWN, ", with SGD and SimCLR's views", ("small",), headline=False),
)
TABLE5 = Item(
    title="The trade-off between MSBReg's losses",
    question="How do the number of views and the weights of the two regularisers interact?",
    source=f"{PAPER}, table 5",
    trend=(
        "more views help most (6 to 8 points), then both regularisers; lambda_s = .004 and "
        "lambda_b = .5 are best at K = 4 and 8"
    ),
    panels=(Panel(y="accuracy (%)"), Panel(OWN, y="accuracy (%)"), REFERENCE_PANEL),
    grids={
        "smoke": Grid(
            _trials(
                "digits.msbreg",
                _grid((2, 4), (0.0, 0.004), (0.0, 0.5)),
                ACCURACY["smoke"],
                {**SMOKE, "train.epochs": 1},
            ),
            DIGITS.replace("2 epochs", "1 epoch"),
        ),
        "small": Grid(
            (
                *_trials("cifar10.msbreg-paper", REDUCED, ACCURACY["small"], SMALL),
                *_trials(
                    "cifar10.msbreg",
                    [(views, *weights) for views in (2, 4) for weights in OFF_OR_ON],
                    ACCURACY["small"],
                    SMALL,
                    OWN,
                ),
                untrained("resnet18", "cifar10", FAST),
            ),
            f"{CIFAR}; {OPTIMISER}; the second panel has the recipe cifar10.msbreg (SGD, SimCLR's "
            "views, one learning rate for two and four views); eight views are left out",
            3,
        ),
        "paper": Grid(
            (
                *_trials("imagenet100.msbreg", WHOLE, ACCURACY["paper"], ABLATION),
                untrained("resnet18", "imagenet100", LINEAR),
            ),
            "ImageNet-100, ResNet-18, 300 epochs, the linear protocol that the paper cites",
        ),
    },
    paper={_place(setting): accuracy for setting, accuracy in NUMBERS.items()},
    laws=LAWS,
)
