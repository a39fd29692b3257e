"""Tests of SVMs: average precision, the choice of costs, difficult images and low-shot samples."""

import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from antipode.data.sources.source import Memory
from antipode.data.sources.splits import Splits
from antipode.evaluation import svm
from antipode.evaluation.protocol import protocols
from antipode.evaluation.svm import average_precision, choose, drawn, lowshot_svm, normal, svm_voc07
from tests.evaluation.classes import bright, task
from tests.evaluation.test_nearest import Broken, Weighed

FEW = (0.01, 0.1, 1.0)


# Average precision


def by_definition(scores, truth):
    """Return the mean, over the recalls of all positives, of the best precision at that recall.

    The curve is computed at thresholds of the score, not at positions in the ranking.
    """
    positives = sum(label > 0 for label in truth)
    curve = []
    for threshold in sorted(set(scores)):
        pairs = zip(scores, truth, strict=True)
        accepted = [label > 0 for score, label in pairs if score >= threshold]
        curve.append((sum(accepted), sum(accepted) / len(accepted)))
    best = [
        max(precision for hits, precision in curve if hits >= needed)
        for needed in range(1, positives + 1)
    ]
    return sum(best) / positives


@pytest.mark.parametrize("levels", [None, 7, 2])
@pytest.mark.parametrize("seed", range(5))
def test_average_precision_is_its_definition(seed, levels):
    random = np.random.default_rng(seed)
    if levels is None:
        scores = random.normal(size=60)
    else:
        scores = random.integers(levels, size=60).astype(float)
    truth = (random.random(60) < 0.2).astype(int)
    expected = by_definition(scores, truth)
    assert average_precision(scores, truth) == pytest.approx(expected, abs=1e-12)
    order = random.permutation(60)
    assert average_precision(scores[order], truth[order]) == average_precision(scores, truth)


@pytest.mark.parametrize("seed", range(5))
def test_average_precision_is_scikit_learns_under_the_envelope(seed):
    """scikit-learn does not make the precision monotone.

    Its value is never larger, and it is equal if the precision only falls.
    """
    from sklearn.metrics import average_precision_score

    random = np.random.default_rng(seed)
    scores = random.normal(size=80)
    truth = (random.random(80) < 0.3).astype(int)
    assert average_precision(scores, truth) > average_precision_score(truth, scores)
    falling = np.sort(scores)[::-1]
    ranked = np.r_[np.ones(9), [0, 1, 0, 0, 1, 0, 0, 0, 1], np.zeros(20)].astype(int)
    precision = np.cumsum(ranked) / np.arange(1, len(ranked) + 1)
    assert (np.diff(precision[ranked == 1]) <= 0).all()
    expected = average_precision_score(ranked, falling[: len(ranked)])
    assert average_precision(falling[: len(ranked)], ranked) == pytest.approx(expected, abs=1e-12)


def test_average_precision_at_its_ends():
    assert average_precision(np.array([3.0, 2, 1, 0]), np.array([1, 1, 0, 0])) == 1
    assert average_precision(np.array([0.0, 1, 2, 3]), np.array([1, 0, 0, 0])) == 0.25
    # equal scores do not rank the images
    assert average_precision(np.zeros(10), np.arange(10) < 3) == pytest.approx(0.3)
    assert np.isnan(average_precision(np.zeros(4), np.zeros(4)))
    assert np.isnan(average_precision(np.zeros(0), np.zeros(0)))


# One SVM


def features(n=90, d=8, seed=0):
    """Return features (N,D) and signs (N,) of two overlapping classes."""
    random = np.random.default_rng(seed)
    sign = np.where(random.random(n) < 0.3, 1, -1)
    x = random.normal(size=(n, d)) + 0.7 * sign[:, None] * (np.arange(d) < 3)
    return normal(torch.from_numpy(x)), sign


def test_costs_are_judged_as_scikit_learn_cross_validates():
    from sklearn.model_selection import cross_val_score
    from sklearn.svm import LinearSVC

    x, sign = features()
    chosen = choose(x, sign, FEW, seed=4)

    def peer(cost):
        return LinearSVC(
            C=cost, class_weight={1: 2, -1: 1}, dual=True, tol=1e-4, max_iter=2000, random_state=4
        )

    expected = [
        cross_val_score(peer(cost), x, sign, cv=3, scoring="average_precision").mean()
        for cost in FEW
    ]
    assert chosen.scores == pytest.approx(expected, abs=1e-12) and len(set(expected)) > 1
    assert chosen.cost == FEW[int(np.argmax(expected))]
    model = peer(chosen.cost).fit(x, sign)
    assert np.allclose(chosen.weight, model.coef_[0])
    assert np.allclose(chosen.bias, model.intercept_[0])


def test_the_weight_is_the_minimum_with_positives_counted_twice():
    """The objective is C sum_i w_i max(0, 1 - y f(x))^2 + |w|^2 / 2.

    The bias is penalised too, as in liblinear.
    """
    x, sign = (torch.from_numpy(part).double() for part in features())
    with_one = torch.cat([x, torch.ones(len(x), 1, dtype=torch.float64)], 1)
    theta = torch.zeros(x.shape[1] + 1, dtype=torch.float64, requires_grad=True)
    weight = torch.where(sign > 0, 2.0, 1.0)
    optimiser = torch.optim.LBFGS(
        [theta], max_iter=500, tolerance_grad=1e-10, line_search_fn="strong_wolfe"
    )

    def loss():
        optimiser.zero_grad()
        hinge = (1 - sign * (with_one @ theta)).clamp(min=0)
        value = 10 * (weight * hinge**2).sum() + (theta**2).sum() / 2
        value.backward()
        return value

    optimiser.step(loss)
    ours, bias, ran_out = svm.fitted(x.numpy(), sign.numpy().astype(int), 10.0, 0)
    assert not ran_out and np.allclose(np.r_[ours, bias], theta.detach(), atol=2e-3)


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
        chosen = choose(x, sign, (10.0, 100.0), seed=0)
    assert chosen.unfinished == 2 * 3 + 1


# The protocol


def scenes(train=90, test=60, classes=4, difficult=0.0, seed=0):
    """Return splits of 8 x 8 images, in which each class makes one quarter of the image bright.

    `difficult` is the share of labels that are -1.
    """
    generator = torch.Generator().manual_seed(seed)
    parts = []
    for n in (train, test):
        bright_quarters = torch.rand(n, classes, generator=generator) < 0.3
        noise = 45 * torch.randn(n, 3, 2, 2, generator=generator)
        quarters = 90 + 60 * bright_quarters.float().view(n, 1, 2, 2) + noise
        images = nn.functional.interpolate(quarters, scale_factor=4).clamp(0, 255).to(torch.uint8)
        hidden = torch.rand(n, classes, generator=generator) < difficult
        labels = torch.where(hidden, -1, bright_quarters.long())
        parts.append(Memory(images, labels, ["a", "b", "c", "d"]))
    return Splits("scenes", parts[0], *parts, 8, (0.5,), (0.25,))


def relabelled(splits, part, labels):
    """Return the splits with other labels for the train or test images."""
    return replace(splits, **{part: replace(getattr(splits, part), labels=labels)})


def voc(splits, **options):
    """Return the result of `svm_voc07` with few costs."""
    return svm_voc07(task(splits, Weighed()), **{"costs": FEW} | options)


def test_the_value_is_the_mean_over_classes_of_naive_svms():
    from sklearn.svm import LinearSVC

    splits = scenes(difficult=0.1)
    result = voc(splits)
    small = task(splits, Weighed())
    x, probe = (small.features(part).x.double().numpy() for part in ("train", "test"))
    x, probe = (part / (np.sqrt((part**2).sum(1)) + 1e-5)[:, None] for part in (x, probe))
    precisions = []
    for label, name in enumerate("abcd"):
        y, truth = (part.labels[:, label].numpy() for part in (splits.train, splits.test))
        peer = LinearSVC(
            C=result.more["cost"][name],
            class_weight={1: 2, -1: 1},
            dual=True,
            max_iter=2000,
            random_state=0,
        )
        scores = peer.fit(x, np.where(y == 1, 1, -1)).decision_function(probe)
        precisions.append(100 * by_definition(scores[truth >= 0], truth[truth >= 0]))
    assert list(result.more["average precision"].values()) == pytest.approx(precisions, abs=1e-6)
    assert result.value == pytest.approx(np.mean(precisions), abs=1e-6)
    assert result.unit == "% mAP" and result.n == 60 and result.settings["costs"] == list(FEW)


def test_difficult_images_are_negatives_in_training():
    splits = scenes(difficult=0.15)
    absent = relabelled(splits, "train", splits.train.labels.clamp(min=0))
    assert (splits.train.labels < 0).any() and voc(splits) == voc(absent)


def test_difficult_images_are_not_judged():
    """Removing the images that are difficult for one class changes the other classes only."""
    splits = scenes(difficult=0.3)
    judged = splits.test.labels[:, 1] >= 0
    fewer = Memory(splits.test.images[judged], splits.test.labels[judged], splits.test.classes)
    negatives = relabelled(splits, "test", splits.test.labels.clamp(min=0))
    whole, without, as_negatives = (
        voc(part).more["average precision"]
        for part in (splits, replace(splits, test=fewer), negatives)
    )
    assert without["b"] == whole["b"] and without["a"] != whole["a"]
    assert as_negatives["b"] != whole["b"]


def test_test_images_choose_no_cost():
    splits = scenes()
    result = voc(splits)
    other = voc(relabelled(splits, "test", splits.test.labels.flip(0)))
    assert result.more["cost"] == other.more["cost"] and result.value != other.value
    assert result.more["unfinished fits"] == other.more["unfinished fits"]


def test_one_class_per_image_is_a_row_with_one_1():
    splits = bright(train=60, test=40, spread=90)
    hot = splits
    for part in ("train", "test"):
        hot = relabelled(hot, part, nn.functional.one_hot(getattr(splits, part).labels, 4))
    assert voc(splits) == voc(hot) and lowshot(splits) == lowshot(hot)


def test_the_same_seed_gives_the_same_result_and_another_other_samples():
    splits = scenes()
    assert voc(splits) == voc(splits) and lowshot(splits) == lowshot(splits)
    other = lowshot_svm(task(splits, Weighed(), seed=1), costs=FEW, shots=(1,))
    assert other.value != lowshot(splits, shots=(1,)).value


@pytest.mark.slow
def test_any_number_of_processes_gives_the_same_result(monkeypatch):
    splits = scenes()
    one_process = voc(splits), lowshot(splits)
    monkeypatch.setattr(svm, "SMALL", 0)
    monkeypatch.setattr(svm, "cores", lambda world: 2)
    assert (voc(splits), lowshot(splits)) == one_process


def test_classes_that_cannot_be_judged_are_left_out_and_named():
    splits = scenes()
    train, test = splits.train.labels.clone(), splits.test.labels.clone()
    train[:, 0] = 0
    train[:2, 0] = 1  # two images for three folds
    test[:, 2] = -1  # no test image to evaluate on
    result = voc(relabelled(relabelled(splits, "train", train), "test", test))
    assert result.more["left out"] == ["a", "c"] and list(result.more["cost"]) == ["b", "d"]
    assert result.value == pytest.approx(np.mean(list(result.more["average precision"].values())))


def test_the_published_list_of_costs():
    assert len(svm.COSTS) == 26 and min(svm.COSTS) == 1e-7 and max(svm.COSTS) == 100
    assert {0.01, 0.1, 1.0, 10.0, 2**-4, 2**-19} <= set(svm.COSTS) and 2**-3 not in svm.COSTS


# Few images


def lowshot(splits, **options):
    """Return the result of `lowshot_svm` with few costs and small k."""
    return lowshot_svm(task(splits, Weighed()), **{"costs": FEW, "shots": (1, 2, 4)} | options)


def test_a_sample_has_k_images_with_the_class_and_k_times_the_others_without():
    label = np.array([1, 0, -1] * 40)
    positive, negative = drawn(label, 5, 4, (0, 1, 2))
    assert len(set(positive)) == 5 and (label[positive] == 1).all()
    assert len(set(negative)) == 15 and (label[negative] == 0).all()
    again = drawn(label, 5, 4, (0, 1, 2))
    assert (again[0] == positive).all() and (again[1] == negative).all()
    for other in ((1, 1, 2), (0, 2, 2), (0, 1, 3)):  # another seed, sample or class
        assert set(drawn(label, 5, 4, other)[0]) != set(positive)


def test_few_images_are_the_naive_loop():
    from sklearn.svm import LinearSVC

    splits = scenes(difficult=0.1)
    result = lowshot(splits, shots=(2,))
    small = task(splits, Weighed())
    x, probe = (normal(small.features(part).x) for part in ("train", "test"))
    train, test = splits.train.labels.numpy(), splits.test.labels.numpy()
    table = np.zeros((2, 5, len(FEW), 4))  # rest of train or test, sample, cost, class
    for sample in range(5):
        for c, cost in enumerate(FEW):
            for label in range(4):
                picked = np.concatenate(drawn(train[:, label], 2, 4, (0, sample, label)))
                peer = LinearSVC(
                    C=cost, class_weight={1: 2, -1: 1}, dual=True, max_iter=2000, random_state=0
                )
                peer.fit(x[picked], np.where(train[picked, label] == 1, 1, -1))
                rest = [i for i in range(len(x)) if i not in picked and train[i, label] >= 0]
                judged = test[:, label] >= 0
                table[0, sample, c, label] = by_definition(
                    peer.decision_function(x[rest]), train[rest, label]
                )
                table[1, sample, c, label] = by_definition(
                    peer.decision_function(probe[judged]), test[judged, label]
                )
    for sample in range(5):
        rest, tested, _ = svm.sampled(x, train, probe, test, 2, FEW, (0, sample))
        assert np.allclose(rest, table[0, sample].mean(1))
        assert np.allclose(tested, table[1, sample].mean(1))
    rest, tested = 100 * table.mean(3)
    best = int(np.argmax(rest.mean(0)))
    assert result.value == pytest.approx(tested[:, best].mean(), abs=1e-6)
    entry = result.more["k=2"]
    assert entry["cost"] == FEW[best]
    assert entry["std"] == pytest.approx(tested[:, best].std(), abs=1e-6)
    assert result.more["cost chosen on test"] == pytest.approx(tested.mean(0).max(), abs=1e-6)


def test_the_value_is_the_mean_over_k_and_more_images_help():
    result = lowshot(scenes(train=300, test=200))
    means = [result.more[f"k={k}"]["mean"] for k in (1, 2, 4)]
    assert result.value == pytest.approx(np.mean(means)) and means[2] > means[0]
    assert result.settings["k"] == [1, 2, 4] and result.settings["samples"] == 5


def test_test_images_choose_no_cost_for_few_images():
    splits = scenes()
    result = lowshot(splits)
    other = lowshot(relabelled(splits, "test", splits.test.labels.flip(0)))
    for k in (1, 2, 4):
        assert result.more[f"k={k}"]["cost"] == other.more[f"k={k}"]["cost"]
    assert result.value != other.value


def test_samples_larger_than_a_class_are_left_out():
    # each class has five images; with k = 5 none is left to choose a cost on
    result = lowshot(bright(train=20, test=20), shots=(1, 4, 5, 6))
    assert result.settings["k"] == [1, 4] and result.more["left out"] == [5, 6]


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
    with pytest.raises(ValueError, match="NaN or infinite"):
        svm_voc07(task(scenes(), Broken()))
    with pytest.raises(ValueError, match="some are NaN or infinite"):
        normal(torch.tensor([[1.0, float("inf")]]))


def test_they_stand_in_the_list():
    assert protocols()["svm-voc07"].data == protocols()["lowshot-svm"].data == "voc07"
    assert (
        protocols()["svm-voc07"].run is svm_voc07 and protocols()["lowshot-svm"].run is lowshot_svm
    )
