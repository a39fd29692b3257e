"""Tests of what a classification reports: interval, chance level, balanced accuracy, top-5."""

import time

import numpy as np
import pytest
import torch

from antipode.evaluation.accuracy import balanced, bootstrap, classification, top5


def coins(n, share):
    """Return bool (N,) of which a share is True."""
    return torch.arange(n) < round(share * n)


def test_the_interval_is_that_of_resampled_images():
    """The naive bootstrap draws image by image. Both have the error of some thousand draws."""
    values = torch.cat([torch.zeros(30), torch.full((50,), 50.0), torch.full((40,), 100.0)])
    draw = np.random.default_rng(1)
    means = [draw.choice(values.numpy(), len(values)).mean() for _ in range(10_000)]
    assert bootstrap(values, 0) == pytest.approx(np.quantile(means, (0.025, 0.975)), abs=0.6)


@pytest.mark.parametrize(("n", "share"), [(400, 0.5), (400, 0.9), (10_000, 0.83)])
def test_the_interval_of_many_images_is_that_of_a_normal_distribution(n, share):
    low, high = bootstrap(100 * coins(n, share), 0)
    width = 100 * 1.96 * np.sqrt(share * (1 - share) / n)
    assert (low, high) == pytest.approx((100 * share - width, 100 * share + width), abs=0.1 * width)


@pytest.mark.parametrize("n", [1, 2, 7, 40, 333])
def test_the_value_lies_in_its_interval_whatever_the_share(n):
    for correct in range(n + 1):
        result = classification(coins(n, correct / n), torch.arange(n) % 2, {}, seed=3)
        assert 0 <= result.low <= result.value <= result.high <= 100


def test_the_interval_depends_on_the_seed_alone():
    values = 100 * coins(300, 0.4)
    shuffled = values[torch.randperm(300)]
    assert bootstrap(values, 0) == bootstrap(shuffled, 0)
    assert len({bootstrap(values, seed) for seed in range(20)}) > 1


def test_equal_values_have_an_interval_without_width():
    assert bootstrap(torch.full((9,), 100.0), 0) == (100.0, 100.0)


def test_the_interval_of_fifty_thousand_images_takes_milliseconds():
    values = 100 * coins(50_000, 0.7)
    start = time.process_time()
    bootstrap(values, 0)
    assert time.process_time() - start < 0.5


def test_the_balanced_accuracy_is_that_of_scikit_learn():
    from sklearn.metrics import balanced_accuracy_score

    generator = torch.Generator().manual_seed(0)
    labels = torch.tensor([0, 2, 2, 2, 2, 5, 5]).repeat(30)  # classes 1, 3 and 4 do not occur
    guess = torch.where(
        torch.rand(210, generator=generator) < 0.6, labels, torch.full_like(labels, 2)
    )
    expected = 100 * balanced_accuracy_score(labels, guess)
    assert balanced(guess == labels, labels)["balanced"] == pytest.approx(expected)


def test_a_guess_of_the_most_frequent_class_is_chance_and_balanced_it_is_one_of_the_classes():
    labels = torch.tensor([0] * 70 + [1] * 20 + [2] * 10)
    result = classification(labels == 0, labels, {"a": 1}, seed=0, more={"b": 2.0})
    assert result.value == result.chance == pytest.approx(70)
    assert result.more == {"balanced": pytest.approx(100 / 3), "b": 2.0}
    assert (result.n, result.unit, result.settings) == (100, "% top-1", {"a": 1})


def test_with_as_many_images_of_every_class_the_balanced_accuracy_is_left_out():
    """It would be the accuracy itself. Classes without test images do not count."""
    labels = torch.tensor([1, 1, 4, 4])
    assert balanced(torch.tensor([True, False, True, True]), labels) == {}
    assert classification(labels == 1, labels, {}, seed=0).more == {}


@pytest.mark.parametrize(("classes", "kept"), [(2, False), (6, False), (9, False), (10, True)])
def test_top5_needs_ten_classes(classes, kept):
    assert top5(coins(20, 0.9), classes) == ({"top5": pytest.approx(90)} if kept else {})
