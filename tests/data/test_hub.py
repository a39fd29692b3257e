"""Data as people have it in Python: a path, and Datasets of Hugging Face."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image as Pillow

import antipode
from antipode import api
from antipode.data.sources.catalog import datasets, load, python_name


class Image:
    """A feature of the type Image, as in the package `datasets`."""


class Value:
    """A feature of numbers or texts."""


class ClassLabel:
    """A feature of numbered classes."""

    names = ("cat", "dog")


class Dataset:
    """A table with the interface of Hugging Face's Dataset: columns, features and rows."""

    def __init__(self, count, label=None, values=None):
        self.features = {"id": Value(), "photo": Image()}
        if label is not None:
            self.features["label"] = label
        self.values = values
        self.count = count
        self._fingerprint = f"table {count}"

    @property
    def column_names(self):
        return list(self.features)

    def __len__(self):
        return self.count

    def __getitem__(self, key):
        if isinstance(key, str):
            return [self.values[at] for at in range(self.count)]
        pixels = np.random.default_rng(key).integers(0, 256, (12, 12, 3), np.uint8)
        return {"id": key, "photo": Pillow.fromarray(pixels)}


class Streamed:
    """A table that is read from the start to the end only."""

    def __init__(self):
        self.features = {"photo": Image()}
        self.column_names = ["photo"]

    def __getitem__(self, key):
        raise NotImplementedError


LABELS = [0, 1, None, 1, 0, 1, 0, 1]


def test_a_dataset_of_hugging_face_has_images_and_labels():
    splits = load(Dataset(8, ClassLabel(), LABELS))
    assert len(splits.train) == 8 and splits.test is None and splits.size == 12
    assert splits.train.labels.tolist() == [0, 1, -1, 1, 0, 1, 0, 1]
    assert splits.train.classes == ["cat", "dog"]
    assert python_name(Dataset(8)) == "python:Dataset"


def test_labels_may_be_texts_and_may_be_missing():
    named = load(Dataset(4, Value(), ["oak", "elm", "oak", "elm"]))
    assert named.train.classes == ["elm", "oak"] and named.train.labels.tolist() == [1, 0, 1, 0]
    assert load(Dataset(4)).train.labels is None


def test_a_dataset_dict_has_train_and_test():
    table = Dataset(8, ClassLabel(), LABELS)
    splits = load({"test": Dataset(4, ClassLabel(), LABELS), "train": table})
    assert (len(splits.train), len(splits.test)) == (8, 4)
    pair = load((table, Dataset(4, ClassLabel(), LABELS)))
    assert torch.equal(pair.test.images, splits.test.images)
    with pytest.raises(ValueError, match="has no train split, only all"):
        load({"all": table})


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (Streamed(), "is streamed, so it has no order to shuffle"),
        (3, "must be a name, the path of a folder, a Dataset of torch or Hugging Face"),
        ({}, "not dict"),
        (Dataset(2, ClassLabel(), [0, 5]), "labels from 0 to 5, but only 2 classes"),
    ],
)
def test_other_data_is_refused_in_one_sentence(given, words):
    with pytest.raises(ValueError, match=words) as error:
        load(given)
    assert "\n" not in str(error.value)


def test_a_table_without_images_says_which_columns_it_has():
    table = Dataset(2)
    del table.features["photo"]
    with pytest.raises(ValueError, match="has no image column, only id"):
        datasets(table)


def test_a_dataset_of_the_real_package():
    package = pytest.importorskip("datasets")
    images = [Dataset(8)[at]["photo"] for at in range(8)]
    features = package.Features(
        {"image": package.Image(), "label": package.ClassLabel(names=["a", "b"])}
    )
    table = package.Dataset.from_dict({"image": images, "label": [0, 1] * 4}, features=features)
    splits = load(table)
    assert splits.train.labels.tolist() == [0, 1] * 4 and splits.train.classes == ["a", "b"]
    expected = torch.from_numpy(np.stack([np.array(image) for image in images])).movedim(3, 1)
    assert torch.equal(splits.train.images, expected)
    both = package.DatasetDict(train=table, validation=table.select(range(4)))
    assert len(load(both).test) == 4
    with pytest.raises(ValueError, match="is streamed"):
        load(table.to_iterable_dataset())


def photos(folder):
    """Write eight small images into two class folders."""
    for at in range(8):
        path = folder / ("ab"[at % 2]) / f"{at}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Dataset(8)[at]["photo"].save(path)
    return folder


def test_a_path_is_a_folder_of_images(tmp_path):
    path = photos(tmp_path / "photos")
    assert isinstance(path, Path)
    by_path, by_name = load(path), load(f"folder:{path}")
    assert by_path.name == by_name.name and len(by_path.train) == len(by_name.train)


def test_pretrain_takes_a_path_as_a_folder(tmp_path, monkeypatch):
    calls = []
    monkeypatch.setattr(api.training, "pretrain", lambda *given, **more: calls.append(given))
    antipode.pretrain(data=tmp_path / "photos", method="simclr", out=tmp_path / "run")
    request, _, data = calls[0][:3]
    assert request.data == data == f"folder:{tmp_path / 'photos'}"


def test_a_run_on_a_table_is_embedded_with_its_labels(tmp_path):
    tiny = {"backbone": "resnet10-slim", "epochs": 1, "batch": 4, "quiet": True}
    table = Dataset(8, ClassLabel(), [0, 1] * 4)
    sizes = {"views.size": 8}
    run = antipode.pretrain(
        method="simclr", data=table, out=tmp_path / "run", overrides=sizes, **tiny
    )
    assert run.recipe.data.name == "python:Dataset"
    assert antipode.embed(run, table).y.tolist() == [0, 1] * 4
