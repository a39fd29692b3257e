"""Tests that two ranks give the scores of one process and share its work.

All networks but the detector are in float64. Each counts the images that pass through it.
"""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from antipode import dist
from antipode.data.sources.annotated import detection
from antipode.data.sources.source import Decoded
from antipode.evaluation import detect, linear, nearest, semi, tuning
from antipode.evaluation.evaluate import _Scoring
from antipode.evaluation.features import extract
from antipode.evaluation.logistic import classify
from tests.evaluation import scenes
from tests.evaluation.classes import Net, bright, task
from tests.forks import Ranks

# the group keeps these tests on one worker, so that the ranks are started only once
pytestmark = [pytest.mark.dist, pytest.mark.xdist_group("ranks")]

LINEAR = linear.Linear(about="", rates=(0.5,), batch=16, epochs=3, at=(2,))
SEMI = semi.Semi(classifier=0.5, encoder=0.05, batch=16, epochs=2)
TUNING = tuning.Tuning(
    epochs=2,
    batch=16,
    lr=0.05,
    classifier_lr=0.5,
    optimiser="sgd",
    weight_decay=1e-4,
    warmup=0.5,
)


class Count(list):
    """A count that copies of a network share."""

    def __deepcopy__(self, memo):
        return self


class Counting(Net):
    """A network in float64 that counts the images it sees."""

    def __init__(self):
        torch.manual_seed(0)
        super().__init__()
        self.double()
        self.seen = Count([0])

    def forward(self, x):
        self.seen[0] += len(x)
        return super().forward(x.double())


def made(**options):
    """Return a task whose 65 train and 41 test images cannot be divided by two."""
    return task(bright(65, 41, spread=60, **options), backbone=Counting())


def decoded(small):
    """Return the task with train images that are decoded on demand."""
    train = small.splits.train
    names = [str(at) for at in range(len(train))]
    source = Decoded(train.images.__getitem__, names, train.labels, None, 3, 8)
    return replace(small, splits=replace(small.splits, train=source))


def features(folder):
    """Return features, extracted and then read from a cache that only rank 0 has."""
    small = made()
    cache = folder / f"cache-{dist.rank()}"
    arguments = small.backbone, small.eval_view, small.splits.train
    extract(*arguments, batch=7, cache=cache)
    seen = small.backbone.seen[0]
    x, y = extract(*arguments, batch=7, cache=cache)
    assert cache.exists() == (dist.rank() == 0)
    return {"x": x, "y": y, "seen": seen}


def neighbours(folder):
    small = made()
    train, test = small.features("train"), small.features("test")
    correct = nearest.recognised(train, test, k=10, tau=0.07, classes=4)
    return {"correct": correct, "seen": small.backbone.seen[0]}


def logistic(folder):
    small = made(classes=5)
    parts = small.features("train"), small.features("test")
    result = classify(*parts, penalties=(0.1, 1e-3))
    return {"held out": torch.tensor(result.held_out), "ranks": result.ranks}


def trained(small, settings, rates):
    heads = linear.trained(small, settings, small.splits.train, rates)
    return {"weights": heads.weights[0].data, "seen": small.backbone.seen[0]}


def frozen(folder):
    return trained(made(), LINEAR, LINEAR.rates)


def from_files(folder):
    return trained(decoded(made()), LINEAR, LINEAR.rates)


def odd(folder):
    """Return a classifier that is trained with batches that two ranks cannot share."""
    return trained(made(), replace(LINEAR, batch=15), LINEAR.rates)


def score(result, small):
    return {"value": torch.tensor(result.value), "seen": small.backbone.seen[0]}


def sweep(folder):
    small = made()
    return score(linear.run(small, replace(LINEAR, rates=(0.5, 1.0))), small)


def fine_tuned(folder):
    small = made()
    heads, net = semi.tuned(small, SEMI, 0.05, small.splits.train)
    right, labels = semi.graded(small, heads, small.splits.test, net)
    state = {f"network {name}": value for name, value in net.state_dict().items()}
    record = {"weights": heads.weights[0].data, "right": right, "labels": labels, **state}
    return record | {"seen": small.backbone.seen[0]}


def tuned(folder):
    small = made()
    result = tuning.tune(small, TUNING)
    state = {f"network {name}": value for name, value in result.backbone.state_dict().items()}
    losses = {"losses": torch.tensor(result.losses), "seen": small.backbone.seen[0]}
    return {"weights": result.heads.weights[0].data, **state, **losses}


def detections(folder):
    """Return what a detector finds in five images, in float32."""
    torch.set_default_dtype(torch.float32)
    root = scenes.coco(folder / f"scenes-{dist.rank()}-{dist.world()}", train=2, test=5)
    small = scenes.task(root, "coco")
    settings = detect.Settings(
        detector="mask-fpn",
        sides=(64,),
        longest=64,
        anchors=(8, 12, 16, 24, 32),
        width=16,
        rois=16,
    )
    torch.manual_seed(0)
    objects = detection("coco", "test", str(root))
    net = detect.build(small, len(objects.classes), settings).eval()
    seen = []
    net.register_forward_pre_hook(lambda module, inputs: seen.append(len(inputs[0])))
    found = detect.find(net, objects)
    boxes = torch.cat([one.boxes for one in found])
    assert len(found) == 5 and [one.size for one in found] == [(96, 96)] * 5
    return {"boxes": boxes, "scores": torch.cat([one.scores for one in found]), "seen": sum(seen)}


WORK = {
    work.__name__: work
    for work in (
        *(features, neighbours, logistic, frozen, from_files, odd, sweep, fine_tuned, tuned),
        detections,
    )
}
WHOLE = ("odd",)  # every rank does all of the work


def everything(folder):
    torch.set_default_dtype(torch.float64)
    torch.set_num_threads(1)
    try:
        return {name: work(folder) for name, work in WORK.items()}
    finally:
        torch.set_default_dtype(torch.float32)


@pytest.fixture(scope="module")
def records(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranks")
    pair = Ranks(folder, everything, [(folder,), (folder,)])
    return everything(tmp_path_factory.mktemp("one")), *pair.results()


@pytest.mark.parametrize("name", WORK)
def test_two_ranks_give_the_result_of_one_process(records, name):
    single, first, second = (record[name] for record in records)
    assert single.keys() == first.keys() == second.keys()
    for key, value in single.items():
        if key != "seen":
            assert torch.allclose(value.double(), first[key].double(), rtol=1e-6, atol=1e-6), key
            assert torch.equal(first[key], second[key]), key


@pytest.mark.parametrize("name", [name for name in WORK if name != "logistic"])
def test_each_rank_does_half_of_the_work(records, name):
    single, first, second = (record[name]["seen"] for record in records)
    share = 1.0 if name in WHOLE else 0.5
    for seen in (first, second):
        assert seen == pytest.approx(share * single, rel=0.02, abs=3)


# Failures


def failing(folder):
    """Return the protocols that a rank tried, and its error: one fails on rank 1 only."""
    dist.ALONE = 0.5
    tried = []

    def score(name, protocol):
        tried.append(name)
        if name == "fails" or (name == "fails on rank 1" and dist.rank() == 1):
            raise ValueError(f"{name} {dist.rank()}")
        dist.gather_objects(name)

    files = SimpleNamespace(read_object=lambda name: {})
    run = SimpleNamespace(data_name="bright", data=None, folder=files, path=Path("run"))
    scoring = _Scoring(run, None, torch.device("cpu"), 0, compare=False)
    scoring._score = score
    try:
        with dist.together():
            scoring.run(dict.fromkeys(["fails", "succeeds", "fails on rank 1", "comes last"]))
    except (ValueError, ConnectionError) as error:
        return {"tried": tried, "error": f"{type(error).__name__}: {error}"}


def test_a_rank_that_fails_alone_stops_and_ends_the_others(tmp_path):
    """Otherwise the ranks wait for each other in collectives of different protocols."""
    first, second = Ranks(tmp_path, failing, [(tmp_path,)] * 2).results()
    for record in (first, second):
        assert record["tried"] == ["fails", "succeeds", "fails on rank 1"]
    assert "ConnectionError: rank 0 of 2 stops because another rank has ended" in first["error"]
    assert "ValueError: fails: fails 1; fails on rank 1" in second["error"]
