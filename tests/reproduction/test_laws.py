"""Each law holds where it should hold, and not where it should not."""

import math
from statistics import stdev

import pytest

from antipode.reproduction import laws
from antipode.reproduction.intervals import NOISE
from antipode.reproduction.item import REFERENCE, Verdict

UNTRAINED = {(REFERENCE, "knn", "top-1 (%)"): [40.0]}


def curves(**rows):
    """Return the cells of a panel "p"; each row is a list of y at x = 1, 2, ..."""
    return {("p", row, float(x)): [y] for row, ys in rows.items() for x, y in enumerate(ys, 1)}


def moved(cells, panel):
    """Return the cells in another panel."""
    return {(panel, *place[1:]): values for place, values in cells.items()}


def numbers(**values):
    """Return accuracies by row, beside those of an untrained network."""
    listed = {row: [value] if isinstance(value, float) else value for row, value in values.items()}
    return {("", row, "x"): value for row, value in listed.items()} | UNTRAINED


A, B, C = (("", row, "x") for row in "abc")


# Verdicts


@pytest.mark.parametrize(
    ("margin", "interval", "word", "holds"),
    [
        (0.5, 0.4, "holds", True),
        (0.5, 0.5, "undecided", True),
        (-0.5, 0.4, "does not hold", False),
        (-0.3, 0.4, "undecided", False),
        (math.nan, 0.0, "does not hold", False),
        (0.0, 0.0, "undecided", False),
    ],
)
def test_a_verdict_is_undecided_if_its_interval_contains_zero(margin, interval, word, holds):
    verdict = Verdict(margin, "", interval)
    assert verdict.word == word and verdict.holds is holds


def test_the_interval_of_one_seed_is_that_of_the_usual_noise():
    verdict = laws.gain(numbers(a=80.0, b=79.0), better=A, worse=B)
    assert verdict.interval == pytest.approx(2.228 * math.sqrt(2) * NOISE, rel=1e-3)


def test_the_usual_noise_counts_like_ten_degrees_of_freedom():
    a, b = [80.0, 80.1, 80.5], [70.0, 70.4]
    verdict = laws.gain(numbers(a=a, b=b), better=A, worse=B)
    pooled = (2 * stdev(a) ** 2 + stdev(b) ** 2 + 10 * NOISE**2) / 13
    assert verdict.interval == pytest.approx(2.160 * math.sqrt(pooled * 5 / 6), rel=1e-3)


def test_more_seeds_of_one_number_do_not_widen_an_interval():
    """With the variance of these seeds alone, the interval would have 4.3 standard errors."""
    one = laws.gain(numbers(a=80.9, b=79.0), better=A, worse=B)
    three = laws.gain(numbers(a=[80.6, 80.9, 81.2], b=79.0), better=A, worse=B)
    assert three.interval < 0.85 * one.interval


def test_seeds_that_vary_far_more_have_their_own_interval():
    a, b = [80.0, 81.0, 82.0], [70.0, 70.4, 70.8]
    verdict = laws.gain(numbers(a=a, b=b), better=A, worse=B)
    pooled = math.sqrt((stdev(a) ** 2 + stdev(b) ** 2) / 2)
    assert verdict.interval == pytest.approx(2.776 * pooled * math.sqrt(2 / 3), rel=1e-3)
    assert verdict.margin == pytest.approx(10.6)


def test_a_place_with_one_seed_borrows_the_spread_of_the_others():
    verdict = laws.gain(numbers(a=[80.0, 82.0], b=70.0), better=A, worse=B)
    assert verdict.interval == pytest.approx(12.71 * math.sqrt(2 / 2 + 2 / 1), rel=1e-3)
    verdict = laws.gain(numbers(a=[80.0, 80.4], b=70.0), better=A, worse=B)
    pooled = (0.08 + 10 * NOISE**2) / 11
    assert verdict.interval == pytest.approx(2.201 * math.sqrt(pooled * 3 / 2), rel=1e-3)


# Accuracies


def test_half_of_the_papers_gain_is_needed():
    cells = numbers(a=82.0, b=80.0)
    assert laws.gain(cells, better=A, worse=B, paper=3.9).holds
    assert not laws.gain(cells, better=A, worse=B, paper=4.1).holds
    assert not laws.gain(cells, better=B, worse=A).holds
    assert "a difference of 2.00" in laws.gain(cells, better=A, worse=B).text


def test_what_costs_little_in_the_paper_may_cost_a_point_more():
    cells = numbers(a=78.9, b=80.0)
    assert laws.cost(cells, few=A, full=B, paper=0.2).holds
    assert not laws.cost(cells, few=A, full=B, paper=0.0).holds
    assert laws.cost(cells, few=B, full=A, paper=0.0).holds, "a gain is no loss"


def test_numbers_that_are_alike():
    cells = numbers(a=80.0, b=81.0, c=82.0)
    assert laws.alike(cells, places=(A, B, C), paper=1.1).holds
    assert not laws.alike(cells, places=(A, B, C), paper=0.9).holds


def test_the_best_of_several():
    cells = numbers(a=80.0, b=81.0, c=82.0)
    assert laws.best(cells, at=C, others=(A, B)).holds
    assert not laws.best(cells, at=C, others=(A, B), paper=2.1).holds
    assert not laws.best(cells, at=B, others=(A, C)).holds


@pytest.mark.parametrize(
    "law",
    [
        lambda cells: laws.gain(cells, better=A, worse=B, paper=1.0),
        lambda cells: laws.cost(cells, few=A, full=B, paper=0.0),
        lambda cells: laws.alike(cells, places=(A, B), paper=9.0),
        lambda cells: laws.best(cells, at=A, others=(B,)),
    ],
)
def test_no_law_holds_for_networks_that_have_learned_nothing(law):
    assert law(numbers(a=52.0, b=51.0)).holds
    verdict = law(numbers(a=49.0, b=48.0))
    assert not verdict.holds and "untrained" in verdict.text
    with pytest.raises(ValueError, match="empty"):
        law({place: [80.0] for place in (A, B)})


@pytest.mark.parametrize(("a", "word"), [(49.0, "does not hold"), (50.1, "undecided")])
def test_a_network_that_may_have_learned_nothing_decides_no_law(a, word):
    verdict = laws.gain(numbers(a=a, b=45.0), better=A, worse=B)
    assert verdict.word == word and "untrained" in verdict.text
    assert laws.gain(numbers(a=51.0, b=45.0), better=A, worse=B).word == "holds"


def test_some_numbers_need_no_learned_network():
    cells = {A: [3.0], B: [1.0]}
    assert laws.gain(cells, better=A, worse=B, paper=1.0, learned=False).holds


def test_who_loses_less_at_the_smallest():
    def judge(cells, row="ours", than="theirs", paper=(0.0, 0.0)):
        options = {"panel": "p", "few": 1.0, "full": 3.0, "paper": paper}
        return laws.steadier(cells | UNTRAINED, row=row, than=than, **options)

    cells = curves(ours=[60, 66, 65], theirs=[54, 60, 64])
    assert judge(cells).holds and not judge(cells, "theirs", "ours").holds
    # losses of 5 and 10
    assert judge(cells, paper=(1.0, 10.0)).holds and not judge(cells, paper=(1.0, 12.0)).holds
    below = curves(ours=[53, 54, 54], theirs=[54, 60, 64])
    assert not judge(below).holds, "it loses less, but is below the other"


def test_a_run_that_both_curves_share_does_not_widen_the_interval():
    def interval(theirs):
        cells = curves(ours=[60, 65], theirs=[54, theirs]) | UNTRAINED
        options = {"panel": "p", "few": 1.0, "full": 2.0}
        return laws.steadier(cells, row="ours", than="theirs", **options).interval

    assert interval(65) == pytest.approx(interval(64) / math.sqrt(2))


def test_who_is_ahead_on_the_way():
    cells = curves(ours=[75, 76, 77, 77], theirs=[74, 76, 78, 79]) | UNTRAINED
    assert laws.ahead(cells, panel="p", row="ours", than="theirs", part=0.5).holds
    assert not laws.ahead(cells, panel="p", row="ours", than="theirs").holds
    assert laws.ahead(cells, panel="p", row="theirs", than="ours", paper=0.9).holds
    assert not laws.ahead(cells, panel="p", row="theirs", than="ours", paper=1.1).holds


def test_the_interval_of_a_curve_does_not_shrink_with_the_points_of_one_run():
    def judge(points):
        x = range(points)
        cells = {("p", "a", float(i)): [80.0, 81.0, 82.0] for i in x} | UNTRAINED
        cells |= {("p", "b", float(i)): [70.0, 70.4, 70.8] for i in x}
        return laws.ahead(cells, panel="p", row="a", than="b").interval

    assert judge(9) == pytest.approx(judge(1))


def test_half_of_a_ratio():
    cells = {A: [1.1], B: [1.0]}
    assert laws.ratio(cells, larger=A, smaller=B, paper=1.19).interval == 0, "it is unknown"
    assert laws.ratio(cells, larger=A, smaller=B, paper=1.19).holds
    assert not laws.ratio(cells, larger=A, smaller=B, paper=1.21).holds


# Curves


def test_ends_that_rise():
    cells = curves(a=[5, 1], b=[0, 2], c=[0, 3])
    assert laws.ends_rise(cells, panel="p", by=1.9).holds
    assert not laws.ends_rise(cells, panel="p", by=2.1).holds
    assert not laws.ends_rise(curves(a=[0, 1], b=[9, 1]), panel="p", by=0).holds


def test_ends_that_coincide_within_a_share_of_others():
    def judge(ys, least=0.0):
        reference = moved(curves(a=[0, 1], b=[0, 4]), "q")
        cells = curves(a=[0, 2.0], b=[9, ys]) | reference
        return laws.ends_coincide(cells, panel="p", against="q", share=1 / 3, least=least)

    assert judge(2.9).holds and not judge(3.1).holds and "a range of 3" in judge(2.9).text
    assert judge(2.9, least=2.9).holds and not judge(2.9, least=3.1).holds


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
    def judge(ys, slack=0.0, by=0.0):
        return law(curves(a=[sign * y for y in ys]), panel="p", row="a", slack=slack, by=by).holds

    assert judge([1, 2, 2.1, 3]) and not judge([1, 3, 2, 4]) and judge([1, 3, 2.9, 4], slack=0.2)
    assert not judge([2, 2, 2]), "a flat line neither rises nor falls"
    assert not judge([2, 1.95, 1.9], slack=0.2), "slack applies to one step, not to the whole curve"
    assert judge([1, 2, 3], by=1.9) and not judge([1, 2, 3], by=2.1)


def test_a_curve_below_a_limit_at_a_point():
    assert laws.below(curves(a=[9, 2]), panel="p", row="a", x=2.0, limit=2.1).holds
    assert not laws.below(curves(a=[9, 2]), panel="p", row="a", x=1.0, limit=2.1).holds


def test_a_curve_that_nears_a_limit():
    def judge(ys, start=0.0):
        line = curves(a=ys)
        options = {"limit": 1.0, "share": 0.5, "start": start}
        return laws.nears(line, panel="p", row="a", **options).holds

    assert judge([0.2, 0.7]) and not judge([0.2, 0.5]) and not judge([0.2, 2.5])
    assert judge([0.2, 0.7], start=0.7) and not judge([0.2, 0.7], start=0.9)


def test_a_range_that_is_narrower_from_a_point_on():
    def judge(start, share=1.0, least=0.0):
        cells = moved(curves(mean=[9, 2.0, 2.5], bound=[0, 0, 99]), "with") | moved(
            curves(mean=[2, 1, 2], bound=[0, 0, 0]), "without"
        )
        options = {"rows": "mean", "start": start, "share": share, "least": least}
        return laws.narrower(cells, panel="with", than="without", **options).holds

    assert judge(2) and not judge(1)
    assert judge(2, share=0.51) and not judge(2, share=0.49)
    assert judge(2, least=0.49) and not judge(2, least=0.51)
