"""Tests of feature extraction and its cache, and of the labels that protocols need."""

import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path  # noqa: F401  (used by the code that the ranks run)
from typing import ClassVar

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn
from torch.utils.data import Dataset, Subset

from antipode.data.sources.arrays import member
from antipode.data.sources.folder import folder
from antipode.data.sources.source import Memory
from antipode.data.sources.splits import Splits
from antipode.data.sources.wrap import wrap
from antipode.data.views.views import views
from antipode.evaluation import feature_cache, storage
from antipode.evaluation.features import extract, extract_rows, key, with_labels
from antipode.evaluation.task import Task


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3 * 64, 5)
        self.norm = nn.BatchNorm1d(5)
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        return self.norm(self.linear(x.flatten(1)))


def images(n=50, seed=0, classes=3):
    generator = torch.Generator().manual_seed(seed)
    pixels = torch.randint(0, 256, (n, 3, 8, 8), generator=generator, dtype=torch.uint8)
    return Memory(pixels, torch.arange(n) % classes)


def task(**changes):
    splits = Splits("toy", pretrain=images(), train=images(), test=images(20, seed=1), size=8)
    return Task(
        Net().eval(), replace(splits, **changes), 8, views("eval", size=8), torch.device("cpu")
    )


def test_features_are_the_networks_own_and_leave_its_mode_and_state_alone():
    net = Net().train()
    source = images()
    eval_view = views("eval", size=8)
    before = {name: value.clone() for name, value in net.state_dict().items()}
    features = extract(net, eval_view, source, batch=7)
    assert net.training
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
    with torch.no_grad():
        torch.testing.assert_close(features.x, net.eval()(eval_view(source.images)[0]))
    assert torch.equal(features.y, source.labels)


def test_the_cache_answers_for_the_same_weights_images_and_view_only(tmp_path):
    net = Net()
    source = images()
    eval_view = views("eval", size=8)
    first = extract(net, eval_view, source, cache=tmp_path)
    calls = net.calls
    again = extract(net, eval_view, source, cache=tmp_path)
    assert net.calls == calls
    assert torch.equal(first.x, again.x)
    with torch.no_grad():
        net.linear.weight[0, 0] += 1e-3
    assert not torch.equal(extract(net, eval_view, source, cache=tmp_path).x, first.x)
    assert len(list(tmp_path.iterdir())) == 2


def test_the_key_changes_with_whatever_changes_features():
    source = images()
    eval_view = views("eval", size=8)
    torch.manual_seed(0)
    net = Net()
    keys = [key(net, eval_view, source)]
    # labels have no effect on features
    assert key(net, views("eval", size=8), replace(source, labels=None)) == keys[0]
    pixels = source.images.clone()
    pixels[-1, -1, -1, -1] ^= 1
    keys.append(key(net, eval_view, replace(source, images=pixels)))
    keys.append(key(net, views("eval", size=9), source))
    keys.append(key(net, views("eval", size=8, mean=(0.5, 0.5, 0.5)), source))
    keys.append(key(nn.Sequential(net, nn.ReLU()), eval_view, source))
    net.norm.running_mean[0] = 1
    keys.append(key(net, eval_view, source))
    assert len(set(keys)) == len(keys)


def test_the_key_is_the_same_in_another_process():
    code = (
        "import torch; from tests.evaluation.test_features import *; torch.manual_seed(0);"
        "print(key(Net(), views('shapes-eval', size=8), images()))"
    )
    printed = subprocess.check_output([sys.executable, "-c", code], text=True)
    torch.manual_seed(0)
    assert printed == key(Net(), views("shapes-eval", size=8), images()) + "\n"


def test_a_damaged_cache_is_made_again(tmp_path):
    net = Net()
    source = images()
    eval_view = views("eval", size=8)
    first = extract(net, eval_view, source, cache=tmp_path)
    (file,) = tmp_path.iterdir()
    file.write_bytes(file.read_bytes()[:100])
    assert torch.equal(extract(net, eval_view, source, cache=tmp_path).x, first.x)
    assert np.load(file)["x"].shape == (50, 5)


def test_features_that_are_no_numbers_are_refused():
    net = Net()
    with torch.no_grad():
        net.linear.bias[0] = torch.nan
    with pytest.raises(ValueError, match="50 of 50 images have NaN or infinite features"):
        extract(net, views("eval", size=8), images())


def test_features_that_do_not_fit_into_memory_are_a_memory_map(tmp_path, monkeypatch):
    net, eval_view, source = Net(), views("eval", size=8), images()
    expected = extract(net, eval_view, source, batch=7)
    monkeypatch.setattr(storage, "host_budget", lambda: 100)  # bytes
    made = []
    mapped = storage.mapped
    monkeypatch.setattr(storage, "mapped", lambda *args: made.append(args) or mapped(*args))
    plain = extract(net, eval_view, source, batch=7)
    cached = extract(net, eval_view, source, batch=7, cache=tmp_path)
    assert [folder for *_, folder in made] == [None, tmp_path]
    assert len(list(tmp_path.iterdir())) == 1  # the cache; temporary files have no name
    calls = net.calls
    again = extract(net, eval_view, source, batch=7, cache=tmp_path)
    assert net.calls == calls
    for features in (plain, cached, again):
        assert torch.equal(features.x, expected.x) and torch.equal(features.y, expected.y)


def test_a_memory_map_of_a_cache_is_its_arrays(tmp_path):
    x = np.arange(12, dtype=np.float32).reshape(4, 3)
    np.savez(tmp_path / "plain.npz", x=x, ids=np.arange(4))
    assert np.array_equal(member(tmp_path / "plain.npz", "x"), x)
    np.savez(tmp_path / "turned.npz", x=np.asfortranarray(x))
    assert np.array_equal(member(tmp_path / "turned.npz", "x"), x)
    np.savez_compressed(tmp_path / "small.npz", x=x, ids=np.arange(4))
    with pytest.raises(ValueError, match=r"x of .*small.npz is compressed"):
        member(tmp_path / "small.npz", "x")


@pytest.mark.parametrize("budget", [0, 1 << 40])
@pytest.mark.parametrize("damage", ["cut", "empty", "text", "objects", "shape", "absent"])
def test_a_damaged_cache_is_none(tmp_path, damage, budget, monkeypatch):
    monkeypatch.setattr(storage, "host_budget", lambda: budget)
    file = tmp_path / "x.npz"
    np.savez(file, x=np.zeros((40, 30), np.float32), ids=np.arange(40))
    if damage == "cut":
        file.write_bytes(file.read_bytes()[:2000])
    elif damage == "empty":
        file.write_bytes(b"")
    elif damage == "text":
        file.write_text("no features")
    elif damage == "objects":
        np.savez(file, x=np.array([[{}]]), ids=np.arange(1))
    elif damage == "shape":
        np.savez(file, x=np.zeros(40, np.float32), ids=np.arange(40))
    else:
        file.unlink()
    assert feature_cache.read(file) is None


def test_a_disk_without_room_is_one_sentence(tmp_path, monkeypatch):
    monkeypatch.setattr(storage, "host_budget", lambda: 0)
    with pytest.raises(OSError, match=r"has no room for 4194304.0 GiB of features"):
        storage.empty((1 << 40, 1 << 10), folder=tmp_path)
    assert list(tmp_path.iterdir()) == []


WRONG = {
    "no test split": ({"test": None}, "test", "toy has no test split to score on"),
    "no labels": (
        {"train": replace(images(), labels=None)},
        "train",
        "toy has no labels for its train images",
    ),
    "some labels": (
        {"train": replace(images(), labels=torch.arange(50) - 1)},
        "train",
        "1 of the 50 train images",
    ),
    "one class": (
        {"train": replace(images(), labels=torch.zeros(50).long())},
        "train",
        "one class only",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_no_protocol_could_judge_is_refused(name):
    changes, part, sentence = WRONG[name]
    with pytest.raises(ValueError, match=sentence):
        task(**changes).features(part)


def test_a_task_without_a_head_says_so():
    with pytest.raises(ValueError, match="no projection head"):
        task().features("test", of="head")


def photos(root, n=6, seed=0, side=20):
    """Write noise images of different sizes as 0.png, 1.png, ... and return their folder."""
    root.mkdir(parents=True)
    generator = np.random.default_rng(seed)
    for index in range(n):
        size = (side + 3 * index, side + 5 * index, 3)
        Image.fromarray(generator.integers(0, 256, size, np.uint8)).save(root / f"{index}.png")
    return root


def test_features_of_an_image_do_not_depend_on_the_others_of_its_folder(tmp_path):
    net = Net().eval()
    eval_view = views("eval", size=8)
    many = folder(photos(tmp_path / "many")).pretrain
    (tmp_path / "one").mkdir()
    shutil.copy(tmp_path / "many" / "0.png", tmp_path / "one")
    alone = folder(tmp_path / "one").pretrain
    assert many.size != alone.size
    assert torch.allclose(
        extract(net, eval_view, many).x[0], extract(net, eval_view, alone).x[0], atol=1e-6
    )
    with torch.no_grad():  # the user's own code gets the same, except for rounding to uint8
        direct = net(eval_view(alone.read_or_next(0)[1][None])[0])[0]
    assert torch.allclose(extract(net, eval_view, alone).x[0], direct, atol=0.05)


def test_rows_of_several_workers_are_those_of_one_process(tmp_path):
    root = photos(tmp_path / "photos", 10)
    broken = root / "3.png"  # the last row of a part: the first of the next part replaces it
    broken.write_bytes(broken.read_bytes()[:-400])
    one, several = folder(root).pretrain, folder(root).pretrain
    net, view = Net().eval(), views("eval", size=8)
    with pytest.warns(UserWarning, match="is replaced by the next"):
        whole = extract(net, view, one, batch=2, workers=0)
    with pytest.warns(UserWarning, match="is replaced by the next"):
        parts = [
            extract_rows(net, view, several, rows, batch=2, workers=0)
            for rows in (range(4), range(4, 8), range(8, 10))
        ]
    x, ids = (torch.cat(part) for part in zip(*parts, strict=True))
    again = with_labels(x, ids, several)
    assert torch.equal(whole.x, again.x) and torch.equal(whole.y, again.y)
    assert list(one.failed) == list(several.failed) == ["3.png"]


def test_files_of_the_same_names_have_features_of_their_own(tmp_path):
    net = Net().eval()
    eval_view = views("eval", size=8)
    cache = tmp_path / "cache"
    first = photos(tmp_path / "a" / "train")
    second = photos(tmp_path / "a" / "test", seed=1)
    x = [extract(net, eval_view, folder(root).pretrain, cache=cache).x for root in (first, second)]
    assert not torch.equal(*x) and len(list(cache.iterdir())) == 2
    calls = net.calls
    assert torch.equal(extract(net, eval_view, folder(first).pretrain, cache=cache).x, x[0])
    assert net.calls == calls
    shutil.copy(second / "3.png", first / "3.png")  # replaces a file
    changed = extract(net, eval_view, folder(first).pretrain, cache=cache).x
    assert torch.equal(changed[3], x[1][3]) and torch.equal(changed[:3], x[0][:3])


def test_a_dataset_of_ones_own_that_is_not_in_memory_is_seen_anew(tmp_path):
    class Noise(Dataset):
        targets: ClassVar = [0, 1, 0]

        def __init__(self, seed):
            self.seed = seed

        def __len__(self):
            return 3

        def __getitem__(self, index):
            generator = np.random.default_rng(self.seed + index)
            pixels = generator.integers(0, 256, (9 + index, 11, 3), np.uint8)
            return Image.fromarray(pixels), 0

    net = Net().eval()
    eval_view = views("eval", size=8)
    first, second = (wrap(Noise(seed)) for seed in (0, 7))
    assert key(net, eval_view, first) is None
    x = [extract(net, eval_view, source, cache=tmp_path).x for source in (first, second)]
    assert not torch.equal(*x) and not list(tmp_path.iterdir())
    part = wrap(Subset(Noise(0), [2, 1]))
    assert part.labels.tolist() == [0, 1]
    assert torch.equal(extract(net, eval_view, part).x, x[0][[2, 1]])
    assert list(first.names) == ["image 0", "image 1", "image 2"]
