"""Tests of exact and near duplicates, and of what stands beside a score."""

import csv
import io
import time
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image as Pillow
from torch import nn

import antipode
from antipode.data.sources import folder
from antipode.data.sources.source import Decoded, Memory, subset
from antipode.data.sources.splits import Splits
from antipode.evaluation import beside as beside_module
from antipode.evaluation import duplicates as module
from antipode.evaluation.beside import affordable
from antipode.evaluation.duplicate_search import FILE, counts, rows, search, write_list
from antipode.evaluation.duplicates import CACHE, Image, exact_duplicates
from antipode.evaluation.near_duplicates import agreements, bound_for, similar_pairs, thumbnails
from antipode.evaluation.protocol import protocols
from antipode.evaluation.score import OVERLAP, Score
from tests.evaluation.classes import Net, bright, task


def noise(n, seed=0, size=8):
    """Return images (N,3,size,size) that have nothing in common."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(256, (n, 3, size, size), generator=generator, dtype=torch.uint8)


def smooth(n, seed=0, size=32):
    """Return images (N,3,size,size) of soft blobs, which survive a small crop."""
    coarse = noise(n, seed, 5).float()
    fine = nn.functional.interpolate(coarse, (size, size), mode="bicubic").clamp(0, 255)
    return fine.to(torch.uint8)


def in_memory(train, test=None):
    first = Memory(train)
    return Splits("x", first, first, None if test is None else Memory(test), train.shape[-1])


def naive(parts):
    """Return the groups of equal images by comparing all pairs."""
    images = [(name, at, image) for name, part in parts.items() for at, image in enumerate(part)]
    groups = []
    for name, at, image in images:
        for group in groups:
            if torch.equal(image, group[0][2]):
                group.append((name, at, image))
                break
        else:
            groups.append([(name, at, image)])
    return [[Image(*entry[:2]) for entry in group] for group in groups if len(group) > 1]


def test_exact_duplicates_are_those_of_a_comparison_of_all_pairs():
    train, test = noise(30), noise(10, 1)
    train[7] = train[3]
    train[20] = train[3]
    test[4] = train[11]
    test[9] = test[2]
    found = exact_duplicates(in_memory(train, test))
    expected = naive({"train": train, "test": test})
    assert sorted(map(sorted, found.groups)) == sorted(map(sorted, expected))
    assert found.copies == 4 and found.overlap == [Image("test", 4)] and not found.unread


def pictures(home, images):
    home.mkdir(parents=True)
    for at, image in enumerate(images):
        Pillow.fromarray(image.permute(1, 2, 0).numpy()).save(home / f"{at:03d}.png")


def of_files(home):
    train = folder.tree(home / "train")
    return Splits("x", train, train, folder.tree(home / "test"), 16)


@pytest.fixture
def home(tmp_path):
    """Return a folder of 12 train and 6 test files: one in both, one twice in train."""
    train, test = noise(12, size=16), noise(6, 1, 16)
    train[5] = train[2]
    test[3] = train[8]
    pictures(tmp_path / "train", train)
    pictures(tmp_path / "test", test)
    return tmp_path


def test_only_files_that_agree_in_size_and_first_bytes_are_read(home, monkeypatch):
    splits = of_files(home)
    read = []
    plain = folder.Files.encoded
    monkeypatch.setattr(
        folder.Files, "encoded", lambda self, at: read.append(self.names[at]) or plain(self, at)
    )
    found = exact_duplicates(splits)
    assert found.copies == 2 and found.overlap == [Image("test", 3)]
    assert sorted(read) == ["002.png", "003.png", "005.png", "008.png"]


def test_files_in_subsets_are_compared_too(home):
    whole = folder.tree(home / "train")
    halves = subset(whole, torch.arange(4)), subset(whole, torch.arange(4, 12))
    found = exact_duplicates(Splits("x", halves[0], halves[0], halves[1], 16))
    assert found.groups == [[Image("train", 2), Image("test", 1)]]


def test_images_of_your_own_dataset_are_compared_by_their_pixels():
    images = noise(9)
    images[4] = images[1]
    source = Decoded(lambda at: images[at], [str(at) for at in range(9)], size=8)
    assert exact_duplicates(Splits("x", source, source, None, 8)).groups == [
        [Image("train", 1), Image("train", 4)]
    ]


def test_more_bytes_than_the_budget_are_not_read_but_counted(home):
    found = exact_duplicates(of_files(home), budget=10)
    assert found.groups == [] and found.unread == 4


def test_the_result_is_cached_until_the_images_change(home, tmp_path, monkeypatch):
    cache = tmp_path / "features"
    first = exact_duplicates(of_files(home), cache)
    assert (cache / CACHE).exists()
    monkeypatch.setattr(module, "_compare", None)  # a second comparison would fail
    assert exact_duplicates(of_files(home), cache) == first
    monkeypatch.undo()
    (home / "test" / "005.png").write_bytes((home / "train" / "000.png").read_bytes())
    assert len(exact_duplicates(of_files(home), cache).overlap) == 2
    (cache / CACHE).write_text("{")
    assert len(exact_duplicates(of_files(home), cache).overlap) == 2


def test_a_file_that_cannot_be_read_is_no_duplicate(home):
    splits = of_files(home)
    (home / "train" / "005.png").unlink()
    assert exact_duplicates(splits).overlap == [Image("test", 3)]


def test_sixty_thousand_small_images_take_a_second_or_two():
    images = torch.zeros(60_000, 3, 32, 32, dtype=torch.uint8)
    images[:, 0, 0, :4] = torch.arange(60_000)[:, None] // torch.tensor([1, 256, 65536, 1]) % 256
    start = time.process_time()
    assert exact_duplicates(in_memory(images)).groups == []
    assert time.process_time() - start < 6


# Near duplicates


class Pixels(nn.Module):
    def forward(self, x):
        return x.flatten(1)


def test_similar_pairs_are_those_of_all_cosines():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(60, 3, generator=generator)
    z = nn.functional.normalize(x).double()
    expected = {(a, b) for a in range(60) for b in range(a + 1, 60) if float(z[a] @ z[b]) >= 0.99}
    found = similar_pairs(x, 0.99)
    assert {pair[:2] for pair in found} == expected and len(expected) > 3
    assert [value for *_, value in found] == sorted((v for *_, v in found), reverse=True)


def test_thumbnails_agree_for_a_mirror_image_and_not_for_another_image():
    images = Memory(torch.cat([smooth(8), smooth(8).flip(3)]))
    small = thumbnails(images, torch.arange(16))
    assert agreements(small[:8], small[8:]).min() > 0.999
    assert agreements(small[:4], small[4:8]).max() < 0.9


def test_changed_copies_are_found_and_other_images_are_not():
    images = smooth(60)
    darker = (images[:5].float() * 0.9).to(torch.uint8)
    mirrored = images[5:10].flip(3)
    splits = in_memory(torch.cat([images, darker]), mirrored)
    net = nn.Sequential(nn.AdaptiveAvgPool2d(4), nn.Flatten(), Symmetric())
    made = task(splits, net, size=32)
    assert 0.9 <= bound_for(made, splits.train) < 1
    found = search(made)
    pairs = {(pair.first, pair.second) for pair in found.near}
    assert pairs == {(Image("train", at), Image("train", 60 + at)) for at in range(5)} | {
        (Image("train", 5 + at), Image("test", at)) for at in range(5)
    }
    assert counts(found)["near pairs of train and test"] == 5 and found.notes() == []


class Symmetric(nn.Module):
    """Features (N,48) of patch means that are equal for mirror images."""

    def forward(self, x):
        patches = x.view(len(x), 3, 4, 4)
        return (patches + patches.flip(3)).flatten(1)


def test_an_exact_duplicate_is_not_a_near_duplicate():
    images = smooth(30)
    images[9] = images[4]
    found = search(task(in_memory(images), Pixels(), size=32))
    assert found.exact.copies == 1 and found.near == []


def test_a_collapsed_network_finds_nothing_that_does_not_look_alike():
    class Constant(nn.Module):
        def forward(self, x):
            return torch.ones(len(x), 4)

    assert search(task(in_memory(smooth(40)), Constant(), size=32)).near == []


def test_more_images_than_the_limit_are_sampled_with_a_sentence():
    found = search(task(in_memory(smooth(50)), Pixels(), size=32), most=20)
    assert found.compared == 20 and found.images == 50
    assert "among 20 of the 50 images, drawn at random" in found.notes()[0]


def test_the_file_lists_every_pair_by_name_and_label(home, tmp_path):
    labelled = of_files(home)
    labels = torch.arange(12) % 2
    train = replace(labelled.train, labels=labels, classes=["=cat", "dog"])
    made = task(replace(labelled, train=train, pretrain=train), Net(), size=16)
    found = search(made)
    file = write_list(tmp_path, made, found)
    lines = list(csv.DictReader(io.StringIO(file.read_text())))
    assert file.name == FILE and len(lines) == len(rows(made, found))
    assert lines[0]["kind"] == "exact" and lines[0]["image"] == "002.png"
    assert (lines[0]["other image"], lines[0]["label"], lines[0]["other label"]) == (
        "005.png",
        "=cat",
        "dog",
    )


# Beside a score


def overlapping():
    splits = bright()
    images = splits.test.images.clone()
    images[:3] = splits.train.images[:3]
    return replace(splits, test=Memory(images, splits.test.labels))


def test_test_images_in_train_are_a_warning_beside_every_score(tmp_path):
    splits = overlapping()
    data = tuple(
        torch.utils.data.TensorDataset(part.images, part.labels)
        for part in (splits.train, splits.test)
    )
    net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    flags = {"epochs": 1, "batch": 32, "overrides": {"views.size": 8}, "quiet": True}
    run = antipode.pretrain(method="simclr", data=data, backbone=net, out=tmp_path / "r", **flags)
    with pytest.warns(UserWarning, match="3 of the 40 test images of .* are also training images"):
        scores = antipode.evaluate(run, ["knn20", "retrieval"])
    for score in scores.values():
        assert score.more[OVERLAP] == 3
        assert score.line().endswith("; WARNING: 3 of 40 test images in train")
    assert run.scores["knn20"]["more"][OVERLAP] == 3


def test_a_score_without_overlap_says_nothing():
    assert "WARNING" not in Score(50.0, "% top-1", "knn", n=10).line()


def test_the_untrained_network_is_scored_beside_knn(tmp_path):
    run = antipode.pretrain("digits.dcl", epochs=1, out=tmp_path / "run", quiet=True)
    scores = antipode.evaluate(run, ["knn"])
    untrained = antipode.evaluate(
        f"random:{run.recipe.backbone.name}", ["knn"], data="digits", out=tmp_path / "random"
    )["knn"]
    assert untrained.more["untrained"] == untrained.value
    assert 0 < scores["knn"].more["untrained"] <= 100
    assert not protocols()["linear-fast"].baseline


def test_the_untrained_network_is_left_out_where_it_costs_too_much(monkeypatch):
    made = task()
    assert affordable(made)
    monkeypatch.setitem(beside_module.PIXELS, "cpu", 104 * 64 - 1)  # 104 images of 8 px
    assert not affordable(made)


def test_every_digest_is_of_the_whole_image():
    images = noise(2)
    images[1] = images[0]
    images[1, 2, 7, 7] ^= 1
    assert exact_duplicates(in_memory(images)).groups == []
    assert np.array_equal(images[0, 0], images[1, 0])
