"""Tests of classifiers in folders: what is written loads elsewhere, and damage is noticed."""

import copy
import errno
import json
import math
import os
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file
from torch import nn

import antipode
from antipode.data.sources.catalog import load as load_data
from antipode.finetuning.model import MODEL, SCORES, WEIGHTS, Network, write
from antipode.nets.backbone import backbone
from antipode.nets.weight_file import Normal
from antipode.runs.network import parsed
from tests.faults.fuzz_model import fuzz
from tests.finetuning.pictures import COLOURS, folder, picture

# one worker has all tests with the classifier, so that it is trained once
pytestmark = pytest.mark.xdist_group("classifier")

PIXELS = Normal((0.5, 0.4, 0.3), (0.25, 0.2, 0.3))


def stored(path, name, net, classes=3, size=32, stem="imagenet", policy="mocov2"):
    """Write a classifier with random weights, and return it loaded."""
    fc = nn.Linear(net.width, classes)
    network = Network(name, stem, 3, size, policy, PIXELS)
    about = {"classes": [f"class {number}" for number in range(classes)]}
    write(path, net, (fc.weight, fc.bias), network, about, {})
    return antipode.load_classifier(path)


def test_the_classifier_knows_the_colours(model):
    assert model.classes == sorted(COLOURS) and not model.training
    score = model.scores["finetune"]
    assert score["value"] == 100.0 and score["n"] == 6 and score["more"]["balanced"] == 100.0
    assert score["chance"] == pytest.approx(100 / 3) and score["low"] == score["high"] == 100.0
    for number, name in enumerate(model.classes):
        x = model.transform(picture(name, 5))
        assert model(x[None]).argmax().item() == number


def test_the_folder_describes_the_classifier(model):
    content = json.loads((model.path / MODEL).read_text())
    assert content["network"] == "resnet10-slim" and content["stem"] == "half"
    assert content["classes"] == sorted(COLOURS) and content["size"] == 16
    assert content["mean"] == [0.5] * 3 and content["std"] == [0.25] * 3
    trained = content["trained"]
    assert trained["from"].startswith("file:") and trained["images"] == 54
    assert trained["settings"]["epochs"] == 15 and len(trained["loss"]) == 15
    assert trained["loss"][-1] < trained["loss"][0]
    assert {file.name for file in model.path.iterdir()} == {MODEL, WEIGHTS, SCORES}


def test_loading_gives_the_same_logits_and_bits(model):
    again = antipode.load_classifier(str(model.path))
    x = torch.randn(2, 3, 16, 16)
    assert torch.equal(again(x), model(x)) and again.classes == model.classes
    image = picture("red", 1, 40)
    assert torch.equal(again.transform(image), model.transform(image))


@pytest.mark.parametrize("name", ["resnet18", "resnet50"])
def test_a_standard_resnet_loads_in_plain_torchvision(tmp_path, name):
    from torchvision import models

    ours = stored(tmp_path, name, backbone(name), classes=5)
    theirs = models.get_model(name, weights=None, num_classes=5)
    theirs.load_state_dict(load_file(tmp_path / WEIGHTS), strict=True)
    x = torch.randn(2, 3, 40, 40)
    with torch.no_grad():
        torch.testing.assert_close(theirs.eval()(x), ours(x), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("name", "head"), [("test_vit", "head"), ("resnet18", "fc"), ("test_efficientnet", None)]
)
def test_a_network_of_timm_loads_in_plain_timm(tmp_path, name, head):
    timm = pytest.importorskip("timm")
    net = backbone(f"timm:{name}", size=160)
    ours = stored(tmp_path, f"timm:{name}", net, classes=5, size=160, stem=None)
    theirs = timm.create_model(name, num_classes=5)
    theirs.load_state_dict(load_file(tmp_path / WEIGHTS), strict=True)
    x = torch.randn(2, 3, 160, 160)
    with torch.no_grad():
        torch.testing.assert_close(theirs.eval()(x), ours(x), rtol=1e-4, atol=1e-4)
    assert head is None or json.loads((tmp_path / MODEL).read_text())["classifier"] == head


def test_the_weights_serve_as_a_backbone_again(model, colours, tmp_path):
    text = f"file:{model.path / WEIGHTS}@resnet10-slim"
    assert parsed(text) is not None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        again = antipode.load_backbone(text)
    x = torch.randn(2, 3, 16, 16)
    assert torch.equal(again(x), model.backbone(x))


def test_a_frozen_backbone_is_stored_with_every_bit(start, colours, tmp_path):
    before = antipode.load_backbone(start)
    model = antipode.finetune(
        start, colours, tmp_path / "m", epochs=2, freeze=True, device="cpu", quiet=True
    )
    for name, value in before.state_dict().items():
        assert torch.equal(model.backbone.state_dict()[name], value), name


def test_a_policy_that_standardises_images_is_kept(tmp_path):
    model = stored(tmp_path, "resnet10-slim", backbone("resnet10-slim"), policy="shapes")
    x = model.transform(np.random.default_rng(0).integers(0, 255, (32, 32, 3), np.uint8))
    torch.testing.assert_close(x.mean(), torch.tensor(0.0), atol=1e-4, rtol=0)


# Folders that are not whole


@pytest.fixture
def copied(model, tmp_path):
    """Return a copy of the classifier's folder."""
    for file in model.path.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    return tmp_path


def test_a_run_or_an_empty_folder_is_not_a_classifier(tmp_path):
    with pytest.raises(FileNotFoundError, match="there is no folder"):
        antipode.load_classifier(tmp_path / "nothing")
    with pytest.raises(FileNotFoundError, match=r"no model.json.*antipode finetune writes one"):
        antipode.load_classifier(tmp_path)
    (tmp_path / "recipe.json").write_text("{}")
    with pytest.raises(FileNotFoundError, match="holds a run, not a classifier"):
        antipode.load_classifier(tmp_path)


def test_weights_of_another_training_are_noticed(copied):
    other = stored(
        copied / "other", "resnet10-slim", backbone("resnet10-slim", stem="half"), stem="half"
    )
    (copied / WEIGHTS).write_bytes((other.path / WEIGHTS).read_bytes())
    with pytest.raises(ValueError, match="was not written together with model"):
        antipode.load_classifier(copied)


@pytest.mark.parametrize(
    "change",
    [
        *({"classes": 3}, {"size": "wide"}, {"size": math.inf}, {"mean": None}, {"stem": []}),
        *({"policy": "nonsense"}, {"size": 32}, {"mean": [0.5, 0.5, 0.05]}, {"stem": "small"}),
    ],
)
def test_a_damaged_description_is_one_sentence(copied, change):
    """Also one that contradicts the header of the weights, whose predictions would be wrong."""
    content = json.loads((copied / MODEL).read_text()) | change
    (copied / MODEL).write_text(json.dumps(content))
    with pytest.raises(ValueError, match=r"model\.json") as caught:
        antipode.load_classifier(copied)
    assert "\n" not in str(caught.value)


def test_folders_that_are_damaged_at_random_load_as_they_were_or_are_refused():
    counts, failures = fuzz(60, seed=1)
    assert not failures and counts["loaded"] and counts["refused"]


@pytest.mark.parametrize("score", [3, "x", {}, {"value": None}, {"unknown": 1}, {"more": 2}])
def test_a_damaged_score_is_one_sentence(copied, score):
    file = copied / SCORES
    content = json.loads(file.read_text())
    whole = content["finetune"]
    changed = whole | score if isinstance(score, dict) and score else score
    file.write_text(json.dumps({"finetune": changed}))
    model = antipode.load_classifier(copied)
    if changed == {}:
        assert "no score" in model.line()
        return
    with pytest.raises(ValueError, match=r"scores\.json holds no score of finetune") as caught:
        model.line()
    assert "\n" not in str(caught.value)


def test_a_list_as_description_is_one_sentence(copied):
    (copied / MODEL).write_text("[]")
    with pytest.raises(ValueError, match="does not describe a classifier"):
        antipode.load_classifier(copied)


def test_another_number_of_classes_is_noticed(copied):
    content = json.loads((copied / MODEL).read_text())
    (copied / MODEL).write_text(json.dumps(content | {"classes": ["a", "b"]}))
    with pytest.raises(ValueError, match="no classifier of 2 classes under 'fc'"):
        antipode.load_classifier(copied)


# Training into a folder


def test_an_interrupted_training_leaves_nothing_or_the_old_classifier(
    monkeypatch, start, colours, copied, tmp_path
):
    from antipode.finetuning import train

    def stop(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(train, "tune", stop)
    with pytest.raises(KeyboardInterrupt):
        antipode.finetune(start, colours, tmp_path / "new" / "m", device="cpu", quiet=True)
    assert not (tmp_path / "new" / "m").exists()
    with pytest.raises(KeyboardInterrupt):
        antipode.finetune(start, colours, copied, device="cpu", quiet=True, overwrite=True)
    antipode.load_classifier(copied)


@pytest.mark.parametrize("full", ["model.json", "scores.json", "model.safetensors"])
def test_a_full_disk_leaves_the_old_classifier_whole(monkeypatch, copied, full):
    before = antipode.load_classifier(copied).state_dict()
    synced = []
    real = os.fsync

    def fsync(descriptor):
        synced.append(descriptor)
        if len(synced) > ["model.json", "scores.json", "model.safetensors"].index(full):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(OSError, match=f"No space left on device: .*{full}"):
        stored(copied, "resnet10-slim", backbone("resnet10-slim", stem="half"), stem="half")
    monkeypatch.undo()
    after = antipode.load_classifier(copied).state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert not list(copied.glob(".*"))


def test_a_kill_while_files_get_their_names_leaves_no_half_classifier(monkeypatch, copied):
    real = Path.replace

    def replace(self, target):
        if target.name == MODEL:
            raise KeyboardInterrupt
        return real(self, target)

    monkeypatch.setattr(Path, "replace", replace)
    with pytest.raises(KeyboardInterrupt):
        stored(copied, "resnet10-slim", backbone("resnet10-slim", stem="half"), stem="half")
    with pytest.raises(FileNotFoundError, match=r"no model\.json"):
        antipode.load_classifier(copied)


def test_a_folder_that_holds_something_is_kept(start, colours, copied, tmp_path):
    with pytest.raises(ValueError, match="holds a classifier: choose another out, or replace"):
        antipode.finetune(start, colours, copied, device="cpu")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "recipe.json").write_text("{}")
    with pytest.raises(ValueError, match="holds a run"):
        antipode.finetune(start, colours, tmp_path / "run", device="cpu", overwrite=True)
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="is a file, but a folder is needed"):
        antipode.finetune(start, colours, tmp_path / "file", device="cpu")


def test_the_same_seed_gives_the_same_file(start, colours, tmp_path):
    files = []
    for place in ("a", "b"):
        antipode.finetune(
            start, colours, tmp_path / place, epochs=1, seed=4, device="cpu", quiet=True
        )
        files.append((tmp_path / place / WEIGHTS).read_bytes())
    assert files[0] == files[1]


def test_your_own_module_is_loaded_into_a_module_of_its_kind(tmp_path):
    class Own(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Conv2d(3, 8, 3, 2)  # a name that the classifier must not take

        def forward(self, x):
            return self.fc(x).relu().mean((2, 3))

    module = backbone(Own(), size=16)
    fc = nn.Linear(8, 2)
    network = Network("python:Own", None, 3, 16, "eval", PIXELS)
    write(tmp_path, module, (fc.weight, fc.bias), network, {"classes": ["a", "b"]}, {})
    with pytest.raises(ValueError, match="pass a module of that kind as into="):
        antipode.load_classifier(tmp_path)
    model = antipode.load_classifier(tmp_path, Own())
    x = torch.randn(2, 3, 16, 16)
    with torch.no_grad():
        torch.testing.assert_close(model(x), fc(module(x)))


def test_the_score_is_what_the_classifier_does_with_the_test_images(start, tmp_path):
    data = folder(tmp_path / "data", {"blue": 60, "green": 20, "red": 10})
    test = load_data(data).test
    assert test.labels.bincount().tolist() == [6, 2, 1]
    model = antipode.finetune(
        start, data, tmp_path / "m", epochs=1, lr=0.003, freeze=True, device="cpu", quiet=True
    )
    views = torch.stack([model.transform(test.read(index)) for index in range(len(test))])
    right = model(views).argmax(1) == test.labels
    score = model.scores["finetune"]
    assert score["value"] == pytest.approx(100 * right.double().mean().item())
    by_class = [right[test.labels == label].double().mean().item() for label in range(3)]
    assert score["more"]["balanced"] == pytest.approx(100 * sum(by_class) / 3)
    assert score["chance"] == pytest.approx(100 * 6 / 9)


def test_grey_images_and_alpha_are_converted(model):
    grey = Image.new("L", (30, 24), 100)
    assert model.transform(grey).shape == (3, 16, 16)
    assert copy.deepcopy(model).transform(grey).equal(model.transform(grey))
