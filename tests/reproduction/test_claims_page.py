"""The page of claims: short tables, and no verdict while runs are missing."""

import importlib
import json
from functools import partial
from pathlib import Path

import pytest

from antipode.reproduction import laws
from antipode.reproduction.catalog import items
from antipode.reproduction.item import Law, Trial, Verdict, metric, score

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def benchmarks(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")


@pytest.fixture
def text():
    return importlib.import_module("claims_text")


@pytest.fixture
def page():
    return importlib.import_module("claims_page")


@pytest.mark.parametrize(
    ("found", "interval", "short"),
    [
        (
            "CIFAR10 (kNN, head) / DCL / 32 74.27, CIFAR10 (kNN, head) / SimCLR / 32 68.84: "
            "a difference of 5.43",
            0.77,
            "DCL 74.27, SimCLR 68.84: difference of 5.43 ± 0.77",
        ),
        ("A / 256 72.68, A / 32 74.27: a loss of -1.59", 0.0, "72.68 at 256, 74.27 at 32: loss of"),
        ("a 1.0, b 4.0, c 2.0, d 3.0: a range of 3.00", 0.0, "1.0 to 4.0: range of 3.00"),
        (
            "x 9.0 at 256 and 1.0 at 4 (a loss of 8.00), y 9.0 at 256 and 8.0 at 4 (a loss of 1.0)",
            0.5,
            "losses of 8.00 and 1.0 ± 0.50",
        ),
        ("q: 0.1 at 4, 0.2 at 8, 0.3 at 16", 0.0, "0.1 at 4 to 0.3 at 16"),
    ],
)
def test_our_numbers_are_short(text, found, interval, short):
    assert text.short(Verdict(1.0, found, interval)).startswith(short)


KNN = score("knn")
ITEM = items()["dcl.table1"]
LAW = Law("DCL is better", lambda _: Verdict(1.0, "a 2.0, b 1.0: a difference of 1.00"))


def test_a_note_is_shown_only_while_its_verdict_stands(text, monkeypatch):
    claim = text.Claim("dcl.table1", ITEM, LAW, Verdict(1.0, "found"), 1)
    monkeypatch.setitem(text.NOTES, ("dcl.table1", "DCL is better"), ("holds", "It was expected."))
    assert claim.note == "It was expected."
    assert claim._replace(verdict=Verdict(-1.0, "found")).note == ""
    assert claim._replace(seeds=0).note == ""


def test_the_page_has_a_table_a_picture_and_a_command_for_judged_claims(text):
    judged = text.Claim("dcl.table1", ITEM, LAW, Verdict(1.0, "a 2, b 1: a difference of 1"), 3)
    absent = judged._replace(law=LAW._replace(text="it is steadier"), seeds=0)
    found = text.page([judged, absent])
    assert (
        "| ✓&nbsp;holds | DCL is better |" in found
        and "(3 seeds) | [dcl.table1](#dcltable1)" in found
    )
    assert "\n### dcl.table1\n" in found and "(pictures/claims/dcl.table1.png)" in found
    assert "antipode reproduce dcl.table1 --scale small" in found
    assert "Not run: 1 of 2 claims" in found and "It is steadier" in found
    prose = [line for line in found.splitlines() if not line.startswith(("|", "!"))]
    assert max(map(len, prose)) <= 100


def alike(cells):
    """A law that reads every number."""
    means = [sum(values) / len(values) for values in cells.values()]
    return Verdict(1.0 - max(means) + min(means), f"{means}")


def trials(*rows, measure=KNN):
    return tuple(Trial("cifar10.dcl", {}, (measure,), row, 32) for row in rows)


def test_a_claim_is_not_judged_while_a_run_that_it_reads_is_missing(page):
    places = [("", row, 32) for row in "abc"]
    law = Law("all are alike", alike)
    pair = partial(laws.gain, better=places[0], worse=places[1], learned=False)
    cells = {place: [80.0, 81.0] for place in places[:2]}
    assert page.lacking(law, trials(*"abc"), cells)  # it would hold for the two that are there
    assert not page.lacking(law, trials(*"ab"), cells)
    assert not page.lacking(Law("a is better than b", pair), trials(*"abc"), cells)
    assert page.seeds_behind(law, Verdict(1.0, ""), trials(*"abc"), cells) == 0
    assert page.seeds_behind(law, Verdict(1.0, ""), trials(*"ab"), cells) == 2


def test_a_missing_curve_counts_as_missing(page):
    law = Law("curves are alike", alike)
    cells = {("", "a", 1.0): [80.0], ("", "a", 2.0): [80.0]}
    assert page.lacking(law, trials(*"ab", measure=metric("knn")), cells)
    assert not page.lacking(law, trials("a", measure=metric("knn")), cells)


def test_every_note_is_on_a_claim_that_exists(text):
    claims = {(name, law.text) for name, item in items().items() for law in item.laws}
    assert {*text.NOTES} <= claims
    assert {verdict for verdict, _ in text.NOTES.values()} <= {*text.SYMBOLS}


def test_every_claim_on_the_page_is_judged_by_the_recorded_lines():
    lines = (ROOT / "benchmarks" / "results" / "claims-judged.jsonl").read_text().splitlines()
    judged = [json.loads(line) for line in lines]
    content = (ROOT / "docs" / "claims.md").read_text()
    assert len(judged) == sum(len(item.laws_at("small")) for item in items().values())
    for line in judged:
        picture = ROOT / "docs" / "pictures" / "claims" / f"{line['item']}.png"
        assert picture.exists() or not line["seeds"]
        assert (f"### {line['item']}\n" in content) or not line["seeds"]
