"""Tests of stamps: other images are recognised, and a move or a new time of a file is not one."""

import json
import os
import random
import shutil
import warnings

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import Dataset

from antipode.data.sources.catalog import load
from antipode.data.sources.pack import pack
from antipode.data.sources.source import Decoded, Memory, grey_to_rgb, subset
from antipode.data.sources.stamp import check, difference, remaining, sampled, stamp
from antipode.runs.folder import RunFolder
from antipode.training import checkpoint
from antipode.training.loop import train
from tests.data.test_shards import photograph as png
from tests.data.test_shards import shard
from tests.toys import Tiny
from tests.training.runs import small_recipe, small_splits


def folder(root, count=12, size=(20, 24)):
    """Write bitmaps of equal size, so that only their pixels tell them apart."""
    for name in ("cat", "dog"):
        (root / name).mkdir(parents=True, exist_ok=True)
        for index in range(count):
            pixels = np.full((*size, 3), index, np.uint8)
            Image.fromarray(pixels).save(root / name / f"{index:02d}.bmp")
    return root


def stamped(name):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return stamp(load(str(name)).pretrain)


def test_a_folder_keeps_its_stamp_when_it_is_moved_or_touched(tmp_path):
    before = stamped(f"folder:{folder(tmp_path / 'a')}")
    assert before == stamped(f"folder:{tmp_path / 'a'}")
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    for file in (tmp_path / "b").rglob("*.bmp"):
        os.utime(file, (0, 0))
    assert difference(before, stamped(f"folder:{tmp_path / 'b'}")) == ""


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("end", "their contents differ, such as 01.bmp"),
        ("beginning", "their contents differ, such as 01.bmp"),
        ("longer", "their sizes differ, such as 01.bmp"),
        ("name", "their names differ, such as 01b.bmp"),
    ],
)
def test_one_changed_file_changes_the_stamp(tmp_path, change, words):
    root = folder(tmp_path / "a", size=(60, 60)) / "cat"  # one folder has no classes
    before = stamped(f"folder:{root}")
    file = root / "01.bmp"
    data = file.read_bytes()
    if change == "end":
        file.write_bytes(data[:-9] + b"x" * 9)
    elif change == "beginning":
        file.write_bytes(data[:60] + b"x" * 9 + data[69:])
    elif change == "longer":
        file.write_bytes(data + b"x")
    else:
        file.rename(file.with_stem("01b"))
    assert difference(before, stamped(f"folder:{root}")) == words


def test_the_beginning_of_every_file_is_stamped_and_not_only_of_the_sample(tmp_path):
    before = stamped(f"folder:{folder(tmp_path / 'a', count=200)}")
    sampled = {name for name, _ in before["sample"]}
    assert len(sampled) == 64
    names = load(f"folder:{tmp_path / 'a'}").pretrain.names
    other = next(name for name in names if name not in sampled)
    Image.new("RGB", (24, 20), "red").save(tmp_path / "a" / other)
    assert difference(before, stamped(f"folder:{tmp_path / 'a'}")) == "their contents differ"


def test_shards_are_told_apart_by_names_sizes_and_a_sample(tmp_path):
    before = stamped(f"webdataset:{shard(tmp_path / 'a.tar', [('x.png', png(0))])}")
    assert before == stamped(f"webdataset:{tmp_path / 'a.tar'}")
    (tmp_path / "elsewhere").mkdir()
    moved = (tmp_path / "a.tar").rename(tmp_path / "elsewhere" / "a.tar")
    assert before == stamped(f"webdataset:{moved}")
    other = stamped(f"webdataset:{shard(tmp_path / 'a.tar', [('x.png', png(1))])}")
    assert "contents differ" in difference(before, other) or "sizes" in difference(before, other)
    other = stamped(f"webdataset:{shard(tmp_path / 'a.tar', [('y.png', png(0))])}")
    assert difference(before, other) == "their names differ, such as a.tar:y"


def test_a_pack_is_stamped_by_the_checksums_of_all_images(tmp_path):
    home = pack(f"folder:{folder(tmp_path / 'a', count=200)}", tmp_path / "p", progress=False)
    before = stamped(f"packed:{home}")
    assert "sample" not in before and before == stamped(f"packed:{home}")
    file = next(file for file in (tmp_path / "a").rglob("*.bmp"))
    file.write_bytes(file.read_bytes()[:-1] + b"x")
    home = pack(f"folder:{tmp_path / 'a'}", tmp_path / "q", progress=False)
    both = [stamped(f"packed:{home}"), stamp(load(f"packed:{home}").test)]
    old = [before, stamp(load(f"packed:{tmp_path / 'p'}").test)]
    assert sorted(difference(a, b) for a, b in zip(old, both, strict=True)) == [
        "",
        "their contents differ",
    ]


def test_images_in_memory_are_stamped_by_their_pixels(monkeypatch):
    images = torch.randint(256, (50, 3, 8, 8), dtype=torch.uint8)
    before = stamp(Memory(images, torch.zeros(50, dtype=torch.int64)))
    assert before == stamp(Memory(images.clone(), None))
    changed = images.clone()
    changed[31, 2, 7, 7] ^= 1
    assert difference(before, stamp(Memory(changed))) == "their contents differ"
    assert difference(before, stamp(Memory(images[:, :, :4]))) == "their shape and contents differ"
    assert "number" in difference(before, stamp(Memory(images[:49])))
    # of large data sets, evenly spaced images are stamped
    monkeypatch.setattr("antipode.data.sources.stamp.PIXEL_BYTES", images.numel() // 10)
    before = stamp(Memory(images))
    assert difference(before, stamp(Memory(changed))) == ""
    changed[30] ^= 1
    assert difference(before, stamp(Memory(changed))) == "their contents differ"


def test_a_part_and_grey_images_have_stamps_of_their_own(tmp_path):
    source = load(f"folder:{folder(tmp_path)}").pretrain
    assert isinstance(source, Decoded)
    first = subset(source, torch.arange(5))
    again = subset(source, torch.arange(5))
    assert stamp(first) == stamp(again) and "sizes" in stamp(first)
    assert difference(stamp(first), stamp(subset(source, torch.arange(1, 6))))
    assert stamp(grey_to_rgb(first))["sizes"] == stamp(first)["sizes"]


class Own(Dataset):
    """Images of different sizes, which are not kept in memory; `noise` makes each reading new."""

    def __init__(self, seed=0, noise=False, equal=False):
        self.seed = seed
        self.noise = noise
        self.equal = equal

    def __len__(self):
        return 40

    def __getitem__(self, index):
        size = 20 if self.equal else 20 + index % 3
        pixels = np.full((size, 30, 3), 5 * index + self.seed, np.uint8)
        return pixels + np.uint8(random.random() < 0.5) * self.noise


@pytest.mark.parametrize("equal", [False, True])
def test_a_dataset_is_stamped_by_its_items_unless_they_are_random(equal):
    def of(dataset):
        return stamp(load(dataset).pretrain)

    assert difference(of(Own(equal=equal)), of(Own(equal=equal))) == ""
    assert "contents differ" in difference(of(Own(equal=equal)), of(Own(1, equal=equal)))
    for _ in range(5):
        noisy = of(Own(noise=True, equal=equal)), of(Own(noise=True, equal=equal))
        assert difference(*noisy) == ""


def test_a_stamp_draws_nothing_from_torchs_generator():
    source = load(Own()).pretrain
    before = torch.get_rng_state()
    stamp(source)
    assert torch.equal(before, torch.get_rng_state())


def test_a_stamp_is_plain_and_small(tmp_path):
    made = stamped(f"folder:{folder(tmp_path, count=100)}")
    assert len(json.dumps(made)) < 10_000 and json.loads(json.dumps(made)) == made


def kept(old, name):
    """Return the share of the sampled images of a stamp that a data set still has."""
    return remaining(old.get("sample"), [load(name).pretrain])


def test_sampled_images_are_recognised_beside_others(tmp_path):
    old = stamped(f"folder:{folder(tmp_path / 'a')}")
    name = f"folder:{tmp_path / 'a'}"
    assert kept(old, name) == 1
    size = len(old["sample"])
    added = np.full((20, 24, 3), 99, np.uint8)
    for index in range(50):
        Image.fromarray(added).save(tmp_path / "a" / "cat" / f"new{index}.bmp")
    assert kept(old, name) == pytest.approx(1, abs=5 / size)  # a few are now test images
    for file in (tmp_path / "a").rglob("0*.bmp"):
        file.unlink()
    assert kept(old, name) < 0.5


def test_an_image_that_has_moved_is_recognised_by_its_file_name(tmp_path):
    for index in range(8):
        pixels = np.full((20, 24, 3), index, np.uint8)
        Image.fromarray(pixels).save(tmp_path / f"{index}.bmp")
    old = stamped(f"folder:{tmp_path}")
    for index in range(8):
        place = tmp_path / ("cat" if index % 2 else "dog")
        place.mkdir(exist_ok=True)
        (tmp_path / f"{index}.bmp").rename(place / f"{index}.bmp")
    splits = load(f"folder:{tmp_path}")
    assert remaining(old["sample"], [splits.train, splits.test]) == 1


def test_other_images_of_the_same_names_are_not_recognised(tmp_path):
    old = stamped(f"folder:{folder(tmp_path / 'a')}")
    for file in (tmp_path / "a").rglob("*.bmp"):
        Image.fromarray(np.full((20, 24, 3), 200, np.uint8)).save(file)
    assert kept(old, f"folder:{tmp_path / 'a'}") == 0


@pytest.mark.parametrize("quality", [{}, {"size": 16}, {"size": 16, "quality": 90}])
def test_the_stamp_of_a_pack_has_a_sample_if_it_is_asked_for(quality, tmp_path):
    pack(f"folder:{folder(tmp_path / 'a', size=(20, 24))}", tmp_path / "b", **quality)
    source = load(f"packed:{tmp_path / 'b'}").pretrain
    plain = stamp(source)
    whole = sampled(plain, source)
    assert "sample" not in plain and difference(plain, whole) == ""
    in_memory = isinstance(source, Memory)
    assert remaining(whole.get("sample"), [source]) == (0 if in_memory else 1)


@pytest.mark.parametrize("old", [[], "x", 3, [3], [[]], [[1]], [["a", ""]], [["a", []]], [[[], 1]]])
def test_a_sample_of_odd_types_has_no_images(old, tmp_path):
    assert remaining(old, [load(f"folder:{folder(tmp_path, count=9)}").pretrain]) == 0


def test_a_stamp_without_contents_opens_no_file(tmp_path):
    source = load(f"folder:{folder(tmp_path)}").pretrain
    shutil.rmtree(tmp_path / "cat")
    made = stamp(source, contents=False)
    assert "sample" not in made and difference(stamp(source), made) == ""


@pytest.mark.parametrize("old", [[], "x", 3, {"sample": 3}, {"sample": [[1], None] * 8}, {"x": 1}])
def test_a_stamp_of_odd_types_is_not_compared(old, tmp_path):
    new = stamped(f"folder:{folder(tmp_path, count=9)}")
    assert difference(old, new) == ""
    check(old, new, tmp_path, "folder:x")


def test_a_checkpoint_without_a_stamp_resumes_with_one_warning(tmp_path):
    run = RunFolder(tmp_path / "run")
    recipe = small_recipe("dcl", epochs=1)
    train(recipe, run, splits=small_splits(), backbone=Tiny(), quiet=True)
    content = checkpoint.load(run, torch.device("cpu"))
    assert content["stamp"]["images"] == len(small_splits().pretrain)
    del content["stamp"]
    checkpoint.save(run, content, keep=2)
    with pytest.warns(UserWarning) as caught:
        train(recipe, run, splits=small_splits(), backbone=Tiny(), quiet=True)
    texts = [str(warning.message) for warning in caught if "stamp" in str(warning.message)]
    assert len(texts) == 1 and "not known whether the images of shapes are the same" in texts[0]
