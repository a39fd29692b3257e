"""Tests of `antipode.evaluate` on runs and other networks: scores, data sets, labels, errors."""

import errno
import json
import os
import re
import shutil
import subprocess
import sys
import warnings
from collections import Counter
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from torch.utils.data import TensorDataset

import antipode
from antipode.data.sources.catalog import SETS, load
from antipode.data.sources.pack import pack
from antipode.data.sources.source import Memory
from antipode.data.sources.splits import IMAGENET_MEAN, IMAGENET_STD, Splits
from antipode.evaluation import protocol
from antipode.evaluation.features import extract
from antipode.evaluation.score import Result, Score
from antipode.nets import weights as weights_module
from antipode.nets.backbone import backbone
from antipode.nets.weight_file import About, Normal
from antipode.nets.weights import start, tensors, write
from antipode.runs import network as network_module
from antipode.runs import run as run_module
from antipode.runs.folder import RunFolder
from antipode.runs.run import opened
from tests.evaluation.classes import bright, task
from tests.toys import fewer


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    out = tmp_path_factory.mktemp("evaluate") / "run"
    return antipode.pretrain("digits.dcl", epochs=1, batch=500, out=out, quiet=True)


def copied(run, path):
    """Return a copy of a run as it was after training."""
    made_later = shutil.ignore_patterns("scores.json", "analysis.json", "features")
    return antipode.Run(shutil.copytree(run.path, path, ignore=made_later))


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def test_a_score_carries_all_that_it_takes_to_repeat_it(run):
    first = antipode.evaluate(run, protocols=["knn", "knn20"])
    again = antipode.evaluate(run, protocols=["knn20", "knn"])
    assert first == again
    score = json.loads((run.path / "scores.json").read_text())["knn"]
    assert score == first["knn"].json()
    assert {
        "value",
        "unit",
        "protocol",
        "settings",
        "data",
        "split",
        "n",
        "seed",
        "epoch",
        "more",
        "low",
        "high",
        "chance",
    } == set(score)
    assert (score["data"], score["split"], score["n"], score["epoch"]) == (
        "digits",
        "test",
        360,
        "last",
    )
    assert score["settings"] == {"k": 200, "tau": 0.07, "features": "backbone"} | score["settings"]


def test_scores_on_other_data_do_not_replace_the_runs_own(run, monkeypatch):
    own, plain = antipode.evaluate(run)["knn"], load
    other = replace(plain("digits"), name="other", test=plain("digits").train)
    monkeypatch.setattr(
        "antipode.runs.run.load", lambda name, *_, **__: other if name == "other" else plain(name)
    )
    score = antipode.evaluate(run, data="other")["knn"]
    assert antipode.Run(run.path).scores["knn"] == own.json()
    assert antipode.Run(run.path).scores["knn@other"] == score.json()
    assert (score.data, score.n) == ("other", len(other.test))


def own(count, seed, channels=1):
    """Return your own Dataset of labelled images, whose brightness is the class."""
    draw = torch.Generator().manual_seed(seed)
    labels = torch.arange(count) % 3
    noise = torch.randint(0, 60, (count, channels, 8, 8), generator=draw)
    return TensorDataset((noise + 80 * labels[:, None, None, None]).to(torch.uint8), labels)


def test_datasets_of_ones_own_are_trained_on_and_scored(tmp_path):
    train, test = own(45, 0), own(15, 1)
    flags = {"backbone": "resnet10-slim", "epochs": 1, "batch": 15, "quiet": True}
    both = antipode.pretrain(method="dcl", data=(train, test), out=tmp_path / "both", **flags)
    alone = antipode.pretrain(method="dcl", data=train, out=tmp_path / "alone", **flags)
    a, b = both.backbone().state_dict(), alone.backbone().state_dict()
    assert all(torch.equal(a[name], b[name]) for name in a), (
        "the test images have no part in training"
    )
    score = antipode.evaluate(both, "linear-fast", data=(train, test))["linear-fast"]
    assert (score.n, score.data, score.value) == (15, "TensorDataset", 100.0)
    wrong = TensorDataset(test.tensors[0], (test.tensors[1] + 1) % 3)
    assert antipode.evaluate(both, "linear-fast", data=(train, wrong))["linear-fast"].value == 0.0
    assert len(antipode.embed(both, (train, test)).x) == 60


def test_a_run_knows_the_datasets_of_ones_own_that_it_was_given(tmp_path):
    train, test = own(45, 0, channels=3), own(15, 1, channels=3)
    net = nn.Sequential(nn.Conv2d(3, 16, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    flags = {
        "backbone": net,
        "epochs": 1,
        "batch": 15,
        "quiet": True,
        "overrides": {"views.size": 8},
    }
    run = antipode.pretrain(method="dcl", data=(train, test), out=tmp_path / "run", **flags)
    named = antipode.evaluate(run, "linear-fast", data=(train, test))["linear-fast"]
    assert antipode.evaluate(run, "linear-fast")["linear-fast"] == named
    assert set(run.scores) == {"linear-fast"}, (
        "the run's own data set has no suffix, even if it is passed again"
    )
    antipode.evaluate(run, "linear-fast", data=(test, train))
    assert set(run.scores) == {"linear-fast", "linear-fast@TensorDataset"}
    assert "skipped" not in antipode.analyse(run, ["spectrum"])["run"]["spectrum"]
    assert "MAP" in antipode.report(iter([run])).read_text().upper()
    again = antipode.embed(run.path, train, backbone=net)
    assert torch.equal(again.x, antipode.embed(run, train).x)
    with pytest.raises(ValueError, match="pass data= again"):
        antipode.evaluate(antipode.Run(run.path, net), "linear-fast")


def test_a_module_that_takes_colours_is_trained_on_grey_images_too(tmp_path):
    net = nn.Sequential(nn.Conv2d(3, 16, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    run = antipode.pretrain(
        "digits.simclr", backbone=net, epochs=1, out=tmp_path / "run", quiet=True
    )
    assert antipode.evaluate(run)["knn"].value > 10
    wide = nn.Sequential(nn.Conv2d(5, 16, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    with pytest.raises(ValueError, match="takes images of 5 channels, but digits has 1"):
        antipode.pretrain(
            "digits.simclr", backbone=wide, epochs=1, out=tmp_path / "wide", quiet=True
        )


def test_weights_of_a_network_for_colours_see_grey_as_before(tmp_path):
    """The weights of the first layer are summed over the colours.

    The output for a grey image is then that for the same image in three equal channels.
    """
    net = backbone("resnet10-slim", stem="small")
    torch.save(net.state_dict(), tmp_path / "colours.pth")
    grey = backbone("resnet10-slim", stem="small", channels=1)
    start(grey, "resnet10-slim", str(tmp_path / "colours.pth"), "small")
    x = torch.rand(4, 1, 16, 16)
    with torch.no_grad():
        assert torch.allclose(grey.eval()(x), net.eval()(x.expand(-1, 3, -1, -1)), atol=1e-5)
    name = f"file:{tmp_path}/colours.pth@resnet10-slim:small"
    assert antipode.evaluate(name, data="digits", out=tmp_path / "scored")["knn"].value > 10


def test_labels_that_leave_numbers_out_are_classes_in_their_order(run):
    parts = [own(45, 0), own(15, 1)]
    apart = [
        TensorDataset(part.tensors[0], torch.tensor([0, 50, 900])[part.tensors[1]])
        for part in parts
    ]
    plain, odd = load(tuple(parts)), load(tuple(apart))
    assert odd.train.classes == ["0", "50", "900"] and plain.train.classes is None
    assert torch.equal(odd.train.labels, plain.train.labels) and torch.equal(
        odd.test.labels, plain.test.labels
    )
    some = TensorDataset(
        parts[0].tensors[0], torch.where(torch.arange(45) < 3, -1, apart[0].tensors[1])
    )
    assert load((some, apart[1])).train.labels.tolist()[:6] == [-1, -1, -1, 0, 1, 2]
    named = TensorDataset(*apart[0].tensors)
    named.classes = [f"class {i}" for i in range(1000)]
    assert load(named).train.labels.max() == 900, "the classes in between have names"
    with pytest.raises(ValueError, match="3 of the 45 train images of TensorDataset have no label"):
        antipode.evaluate(run, "linear-fast", data=(some, apart[1]))


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (5, "data must be a name, the path of a folder, a Dataset .* or a pair .* not int"),
        ((own(9, 0), 5), "not TensorDataset and int"),
        ((), "not nothing"),
        ([torch.zeros(3)] * 64, "not 64 objects of type Tensor; subclass torch.utils.data.Dataset"),
        (TensorDataset(torch.zeros(0, 3, 8, 8)), "TensorDataset has no items"),
        (TensorDataset(torch.zeros(2, 40, 40, 3)), "looks like .H,W,C."),
        ((own(9, 0), own(9, 0, channels=3)), "images have 1 channels, but test images have 3"),
        ("python:TensorDataset", "a TensorDataset that was passed from Python"),
    ],
)
def test_what_is_no_data_is_a_sentence(run, data, sentence):
    with pytest.raises(ValueError, match=sentence):
        antipode.evaluate(run, data=data)


def test_an_untrained_network_is_the_same_for_the_same_seed_and_another_for_another(tmp_path):
    score = [
        antipode.evaluate("random:resnet10-slim", data="digits", out=tmp_path / name, seed=seed)[
            "knn"
        ].value
        for name, seed in (("a", 0), ("b", 0), ("c", 1))
    ]
    assert score[0] == score[1] != score[2]
    assert (tmp_path / "a" / "scores.json").exists()
    assert not (tmp_path / "a" / "recipe.json").exists()  # it is not a run that can be resumed


@pytest.mark.parametrize("prefix", ["", "state_dict.module.encoder_q."])
def test_a_file_of_the_runs_own_weights_scores_as_the_run(run, tmp_path, prefix):
    state = {f"{prefix}{name}": value for name, value in tensors(run.backbone()).items()}
    torch.save({"model": state}, tmp_path / "own.pth")
    foreign = antipode.evaluate(
        f"file:{tmp_path}/own.pth@resnet10-slim:small", data="digits", out=tmp_path / "foreign"
    )
    assert foreign["knn"].value == antipode.evaluate(run)["knn"].value


def test_weights_bring_their_own_stem(tmp_path):
    """A network with ImageNet's stem keeps it, even if it is scored on small images."""
    net = backbone("resnet10-slim", stem="imagenet", channels=1)
    torch.save(net.state_dict(), tmp_path / "large.pth")
    name = f"file:{tmp_path}/large.pth@resnet10-slim"
    scored = opened(name, data="digits", out=tmp_path / "large")
    assert scored.backbone().conv1.kernel_size == (7, 7)  # that of digits is (3, 3)
    assert torch.equal(scored.backbone().conv1.weight, net.conv1.weight)
    assert antipode.evaluate(name, data="digits", out=tmp_path / "large")["knn"].n == 360


def test_a_module_of_ones_own_takes_the_weights_of_its_run(tmp_path):
    made = [
        nn.Sequential(nn.Conv2d(1, 16, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
        for _ in range(2)
    ]
    run = antipode.pretrain(
        "digits.simclr", backbone=made[0], epochs=1, out=tmp_path / "own", quiet=True
    )
    again = antipode.Run(run.path)  # as another process opens it
    assert antipode.evaluate(again, backbone=made[1])["knn"].value > 10
    for call in (antipode.evaluate, antipode.load_backbone, antipode.analyse):
        with pytest.raises(ValueError, match="trained your own module"):
            call(again)


def test_the_run_on_a_module_of_ones_own_goes_wherever_runs_go(tmp_path):
    net = nn.Sequential(nn.Conv2d(1, 16, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    run = antipode.pretrain(
        "digits.simclr", backbone=net, epochs=1, out=tmp_path / "own", quiet=True
    )
    assert set(antipode.evaluate(run, ["knn", "knn-head"])) == {"knn", "knn-head"}
    features = antipode.embed(run, "digits")
    assert features.x.shape == (1797, 16)
    results = antipode.analyse(run, ["spectrum", "npc"], images=64)["own"]
    assert not any("skipped" in result for result in results.values())
    assert antipode.export(run, "safetensors", tmp_path / "own.safetensors").exists()
    stored, loaded = load_file(run.path / "backbone.safetensors"), tensors(run.backbone())
    assert stored.keys() == loaded.keys() and all(
        torch.equal(stored[key], loaded[key]) for key in stored
    )
    with torch.no_grad():
        net.double()[0].weight.zero_()  # the run does not depend on later changes of the module
    assert all(torch.equal(stored[key], value) for key, value in tensors(run.backbone()).items())
    results = antipode.analyse(iter([run]), ["spectrum"], images=64)
    assert "skipped" not in results["own"]["spectrum"]


WRONG = {
    "random:resnet9": ({"data": "digits"}, "there is no backbone 'resnet9'"),
    "file:weights.pth": ({"data": "digits"}, "file:PATH@NAME"),
    "file:nowhere.pth@resnet18": ({"data": "digits"}, "there is no file"),
    "torchvision:resnet10-slim": (
        {"data": "shapes"},
        "torchvision has no ImageNet weights for 'resnet10-slim'",
    ),
    "torchvision:resnet99": (
        {"data": "shapes"},
        r"\(choose from resnet18, resnet34, .*, resnext50_32x4d\)",
    ),
    "nowhere": ({}, "nowhere holds no finished run"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_cannot_be_evaluated_is_refused_in_a_sentence(name):
    arguments, sentence = WRONG[name]
    with pytest.raises((ValueError, FileNotFoundError), match=sentence):
        antipode.evaluate(name, **arguments)


def test_a_run_keeps_its_scores_to_itself(run, tmp_path):
    with pytest.raises(ValueError, match="belong to that run"):
        antipode.evaluate(run, out=tmp_path)
    with pytest.raises(ValueError, match="no protocol was given"):
        antipode.evaluate(run, protocols=[])


def add(path, name):
    RunFolder(path).add_json("scores.json", {name: {"value": 1}})


def test_scores_that_come_at_the_same_time_are_all_kept(tmp_path):
    names = [f"p{number}" for number in range(8)]
    with get_context("fork").Pool(8) as pool:
        for repeat in range(5):
            pool.starmap(add, [(tmp_path, f"{name}-{repeat}") for name in names], 1)
    assert len(RunFolder(tmp_path).read_json("scores.json")) == 40


def test_what_another_process_files_in_the_meantime_stays(run, monkeypatch):
    def meanwhile(task):
        RunFolder(run.path).add_json("scores.json", {"theirs": {"value": 2.0}})
        return Result(1.0, "%", {}, 3)

    (run.path / "scores.json").unlink(missing_ok=True)
    monkeypatch.setitem(protocol.protocols(), "ours", protocol.Protocol(meanwhile, ""))
    antipode.evaluate(run, protocols=["ours"])
    assert list(antipode.Run(run.path).scores) == ["theirs", "ours"]


def test_a_score_that_cannot_be_filed_is_still_given(run, monkeypatch):
    """Neither scores nor features can be written to the folder of another user."""
    (run.path / "scores.json").unlink(missing_ok=True)
    shutil.rmtree(run.path / "features", ignore_errors=True)
    plain_open = os.open

    def locked(path, flags, *rest, **more):
        if run.path in Path(path).parents and flags & (os.O_WRONLY | os.O_RDWR):
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return plain_open(path, flags, *rest, **more)

    monkeypatch.setattr(os, "open", locked)
    with pytest.warns(
        UserWarning, match=r"cannot be written to \(Permission denied\): knn20 cannot be added"
    ):
        assert antipode.evaluate(run, protocols=["knn20"])["knn20"].value > 0
    with pytest.warns(UserWarning, match="spectrum cannot be added to analysis.json"):
        assert antipode.analyse(run, ["spectrum"], images=64)["run"]["spectrum"]["values"]


def test_networks_do_not_share_a_folder_with_a_run_or_each_other(run, tmp_path, monkeypatch):
    monkeypatch.setitem(SETS, "shapes", fewer("shapes", 60, 60))
    antipode.evaluate("random:resnet10-slim", ["knn20"], data="digits", out=tmp_path / "net")
    antipode.evaluate("random:resnet10-slim", ["knn"], data="digits", out=tmp_path / "net")
    assert set(RunFolder(tmp_path / "net").read_json("scores.json")) == {"knn", "knn20"}
    mine = TensorDataset(
        torch.randint(0, 256, (24, 3, 9, 9), dtype=torch.uint8), torch.arange(24) % 2
    )
    assert antipode.evaluate(
        "random:resnet10-slim", ["knn20"], data=(mine, mine), out=tmp_path / "mine"
    )
    assert "python:TensorDataset" in (tmp_path / "mine" / "network.json").read_text()
    for name, out, seed in (
        ("random:resnet18", tmp_path / "net", 0),
        ("random:resnet10-slim", tmp_path / "net", 1),
        ("random:resnet10-slim", run.path, 0),
    ):
        with pytest.raises(ValueError, match="another out"):
            antipode.evaluate(name, ["knn20"], data="digits", out=out, seed=seed)
    with pytest.raises(ValueError, match="scores of a network that no run trained"):
        antipode.pretrain("digits.dcl", epochs=1, batch=500, out=tmp_path / "net", quiet=True)
    antipode.evaluate("random:resnet10-slim", ["knn20"], out=tmp_path / "shapes")
    file = tmp_path / "digits.pth"
    torch.save(backbone("resnet10-slim", stem="small", channels=1).state_dict(), file)
    for data in ("digits", "digits", f"packed:{pack('digits', tmp_path / 'pack')}"):
        antipode.evaluate(
            f"file:{file}@resnet10-slim:small", ["knn20"], data=data, out=tmp_path / "theirs"
        )
    # the packed data set is another data set, so its score has another name
    assert len(RunFolder(tmp_path / "theirs").read_json("scores.json")) == 2


class Forbidden(Memory):
    """Images that raise an error if their labels are read, unless the labels were removed."""

    @property
    def labels(self):
        assert self.__dict__["kept"] is None, "the labels were read"

    @labels.setter
    def labels(self, value):
        self.__dict__["kept"] = value


def test_pretraining_never_sees_labels(tmp_path, monkeypatch):
    """Training on a source that does not allow reading its labels gives the same weights."""
    images = torch.randint(0, 256, (64, 3, 32, 32), dtype=torch.uint8)
    weights = []
    for kind in (Memory, Forbidden):
        source = kind(images, torch.zeros(64).long())
        splits = Splits("toy", source, source, None, 32)
        for module in ("recipe.opening", "runs.run"):
            monkeypatch.setattr(f"antipode.{module}.load", lambda *_, splits=splits, **__: splits)
        out = tmp_path / kind.__name__
        values = {"train.epochs": 2, "train.batch": 32, "optim.network.warmup": 0}
        run = antipode.pretrain("shapes.dcl", out=out, overrides=values, quiet=True)
        assert run.metrics()[-1]["step"] == 3  # two epochs of two steps: the images of the toy
        weights.append(run.backbone().state_dict())
    assert all(
        torch.equal(a, b) for a, b in zip(*(state.values() for state in weights), strict=True)
    )


def test_every_protocol_of_the_contract_is_there():
    names = (
        "retrieval knn knn10 knn20 knn20-weighted knn200 knn-head linear linear-simo "
        "linear-eqco-simclr linear-jcl "
        "linear-adco linear-msbreg linear-simclr linear-byol linear-simsiam linear-fast semi-1 "
        "semi-10 svm-voc07 lowshot-svm linear-places205 linear-adco-places205 linear-inat18 "
        "detect-voc detect-coco detect-eqco segment-coco alignment-uniformity"
    )
    assert set(names.split()) <= set(antipode.list_protocols())
    for name, one in protocol.protocols().items():
        assert re.fullmatch(r"\S.{10,110}", one.about), name


def test_each_score_is_filed_before_the_next_protocol_starts(run, monkeypatch):
    """A protocol that fails after hours does not lose the scores of the others."""

    def fail(task):
        raise RuntimeError("out of luck")

    (run.path / "scores.json").unlink(missing_ok=True)
    monkeypatch.setitem(protocol.protocols(), "fail", protocol.Protocol(fail, ""))
    with pytest.raises(RuntimeError):
        antipode.evaluate(run, protocols=["knn20", "fail"])
    assert list(antipode.Run(run.path).scores) == ["knn20"]


def test_images_that_are_seen_twice_are_embedded_once(run, monkeypatch):
    calls = []
    monkeypatch.setattr(
        "antipode.evaluation.task.extract", lambda *a, **k: calls.append(1) or extract(*a, **k)
    )
    antipode.evaluate(run, protocols=["knn", "knn20", "knn200"])
    assert len(calls) == 4  # train and test images, by the trained and by the untrained network


def test_a_result_is_a_score_with_its_protocol(run, monkeypatch):
    result = Result(12.0, "points", {"a": 1}, 7, {"b": 2.0}, "validation", "best")
    monkeypatch.setitem(protocol.protocols(), "toy", protocol.Protocol(lambda task: result, ""))
    score = antipode.evaluate(run, protocols=["toy"], seed=5)["toy"]
    assert (score.value, score.unit, score.n, score.more) == (12.0, "points", 7, {"b": 2.0})
    assert score.settings == {"size": 8, "a": 1}, "a score records the size of the views"
    assert (score.split, score.epoch, score.seed) == ("validation", "best", 5)
    assert score.line() == str(score) == "toy: 12.00 points, b 2.00 (digits validation, n = 7)"
    assert (score.low, score.high, score.chance) == (None, None, None)


def test_a_score_is_printed_in_one_line_with_its_interval_and_chance(run, monkeypatch):
    settings = {"a long list": list(range(100))}
    result = Result(83.4, "%", settings, 7, {"b": 2.0}, low=81.25, high=85.5, chance=10.0)
    monkeypatch.setitem(protocol.protocols(), "toy", protocol.Protocol(lambda task: result, ""))
    score = antipode.evaluate(run, protocols=["toy"])["toy"]
    head = "toy: 83.40 % [81.25, 85.50], chance 10.00"
    assert str(score) == f"{head}, b 2.00 (digits test, n = 7)"
    assert repr({"toy": score}) == "{'toy': Score(" + head + ", digits test, n = 7)}"


def test_scores_of_earlier_versions_stay_and_are_still_scores(run):
    """They have no interval and no chance level."""
    new = antipode.evaluate(run, ["knn20"])["knn20"]
    old = {key: value for key, value in new.json().items() if key not in ("low", "high", "chance")}
    (run.path / "scores.json").write_text(json.dumps({"knn": old}))
    antipode.evaluate(run, ["knn20"])
    assert run.scores == {"knn": old, "knn20": new.json()}
    assert Score(**old) == replace(new, low=None, high=None, chance=None)
    assert str(Score(**old)).startswith(f"knn20: {new.value:.2f} % top-1, ")


def test_of_several_protocols_one_that_does_not_fit_does_not_cost_the_others(run, tmp_path):
    run = copied(run, tmp_path / "run")
    small = load("digits").train.images[:60], torch.arange(60) % 3
    data = tuple(
        TensorDataset(*(part[at] for part in small)) for at in (slice(0, 40), slice(40, 60))
    )
    output = r"^knn, knn200: .*; linear-fast and knn20 succeeded and are in .*scores\.json"
    with pytest.raises(ValueError, match=output) as error:
        antipode.evaluate(run, ["linear-fast", "knn", "knn20", "knn200"], data=data)
    assert list(error.value.scores) == ["linear-fast", "knn20"]
    filed = json.loads((run.path / "scores.json").read_text())
    assert [name.partition("@")[0] for name in filed] == ["linear-fast", "knn20"]
    with pytest.raises(ValueError, match=r"^a vote of the 200 nearest needs at least 200 train"):
        antipode.evaluate(run, ["knn"], data=data)


def test_packs_of_one_data_set_have_scores_of_their_own(run, tmp_path):
    for name in ("a", "b"):
        pack("digits", tmp_path / name)
        antipode.evaluate(run, ["knn20"], data=f"packed:{tmp_path / name}")
    filed = json.loads((run.path / "scores.json").read_text())
    assert {f"knn20@packed:{tmp_path / name}" for name in ("a", "b")} <= set(filed)


def test_following_knn_on_images_without_labels_is_said_to_do_nothing(tmp_path):
    pixels = load("digits").train.images[:60].repeat(1, 3, 1, 1)
    asked = {
        "epochs": 1,
        "batch": 20,
        "overrides": {"monitor.knn_every": 1, "views.size": 8},
        "quiet": True,
    }
    data = TensorDataset(pixels)
    with pytest.warns(UserWarning, match="monitor.knn_every has no effect: .* has no labels"):
        antipode.pretrain(
            method="simclr", data=data, backbone="resnet10-slim", out=tmp_path / "run", **asked
        )


@pytest.mark.parametrize("labels", [torch.arange(60) % 3 - 1, torch.ones(60, 4, dtype=torch.int64)])
def test_following_knn_with_other_labels_than_one_for_each_image_does_nothing(labels, tmp_path):
    pixels = load("digits").train.images[:60].repeat(1, 3, 1, 1)
    asked = {
        "epochs": 1,
        "batch": 20,
        "overrides": {"monitor.knn_every": 1, "views.size": 8},
        "quiet": True,
    }
    data = (TensorDataset(pixels, labels), TensorDataset(pixels, labels))
    with pytest.warns(
        UserWarning, match="monitor.knn_every has no effect: .* has no one label for each image"
    ):
        antipode.pretrain(
            method="simclr", data=data, backbone="resnet10-slim", out=tmp_path / "run", **asked
        )


def test_a_labelled_dataset_without_test_images_is_scored_on_a_tenth_of_it(tmp_path):
    digits = load("digits").train
    data = TensorDataset(digits.images[:400].repeat(1, 3, 1, 1), digits.labels[:400])
    asked = {
        "epochs": 1,
        "batch": 100,
        "overrides": {"views.size": 8, "monitor.log_every": 1},
        "quiet": True,
    }
    run = antipode.pretrain(
        method="simclr", data=data, backbone="resnet10-slim", out=tmp_path / "run", **asked
    )
    assert len(run.metrics()) == 4  # pretraining needs no labels and uses all images
    with pytest.warns(
        UserWarning, match=r"no test images and is scored on (\d+) of its labelled images"
    ):
        score = antipode.evaluate(run, ["knn20"])["knn20"]
    assert 30 <= score.n <= 40 and score.settings["train images"] == 400 - score.n
    assert torch.equal(antipode.embed(run, data).y, digits.labels[:400])  # in their order


def test_a_network_sees_other_images_as_it_saw_its_own(run, tmp_path, monkeypatch):
    """Pixels are normalised with the mean and deviation of training, on every data set."""
    normals, plain = [], run_module.make_views
    monkeypatch.setattr(
        run_module,
        "make_views",
        lambda *a, **k: normals.append((a[0], k["mean"], k["std"])) or plain(*a, **k),
    )
    own = load("digits")
    odd = (
        Memory(own.train.images // 4, own.train.labels),
        Memory(own.test.images // 4, own.test.labels),
    )
    data = tuple(TensorDataset(part.images, part.labels) for part in odd)
    assert load(data).mean != pytest.approx(own.mean, rel=0.1)
    antipode.evaluate(run, ["knn20"], data=data)
    antipode.embed(run, data[0])
    assert len(normals) == 2
    for policy, mean, std in normals:
        assert (
            policy == "eval" and mean == pytest.approx(own.mean) and std == pytest.approx(own.std)
        )
    # an untrained network uses the normalisation of the data set, in three channels; few images,
    # since it sees them at 224 px
    few = tuple(TensorDataset(part.images[:60], part.labels[:60]) for part in odd)
    antipode.evaluate("random:resnet10-slim", ["knn20"], data=few, out=tmp_path / "r")
    assert normals[-1][1] == pytest.approx(load(few).mean * 3)


def test_weights_with_imagenets_stem_see_pixels_as_imagenets_are(tmp_path):
    for stem, expected in (("imagenet", Normal(IMAGENET_MEAN, IMAGENET_STD)), ("small", None)):
        torch.save(backbone("resnet18", stem=stem).state_dict(), tmp_path / f"{stem}.pth")
        name = f"file:{tmp_path / stem}.pth@resnet18:{stem}"
        assert opened(name, data="cifar10").normal == expected
    assert opened("random:resnet18", data="cifar10").normal is None


def test_weights_of_a_run_say_how_pixels_were_normalised(run):
    normal = opened(f"file:{run.path / 'backbone.safetensors'}@resnet10-slim", data="digits").normal
    assert normal == opened(str(run.path)).normal and normal.mean == pytest.approx(
        load("digits").mean
    )
    assert opened(f"file:{run.path}@resnet10-slim", data="digits").normal == normal
    antipode.export(run, "safetensors", "out.safetensors")
    assert opened("file:out.safetensors@resnet10-slim", data="digits").normal == normal
    for text in ("0.5", "null", "x", '{"mean": 1}'):  # written by other software
        save_file(
            tensors(run.backbone()), "theirs.safetensors", metadata={"pixels": text, "mean": "0.5"}
        )
        name = "file:theirs.safetensors@resnet10-slim:small"
        assert opened(name, data="digits").normal is None


def test_the_same_weights_are_the_same_file(run, tmp_path):
    for name in "abcdef":
        write(run.backbone(), tmp_path / name, About(normal=Normal((0.5,), (0.25,))))
    assert len({(tmp_path / name).read_bytes() for name in "abcdef"}) == 1


def test_a_score_is_not_filed_in_a_run_that_took_the_folder_meanwhile(run, tmp_path, monkeypatch):
    """An evaluation may take hours, and another run may be trained in the folder meanwhile."""
    ask = {"epochs": 1, "batch": 500, "out": tmp_path / "run", "quiet": True}
    copied(run, tmp_path / "run")
    plain = protocol.protocols()["knn20"]

    def slow(task):
        antipode.pretrain("digits.dcl", seed=5, overwrite=True, **ask)
        return plain.run(task)

    monkeypatch.setitem(protocol.protocols(), "knn20", plain._replace(run=slow))
    with pytest.raises(
        ValueError,
        match=r"now holds another run: the score knn20 of the earlier one is not stored$",
    ):
        antipode.evaluate(tmp_path / "run", ["knn20"])
    assert not (tmp_path / "run" / "scores.json").exists()


def test_a_damaged_checkpoint_does_not_keep_the_backbone_from_being_scored(tmp_path):
    run = antipode.pretrain("digits.dcl", epochs=1, batch=500, out=tmp_path / "run", quiet=True)
    for file in (run.path / "checkpoints").glob("*.sum"):
        file.write_text("x")
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # knn20 does not use the head, so it reads no checkpoint
        assert antipode.evaluate(run, ["knn20"])["knn20"].value > 0
    with pytest.warns(UserWarning, match=r"the head is unknown.*step-.*: its checksum is wrong"):
        more = antipode.evaluate(run, ["alignment-uniformity"])["alignment-uniformity"].more
    assert not [name for name in more if name.startswith("head ")]  # the backbone alone


def counted(monkeypatch):
    """Count the networks and learners that are built, and the checkpoints that are read."""
    counts = Counter()

    def count(module, name):
        plain = getattr(module, name)

        def call(*arguments, **options):
            counts[name] += 1
            return plain(*arguments, **options)

        monkeypatch.setattr(module, name, call)

    count(weights_module, "make_backbone")  # for the weights of a run
    count(network_module, "make_backbone")  # for a network that no run trained
    count(run_module, "build_learner")
    count(run_module.checkpoint, "load")
    return counts


@pytest.mark.parametrize("name", ["knn", "knn20", "linear-fast"])
def test_a_score_of_the_backbone_builds_one_network_and_reads_no_checkpoint(name, run, monkeypatch):
    counts = counted(monkeypatch)
    antipode.evaluate(run.path, [name], data=(own(240, 0), own(15, 1)))
    assert counts == {"make_backbone": 1}


def test_a_score_of_the_head_builds_one_learner(run, monkeypatch):
    counts = counted(monkeypatch)
    antipode.evaluate(run.path, ["knn-head", "knn"])
    # one network for the backbone of the run, and one inside the learner that has the head
    assert counts == {"make_backbone": 2, "build_learner": 1, "load": 1}


def test_a_network_that_no_run_trained_is_built_once(tmp_path, monkeypatch):
    counts = counted(monkeypatch)
    antipode.evaluate("random:resnet10-slim", ["knn", "knn20"], data="digits", out=tmp_path / "net")
    assert counts == {"make_backbone": 1}


def test_a_knn_score_of_images_in_memory_loads_neither_torchvision_nor_the_compiler(run):
    """Importing either of them takes longer than the rest of the evaluation."""
    code = (
        "import sys, antipode\n"
        "antipode.evaluate(sys.argv[1])\n"
        "print([name for name in ('torchvision', 'torch._dynamo') if name in sys.modules])"
    )
    command = [sys.executable, "-c", code, str(run.path)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.stdout == "[]\n", result.stderr


@pytest.mark.parametrize("kind", ["random", "file"])
def test_a_network_that_was_scored_stays_the_one_it_was(kind, run, tmp_path):
    """Without `data`, the network is built for the data set that it was scored on first."""
    name = (
        f"file:{run.path / 'backbone.safetensors'}@resnet10-slim"
        if kind == "file"
        else "random:resnet10-slim"
    )
    first = antipode.evaluate(name, ["knn20"], data="digits", out=tmp_path / "net")["knn20"]
    again = antipode.evaluate(name, ["knn20"], out=tmp_path / "net")["knn20"]
    assert again == first and again.data == "digits"


def test_a_caller_without_gradients_scores_and_analyses_all_the_same(run, tmp_path):
    run = copied(run, tmp_path / "run")
    few = own(120, 0), own(30, 1)
    plain = antipode.evaluate(run, ["semi-10"], data=few)["semi-10"].value
    with torch.inference_mode():
        assert antipode.evaluate(run, ["semi-10"], data=few)["semi-10"].value == plain
        assert "skipped" not in antipode.analyse(run, ["cost"])["run"]["cost"]


# The protocols for a user who names none


def several(splits):
    """Return the splits with rows of labels, one column per class."""
    train, test = (
        replace(part, labels=nn.functional.one_hot(part.labels))
        for part in (splits.train, splits.test)
    )
    return replace(splits, train=train, test=test)


def bare(splits):
    """Return the splits without labels."""
    train, test = (replace(part, labels=None) for part in (splits.train, splits.test))
    return replace(splits, pretrain=train, train=train, test=test)


LABEL_FREE = ("retrieval", "alignment-uniformity")
USUAL = {
    "200 train images": (bright(train=200), ("knn",)),
    "fewer than 200": (bright(train=199), ("knn20",)),
    "fewer than 20": (bright(train=19), ("knn10",)),
    "fewer than 10": (bright(train=9), LABEL_FREE),
    "no labels": (bare(bright(train=200)), LABEL_FREE),
    "no labels at all": (
        replace(bright(), train=replace(bright().train, labels=torch.full((64,), -1))),
        LABEL_FREE,
    ),
    "no test images": (replace(bright(), test=None), LABEL_FREE),
}


@pytest.mark.parametrize("case", USUAL)
def test_the_usual_protocols_follow_from_the_labels(case):
    splits, names = USUAL[case]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert protocol.usual(task(splits)) == names


def test_labels_that_knn_cannot_use_are_reported():
    some = replace(bright(), train=replace(bright().train, labels=torch.arange(64) % 3 - 1))
    for splits, reason in (
        (several(bright()), "kNN needs one class per image, but images of bright have several"),
        (some, "22 of the 64 train images of bright have no label"),
    ):
        message = f"^scored by retrieval and alignment-uniformity instead of kNN: {reason}"
        with pytest.warns(UserWarning, match=message):
            assert protocol.usual(task(splits)) == LABEL_FREE


def test_without_labels_a_run_is_scored_by_what_needs_none(run, tmp_path):
    images = torch.randint(0, 256, (40, 1, 8, 8), dtype=torch.uint8)
    scores = antipode.evaluate(run, data=TensorDataset(images))
    assert tuple(scores) == LABEL_FREE
    assert scores["retrieval"].n == 40 and scores["retrieval"].split == "train"
    assert {f"{name}@TensorDataset" for name in LABEL_FREE} <= set(run.scores)
    with pytest.raises(ValueError, match=r"has no labels .* use retrieval, which needs none"):
        antipode.evaluate(run, "linear-fast", data=TensorDataset(images))
    assert list(antipode.evaluate(run)) == ["knn"]


def test_what_needs_no_labels_needs_no_test_images(run):
    """All images of your own data set are used. Only protocols with labels hold some out."""
    data = own(45, 0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        score = antipode.evaluate(run, "retrieval", data=data)["retrieval"]
    assert (score.n, score.split) == (45, "train")
    with pytest.warns(UserWarning, match="is scored on 3 of its labelled images"):
        both = antipode.evaluate(run, ["retrieval", "linear-fast"], data=data)
    assert both["retrieval"] == score and both["linear-fast"].n == 3
