"""MSBReg (Moon et al. 2022): table 3 of the supplement, alignment and uniformity."""

from collections.abc import Mapping
from functools import partial
from typing import Any

from antipode.papers.msbreg.grids import (
    ABLATION,
    ACCURACY,
    BYOL,
    CIFAR,
    DIGITS,
    FAST,
    LINEAR,
    OPTIMISER,
    OURS,
    PAPER,
    SMALL,
    SMOKE,
    above_untrained,
    arguments,
    guarded,
)
from antipode.reproduction import laws
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
    table,
    untrained,
)

ACC = "Acc.(%)"
ALIGN = "Alignment"
UNIFORM = "Uniformity"
WITH_UNIFORM = "BYOL+L_uniform"
REGULARISED = "BYOL+L_b+L_s"
GEOMETRY = (
    analysis("alignment-uniformity", "values.alignment, prediction", column=ALIGN),
    analysis("alignment-uniformity", "values.uniformity, prediction", column=UNIFORM),
)
ROWS = {
    BYOL: arguments(2, 0.0, 0.0),
    WITH_UNIFORM: arguments(2, 0.0, 0.0, uniform=0.5),
    REGULARISED: arguments(2, 0.004, 0.25),
    OURS: arguments(4, 0.004, 0.5),
}
NUMBERS = table(
    {
        BYOL: {ACC: 71.9, ALIGN: 0.25, UNIFORM: -1.52},
        WITH_UNIFORM: {ACC: 72.1, ALIGN: 0.27, UNIFORM: -2.95},
        REGULARISED: {ACC: 72.8, ALIGN: 0.26, UNIFORM: -2.92},
        OURS: {ACC: 80.4, ALIGN: 0.36, UNIFORM: -3.8},
    }
)
SOURCE = "section 4, table 3"


def _rows(recipe: str, accuracy: Measure, common: Mapping[str, Any]) -> tuple[Trial, ...]:
    """Return the rows of table 3 with accuracy, alignment and uniformity."""
    rows = {name: (recipe, values) for name, values in ROWS.items()}
    return cross(rows, {"": {}}, (accuracy._replace(column=ACC), *GEOMETRY), common=common)


def larger(cells: Cells, *, row: str, than: tuple[str, ...], column: str) -> Verdict:
    """Check that a row's alignment or uniformity exceeds that of others as it does in the paper.

    At least half of the paper's difference to the largest of the others must be found, and all of
    these networks must have learned: random, equal or collapsed embeddings show nothing.
    """
    rival = max(than, key=lambda name: sum(cells["", name, column]) / len(cells["", name, column]))
    paper = NUMBERS["", row, column] - max(NUMBERS["", name, column] for name in than)
    verdict = laws.gain(
        cells,
        better=("", row, column),
        worse=("", rival, column),
        paper=paper,
        learned=False,
        among=len(than),
    )
    if min(len(cells["", name, column]) for name in (row, rival)) == 1:
        # the spread over seeds is known for accuracies only
        verdict = verdict._replace(interval=0.0)
    learned = {name: above_untrained(cells, ("", name, ACC)) for name in (row, *than)}
    lowest = min(learned, key=lambda name: learned[name])
    words = f"{lowest} is {learned[lowest]:.2f} points above an untrained network"
    return guarded(verdict, learned[lowest] - laws.LEARNED, words)


def _accuracy(text: str, better: str, *others: str) -> Law:
    """Return the law that a row is more accurate than others."""
    numbers = [NUMBERS["", row, ACC] for row in (better, *others)]
    check = partial(
        laws.best,
        at=("", better, ACC),
        others=tuple(("", row, ACC) for row in others),
        paper=numbers[0] - max(numbers[1:]),
    )
    return Law(text, check, source=SOURCE, paper=" and ".join(map(str, numbers)))


def _more_uniform(text: str, row: str) -> Law:
    """Return the law that a row is more uniform than BYOL: its uniformity is lower."""
    check = partial(larger, row=BYOL, than=(row,), column=UNIFORM)
    numbers = [NUMBERS["", name, UNIFORM] for name in (row, BYOL)]
    return Law(text, check, source=SOURCE, paper=" and ".join(map(str, numbers)))


LAWS = (
    _accuracy("MSBReg with four views is more accurate than BYOL", OURS, BYOL),
    _accuracy(
        "MSBReg with four views is more accurate than BYOL with either kind of regulariser",
        OURS,
        WITH_UNIFORM,
        REGULARISED,
    ),
    _accuracy("the uniformity term makes BYOL more accurate", WITH_UNIFORM, BYOL),
    _accuracy("L_b and L_s together make BYOL more accurate", REGULARISED, BYOL),
    _more_uniform("the uniformity term makes the predictions of BYOL more uniform", WITH_UNIFORM),
    _more_uniform("L_b and L_s make the predictions of BYOL more uniform", REGULARISED),
    *(
        Law(
            f"the predictions of MSBReg with four views are more uniform than those of {name}",
            partial(larger, row=name, than=(OURS,), column=UNIFORM),
            source=SOURCE,
            paper=f"-3.8 and {NUMBERS['', name, UNIFORM]}",
        )
        for name in (BYOL, WITH_UNIFORM, REGULARISED)
    ),
    Law(
        "MSBReg with four views has a higher alignment loss than all others",
        partial(larger, row=OURS, than=(BYOL, WITH_UNIFORM, REGULARISED), column=ALIGN),
        source=SOURCE,
        paper="0.36 and at most 0.27",
    ),
)
TABLE3 = Item(
    title="Accuracy, and the alignment and uniformity of the predictions",
    question="Do MSBReg's regularisers spread the embeddings, and does that improve accuracy?",
    source=(
        f"{PAPER}, table 3; the paper does not say which vectors are measured, so we use the "
        "predictions, on which the regularisers act"
    ),
    trend=(
        "regularised embeddings are more uniform and more accurate; evenly spread embeddings in "
        "128 dimensions have a uniformity of -3.93"
    ),
    panels=(Panel(), REFERENCE_PANEL),
    grids={
        "smoke": Grid(
            _rows("digits.msbreg", ACCURACY["smoke"], {**SMOKE, "train.epochs": 3}),
            DIGITS.replace("2 epochs", "3 epochs"),
        ),
        "small": Grid(
            (
                *_rows("cifar10.msbreg-paper", ACCURACY["small"], SMALL),
                untrained("resnet18", "cifar10", FAST),
            ),
            f"{CIFAR}; {OPTIMISER}; the weight of L_uniform is .5",
            3,
        ),
        "paper": Grid(
            (
                *_rows("imagenet100.msbreg", ACCURACY["paper"], ABLATION),
                untrained("resnet18", "imagenet100", LINEAR),
            ),
            "ImageNet-100, ResNet-18, the linear protocol that the paper cites; 300 epochs, since "
            "three accuracies coincide with those of table 5: we take them to be the same runs; "
            "the paper does not state the weight of L_uniform, so we use .5",
        ),
    },
    paper=NUMBERS,
    laws=LAWS,
)
