"""Check statements of theory and of the papers on the results of an item.

Each function returns whether the statement holds, and a text with the numbers. Rows and columns are
in the order of the grid.
"""

from itertools import pairwise
from statistics import fmean

from antipode.reproduction.item import Cells, Place

Verdict = tuple[bool, str]
Line = list[tuple[float, float]]  # x, mean over seeds


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


def ends_rise(cells: Cells, *, panel: str) -> Verdict:
    """Check that each curve of a panel ends higher than the one in the row before."""
    last = ends(cells, panel)
    return all(a < b for a, b in pairwise(last.values())), f"{panel}: {_values(last)}"


def ends_coincide(cells: Cells, *, panel: str, against: str, share: float) -> Verdict:
    """Check that the ends of a panel's curves span less than a share of the range of another's."""
    inner = ends(cells, panel)
    outer = ends(cells, against)
    text = (
        f"{panel}: {_values(inner)}, a range of {width(inner):.3g}; "
        f"{against}: a range of {width(outer):.3g}"
    )
    return width(inner) < share * width(outer), text


def rises(cells: Cells, *, panel: str, row: str, slack: float = 0.0) -> Verdict:
    """Check that a curve never falls by more than `slack` in a step, and ends above its start."""
    line = lines(cells, panel)[row]
    steady = all(b[1] >= a[1] - slack for a, b in pairwise(line)) and line[-1][1] > line[0][1]
    return steady, f"{row}: {_points(line)}"


def falls(cells: Cells, *, panel: str, row: str, slack: float = 0.0) -> Verdict:
    """Check that a curve never rises by more than `slack` in a step, and ends below its start."""
    line = lines(cells, panel)[row]
    steady = all(b[1] <= a[1] + slack for a, b in pairwise(line)) and line[-1][1] < line[0][1]
    return steady, f"{row}: {_points(line)}"


def nears(cells: Cells, *, panel: str, row: str, limit: float, share: float) -> Verdict:
    """Check that a curve's last distance to a limit is less than `share` of its first distance."""
    line = lines(cells, panel)[row]
    (first_x, first_y), (last_x, last_y) = line[0], line[-1]
    first = abs(limit - first_y)
    last = abs(limit - last_y)
    text = (
        f"{row}: distance to {limit:g} is {first:.3g} at {first_x:g} and {last:.3g} at {last_x:g}"
    )
    return last < share * first, text


def narrower(cells: Cells, *, panel: str, than: str, rows: str, start: float) -> Verdict:
    """Check that the curves of a panel cover smaller ranges than those of another panel.

    Rows whose names begin with `rows` are compared, each with the same row of panel `than`, from
    x = `start` on.
    """
    inner = _ranges(cells, panel, start)
    outer = _ranges(cells, than, start)
    pairs = {row: (inner[row], outer[row]) for row in inner if row.startswith(rows)}
    text = ", ".join(f"{row}: {a:.3g} {panel}, {b:.3g} {than}" for row, (a, b) in pairs.items())
    return all(a < b for a, b in pairs.values()), text


def bounded(cells: Cells, *, panel: str) -> Verdict:
    """Check that every curve named "mean, ..." stays below its curve "bound, ..." at every x."""
    curves = lines(cells, panel)
    shares = {
        row: max(
            y / bound
            for (_, y), (_, bound) in zip(line, curves[row.replace("mean", "bound")], strict=True)
        )
        for row, line in curves.items()
        if row.startswith("mean")
    }
    text = ", ".join(f"{row}: at most {share:.0%} of its bound" for row, share in shares.items())
    return all(share <= 1 for share in shares.values()), text


def steadier(cells: Cells, *, panel: str, row: str, than: str) -> Verdict:
    """Check that a curve loses less than another one from its best value to its smallest x.

    At the smallest x it must not be below the other curve.
    """
    curves = lines(cells, panel)
    first = {name: curves[name][0][1] for name in (row, than)}
    lost = {name: max(y for _, y in curves[name]) - first[name] for name in (row, than)}
    text = ", ".join(
        f"{name} {first[name]:.2f}, {lost[name]:.2f} below its best" for name in (row, than)
    )
    holds = lost[row] < lost[than] and first[row] >= first[than]
    return holds, f"{panel}: at the smallest x {text}".lstrip(": ")


def ahead(cells: Cells, *, panel: str, row: str, than: str) -> Verdict:
    """Check that the mean of the first half of a curve's points is above that of another curve."""
    curves = lines(cells, panel)
    early = {
        name: fmean(y for _, y in curves[name][: -(-len(curves[name]) // 2)])
        for name in (row, than)
    }
    return early[row] > early[than], f"{panel}, first half: {_values(early)}".lstrip(", ")


def beats(cells: Cells, *, better: Place, worse: Place, by: float = 0.0) -> Verdict:
    """Check that one number exceeds another by more than the margin `by`."""
    a, b = (fmean(cells[place]) for place in (better, worse))
    return a > b + by, f"{_name(better)} {a:.2f}, {_name(worse)} {b:.2f}"


def alike(cells: Cells, *, panel: str, within: float) -> Verdict:
    """Check that the numbers of a panel differ by less than `within`."""
    means = {_name(place): fmean(values) for place, values in cells.items() if place[0] == panel}
    return width(means) < within, _values(means)


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
