"""Tests of loading published data sets, with tiny copies in the folder layouts of the real ones."""

import gzip
import json
import pickle
import struct
from importlib.resources import files
from urllib.error import URLError

import numpy as np
import pytest
import torch
import torchvision.datasets
from PIL import Image

from antipode.data.sources import small
from antipode.data.sources.catalog import SETS, load, summaries

RANDOM = np.random.default_rng(0)


def photograph(path, size=(20, 16)):
    """Write a random JPEG."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = RANDOM.integers(0, 256, (*size[::-1], 3), dtype=np.uint8)
    Image.fromarray(pixels).save(path, format="JPEG")


def ids100():
    """Return the class folders of ImageNet-100, in the order of the paper's list."""
    return files("antipode.data.sources").joinpath("imagenet100.txt").read_text().split()


def test_unknown_names_are_answered_with_the_nearest():
    with pytest.raises(ValueError, match="no data set cifar11; did you mean cifar10"):
        load("cifar11")
    with pytest.raises(ValueError, match=r"no data set nope \(known data sets: shapes, digits"):
        load("nope")
    with pytest.raises(ValueError, match="did you mean folder"):
        load("folders:x")
    with pytest.raises(ValueError, match="no data set folder:; "):
        load("folder:")


@pytest.mark.parametrize("name", [name for name in SETS if name not in ("shapes", "digits")])
def test_a_missing_data_set_is_explained_in_one_sentence(name, tmp_path, monkeypatch):
    monkeypatch.delenv("ANTIPODE_DATA", raising=False)
    pattern = name.replace("+", ".")
    no_root = rf"{pattern} needs a data folder: set ANTIPODE_DATA or data.root .* look for \S.*; "
    no_files = rf"{pattern} was not found.*: looked for .* in {tmp_path}"
    for root, expected in ((None, no_root), (tmp_path, no_files)):
        with pytest.raises(FileNotFoundError, match=expected) as caught:
            load(name, root=root)
        text = str(caught.value)
        assert "\n" not in text and ("unpack" in text or "download" in text)


def test_every_name_has_a_line():
    assert all(summaries().values()) and set(SETS) <= set(summaries())


def test_digits_and_its_split():
    splits = load("digits")
    assert (len(splits.train), len(splits.test), splits.channels, splits.size) == (1437, 360, 1, 8)
    assert splits.train.images.max() == 255 and splits.train.images.dtype == torch.uint8


@pytest.mark.parametrize("name", ["cifar10", "cifar100"])
def test_cifar(name, tmp_path, monkeypatch):
    kind = getattr(torchvision.datasets, name.upper())
    monkeypatch.setattr(kind, "_check_integrity", lambda self: True)
    monkeypatch.setattr(torchvision.datasets.cifar, "check_integrity", lambda *_: True)
    folder = tmp_path / kind.base_folder
    folder.mkdir()
    key, names = (
        ("labels", "label_names") if name == "cifar10" else ("fine_labels", "fine_label_names")
    )
    pixels = RANDOM.integers(0, 256, (4, 3072), dtype=np.uint8)
    for file, _ in kind.train_list + kind.test_list:
        (folder / file).write_bytes(pickle.dumps({"data": pixels, key: [0, 1, 2, 1]}))
    (folder / kind.meta["filename"]).write_bytes(pickle.dumps({names: ["a", "b", "c"]}))
    splits = load(name, root=tmp_path)
    assert (len(splits.train), len(splits.test)) == ((20, 4) if name == "cifar10" else (4, 4))
    assert torch.equal(splits.test.images, torch.from_numpy(pixels).view(4, 3, 32, 32))
    assert splits.test.labels.tolist() == [0, 1, 2, 1] and splits.classes == ["a", "b", "c"]
    assert splits.pretrain is splits.train


def test_stl10_pretrains_on_the_unlabelled_and_keeps_the_labelled_as_bank(tmp_path, monkeypatch):
    monkeypatch.setattr(torchvision.datasets.STL10, "_check_integrity", lambda self: True)
    folder = tmp_path / "stl10_binary"
    folder.mkdir()
    for part, count in (("train", 4), ("unlabeled", 6), ("test", 3)):
        RANDOM.integers(0, 256, (count, 3, 96, 96), dtype=np.uint8).tofile(folder / f"{part}_X.bin")
        if part != "unlabeled":
            (np.arange(count) % 3 + 1).astype(np.uint8).tofile(folder / f"{part}_y.bin")
    (folder / "class_names.txt").write_text("a\nb\nc\n")
    splits = load("stl10", root=tmp_path)
    assert (len(splits.pretrain), len(splits.train), len(splits.test)) == (10, 4, 3)
    assert splits.size == 96
    assert splits.pretrain.labels is None and splits.train.labels.tolist() == [0, 1, 2, 0]
    assert torch.equal(splits.pretrain.images[:4], splits.train.images)
    stored = (
        np.fromfile(folder / "test_X.bin", np.uint8).reshape(3, 3, 96, 96).transpose(0, 1, 3, 2)
    )
    assert torch.equal(splits.test.images, torch.from_numpy(stored.copy()))


def test_fashionmnist(tmp_path):
    folder = tmp_path / "FashionMNIST" / "raw"
    folder.mkdir(parents=True)
    for part, count in (("train", 6), ("t10k", 4)):
        pixels = RANDOM.integers(0, 256, (count, 28, 28), dtype=np.uint8)
        (folder / f"{part}-images-idx3-ubyte").write_bytes(
            struct.pack(">IIII", 2051, count, 28, 28) + pixels.tobytes()
        )
        (folder / f"{part}-labels-idx1-ubyte").write_bytes(
            struct.pack(">II", 2049, count) + bytes(range(count))
        )
    splits = load("fashionmnist", root=tmp_path)
    assert splits.train.images.shape == (6, 1, 28, 28)
    assert splits.test.labels.tolist() == [0, 1, 2, 3]
    assert torch.equal(splits.test.images[:, 0], torch.from_numpy(pixels)) and len(splits.mean) == 1


def test_the_environment_names_the_root(tmp_path, monkeypatch):
    monkeypatch.setenv("ANTIPODE_DATA", str(tmp_path))
    with pytest.raises(FileNotFoundError, match=str(tmp_path)):
        load("imagenet")


@pytest.mark.parametrize("folder", ["", "imagenet", "ILSVRC2012"])
def test_imagenet(folder, tmp_path):
    for part, count in (("train", 3), ("val", 1)):
        for name in ("n01440764", "n01443537"):
            for index in range(count):
                photograph(tmp_path / folder / part / name / f"{name}_{index}.JPEG")
    splits = load("imagenet", root=tmp_path)
    assert splits.train.labels.tolist() == [0, 0, 0, 1, 1, 1]
    assert splits.test.labels.tolist() == [0, 1]
    assert splits.classes == ["n01440764", "n01443537"] and splits.size == 224


def test_imagenet100_is_the_hundred_classes_of_jcl(tmp_path):
    names = ids100()
    assert len(names) == len(set(names)) == 100
    assert names[0] == "n02869837" and names[-1] == "n02090622"
    for name in [*names, "n99999999"]:
        photograph(tmp_path / "imagenet" / "train" / name / "0.JPEG")
        photograph(tmp_path / "imagenet" / "val" / name / "0.JPEG")
    splits = load("imagenet100", root=tmp_path)
    assert len(splits.train) == len(splits.test) == 100 and splits.classes == sorted(names)
    (tmp_path / "imagenet" / "val" / names[3]).rename(tmp_path / "gone")
    sentence = f"lacks 1 of the 100 class folders, the first: {names[3]}"
    with pytest.raises(FileNotFoundError, match=sentence):
        load("imagenet100", root=tmp_path)


@pytest.mark.parametrize("sorted_val", [False, True])
def test_tinyimagenet(tmp_path, sorted_val):
    home = tmp_path / "tiny-imagenet-200"
    names = ["n02", "n01"]
    for name in names:
        photograph(home / "train" / name / "images" / f"{name}_0.JPEG", (64, 64))
        (home / "train" / name / f"{name}_boxes.txt").write_text("n01_0.JPEG\t0\t0\t62\t62\n")
    (home / "wnids.txt").write_text("\n".join(names))
    for index, name in enumerate(("n02", "n01", "n02")):
        photograph(
            home / "val" / (name if sorted_val else "images") / f"val_{index}.JPEG", (64, 64)
        )
    if not sorted_val:
        rows = [
            f"val_{index}.JPEG\t{name}\t0\t0\t1\t1\n"
            for index, name in enumerate(("n02", "n01", "n02"))
        ]
        (home / "val" / "val_annotations.txt").write_text("".join(rows))
    splits = load("tinyimagenet", root=tmp_path)
    assert splits.train.labels.tolist() == [0, 1] and splits.size == splits.train.size == 64
    assert sorted(splits.test.labels.tolist()) == [0, 1, 1]
    assert splits.test.read(2).shape == (3, 64, 64)


def test_places205_by_its_lists_or_by_folders(tmp_path):
    home = tmp_path / "places205"
    rows = ["a/abbey/1.jpg 0", "b/bar/2.jpg 1", "a/abbey/with space.jpg 0"]
    for row in rows:
        photograph(home / "images256" / row.rsplit(" ", 1)[0])
    (home / "train_places205.csv").write_text("\n".join(rows))
    (home / "val_places205.csv").write_text("\n".join(rows[:2]))
    splits = load("places205", root=tmp_path)
    assert splits.train.labels.tolist() == [0, 1, 0] and splits.classes == ["a/abbey", "b/bar"]
    assert splits.train.read(2).shape == (3, 16, 20)
    for part in ("train", "val"):
        photograph(tmp_path / "other" / part / "abbey" / "1.jpg")
        photograph(tmp_path / "other" / part / "bar" / "1.jpg")
    assert load("places205", root=tmp_path / "other").classes == ["abbey", "bar"]


@pytest.mark.parametrize("images", ["train_val2018", "2018"])
def test_inat18(tmp_path, images):
    home = tmp_path / "inat18"
    names = ["Aves/7/a.jpg", "Plantae/3/b.jpg"]
    for name in names:
        photograph(home / images / name)
    content = {
        "images": [
            {"id": 10 + i, "file_name": f"train_val2018/{name}"} for i, name in enumerate(names)
        ],
        "annotations": [{"image_id": 10, "category_id": 7}, {"image_id": 11, "category_id": 3}],
        "categories": [{"id": 3, "name": "fern"}, {"id": 7, "name": "wren"}],
    }
    for part in ("train", "val"):
        (home / f"{part}2018.json").write_text(json.dumps(content))
    splits = load("inat18", root=tmp_path)
    assert splits.train.labels.tolist() == [1, 0] and splits.classes == ["fern", "wren"]


def test_a_list_whose_images_lie_elsewhere_is_refused(tmp_path):
    (tmp_path / "images256").mkdir()
    for part in ("train", "val"):
        (tmp_path / f"{part}_places205.csv").write_text("a/abbey/1.jpg 0\n")
    with pytest.raises(
        FileNotFoundError, match=r"names 1 images in .*, but a/abbey/1.jpg does not exist"
    ):
        load("places205", root=tmp_path)


def test_downloads_are_asked_of_torchvision_only_when_allowed(tmp_path, monkeypatch):
    downloads = []

    def fake(root, download, **split):
        downloads.append(download)
        raise RuntimeError("not found")

    monkeypatch.setattr(torchvision.datasets, "CIFAR10", fake)
    for download in (False, True):
        with pytest.raises(FileNotFoundError, match="cifar10 was not found"):
            small.cifar10(tmp_path, download, 0)
    assert downloads == [False, True]


def test_a_compressed_fashionmnist_is_not_mistaken_for_one(tmp_path):
    folder = tmp_path / "FashionMNIST" / "raw"
    folder.mkdir(parents=True)
    (folder / "train-images-idx3-ubyte.gz").write_bytes(gzip.compress(b"x"))
    with pytest.raises(FileNotFoundError, match="FashionMNIST/raw"):
        load("fashionmnist", root=tmp_path)


def test_a_download_that_fails_is_a_sentence(tmp_path, monkeypatch):
    def refuse(*_, **__):
        raise URLError("Name or service not known")

    monkeypatch.setattr("urllib.request.urlopen", refuse)
    cause = r"cifar10 could not be downloaded \(Name or service not known\)"
    advice = f"try again, or copy its files to {tmp_path}"
    with pytest.raises(FileNotFoundError, match=f"{cause}; {advice}"):
        load("cifar10", root=tmp_path, download=True)
