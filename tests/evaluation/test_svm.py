"""SVMs: average precision by its definition, costs that only train images choose, difficult images, samples of k."""

import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from antipode.data.sources.source import Memory
from antipode.data.sources.splits import Splits
from antipode.evaluation import svm
from antipode.evaluation.protocol import PROTOCOLS
from antipode.evaluation.svm import average_precision, choose, drawn, lowshot_svm, normal, svm_voc07
from tests.evaluation.classes import bright, task
from tests.evaluation.test_nearest import Broken, Weighed

FEW = (0.01, 0.1, 1.0)


# Average precision


def by_definition(scores, truth):
    """Mean over positives of the best precision at any threshold that recalls as much; thresholds, not positions."""
    positives = sum(one > 0 for one in truth)
    curve = []
    for threshold in sorted(set(scores)):
        taken = [one > 0 for score, one in zip(scores, truth, strict=True) if score >= threshold]
        curve.append((sum(taken), sum(taken) / len(taken)))
    best = [
        max(precision for hits, precision in curve if hits >= need)
        for need in range(1, positives + 1)
    ]
    return sum(best) / positives


@pytest.mark.parametrize("levels", [None, 7, 2])
@pytest.mark.parametrize("seed", range(5))
def test_average_precision_is_its_definition(seed, levels):
    chance = np.random.default_rng(seed)
    scores = (
        chance.normal(size=60) if levels is None else chance.integers(levels, size=60).astype(float)
    )
    truth = (chance.random(60) < 0.2).astype(int)
    assert average_precision(scores, truth) == pytest.approx(
        by_definition(scores, truth), abs=1e-12
    )
    shuffled = chance.permutation(60)
    assert average_precision(scores[shuffled], truth[shuffled]) == average_precision(scores, truth)


@pytest.mark.parametrize("seed", range(5))
def test_average_precision_is_scikit_learns_under_the_envelope(seed):
    """scikit-learn's has no envelope: never more, and the same where precision only falls."""
    from sklearn.metrics import average_precision_score

    chance = np.random.default_rng(seed)
    scores, truth = chance.normal(size=80), (chance.random(80) < 0.3).astype(int)
    assert average_precision(scores, truth) > average_precision_score(truth, scores)
    falling = np.sort(scores)[::-1]
    ranked = np.r_[np.ones(9), [0, 1, 0, 0, 1, 0, 0, 0, 1], np.zeros(20)].astype(int)
    hits = np.cumsum(ranked) / np.arange(1, len(ranked) + 1)
    assert (np.diff(hits[ranked == 1]) <= 0).all()
    assert average_precision(falling[: len(ranked)], ranked) == pytest.approx(
        average_precision_score(ranked, falling[: len(ranked)]), abs=1e-12
    )


def test_average_precision_at_its_ends():
    assert average_precision(np.array([3.0, 2, 1, 0]), np.array([1, 1, 0, 0])) == 1
    assert average_precision(np.array([0.0, 1, 2, 3]), np.array([1, 0, 0, 0])) == 0.25
    assert average_precision(np.zeros(10), np.arange(10) < 3) == pytest.approx(
        0.3
    )  # one score for all is no ranking
    assert np.isnan(average_precision(np.zeros(4), np.zeros(4))) and np.isnan(
        average_precision(np.zeros(0), np.zeros(0))
    )


# One SVM


def features(n=90, d=8, seed=0):
    chance = np.random.default_rng(seed)
    sign = np.where(chance.random(n) < 0.3, 1, -1)
    return normal(
        torch.from_numpy(chance.normal(size=(n, d)) + 0.7 * sign[:, None] * (np.arange(d) < 3))
    ), sign


def test_costs_are_judged_as_scikit_learn_cross_validates():
    from sklearn.model_selection import cross_val_score
    from sklearn.svm import LinearSVC

    x, sign = features()
    found = choose(x, sign, FEW, seed=4)

    def peer(cost):
        return LinearSVC(
            C=cost, class_weight={1: 2, -1: 1}, dual=True, tol=1e-4, max_iter=2000, random_state=4
        )

    expected = [
        cross_val_score(peer(cost), x, sign, cv=3, scoring="average_precision").mean()
        for cost in FEW
    ]
    assert found.scores == pytest.approx(expected, abs=1e-12) and len(set(expected)) > 1
    assert found.cost == FEW[int(np.argmax(expected))]
    whole = peer(found.cost).fit(x, sign)
    assert np.allclose(found.weight, whole.coef_[0]) and np.allclose(
        found.bias, whole.intercept_[0]
    )


def test_the_weight_is_the_minimum_with_positives_counted_twice():
    """C sum_i w_i max(0, 1 - y f(x))^2 + |w|^2 / 2, the bias penalised too, as liblinear has it."""
    x, sign = (torch.from_numpy(part).double() for part in features())
    one = torch.cat([x, torch.ones(len(x), 1, dtype=torch.float64)], 1)
    theta = torch.zeros(x.shape[1] + 1, dtype=torch.float64, requires_grad=True)
    weight = torch.where(sign > 0, 2.0, 1.0)
    search = torch.optim.LBFGS(
        [theta], max_iter=500, tolerance_grad=1e-10, line_search_fn="strong_wolfe"
    )

    def loss():
        search.zero_grad()
        value = (
            10 * (weight * (1 - sign * (one @ theta)).clamp(min=0) ** 2).sum()
            + (theta**2).sum() / 2
        )
        value.backward()
        return value

    search.step(loss)
    found, bias, short = svm.fitted(x.numpy(), sign.numpy().astype(int), 10.0, 0)
    assert not short and np.allclose(np.r_[found, bias], theta.detach(), atol=2e-3)


def test_features_have_length_one():
    x = torch.tensor([[3.0, 4.0], [0.0, 0.0], [3e-5, 4e-5]])
    assert np.allclose(
        normal(x), [[0.6 / (1 + 2e-6), 0.8 / (1 + 2e-6)], [0, 0], [0.5, 2 / 3]], atol=1e-3
    )
    assert normal(x).dtype == np.float64


def test_fits_out_of_steps_are_counted_not_told(monkeypatch):
    x, sign = features()
    monkeypatch.setattr(svm, "STEPS", 1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = choose(x, sign, (10.0, 100.0), seed=0)
    assert found.unfinished == 2 * 3 + 1


# The protocol


def scenes(train=90, test=60, classes=4, difficult=0.0, seed=0):
    """Images (8 x 8) in which some of four quarters are bright, each a class; some are marked difficult."""
    chance = torch.Generator().manual_seed(seed)
    parts = []
    for n in (train, test):
        there = torch.rand(n, classes, generator=chance) < 0.3
        quarters = (
            90
            + 60 * there.float().view(n, 1, 2, 2)
            + 45 * torch.randn(n, 3, 2, 2, generator=chance)
        )
        images = nn.functional.interpolate(quarters, scale_factor=4).clamp(0, 255).to(torch.uint8)
        hidden = torch.rand(n, classes, generator=chance) < difficult
        parts.append(Memory(images, torch.where(hidden, -1, there.long()), ["a", "b", "c", "d"]))
    return Splits("scenes", parts[0], *parts, 8, (0.5,), (0.25,))


def relabelled(splits, part, labels):
    return replace(splits, **{part: replace(getattr(splits, part), labels=labels)})


def voc(splits, **keys):
    return svm_voc07(task(splits, Weighed()), **{"costs": FEW} | keys)


def test_the_value_is_the_mean_over_classes_of_naive_svms():
    from sklearn.svm import LinearSVC

    splits = scenes(difficult=0.1)
    found = voc(splits)
    one = task(splits, Weighed())
    x, probe = (part.x.double().numpy() for part in (one.features("train"), one.features("test")))
    x, probe = (part / (np.sqrt((part**2).sum(1)) + 1e-5)[:, None] for part in (x, probe))
    precisions = []
    for place, name in enumerate("abcd"):
        y, truth = splits.train.labels[:, place].numpy(), splits.test.labels[:, place].numpy()
        peer = LinearSVC(
            C=found.more["cost"][name],
            class_weight={1: 2, -1: 1},
            dual=True,
            max_iter=2000,
            random_state=0,
        )
        scores = peer.fit(x, np.where(y == 1, 1, -1)).decision_function(probe)
        precisions.append(100 * by_definition(scores[truth >= 0], truth[truth >= 0]))
    assert list(found.more["average precision"].values()) == pytest.approx(precisions, abs=1e-6)
    assert found.value == pytest.approx(np.mean(precisions), abs=1e-6)
    assert found.unit == "% mAP" and found.n == 60 and found.settings["costs"] == list(FEW)


def test_difficult_images_are_negatives_in_training():
    splits = scenes(difficult=0.15)
    absent = relabelled(splits, "train", splits.train.labels.clamp(min=0))
    assert (splits.train.labels < 0).any() and voc(splits) == voc(absent)


def test_difficult_images_are_not_judged():
    """For one class: they may be taken out of test, and their features do not matter; for the others they count."""
    splits = scenes(difficult=0.3)
    found = voc(splits).more["average precision"]
    judged = splits.test.labels[:, 1] >= 0
    fewer = Memory(splits.test.images[judged], splits.test.labels[judged], splits.test.classes)
    again = voc(replace(splits, test=fewer)).more["average precision"]
    assert again["b"] == found["b"] and again["a"] != found["a"]
    absent = voc(relabelled(splits, "test", splits.test.labels.clamp(min=0))).more[
        "average precision"
    ]
    assert absent["b"] != found["b"]


def test_test_images_choose_no_cost():
    splits = scenes()
    found = voc(splits)
    other = voc(relabelled(splits, "test", splits.test.labels.flip(0)))
    assert found.more["cost"] == other.more["cost"] and found.value != other.value
    assert found.more["unfinished fits"] == other.more["unfinished fits"]


def test_one_class_per_image_is_a_row_with_one_1():
    splits = bright(train=60, test=40, spread=90)
    hot = splits
    for part in ("train", "test"):
        hot = relabelled(hot, part, nn.functional.one_hot(getattr(splits, part).labels, 4))
    assert voc(splits) == voc(hot) and lowshot(splits) == lowshot(hot)


def test_the_same_seed_gives_the_same_result_and_another_other_samples():
    splits = scenes()
    assert voc(splits) == voc(splits) and lowshot(splits) == lowshot(splits)
    assert (
        lowshot_svm(task(splits, Weighed(), seed=1), costs=FEW, shots=(1,)).value
        != lowshot(splits, shots=(1,)).value
    )


@pytest.mark.slow
def test_any_number_of_processes_gives_the_same_result(monkeypatch):
    splits = scenes()
    one = voc(splits), lowshot(splits)
    monkeypatch.setattr(svm, "SMALL", 0)
    monkeypatch.setattr(svm, "cores", lambda world: 2)
    assert (voc(splits), lowshot(splits)) == one


def test_classes_that_cannot_be_judged_are_left_out_and_named():
    splits = scenes()
    train, test = splits.train.labels.clone(), splits.test.labels.clone()
    train[:, 0] = 0
    train[:2, 0] = 1  # two images for three folds
    test[:, 2] = -1  # nothing to judge by
    found = voc(relabelled(relabelled(splits, "train", train), "test", test))
    assert found.more["left out"] == ["a", "c"] and list(found.more["cost"]) == ["b", "d"]
    assert found.value == pytest.approx(np.mean(list(found.more["average precision"].values())))


def test_the_published_list_of_costs():
    assert len(svm.COSTS) == 26 and min(svm.COSTS) == 1e-7 and max(svm.COSTS) == 100
    assert {0.01, 0.1, 1.0, 10.0, 2**-4, 2**-19} <= set(svm.COSTS) and 2**-3 not in svm.COSTS


# Few images


def lowshot(splits, **keys):
    return lowshot_svm(task(splits, Weighed()), **{"costs": FEW, "shots": (1, 2, 4)} | keys)


def test_a_sample_has_k_images_with_the_class_and_k_times_the_others_without():
    label = np.array([1, 0, -1] * 40)
    yes, no = drawn(label, 5, 4, (0, 1, 2))
    assert len(set(yes)) == 5 and (label[yes] == 1).all()
    assert len(set(no)) == 15 and (label[no] == 0).all()
    assert all(
        (a == b).all() for a, b in zip(drawn(label, 5, 4, (0, 1, 2)), (yes, no), strict=True)
    )
    for other in ((1, 1, 2), (0, 2, 2), (0, 1, 3)):  # another seed, sample or class
        assert set(drawn(label, 5, 4, other)[0]) != set(yes)


def test_few_images_are_the_naive_loop():
    from sklearn.svm import LinearSVC

    splits = scenes(difficult=0.1)
    found = lowshot(splits, shots=(2,))
    one = task(splits, Weighed())
    x, probe = (normal(one.features(part).x) for part in ("train", "test"))
    train, test = splits.train.labels.numpy(), splits.test.labels.numpy()
    table = np.zeros((2, 5, len(FEW), 4))  # rest of train or test, sample, cost, class
    for sample in range(5):
        for c, cost in enumerate(FEW):
            for place in range(4):
                picked = np.concatenate(drawn(train[:, place], 2, 4, (0, sample, place)))
                peer = LinearSVC(
                    C=cost, class_weight={1: 2, -1: 1}, dual=True, max_iter=2000, random_state=0
                )
                peer.fit(x[picked], np.where(train[picked, place] == 1, 1, -1))
                rest = [i for i in range(len(x)) if i not in picked and train[i, place] >= 0]
                judged = test[:, place] >= 0
                table[0, sample, c, place] = by_definition(
                    peer.decision_function(x[rest]), train[rest, place]
                )
                table[1, sample, c, place] = by_definition(
                    peer.decision_function(probe[judged]), test[judged, place]
                )
    for sample in range(5):
        rest, tested, _ = svm.sampled(x, train, probe, test, 2, FEW, (0, sample))
        assert np.allclose(rest, table[0, sample].mean(1)) and np.allclose(
            tested, table[1, sample].mean(1)
        )
    rest, tested = 100 * table.mean(3)
    best = int(np.argmax(rest.mean(0)))
    assert found.value == pytest.approx(tested[:, best].mean(), abs=1e-6)
    entry = found.more["k=2"]
    assert entry["cost"] == FEW[best] and entry["std"] == pytest.approx(
        tested[:, best].std(), abs=1e-6
    )
    assert found.more["cost chosen on test"] == pytest.approx(tested.mean(0).max(), abs=1e-6)


def test_the_value_is_the_mean_over_k_and_more_images_help():
    found = lowshot(scenes(train=300, test=200))
    means = [found.more[f"k={k}"]["mean"] for k in (1, 2, 4)]
    assert found.value == pytest.approx(np.mean(means)) and means[2] > means[0]
    assert found.settings["k"] == [1, 2, 4] and found.settings["samples"] == 5


def test_test_images_choose_no_cost_for_few_images():
    splits = scenes()
    found, other = lowshot(splits), lowshot(relabelled(splits, "test", splits.test.labels.flip(0)))
    for k in (1, 2, 4):
        assert found.more[f"k={k}"]["cost"] == other.more[f"k={k}"]["cost"]
    assert found.value != other.value


def test_samples_larger_than_a_class_are_left_out():
    found = lowshot(bright(train=20, test=20), shots=(1, 4, 5, 6))  # five images of each class
    assert found.settings["k"] == [1, 4] and found.more["left out"] == [
        5,
        6,
    ]  # at 5 none is left to choose a cost by


# Wrong input

WRONG = {
    "no labels": (lambda s: relabelled(s, "train", None), "no labels"),
    "no test images": (lambda s: replace(s, test=None), "no test split"),
    "no positives": (lambda s: relabelled(s, "train", torch.zeros_like(s.train.labels)), "scenes"),
    "nothing but positives": (
        lambda s: relabelled(s, "train", torch.ones_like(s.train.labels)),
        "scenes",
    ),
}


@pytest.mark.parametrize("run", [voc, lowshot])
@pytest.mark.parametrize("case", WRONG)
def test_wrong_input_is_a_sentence(case, run):
    change, words = WRONG[case]
    with pytest.raises(ValueError, match=words) as error:
        run(change(scenes()))
    assert "\n" not in str(error.value)


def test_features_that_are_no_numbers_are_refused():
    with pytest.raises(ValueError, match="not numbers"):
        svm_voc07(task(scenes(), Broken()))
    with pytest.raises(ValueError, match="infinite or not a number"):
        normal(torch.tensor([[1.0, float("inf")]]))


def test_they_stand_in_the_list():
    assert PROTOCOLS["svm-voc07"].data == PROTOCOLS["lowshot-svm"].data == "voc07"
    assert PROTOCOLS["svm-voc07"].run is svm_voc07 and PROTOCOLS["lowshot-svm"].run is lowshot_svm
