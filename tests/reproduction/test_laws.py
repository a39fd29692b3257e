"""Each law holds where it should hold, and is violated where it should be violated."""

import pytest

from antipode.reproduction import laws


def curves(**rows):
    """Return the cells of a panel "p"; each row is a list of y at x = 1, 2, ..."""
    return {("p", row, float(x)): [y] for row, ys in rows.items() for x, y in enumerate(ys, 1)}


def moved(cells, panel):
    """Return the cells in another panel."""
    return {(panel, *place[1:]): values for place, values in cells.items()}


def test_ends_that_rise():
    assert laws.ends_rise(curves(a=[5, 1], b=[0, 2], c=[0, 3]), panel="p")[0]
    assert not laws.ends_rise(curves(a=[0, 1], b=[9, 1]), panel="p")[0]


def test_ends_that_coincide_within_a_share_of_others():
    reference = moved(curves(a=[0, 1], b=[0, 4]), "q")
    holds = laws.ends_coincide(
        curves(a=[0, 2.0], b=[9, 2.9]) | reference, panel="p", against="q", share=1 / 3
    )
    broken = laws.ends_coincide(
        curves(a=[0, 2.0], b=[9, 3.1]) | reference, panel="p", against="q", share=1 / 3
    )
    assert holds[0] and not broken[0] and "a range of 3" in holds[1]


def test_curves_are_read_in_the_order_of_x_and_as_means_over_seeds():
    cells = {
        ("p", "a", 10.0): [3.0, 5.0],
        ("p", "a", 2.0): [1.0],
        ("p", "a", "words"): [99.0],
        ("q", "a", 1.0): [7.0],
    }
    assert laws.lines(cells, "p") == {"a": [(2.0, 1.0), (10.0, 4.0)]}


@pytest.mark.parametrize(("law", "sign"), [(laws.rises, 1), (laws.falls, -1)])
def test_a_curve_that_goes_one_way(law, sign):
    def judge(ys, slack=0.0):
        return law(curves(a=[sign * y for y in ys]), panel="p", row="a", slack=slack)[0]

    assert judge([1, 2, 2, 3]) and not judge([1, 3, 2, 4]) and judge([1, 3, 2.9, 4], slack=0.2)
    assert not judge([2, 2, 2]), "a flat line neither rises nor falls"
    assert not judge([2, 1.95, 1.9], slack=0.2), "slack applies to one step, not to the whole curve"


def test_a_curve_that_nears_a_limit():
    assert laws.nears(curves(a=[0.2, 0.7]), panel="p", row="a", limit=1.0, share=0.5)[0]
    assert not laws.nears(curves(a=[0.2, 0.5]), panel="p", row="a", limit=1.0, share=0.5)[0]
    assert not laws.nears(curves(a=[0.2, 2.5]), panel="p", row="a", limit=1.0, share=0.5)[0]


def test_a_range_that_is_narrower_from_a_point_on():
    cells = moved(curves(mean=[9, 2.0, 2.5], bound=[0, 0, 99]), "with") | moved(
        curves(mean=[2, 1, 2], bound=[0, 0, 0]), "without"
    )
    assert laws.narrower(cells, panel="with", than="without", rows="mean", start=2)[0]
    assert not laws.narrower(cells, panel="with", than="without", rows="mean", start=1)[0]


def test_means_under_their_bounds():
    cells = curves(
        **{"mean, epoch 1": [1, 2], "bound, epoch 1": [2, 2], "deviation, epoch 1": [9, 9]}
    )
    assert laws.bounded(cells, panel="p")[0]
    assert not laws.bounded(cells | {("p", "mean, epoch 1", 2.0): [2.01]}, panel="p")[0]


def test_who_loses_less_at_the_smallest():
    cells = curves(ours=[60, 66, 65], theirs=[50, 60, 64])
    assert laws.steadier(cells, panel="p", row="ours", than="theirs")[0]
    assert not laws.steadier(cells, panel="p", row="theirs", than="ours")[0]
    collapsed = curves(ours=[10, 10, 10], theirs=[50, 60, 64])
    assert not laws.steadier(collapsed, panel="p", row="ours", than="theirs")[0], (
        "a collapsed method loses nothing, but is below the other"
    )


def test_who_is_ahead_on_the_way():
    cells = curves(ours=[5, 6, 7, 7], theirs=[4, 6, 8, 9])
    assert laws.ahead(cells, panel="p", row="ours", than="theirs")[0]
    assert not laws.ahead(cells, panel="p", row="theirs", than="ours")[0]


def test_one_number_beats_another_by_a_margin():
    cells = {("", "a", "x"): [2.0, 4.0], ("", "b", "x"): [2.0]}
    a, b = ("", "a", "x"), ("", "b", "x")
    assert (
        laws.beats(cells, better=a, worse=b)[0]
        and not laws.beats(cells, better=a, worse=b, by=1.0)[0]
    )
    assert (
        laws.beats(cells, better=b, worse=a, by=-2.0)[0]
        and "a / x 3.00" in laws.beats(cells, better=a, worse=b)[1]
    )


def test_numbers_that_are_alike():
    assert laws.alike(curves(a=[1, 2, 3.9]), panel="p", within=3.0)[0]
    assert not laws.alike(curves(a=[1, 2, 4.1]), panel="p", within=3.0)[0]
