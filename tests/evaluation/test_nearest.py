"""Tests of kNN: the votes of scikit-learn, work in pieces, memory use, protocols and errors."""

import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from antipode.core import neighbours
from antipode.data.sources.source import Memory
from antipode.evaluation.nearest import accuracy
from antipode.evaluation.protocol import protocols
from antipode.functional import knn
from antipode.types import Features
from tests.evaluation.classes import Levels, bright, task


def clouds(n, d=12, classes=5, seed=0, dtype=torch.float64):
    """Return overlapping clusters of features (N,D) and their classes (N,)."""
    generator = torch.Generator().manual_seed(seed)
    centres = torch.randn(classes, d, generator=torch.Generator().manual_seed(99), dtype=dtype)
    y = torch.randint(classes, (n,), generator=generator)
    return Features(centres[y] + 1.5 * torch.randn(n, d, generator=generator, dtype=dtype), y)


class Weighed(Levels):
    """`Levels` with a parameter, from which the device can be read."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(24))

    def forward(self, x):
        return super().forward(x) * self.weight


def weighed(*splits, **options):
    """Return a task with the backbone `Weighed`."""
    return task(*splits, **{"backbone": Weighed()} | options)


# Votes


@pytest.mark.parametrize("tau", [None, 0.07, 0.5])
@pytest.mark.parametrize("k", [1, 7, 200])
def test_votes_are_those_of_scikit_learn(k, tau):
    from sklearn.neighbors import KNeighborsClassifier

    train, test = clouds(500), clouds(90, seed=1)
    weights = "uniform" if tau is None else lambda distance: np.exp((1 - distance) / tau)
    peer = KNeighborsClassifier(k, algorithm="brute", metric="cosine", weights=weights).fit(
        train.x, train.y
    )
    votes = knn(train.x, train.y, test.x, k=k, tau=tau)
    shares = torch.from_numpy(peer.predict_proba(test.x))
    if tau is None:
        assert torch.equal(votes, (k * shares).round())
    assert torch.allclose(votes / votes.sum(1, keepdim=True), shares, rtol=1e-9, atol=1e-14)
    assert torch.equal(votes.argmax(1), torch.from_numpy(peer.predict(test.x)))
    expected = 100 * peer.score(test.x, test.y)
    assert accuracy(train, test, k=k, tau=tau, classes=5) == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("piece", [1, 13, 40, 400])
def test_pieces_change_nothing(monkeypatch, piece):
    train, test = clouds(60), clouds(11, seed=1)
    whole = {tau: knn(train.x, train.y, test.x, k=17, tau=tau) for tau in (None, 0.07)}
    monkeypatch.setattr(neighbours, "PIECE", piece)  # down to one train image and one query
    assert torch.equal(knn(train.x, train.y, test.x, k=17, tau=None), whole[None])
    assert torch.allclose(knn(train.x, train.y, test.x, k=17), whole[0.07], rtol=1e-12)


@pytest.mark.parametrize("columns", [320, 333, 1000])
@pytest.mark.parametrize("k", [1, 3, 20])
def test_the_largest_of_groups_are_the_largest_of_all(columns, k):
    scores = torch.randn(7, columns, generator=torch.Generator().manual_seed(columns + k))
    scores[1, -3:] = 9.0 + torch.arange(3)  # the last columns may be in no group
    values, places = neighbours.largest(scores, k)
    expected = scores.sort(1, descending=True).values[:, :k]
    assert torch.equal(values, expected)
    assert torch.equal(scores.gather(1, places), expected)
    assert all(len(set(row)) == k for row in places.tolist())


def test_equal_similarities_and_numbers_that_are_none_are_found_in_groups():
    scores = torch.zeros(2, 400)
    scores[0, 5] = torch.nan
    values, places = neighbours.largest(scores, 10)
    assert values[0, 0].isnan() and places[0, 0] == 5
    assert values[1].tolist() == [0.0] * 10 and len(set(places[1].tolist())) == 10


def test_all_train_images_may_vote():
    train, test = clouds(60), clouds(5, seed=1)
    counts = torch.bincount(train.y, minlength=5).double()
    assert torch.equal(knn(train.x, train.y, test.x, k=60, tau=None), counts.expand(5, -1))


def test_lengths_do_not_matter():
    train, test = clouds(200), clouds(30, seed=1)
    lengths = torch.logspace(-20, 20, 200, dtype=torch.float64)[:, None]
    expected = knn(train.x, train.y, test.x, k=20)
    assert torch.allclose(knn(train.x * lengths, train.y, test.x * 1e-3, k=20), expected, rtol=1e-9)


def test_a_bank_in_half_precision_votes_like_its_float32_copy():
    train, test = clouds(200, dtype=torch.float32), clouds(30, seed=1, dtype=torch.float32)
    half = train.x.half()
    assert torch.equal(knn(half, train.y, test.x, k=20), knn(half.float(), train.y, test.x, k=20))


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("side", ["train", "test"])
def test_features_that_are_no_numbers_are_refused(monkeypatch, side, value):
    monkeypatch.setattr(neighbours, "PIECE", 100)  # so that a later piece could displace them
    train, test = clouds(200), clouds(30, seed=1)
    (train if side == "train" else test).x[5, 3] = value
    with pytest.raises(ValueError, match="infinite or not a number"):
        knn(train.x, train.y, test.x, k=3)


MEASURE = """
import resource, torch
from antipode import functional
from antipode.core import neighbours
neighbours.PIECE = 1 << 18  # about as small beside this bank as the default beside 1.28 M x 2048
torch.set_num_threads(1)
bank, y = torch.empty(60000, 512).normal_(), torch.arange(60000) % 10
test = torch.randn(100, 512)
functional.knn(bank[:2000], y[:2000], test, k=200)  # loads libraries before the measurement
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
functional.knn(bank, y, test, k=200)
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / (bank.nbytes / 1024))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="ru_maxrss has another unit elsewhere")
def test_the_bank_is_never_copied():
    """A bank of 1.28 M x 2048 float32 takes 10.5 GB. With one copy it would not fit into 16 GiB."""
    process = subprocess.run(
        [sys.executable, "-c", MEASURE], capture_output=True, text=True, check=True
    )
    assert float(process.stdout) < 0.25  # growth of the memory, as a share of the bank


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
def test_a_bank_on_the_host_serves_queries_on_a_gpu(monkeypatch):
    monkeypatch.setattr(neighbours, "CUDA_PIECE", 1000)  # the pieces pass through pinned memory
    train, test = clouds(300), clouds(40, seed=1)
    votes = knn(train.x, train.y, test.x.cuda(), k=30)
    assert votes.is_cuda and torch.allclose(
        votes.cpu(), knn(train.x, train.y, test.x, k=30), rtol=1e-9
    )


# Protocols


def naive(train, test, k, tau):
    """Return the accuracy in percent, computed image by image."""
    correct = 0
    for x, y in zip(test.x, test.y, strict=True):
        cosine = nn.functional.cosine_similarity(train.x, x[None])
        votes = torch.zeros(10, dtype=torch.float64)
        for j in cosine.argsort(descending=True)[:k]:
            votes[train.y[j]] += 1 if tau is None else (cosine[j].double() / tau).exp()
        correct += int(votes.argmax() == y)
    return 100 * correct / len(test.x)


@pytest.mark.parametrize(
    ("name", "k", "tau"),
    [
        ("knn", 200, 0.07),
        ("knn10", 10, None),
        ("knn20", 20, None),
        ("knn20-weighted", 20, 0.07),
        ("knn200", 200, None),
        ("knn-head", 200, 0.07),
    ],
)
def test_protocols_are_the_naive_vote(name, k, tau):
    head = nn.Linear(24, 3)
    small = weighed(bright(train=400, test=50, spread=90), head=head.eval().requires_grad_(False))
    of = "head" if name == "knn-head" else "backbone"
    result = protocols()[name].run(small)
    expected = naive(small.features("train", of), small.features("test", of), k, tau)
    assert result.value == pytest.approx(expected)
    assert result.value < 100 and result.n == 50 and result.unit == "% top-1"
    assert (result.settings["k"], result.settings["tau"]) == (k, tau)
    assert result.settings["features"] == of


def labelled(labels):
    """Return splits whose labels are changed by a function."""
    splits = bright(train=30, test=20)
    train, test = (
        replace(part, labels=labels(part.labels)) for part in (splits.train, splits.test)
    )
    return replace(splits, train=train, test=test)


class Broken(nn.Module):
    """A backbone whose features are NaN."""

    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.tensor(float("nan")))

    def forward(self, x):
        return x.flatten(1) * self.w


WRONG = {
    "fewer train images than k": (
        "knn",
        lambda: weighed(bright(train=30)),
        "200 nearest .* bright has 30: use knn20",
    ),
    "several classes per image": (
        "knn20",
        lambda: weighed(labelled(nn.functional.one_hot)),
        "one class per image, but images of bright have several",
    ),
    "too few even for fewer neighbours": (
        "knn20",
        lambda: weighed(bright(train=8)),
        "20 nearest .* bright has 8: use linear-fast",
    ),
    "few neighbours": (
        "knn20",
        lambda: weighed(bright(train=16)),
        "bright has 16: use knn10 or linear-fast",
    ),
    "no labels": (
        "knn20",
        lambda: weighed(labelled(lambda y: None)),
        "has no labels for its train images, .* use retrieval, which needs none",
    ),
    "one class": ("knn20", lambda: weighed(labelled(torch.zeros_like)), "one class only"),
    "no test images": ("knn20", lambda: weighed(replace(bright(), test=None)), "no test split"),
    "no head": ("knn-head", lambda: weighed(bright(train=240)), "no projection head"),
    "no numbers": ("knn20", lambda: weighed(backbone=Broken()), "NaN or infinite"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_input_is_a_sentence(case):
    name, make, words = WRONG[case]
    with pytest.raises(ValueError, match=words) as error:
        protocols()[name].run(make())
    assert "\n" not in str(error.value)


def test_what_is_wrong_is_said_before_features_are_made():
    class Costly(Levels):
        def forward(self, x):
            raise AssertionError("features were computed")

    for case in ("fewer train images than k", "several classes per image"):
        name, make, words = WRONG[case]
        small = make()
        small.backbone = Costly()
        with pytest.raises(ValueError, match=words):
            protocols()[name].run(small)


def test_sources_may_lack_the_last_class():
    """Class names without images get no votes and do not change the accuracy."""
    splits = bright(train=60)
    names = [str(label) for label in range(9)]
    named = replace(splits, train=Memory(splits.train.images, splits.train.labels, names))
    with_names, without = (protocols()["knn20"].run(weighed(part)) for part in (named, splits))
    assert with_names.value == without.value


def test_many_near_neighbours_do_not_overflow_at_a_small_tau():
    train = torch.ones(25000, 2)
    labels = (torch.arange(25000) >= 12000).long()
    votes = knn(train, labels, torch.ones(1, 2), k=25000, tau=0.0126)
    assert votes.isfinite().all() and votes.argmax(1).item() == 1
