"""Check EqCo's claims about accuracy against the number of negatives K.

The functions read the values of K from the cells, because they differ between scales. In figures 2
and 3 the largest K is the one that EqCo imitates.
"""

from antipode.reproduction import laws
from antipode.reproduction.item import Cells, Verdict

WITH = "with EqCo"
WITHOUT = "without EqCo"
# Losses with and without EqCo where the paper calls the second one significant and prints no
# number. Half of their difference must be found. This is `SLACK`, more than the seed changes.
SIGNIFICANT = (0.0, 2 * laws.SLACK)


def keeps_more(
    cells: Cells,
    *,
    panel: str = "",
    few: float | None = None,
    paper: tuple[float, float] = SIGNIFICANT,
) -> Verdict:
    """Check that accuracy falls less with EqCo than without, from the largest K to `few`.

    By default `few` is the smallest K. `paper` has the losses with and without EqCo.
    """
    counts = _counts(cells, panel)
    least = counts[0] if few is None else few
    return laws.steadier(
        cells, panel=panel, row=WITH, than=WITHOUT, few=least, full=counts[-1], paper=paper
    )


def steady(
    cells: Cells, *, panel: str = "", row: str = WITH, start: float = 0.0, paper: float
) -> Verdict:
    """Check that the accuracies of a row are alike in all columns from `start` on."""
    counts = [count for count in _counts(cells, panel, row) if count >= start]
    return laws.alike(cells, places=[(panel, row, count) for count in counts], paper=paper)


def costs_little(cells: Cells, *, panel: str = "", paper: float = 0.0) -> Verdict:
    """Check that accuracy with EqCo falls by at most `paper` + `SLACK` points at the smallest K."""
    counts = _counts(cells, panel)
    few, full = ((panel, WITH, counts[place]) for place in (0, -1))
    return laws.cost(cells, few=few, full=full, paper=paper)


def degrades(cells: Cells, *, panel: str) -> Verdict:
    """Check that accuracy with EqCo is significantly lower at the smallest K than at the largest.

    Significant means a difference of more than `SLACK`.
    """
    counts = _counts(cells, panel)
    best, worst = ((panel, WITH, counts[place]) for place in (-1, 0))
    return laws.gain(cells, better=best, worse=worst, paper=SIGNIFICANT[1])


def _counts(cells: Cells, panel: str, row: str = WITH) -> list[float]:
    """Return the columns of a row in ascending order: the numbers of negatives."""
    return [count for count, _ in laws.lines(cells, panel)[row]]
