"""Check statements of the papers on the results of an item.

Each function returns a `Verdict`. Its margin is the distance by which the statement holds, and is
negative if it does not hold. Rows and columns are in the order of the grid.

Two rules turn a number of a paper into a statement about other data:

- A gain that a paper reports is reproduced if at least half of it is found (`gain`, `steadier`).
- If a paper reports that something costs `paper` points or changes accuracy by `paper` points, up
  to `SLACK` points more are accepted (`cost`, `alike`).

A statement about accuracies also needs networks that have learned: each accuracy must exceed that
of an untrained network by `LEARNED` points. Otherwise equal networks that learned nothing would
satisfy statements such as "fewer negatives cost little".
"""

from collections.abc import Iterable
from itertools import pairwise
from statistics import fmean

from antipode.reproduction.intervals import interval, over_seeds, seed_means
from antipode.reproduction.item import REFERENCE, Cells, Place, Verdict

Line = list[tuple[float, float]]  # x, mean over seeds

HALF = 0.5  # share of a reported gain that must be found
# Points of accuracy. Two runs that differ only in their seeds differ by less than this in 95 % of
# cases: 1.96 x sqrt(2) x intervals.NOISE = .83.
SLACK = 1.0
LEARNED = 10.0  # points above an untrained network


def gain(
    cells: Cells,
    *,
    better: Place,
    worse: Place,
    paper: float = 0.0,
    learned: bool = True,
    among: int = 1,
) -> Verdict:
    """Check that one number exceeds another by at least half of the paper's difference.

    With `learned`, the better number must be that of a network that has learned. `among` is the
    number of comparisons of which this one is the worst.
    """
    a, b = _mean(cells, better), _mean(cells, worse)
    text = f"{_name(better)} {a:.2f}, {_name(worse)} {b:.2f}: a difference of {a - b:.2f}"
    verdict = _worst(cells, a - b - HALF * paper, text, (better, worse), among)
    return if_learned(cells, verdict, [better]) if learned else verdict


def cost(cells: Cells, *, few: Place, full: Place, paper: float, among: int = 1) -> Verdict:
    """Check that accuracy falls from `full` to `few` by at most `paper` + `SLACK` points.

    `among` is the number of comparisons of which this one is the worst.
    """
    a, b = _mean(cells, few), _mean(cells, full)
    text = f"{_name(full)} {b:.2f}, {_name(few)} {a:.2f}: a loss of {b - a:.2f}"
    verdict = _worst(cells, paper + SLACK - (b - a), text, (few, full), among)
    return if_learned(cells, verdict, [few, full])


def steadier(
    cells: Cells,
    *,
    panel: str,
    row: str,
    than: str,
    few: float,
    full: float | tuple[float, ...],
    paper: tuple[float, float] = (0.0, 0.0),
) -> Verdict:
    """Check that a row loses less accuracy than another one from column `full` to column `few`.

    If `full` has several columns, the loss of each row is that from its best one. `paper` has the
    losses of both rows in the paper. At least half of their difference must be found, and at `few`
    the row must be above the other one.
    """
    start = {name: _best(cells, panel, name, full) for name in (row, than)}
    places = {name: ((panel, name, start[name]), (panel, name, few)) for name in (row, than)}
    numbers = {name: [_mean(cells, place) for place in pair] for name, pair in places.items()}
    lost = {name: before - after for name, (before, after) in numbers.items()}
    text = ", ".join(
        f"{name} {numbers[name][0]:.2f} at {start[name]:g} and {numbers[name][1]:.2f} at {few:g} "
        f"(a loss of {lost[name]:.2f})"
        for name in (row, than)
    )
    less = lost[than] - lost[row] - HALF * (paper[1] - paper[0])
    above = numbers[row][1] - numbers[than][1]
    starts = [pair[0] for pair in places.values()]
    # EqCo's curves with and without a margin end in one run, which cancels in the difference
    shared = cells[starts[0]] == cells[starts[1]]
    used = [pair[1] for pair in places.values()] + ([] if shared else starts)
    # the best of several columns is above its true accuracy, so selecting it may help either way
    among = len(full) if isinstance(full, tuple) else 1
    verdict = Verdict(min(less, above), text, interval(cells, used, among))
    return if_learned(cells, verdict, places[row])


def alike(cells: Cells, *, places: Iterable[Place], paper: float) -> Verdict:
    """Check that accuracies differ by at most `paper` + `SLACK` points."""
    used = list(places)
    means = {_name(place): _mean(cells, place) for place in used}
    text = f"{_values(means)}: a range of {width(means):.2f}"
    ordered = sorted(used, key=lambda place: _mean(cells, place))
    extremes = ordered[0], ordered[-1]
    pairs = len(used) * (len(used) - 1) // 2
    verdict = _worst(cells, paper + SLACK - width(means), text, extremes, pairs)
    return if_learned(cells, verdict, used)


def best(cells: Cells, *, at: Place, others: Iterable[Place], paper: float = 0.0) -> Verdict:
    """Check that the number at a place is larger than all others.

    `paper` is the difference to the second best in the paper, of which half must be found.
    """
    means = {place: _mean(cells, place) for place in others}
    rival = max(means, key=lambda place: means[place])
    top = _mean(cells, at)
    text = f"{_name(at)} {top:.2f}, the best other: {_name(rival)} {means[rival]:.2f}"
    verdict = _worst(cells, top - means[rival] - HALF * paper, text, (at, rival), len(means))
    return if_learned(cells, verdict, [at])


def ahead(
    cells: Cells, *, panel: str, row: str, than: str, part: float = 1.0, paper: float = 0.0
) -> Verdict:
    """Check that the mean of a curve is above that of another one by half of `paper` or more.

    `part` is the share of the points, from the first one on, that are compared.
    """
    curves = lines(cells, panel)
    used = {name: curves[name][: max(1, round(part * len(curves[name])))] for name in (row, than)}
    means = {name: fmean(y for _, y in line) for name, line in used.items()}
    text = f"{panel}, mean of {len(used[row])} points: {_values(means)}".lstrip(", ")
    # the points of a curve over epochs are of one run, so their errors are not independent
    of_seeds: Cells = {
        (panel, name, ""): seed_means(cells[panel, name, x] for x, _ in line)
        for name, line in used.items()
    }
    half_width = interval(of_seeds, of_seeds)
    verdict = Verdict(means[row] - means[than] - HALF * paper, text, half_width)
    return if_learned(cells, verdict, [(panel, row, used[row][-1][0])])


def ratio(cells: Cells, *, larger: Place, smaller: Place, paper: float) -> Verdict:
    """Check that one number exceeds another by at least half of the paper's relative difference.

    `paper` is the ratio of the two numbers in the paper.
    """
    a, b = _mean(cells, larger), _mean(cells, smaller)
    text = f"{_name(larger)} {a:.4g}, {_name(smaller)} {b:.4g}: a ratio of {a / b:.3f}"

    def margin(some: Cells) -> float:
        return _mean(some, larger) / _mean(some, smaller) - (1 + HALF * (paper - 1))

    used = {place: cells[place] for place in (larger, smaller)}
    return Verdict(margin(cells), text, over_seeds(margin, used))


# Curves of analyses


def ends_rise(cells: Cells, *, panel: str, by: float) -> Verdict:
    """Check that each curve of a panel ends higher than the one in the row before.

    The last curve must end higher than the first one by at least `by`.
    """
    last = ends(cells, panel)
    values = [*last.values()]
    steps = [b - a for a, b in pairwise(values)]
    return Verdict(min(*steps, values[-1] - values[0] - by), f"{panel}: {_values(last)}")


def ends_coincide(cells: Cells, *, panel: str, against: str, share: float, least: float) -> Verdict:
    """Check that the ends of a panel's curves span less than a share of the range of another's.

    The range of the other panel must be at least `least`.
    """
    inner, outer = ends(cells, panel), ends(cells, against)
    text = (
        f"{panel}: {_values(inner)}, a range of {width(inner):.3g}; "
        f"{against}: a range of {width(outer):.3g}"
    )
    return Verdict(min(share * width(outer) - width(inner), width(outer) - least), text)


def rises(cells: Cells, *, panel: str, row: str, by: float, slack: float = 0.0) -> Verdict:
    """Check that a curve never falls by more than `slack` in a step, and rises by at least `by`."""
    line = lines(cells, panel)[row]
    steps = [b[1] - a[1] + slack for a, b in pairwise(line)]
    return Verdict(min(*steps, line[-1][1] - line[0][1] - by), f"{row}: {_points(line)}")


def falls(cells: Cells, *, panel: str, row: str, by: float, slack: float = 0.0) -> Verdict:
    """Check that a curve never rises by more than `slack` in a step, and falls by at least `by`."""
    line = lines(cells, panel)[row]
    steps = [a[1] - b[1] + slack for a, b in pairwise(line)]
    return Verdict(min(*steps, line[0][1] - line[-1][1] - by), f"{row}: {_points(line)}")


def below(cells: Cells, *, panel: str, row: str, x: float, limit: float) -> Verdict:
    """Check that a curve is below a limit at x."""
    y = dict(lines(cells, panel)[row])[x]
    return Verdict(limit - y, f"{row}: {y:.4g} at {x:g}, the limit is {limit:g}")


def nears(
    cells: Cells, *, panel: str, row: str, limit: float, share: float, start: float
) -> Verdict:
    """Check that a curve's last distance to a limit is less than `share` of its first distance.

    The first distance must be at least `start`.
    """
    line = lines(cells, panel)[row]
    (first_x, first_y), (last_x, last_y) = line[0], line[-1]
    first, last = abs(limit - first_y), abs(limit - last_y)
    text = (
        f"{row}: distance to {limit:g} is {first:.3g} at {first_x:g} and {last:.3g} at {last_x:g}"
    )
    return Verdict(min(share * first - last, first - start), text)


def narrower(
    cells: Cells, *, panel: str, than: str, rows: str, start: float, share: float, least: float
) -> Verdict:
    """Check that the curves of a panel cover less than a share of the range of another panel's.

    Rows whose names begin with `rows` are compared, each with the same row of panel `than`, from
    x = `start` on. The curves of `than` must cover at least `least` of their largest value.
    """
    inner, outer = _ranges(cells, panel, start), _ranges(cells, than, start)
    pairs = {row: (inner[row], outer[row]) for row in inner if row.startswith(rows)}
    # all gradients of a collapsed network may be 0
    tops = {row: max(1e-12, *(y for _, y in line)) for row, line in lines(cells, than).items()}
    text = ", ".join(f"{row}: {a:.3g} {panel}, {b:.3g} {than}" for row, (a, b) in pairs.items())
    margins = [
        min(share * b - a, b - least * tops[row]) / tops[row] for row, (a, b) in pairs.items()
    ]
    return Verdict(min(margins), text)


# Parts


def lines(cells: Cells, panel: str) -> dict[str, Line]:
    """Return the curves of a panel by row, each sorted by x."""
    curves: dict[str, Line] = {}
    for (cell_panel, row, column), values in cells.items():
        if cell_panel == panel and not isinstance(column, str):
            curves.setdefault(row, []).append((column, fmean(values)))
    return {row: sorted(line) for row, line in curves.items()}


def ends(cells: Cells, panel: str) -> dict[str, float]:
    """Return the last value of every curve of a panel."""
    return {row: line[-1][1] for row, line in lines(cells, panel).items()}


def width(values: dict[str, float]) -> float:
    """Return the difference between the largest and the smallest value."""
    return max(values.values()) - min(values.values())


def if_learned(cells: Cells, verdict: Verdict, places: Iterable[Place]) -> Verdict:
    """Return the verdict, or one that does not hold if a network has learned nothing.

    If it is uncertain whether a network has learned, the verdict is undecided.
    """
    above = {place: _mean(cells, place) - _untrained(cells, place) for place in places}
    lowest = min(above, key=lambda place: above[place])
    missing = above[lowest] - LEARNED
    if missing > verdict.interval:
        return verdict
    text = (
        f"{verdict.text}; {_name(lowest)} is {above[lowest]:.2f} points above an untrained network "
        f"({_untrained(cells, lowest):.2f}), where {LEARNED:g} are needed"
    )
    return Verdict(min(missing, verdict.margin), text, verdict.interval)


def _worst(
    cells: Cells, margin: float, text: str, places: tuple[Place, Place], among: int
) -> Verdict:
    """Return the verdict on the worst of `among` comparisons.

    If the worst one holds, all hold. But the worst of several fails by chance more often than a
    single one, so they share the probability of this error.
    """
    return Verdict(margin, text, interval(cells, places, among if margin < 0 else 1))


def _untrained(cells: Cells, place: Place) -> float:
    """Return the accuracy of an untrained network that a number is compared with.

    It is the largest of all. If columns of the untrained network are named after data sets, and the
    panel or row of the place has one of these names, it is the largest of that column.
    """
    means = {other: fmean(values) for other, values in cells.items() if other[0] == REFERENCE}
    words = f"{place[0]} {place[1]}".split()
    own = [mean for other, mean in means.items() if other[2] in words]
    return max(own or means.values())


def _mean(cells: Cells, place: Place) -> float:
    return fmean(cells[place])


def _best(cells: Cells, panel: str, row: str, columns: float | tuple[float, ...]) -> float:
    """Return the one of some columns with the largest number of a row."""
    some = columns if isinstance(columns, tuple) else (columns,)
    return max(some, key=lambda column: _mean(cells, (panel, row, column)))


def _ranges(cells: Cells, panel: str, start: float) -> dict[str, float]:
    """Return the range of every curve of a panel from x = `start` on."""
    curves = {row: [y for x, y in line if x >= start] for row, line in lines(cells, panel).items()}
    return {row: max(ys) - min(ys) for row, ys in curves.items()}


def _name(place: Place) -> str:
    return " / ".join(str(part) for part in place if part != "")


def _values(values: dict[str, float]) -> str:
    return ", ".join(f"{name} {value:.4g}" for name, value in values.items())


def _points(line: Line) -> str:
    return ", ".join(f"{y:.4g} at {x:g}" for x, y in line)
