"""Tests of logistic regression: the minimum of scikit-learn, the choice of the penalty, errors."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from antipode.evaluation import frame as frames
from antipode.evaluation import logistic, storage
from antipode.evaluation.logistic import (
    GRID,
    Frame,
    Rows,
    choose,
    classify,
    dealt,
    fit,
    linear_fast,
    logits,
    standard,
    turned,
)
from antipode.evaluation.protocol import protocols
from antipode.types import Features
from tests.evaluation.classes import CPU, bright, task
from tests.evaluation.test_nearest import Broken, Weighed, labelled


def digits(dtype=torch.float64):
    """Return the pixels of 1,797 digits, 1,200 of them for training. Some pixels are always 0."""
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    parts = torch.from_numpy(x).to(dtype), torch.from_numpy(y)
    return Features(*(part[:1200] for part in parts)), Features(*(part[1200:] for part in parts))


def skewed(n, seed, d=40, classes=6, dtype=torch.float64):
    """Return correlated features of very different scales, on which gradient descent is slow."""
    shared = torch.Generator().manual_seed(7)
    centres = torch.randn(classes, d, generator=shared)
    mix = torch.randn(d, d, generator=shared)
    generator = torch.Generator().manual_seed(seed)
    y = torch.randint(classes, (n,), generator=generator)
    z = centres[y] + torch.randn(n, d, generator=generator)
    x = (z * torch.arange(1, d + 1) ** -1.5) @ mix * torch.logspace(-3, 3, d) + 5
    return Features(x.to(dtype), y)


DATA = {
    "digits": digits,
    "skewed": lambda dtype=torch.float64: (
        skewed(900, 1, dtype=dtype),
        skewed(600, 2, dtype=dtype),
    ),
}


def scaled(train, test):
    """Return the features of train and test, standardised by scikit-learn."""
    from sklearn.preprocessing import StandardScaler

    scaler = StandardScaler().fit(train.x.double())
    return scaler.transform(train.x.double()), scaler.transform(test.x.double())


def peer(x, y, penalty):
    """Return scikit-learn's logistic regression with the same objective."""
    from sklearn.linear_model import LogisticRegression

    return LogisticRegression(C=1 / (len(x) * penalty), tol=1e-7, max_iter=20000).fit(x, y)


def ours(train, test, penalty):
    """Return our logits of the test images at one penalty."""
    frame = standard(train.x, "cpu")
    classes = int(train.y.max()) + 1
    start = torch.zeros(train.x.shape[1] + 1, classes, dtype=torch.float64)
    rows = Rows(turned(train.x, frame), train.y, CPU)
    theta = fit(rows, [slice(0, len(train.x))], frame.spread, penalty, start)
    return logits(turned(test.x, frame), theta)


# The minimum


# scikit-learn takes seconds for digits at the smallest penalty
SLOW = pytest.param("digits", 1e-4, marks=pytest.mark.slow)
CASES = [("digits", 0.1), ("digits", 1e-3), SLOW, *(("skewed", p) for p in (0.1, 1e-3, 1e-4))]


@pytest.mark.parametrize(("name", "penalty"), CASES)
def test_it_is_scikit_learns_at_the_same_penalty(name, penalty):
    train, test = DATA[name]()
    x, probe = scaled(train, test)
    model = peer(x, train.y.numpy(), penalty)
    logits_of_ours = ours(train, test, penalty)
    expected = torch.from_numpy(model.predict_proba(probe))
    assert (logits_of_ours.softmax(1) - expected).abs().mean() < 1e-3
    for dtype in (torch.float64, torch.float32):
        parts = [Features(part.x.to(dtype), part.y) for part in (train, test)]
        accuracy = 100 * (ours(*parts, penalty).argmax(1) == test.y).double().mean().item()
        # 0.1 % of 600 images is less than one image
        assert abs(accuracy - 100 * model.score(probe, test.y)) <= 0.1


def test_it_stops_where_nothing_is_left_to_gain():
    """Half the squared scaled gradient bounds the remaining gain.

    The loss is compared with that of a fit with a much smaller tolerance.
    """
    train, test = DATA["skewed"]()
    x, _ = scaled(train, test)
    model = peer(x, train.y.numpy(), 1e-4)

    def loss(scores, weight):
        return nn.functional.cross_entropy(scores, train.y) + 1e-4 / 2 * (weight**2).sum()

    least = loss(torch.from_numpy(model.decision_function(x)), torch.from_numpy(model.coef_))
    frame = standard(train.x, "cpu")
    z = turned(train.x, frame)
    start = torch.zeros(41, 6, dtype=torch.float64)
    theta = fit(Rows(z, train.y, CPU), [slice(0, len(z))], frame.spread, 1e-4, start)
    assert least - 1e-9 < loss(logits(z, theta), theta[:-1]) < least + 1e-5


def test_value_and_gradient_are_those_of_autograd():
    x = torch.randn(50, 7, dtype=torch.float64)
    y = torch.randint(4, (50,))
    theta = torch.randn(8, 4, dtype=torch.float64, requires_grad=True)
    rows = torch.cat([torch.arange(3, 20), torch.arange(30, 44)])
    loss = nn.functional.cross_entropy(x[rows] @ theta[:-1] + theta[-1], y[rows])
    expected = loss + 0.3 / 2 * (theta[:-1] ** 2).sum()
    parts = [slice(3, 9), slice(9, 20), slice(30, 44)]
    value, gradient = logistic.objective(Rows(x, y, CPU), parts, theta.detach(), 0.3, 31)
    assert torch.allclose(value, expected, rtol=1e-12)
    assert torch.allclose(gradient, torch.autograd.grad(expected, theta)[0], rtol=1e-10, atol=1e-14)


def test_pieces_and_start_change_nothing(monkeypatch):
    train, test = DATA["skewed"]()
    expected = ours(train, test, 1e-3)
    monkeypatch.setattr(frames, "PIECE", 40 * 37)
    assert (ours(train, test, 1e-3) - expected).abs().max() < 1e-6
    frame = standard(train.x, "cpu")
    z = turned(train.x, frame)
    start = torch.randn(41, 6, dtype=torch.float64)
    theta = fit(Rows(z, train.y, CPU), [slice(0, len(z))], frame.spread, 1e-3, start)
    other = logits(turned(test.x, frame), theta)
    assert (other.softmax(1) - expected.softmax(1)).abs().mean() < 1e-3


@pytest.mark.parametrize("penalty", [1e-2, pytest.param(1e-4, marks=pytest.mark.slow)])
def test_many_classes_reach_scikit_learns_minimum_within_a_hundred_thousandth(penalty):
    """It is the excess of the objective, which does not change with the frame of the features."""
    train = skewed(1500, 1, d=12, classes=60)
    x, _ = scaled(train, train)
    model = peer(x, train.y.numpy(), penalty)
    theirs = nn.functional.cross_entropy(torch.from_numpy(model.decision_function(x)), train.y)
    least = theirs + penalty / 2 * float((model.coef_**2).sum())
    for dtype in (torch.float64, torch.float32):
        frame = standard(train.x.to(dtype), "cpu")
        z = turned(train.x.to(dtype), frame)
        start = torch.zeros(13, 60, dtype=torch.float64)
        theta = fit(Rows(z, train.y, CPU), [slice(0, 1500)], frame.spread, penalty, start)
        rows = Rows(z.double(), train.y, CPU)
        value, _ = logistic.objective(rows, [slice(0, 1500)], theta, penalty, 1500)
        assert -1e-6 < value - least < 1e-5


def test_features_in_a_memory_map_give_the_same_and_stay_as_they_are(monkeypatch):
    train, test = DATA["skewed"](dtype=torch.float32)
    expected = classify(train, test, penalties=(0.1, 1e-3))
    before = train.x.clone()
    copy = storage.mapped(train.x.shape, torch.float32)
    copy.copy_(train.x)
    monkeypatch.setattr(storage, "host_budget", lambda: 0)  # nothing fits into memory
    monkeypatch.setattr(frames, "PIECE", 40 * 37)
    result = classify(Features(copy, train.y), test, penalties=(0.1, 1e-3))
    assert torch.equal(copy, before)
    assert result.penalty == expected.penalty
    assert (result.ranks == expected.ranks).double().mean() > 0.995


# Features


def test_a_frame_is_standardised_and_turned():
    x = skewed(300, 1).x
    z = turned(x, standard(x, "cpu"))
    covariance = z.T @ z / len(z)
    assert z.mean(0).abs().max() < 1e-9
    assert (covariance - covariance.diagonal().diag()).abs().max() < 1e-9
    standardised = (x - x.mean(0)) / x.std(0, correction=0)
    # a rotation keeps the lengths, and so the meaning of the penalty
    assert torch.allclose(z.norm(dim=1), standardised.norm(dim=1))
    assert torch.allclose(covariance.trace(), torch.tensor(40.0, dtype=torch.float64))


def test_scales_and_shifts_of_features_change_nothing():
    train, test = DATA["skewed"]()
    scale = torch.logspace(-4, 4, 40, dtype=torch.float64)
    shift = torch.linspace(-9, 9, 40, dtype=torch.float64)
    changed = [Features(part.x * scale + shift, part.y) for part in (train, test)]
    assert torch.allclose(ours(*changed, 1e-3), ours(train, test, 1e-3), atol=1e-4)


@pytest.mark.parametrize("level", [0.0, 0.1, 1e6])
def test_a_feature_that_does_not_vary_has_no_say(level):
    train, test = (Features(part.x.float(), part.y) for part in DATA["skewed"]())
    more = [
        Features(torch.cat([p.x, torch.full((len(p.x), 1), level)], 1), p.y) for p in (train, test)
    ]
    assert standard(more[0].x, "cpu").axes[-1].abs().max() <= 1  # rounding errors are not scaled up
    expected = classify(train, test, penalties=(1e-2,)).ranks
    assert torch.equal(classify(*more, penalties=(1e-2,)).ranks, expected)


def test_classes_without_train_images_are_always_wrong_and_do_no_harm():
    train, test = DATA["skewed"]()
    names = torch.tensor([0, 3, 5, 6, 9, 12])
    keep = train.y != 2
    without = Features(train.x[keep], names[train.y[keep]])
    ranks = classify(without, Features(test.x, names[test.y]), penalties=(1e-3,)).ranks
    assert (ranks[test.y == 2] == 5).all() and (ranks[test.y != 2] < 5).all()
    assert (ranks[test.y != 2] == 0).double().mean() > 0.6
    unknown = Features(test.x, torch.full_like(test.y, 99))
    assert (classify(without, unknown, penalties=(1e-3,)).ranks == 5).all()


# The penalty


def test_folds_are_a_partition_with_the_classes_dealt_out_evenly():
    y = torch.cat([torch.zeros(31), torch.ones(7), torch.full((62,), 2)]).long()
    order, folds = dealt(y, seed=3)
    assert sorted(order.tolist()) == list(range(100))
    assert [(fold.start, fold.stop) for fold in folds] == [(0, 34), (34, 67), (67, 100)]
    counts = torch.stack([torch.bincount(y[order[fold]], minlength=3) for fold in folds])
    assert (counts.amax(0) - counts.amin(0) <= 1).all()
    assert not torch.equal(order, dealt(y, seed=4)[0])


def test_the_penalty_is_that_of_a_naive_search():
    train, _ = DATA["skewed"]()
    order, folds = dealt(train.y, 0)
    penalties = (1.0, 0.03, 1e-3)
    frame = standard(train.x, "cpu")
    rows = Rows(turned(train.x[order], frame), train.y[order], CPU)
    best, percents, _ = choose(rows, folds, frame.spread, penalties, 6)
    x, _ = scaled(train, train)
    y = train.y.numpy()
    expected = []
    for penalty in penalties:
        correct = 0
        for fold in folds:
            held_out = order[fold].numpy()
            others = np.setdiff1d(np.arange(len(x)), held_out)
            predicted = peer(x[others], y[others], penalty).predict(x[held_out])
            correct += int((predicted == y[held_out]).sum())
        expected.append(100 * correct / len(x))
    assert percents == pytest.approx(expected, abs=100 * 2 / len(x))
    assert best == penalties[int(np.argmax(percents))]


def test_of_equal_penalties_the_strongest_is_taken():
    train, _ = DATA["skewed"]()
    easy = Features(torch.nn.functional.one_hot(train.y, 6).double(), train.y)
    result = classify(easy, easy, penalties=(0.1, 1e-3, 1e-5))
    assert result.held_out == [100.0] * 3 and result.penalty == 0.1


def test_test_images_choose_nothing():
    train, test = DATA["skewed"]()
    first = classify(train, test, penalties=GRID[:7:3])
    for other in (Features(test.x, test.y.flip(0)), Features(torch.randn_like(test.x), test.y)):
        second = classify(train, other, penalties=GRID[:7:3])
        assert (second.penalty, second.held_out) == (first.penalty, first.held_out)
        assert not torch.equal(second.ranks, first.ranks)


def test_the_same_seed_gives_the_same_result():
    train, test = DATA["skewed"](dtype=torch.float32)
    first, again, other = (
        classify(train, test, seed=seed, penalties=(0.1, 1e-3)) for seed in (0, 0, 1)
    )
    assert first.held_out == again.held_out and torch.equal(first.ranks, again.ranks)
    assert first.held_out != other.held_out


# The protocol


def test_the_protocol_says_what_it_did(monkeypatch):
    monkeypatch.setattr(logistic, "GRID", (1.0, 0.1, 0.01))
    small = task(bright(train=120, test=60, classes=10, spread=60), Weighed())
    result = protocols()["linear-fast"].run(small)
    direct = classify(small.features("train"), small.features("test"), penalties=(1.0, 0.1, 0.01))
    assert result.value == 100 * (direct.ranks == 0).double().mean().item() > 40
    assert result.more["top5"] == 100 * (direct.ranks < 5).double().mean().item() > result.value
    assert result.n == 60 and result.unit == "% top-1"
    assert result.settings["penalty"] == direct.penalty
    assert result.settings["penalties"] == [1.0, 0.1, 0.01]
    assert result.settings["folds"] == 3 and "deviation 1" in result.settings["features"]
    assert list(result.more["held-out top1"].values()) == direct.held_out


@pytest.mark.parametrize("classes", [6, 9, 10])
def test_top5_counts_the_images_whose_true_class_is_among_the_first_five(classes, monkeypatch):
    """Ranks count from 0. With few classes almost every image counts, so top5 is left out."""
    ranks = torch.tensor([0, 0, 1, 3, 4, 4, 5, 6, 5, 8]).clamp(max=classes - 1)
    result = logistic.Classification(0.1, [50.0], ranks)
    monkeypatch.setattr(logistic, "GRID", (0.1,))
    monkeypatch.setattr(logistic, "classify", lambda *features, **options: result)
    scored = linear_fast(task(bright(train=40, test=10, classes=classes), Weighed()))
    assert scored.value == pytest.approx(20) and scored.n == 10
    assert scored.more.get("top5") == (None if classes < 10 else pytest.approx(60))


def test_top5_is_that_of_scikit_learn(monkeypatch):
    """The images are so noisy that many true classes have rank 4 or 5."""
    from sklearn.metrics import top_k_accuracy_score

    monkeypatch.setattr(logistic, "GRID", (0.1,))
    noisy = task(bright(train=120, test=150, classes=10, spread=1000), Weighed())
    result = linear_fast(noisy)
    train, test = noisy.features("train"), noisy.features("test")
    x, probe = scaled(train, test)
    scores = peer(x, train.y.numpy(), 0.1).decision_function(probe)
    expected = [100 * top_k_accuracy_score(test.y, scores, k=k) for k in (1, 4, 5, 6)]
    one_image = 100 / 150 + 1e-9
    assert result.value == pytest.approx(expected[0], abs=one_image)
    assert result.more["top5"] == pytest.approx(expected[2], abs=one_image)
    assert expected[1] + 3 * one_image < expected[2] < expected[3] - 3 * one_image


WRONG = {
    "several classes per image": (
        lambda: task(labelled(nn.functional.one_hot), Weighed()),
        "one class per image",
    ),
    "no labels": (lambda: task(labelled(lambda y: None), Weighed()), "no labels"),
    "one class": (lambda: task(labelled(torch.zeros_like), Weighed()), "one class only"),
    "two images": (
        lambda: task(bright(train=2), Weighed()),
        "at least 3 train images, but bright has 2",
    ),
    "no test images": (lambda: task(replace(bright(), test=None), Weighed()), "no test split"),
    "no numbers": (lambda: task(bright(), Broken()), "NaN or infinite"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_input_is_a_sentence(case):
    make, words = WRONG[case]
    with pytest.raises(ValueError, match=words) as error:
        linear_fast(make())
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("side", [0, 1])
def test_features_that_are_no_numbers_are_refused(side, value):
    parts = [Features(part.x.clone(), part.y) for part in DATA["skewed"]()]
    parts[side].x[4, 2] = value
    with pytest.raises(ValueError, match="some are NaN or infinite"):
        classify(*parts, penalties=(0.1,))


def test_three_images_are_enough():
    features = Features(torch.randn(3, 4), torch.tensor([0, 1, 1]))
    assert classify(features, features, penalties=(0.1, 0.01)).ranks.shape == (3,)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
def test_gpu_equals_cpu():
    train, test = DATA["skewed"](dtype=torch.float32)
    cpu, gpu = (
        classify(train, test, device=device, penalties=(0.1, 1e-2, 1e-3))
        for device in ("cpu", "cuda")
    )
    assert cpu.penalty == gpu.penalty
    assert ((cpu.ranks == 0) == (gpu.ranks == 0)).double().mean() > 0.998


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
def test_features_that_do_not_fit_on_the_gpu_stay_on_the_host(monkeypatch):
    train, test = DATA["skewed"](dtype=torch.float32)
    expected = classify(train, test, device="cuda", penalties=(0.1, 1e-3))
    monkeypatch.setattr(storage, "DEVICE_SHARE", 0)
    monkeypatch.setattr(frames, "CUDA_PIECE", 40 * 37)
    result = classify(train, test, device="cuda", penalties=(0.1, 1e-3))
    assert result.penalty == expected.penalty
    assert (result.ranks == expected.ranks).double().mean() > 0.995


def test_a_frame_moves_features_to_its_own_type():
    frame = Frame(torch.zeros(2), torch.eye(2), torch.ones(2))
    assert frame(torch.ones(3, 2, dtype=torch.float64)).dtype == torch.float32
