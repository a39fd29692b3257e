"""Tests of hardness, coverage and drift of stored negatives, against loops and extreme cases."""

import math

import pytest
import torch

from antipode.analysis import bank
from tests.analysis.vectors import pairs

TAU = 0.2


@pytest.mark.parametrize("masked", [False, True])
def test_hardness_is_the_naive_one(masked, monkeypatch):
    q, k = pairs(12, 6)
    vectors = torch.cat(pairs(75, 6, seed=3))  # 150 vectors: the hardest hundredth are two
    own = torch.arange(12) * 7 if masked else None
    whole = bank.hardness(q, k, vectors, TAU, own)
    monkeypatch.setattr(bank, "CELLS", 400)
    parts = bank.hardness(q, k, vectors, TAU, own)
    for i in range(12):
        cosines = [float(q[i] @ v) for j, v in enumerate(vectors) if not (masked and j == 7 * i)]
        scores = sorted((math.exp(c / TAU) for c in cosines), reverse=True)
        pull, total = math.exp(float(q[i] @ k[i]) / TAU), sum(scores)
        expected = {
            "mean": sum(cosines) / len(cosines),
            "hardest": max(cosines),
            "repel": math.log(total / len(scores)),
            "mass": total / (total + pull),
            "top": sum(scores[:2]) / total,
            "effective": math.exp(-sum(s / total * math.log(s / total) for s in scores)),
        }
        for found in (whole, parts):
            assert {name: float(x[i]) for name, x in found._asdict().items()} == pytest.approx(
                expected, abs=1e-10
            )


def test_effective_negatives_are_all_where_all_are_alike_and_one_where_one_wins():
    q = torch.eye(8)[:3]
    alike = bank.hardness(q, q, torch.eye(8)[7:].repeat(50, 1), TAU)
    assert torch.allclose(alike.effective, torch.full((3,), 50.0), rtol=1e-4)
    alone = bank.hardness(q[:1], q[:1], torch.cat([q[:1], -q[:1].repeat(49, 1)]), 0.05)
    assert float(alone.effective) == pytest.approx(1, abs=1e-3) and float(
        alone.top
    ) == pytest.approx(1, abs=1e-3)


def test_negatives_near_the_queries_are_harder_than_random_ones():
    q, k = pairs(64, 16)
    near, far = bank.hardness(q, k, k.roll(1, 0), TAU), bank.hardness(q, k, -q, TAU)
    assert near.mean.mean() > far.mean.mean() and near.hardest.mean() > far.hardest.mean()
    tracking = bank.hardness(q, k, q, TAU)  # a bank that equals the queries
    assert tracking.mass.mean() > near.mass.mean() and torch.allclose(
        tracking.hardest, torch.ones(64).double()
    )


def test_closest_is_the_naive_one_whatever_the_lengths(monkeypatch):
    x, _ = pairs(20, 6)
    vectors = pairs(30, 6, seed=5)[0]
    naive = [max(float(row @ v) for v in vectors) for row in x]
    monkeypatch.setattr(bank, "CELLS", 100)
    assert bank.closest(2 * x, 0.3 * vectors).tolist() == pytest.approx(naive)


def test_coverage_falls_with_the_threshold_and_is_whole_for_its_own_vectors():
    x, y = pairs(200, 6)
    result = {"values": {}, "curves": {}, "histograms": {}}
    bank._coverage(result, "own", bank.closest(x, x), x)
    bank._coverage(result, "other", bank.closest(x, pairs(20, 6, seed=9)[0]), y)
    own, other = (result["curves"][f"coverage, {name}"]["y"] for name in ("own", "other"))
    assert other == sorted(other, reverse=True) and other[0] > other[-1]
    assert own[:-1] == [1.0] * (len(own) - 1)  # at a cosine of 1 the result depends on rounding
    assert result["values"]["covered at 0.9, own"] == 1 > result["values"]["covered at 0.9, other"]


def test_drift_is_how_far_each_vector_has_turned():
    before = torch.tensor([[1.0, 0], [1, 0], [2, 0]])
    after = torch.tensor([[3.0, 0], [0, 5], [-1, 0]])
    assert bank.drift(before, after).tolist() == [0, 1, 2]


WRONG = {
    "keys of others": (
        lambda: bank.hardness(torch.ones(2, 3), torch.ones(3, 3), torch.ones(4, 3), 1),
        r"\(3, 3\)",
    ),
    "no negatives": (
        lambda: bank.hardness(torch.ones(2, 3), torch.ones(2, 3), torch.ones(0, 3), 1),
        r"\(0, 3\)",
    ),
    "its own image alone": (
        lambda: bank.hardness(
            torch.ones(2, 3), torch.ones(2, 3), torch.ones(1, 3), 1, torch.zeros(2).long()
        ),
        "own image, got K = 1",
    ),
    "another bank": (
        lambda: bank.drift(torch.ones(2, 3), torch.ones(3, 3)),
        r"\(2, 3\) and \(3, 3\)",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_input_is_refused_in_a_sentence(name):
    call, text = WRONG[name]
    with pytest.raises(ValueError, match=text):
        call()
