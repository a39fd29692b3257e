"""A claim that is exactly at its limit is rarely decided, whatever kind of law checks it."""

from functools import partial
from types import SimpleNamespace

import pytest

from antipode import rng
from antipode.reproduction import laws
from antipode.reproduction.intervals import NOISE, over_seeds, student
from antipode.reproduction.item import REFERENCE, Law, Verdict
from antipode.reproduction.make import check_laws

UNTRAINED = {(REFERENCE, "x", "top-1 (%)"): [40.0]}
DRAWS = 400
SIZES = (32.0, 64.0, 128.0, 256.0, 512.0)


@pytest.mark.parametrize(
    ("freedom", "outside", "t"),
    [(1, 0.05, 12.706), (2, 0.05, 4.303), (3, 0.05, 3.182), (4, 0.05 / 3, 3.961), (30, 0.01, 2.75)],
)
def test_quantiles_of_students_distribution(freedom, outside, t):
    assert student(freedom, outside) == pytest.approx(t, rel=1e-3)


def at(row, column="x"):
    return "", row, column


TIED = {at(row): 80.0 for row in "abcdef"}
RANGE = {at("a", x): 80.0 if x > 100 else 78.9 for x in SIZES}
PEAK = {at("a", x): 78.0 for x in SIZES} | {at("a", 256.0): 80.0, at("a", 32.0): 79.0}
FLAT = {at("b", x): 76.0 for x in SIZES} | {at("b", 32.0): 75.0}
CASES = {
    "best of many": (TIED, partial(laws.best, at=at("a"), others=[at(row) for row in "bcdef"])),
    "alike": (RANGE, partial(laws.alike, places=list(RANGE), paper=0.1)),
    "steadier": (
        PEAK | FLAT,
        partial(laws.steadier, panel="", row="a", than="b", few=32.0, full=SIZES),
    ),
    "learned": (
        {at("a"): 50.0, at("b"): 45.0},
        partial(laws.gain, better=at("a"), worse=at("b")),
    ),
}


def share(words, word):
    return sum(found == word for found in words) / len(words)


@pytest.mark.parametrize("seeds", [1, 2, 3, (3, 1)])
@pytest.mark.parametrize("case", CASES)
def test_a_claim_at_its_limit_is_rarely_decided(case, seeds):
    """With as many seeds for each number, or with three for the first number and one for others."""
    truth, check = CASES[case]
    first, others = seeds if isinstance(seeds, tuple) else (seeds, seeds)
    noise = NOISE * rng.normal(rng.key(0, case, first, others), DRAWS * len(truth) * first)
    words = []
    for draw in noise.view(DRAWS, len(truth), first).tolist():
        found = zip(truth.items(), draw, strict=True)
        cells = {place: [mean + one for one in some[:others]] for (place, mean), some in found}
        place = next(iter(truth))
        cells[place] = [truth[place] + one for one in draw[0]]
        words.append(check(cells | UNTRAINED).word)
    assert share(words, "holds") < 0.04 and share(words, "does not hold") < 0.04


def curve(*seeds):
    """Return the cells of a curve with one value per seed at each point."""
    return {("p", "a", float(x)): list(ys) for x, ys in enumerate(zip(*seeds, strict=True))}


def test_a_law_without_an_interval_gets_that_of_its_margins_over_seeds():
    law = Law("it rises", partial(laws.rises, panel="p", row="a", by=1.0))
    item = SimpleNamespace(laws_at=lambda _: [law])

    def judge(*ends):
        ((_, verdict),) = check_laws(item, "small", curve(*((0.0, end) for end in ends)))
        return verdict

    assert judge(1.0, 1.1, 1.2).word == "undecided" and judge(1.1, 1.11, 1.12).word == "holds"
    assert judge(1.0, 1.2).interval == pytest.approx(12.706 * 0.1, rel=1e-3)
    assert judge(1.1).word == "holds" and judge(1.1).interval == 0, "one seed has no spread"


def test_seeds_that_some_numbers_lack_give_no_interval():
    cells = curve([0.0, 1.0], [0.0, 2.0])
    assert over_seeds(lambda some: some["p", "a", 1.0][0], cells) > 0
    assert over_seeds(lambda some: some["p", "a", 1.0][0], cells | UNTRAINED) > 0
    assert over_seeds(lambda some: 1.0, cells | {at("b"): [1.0]}) == 0


def test_a_verdict_keeps_the_interval_that_its_law_states():
    law = Law("it holds", lambda cells: Verdict(1.0, "", 0.5))
    item = SimpleNamespace(laws_at=lambda _: [law])
    ((_, verdict),) = check_laws(item, "small", curve([0.0, 1.0], [0.0, 5.0]))
    assert verdict.interval == 0.5
