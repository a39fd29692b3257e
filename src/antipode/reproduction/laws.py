"""What theory and the papers say must hold, as small functions of the results.

Each returns whether it holds and a sentence with the numbers. Rows and columns come in the order of the grid.
"""

from itertools import pairwise
from statistics import fmean

from antipode.reproduction.item import Cells, Place

Verdict = tuple[bool, str]
Line = list[tuple[float, float]]  # x, mean over seeds


def lines(cells: Cells, panel: str) -> dict[str, Line]:
    """The curves of a panel by row, each sorted by x."""
    found: dict[str, Line] = {}
    for (where, row, column), values in cells.items():
        if where == panel and not isinstance(column, str):
            found.setdefault(row, []).append((column, fmean(values)))
    return {row: sorted(line) for row, line in found.items()}


def ends(cells: Cells, panel: str) -> dict[str, float]:
    """The last value of every curve of a panel."""
    return {row: line[-1][1] for row, line in lines(cells, panel).items()}


def width(values: dict[str, float]) -> float:
    """From the smallest to the largest."""
    return max(values.values()) - min(values.values())


def ends_rise(cells: Cells, *, panel: str) -> Verdict:
    """The curves of a panel end higher and higher, row by row."""
    found = ends(cells, panel)
    return all(a < b for a, b in pairwise(found.values())), f"{panel}: {_said(found)}"


def ends_coincide(cells: Cells, *, panel: str, against: str, share: float) -> Verdict:
    """The curves of a panel end within a share of the range over which those of another end."""
    ours, theirs = ends(cells, panel), ends(cells, against)
    text = f"{panel}: {_said(ours)}, a range of {width(ours):.3g}; {against}: a range of {width(theirs):.3g}"
    return width(ours) < share * width(theirs), text


def rises(cells: Cells, *, panel: str, row: str, slack: float = 0.0) -> Verdict:
    """A curve never falls by more than `slack`, and ends above its start."""
    line = lines(cells, panel)[row]
    steady = all(b[1] >= a[1] - slack for a, b in pairwise(line)) and line[-1][1] > line[0][1]
    return steady, f"{row}: {_points(line)}"


def falls(cells: Cells, *, panel: str, row: str, slack: float = 0.0) -> Verdict:
    """A curve never rises by more than `slack`, and ends below its start."""
    line = lines(cells, panel)[row]
    steady = all(b[1] <= a[1] + slack for a, b in pairwise(line)) and line[-1][1] < line[0][1]
    return steady, f"{row}: {_points(line)}"


def nears(cells: Cells, *, panel: str, row: str, limit: float, share: float) -> Verdict:
    """The end of a curve is nearer to a limit than `share` of the distance of its start."""
    line = lines(cells, panel)[row]
    first, last = abs(limit - line[0][1]), abs(limit - line[-1][1])
    return (
        last < share * first,
        f"{row} is {first:.3g} from {limit:g} at {line[0][0]:g} and {last:.3g} at {line[-1][0]:g}",
    )


def narrower(cells: Cells, *, panel: str, than: str, rows: str, start: float) -> Verdict:
    """From x = `start` on, every curve of a panel named `rows`... covers a smaller range than its like in another."""
    parts = {
        where: {
            row: [y for x, y in line if x >= start] for row, line in lines(cells, where).items()
        }
        for where in (panel, than)
    }
    ours, theirs = ({row: max(ys) - min(ys) for row, ys in part.items()} for part in parts.values())
    found = {row: (ours[row], theirs[row]) for row in ours if row.startswith(rows)}
    text = ", ".join(f"{row}: {a:.3g} {panel}, {b:.3g} {than}" for row, (a, b) in found.items())
    return all(a < b for a, b in found.values()), text


def bounded(cells: Cells, *, panel: str) -> Verdict:
    """Every curve named "mean, ..." stays under its "bound, ..." at every x."""
    found = lines(cells, panel)
    shares = {
        row: max(
            y / limit[1]
            for (_, y), limit in zip(line, found[row.replace("mean", "bound")], strict=True)
        )
        for row, line in found.items()
        if row.startswith("mean")
    }
    text = ", ".join(f"{row}: at most {share:.0%} of its bound" for row, share in shares.items())
    return all(share <= 1 for share in shares.values()), text


def steadier(cells: Cells, *, panel: str, row: str, than: str) -> Verdict:
    """From its best x to its smallest a curve loses less than another, and is not below it there."""
    found = lines(cells, panel)
    last = {name: found[name][0][1] for name in (row, than)}
    lost = {name: max(y for _, y in found[name]) - last[name] for name in (row, than)}
    text = ", ".join(
        f"{name} loses {lost[name]:.2f} and has {last[name]:.2f}" for name in (row, than)
    )
    return lost[row] < lost[than] and last[row] >= last[than], f"{panel}: {text}".lstrip(": ")


def ahead(cells: Cells, *, panel: str, row: str, than: str) -> Verdict:
    """On the way one curve is above another, as a mean over the first half of their points."""
    found = lines(cells, panel)
    early = {
        name: fmean(y for _, y in found[name][: -(-len(found[name]) // 2)]) for name in (row, than)
    }
    return early[row] > early[than], f"{panel}, first half: {_said(early)}".lstrip(", ")


def beats(cells: Cells, *, better: Place, worse: Place, by: float = 0.0) -> Verdict:
    """One number is larger than another by more than a margin."""
    a, b = (fmean(cells[place]) for place in (better, worse))
    return a > b + by, f"{_name(better)} {a:.2f}, {_name(worse)} {b:.2f}"


def alike(cells: Cells, *, panel: str, within: float) -> Verdict:
    """All numbers of a panel lie within a range."""
    found = {_name(place): fmean(values) for place, values in cells.items() if place[0] == panel}
    return width(found) < within, _said(found)


def _name(place: Place) -> str:
    return " / ".join(str(part) for part in place if part != "")


def _said(values: dict[str, float]) -> str:
    return ", ".join(f"{name} {value:.4g}" for name, value in values.items())


def _points(line: Line) -> str:
    return ", ".join(f"{y:.4g} at {x:g}" for x, y in line)
