"""Tests of predictions: they are those of the classifier, with the names of the images."""

import csv
import warnings
from pathlib import Path

import pytest
import torch
from PIL import Image
from torch.utils.data import Dataset

import antipode
from antipode.finetuning import predict as module
from antipode.finetuning.predict import Predictions, write
from antipode.runs import feature_table
from tests.finetuning.pictures import COLOURS, flat, folder, picture

# one worker has all tests with the classifier, so that it is trained once
pytestmark = pytest.mark.xdist_group("classifier")


def rows(path):
    """Return the lines of a CSV file as dictionaries."""
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_predictions_are_those_of_the_classifier_on_transformed_images(model, tmp_path):
    data = flat(tmp_path / "flat")
    found = antipode.predict(model.path, data, device="cpu")
    assert found.names == [f"{number}.png" for number in range(6)]
    for at, name in enumerate(found.names):
        with Image.open(tmp_path / "flat" / name) as image:
            expected = model(model.transform(image)[None]).softmax(1)[0]
        torch.testing.assert_close(found.probabilities[at], expected, rtol=1e-4, atol=1e-6)
        assert found.predicted[at] == model.classes[expected.argmax()]
    torch.testing.assert_close(found.probabilities.sum(1), torch.ones(6))
    assert found.predicted == [*COLOURS] * 2


def test_the_csv_file_has_one_row_per_image(model, colours, tmp_path):
    found = antipode.predict(model, colours, tmp_path / "p.csv", device="cpu")
    lines = rows(tmp_path / "p.csv")
    header = (tmp_path / "p.csv").read_text().splitlines()[0]
    assert header == "name,class,probability,blue,green,red"
    # held-out test images are in their place
    assert [line["name"] for line in lines] == sorted(
        f"{name}/{number:03}.png" for name in COLOURS for number in range(20)
    )
    for at, line in enumerate(lines):
        values = [float(line[name]) for name in found.classes]
        assert float(line["probability"]) == max(values)
        assert found.classes[values.index(max(values))] == line["class"] == found.predicted[at]
        assert values == pytest.approx(found.probabilities[at].tolist(), rel=1e-4)
    assert sum(line["class"] == line["name"].split("/")[0] for line in lines) >= 57


def test_parquet_holds_the_same_table(model, tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    data = flat(tmp_path / "flat")
    found = antipode.predict(model, data, tmp_path / "p.parquet", device="cpu")
    table = parquet.read_table(tmp_path / "p.parquet").to_pydict()
    assert [*table] == ["name", "class", "probability", "blue", "green", "red"]
    assert table["name"] == found.names and table["class"] == found.predicted
    assert table["red"] == found.probabilities[:, 2].tolist()
    assert table["probability"] == found.confidence.tolist()


def test_without_pyarrow_one_sentence_says_so_before_any_work(monkeypatch, tmp_path):
    def missing(name):
        raise ImportError(name)

    monkeypatch.setattr(feature_table, "import_module", missing)
    with pytest.raises(ValueError, match=r"needs pyarrow \(pip install 'antipode\[data\]'\)"):
        antipode.predict(tmp_path / "nothing", "digits", tmp_path / "p.parquet")


@pytest.mark.parametrize("name", ["p.txt", "p", "p.CSV.gz"])
def test_another_extension_is_one_sentence_before_any_work(tmp_path, name):
    with pytest.raises(ValueError, match=r"written to \*\.csv or \*\.parquet files"):
        antipode.predict(tmp_path / "nothing", "digits", tmp_path / name)


def test_names_are_escaped(tmp_path):
    names = ["a,b.png", 'quote".png', "two\nlines.png", "ünï.png"]
    classes = ["a, b", "class"]
    found = Predictions(names, classes, torch.tensor([[0.25, 0.75]] * 4))
    write(tmp_path / "p.csv", found)
    with (tmp_path / "p.csv").open(newline="", encoding="utf-8") as file:
        header, *lines = csv.reader(file)
    assert header == ["name", "class", "probability", "a, b", "class (class)"]
    assert [line[0] for line in lines] == names and len(lines) == 4
    assert {tuple(line[1:]) for line in lines} == {("class", "0.75", "0.25", "0.75")}


def test_a_failed_write_leaves_the_old_file(monkeypatch, tmp_path):
    def stop(*_):
        raise KeyboardInterrupt

    file = tmp_path / "p.csv"
    file.write_text("old")
    monkeypatch.setattr(module, "_write_csv", stop)
    with pytest.raises(KeyboardInterrupt):
        write(file, Predictions(["a"], ["b"], torch.ones(1, 1)))
    assert file.read_text() == "old" and [*tmp_path.iterdir()] == [file]


def test_images_that_cannot_be_read_are_left_out(model, tmp_path):
    data = flat(tmp_path / "flat")
    image = tmp_path / "flat" / "2.png"
    content = image.read_bytes()
    image.write_bytes(content[: len(content) // 2])  # its header is whole
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = antipode.predict(model, data, device="cpu")
    assert found.names == [f"{number}.png" for number in (0, 1, 3, 4, 5)]
    assert len(found.probabilities) == 5 and found.predicted[2] == next(iter(COLOURS))


def test_splits_in_folders_of_their_own_are_in_the_names(model, tmp_path):
    for part in ("train", "val"):
        folder(tmp_path / part, {"blue": 2, "red": 2})
    found = antipode.predict(model, f"folder:{tmp_path}", device="cpu")
    assert found.names[0] == "train/blue/000.png" and found.names[-1] == "val/red/001.png"
    assert len(set(found.names)) == 8


class Own(Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, index):
        return picture("green", index, 16)


def test_your_own_data_set_without_labels_and_grey_images(model):
    found = antipode.predict(model, Own(), device="cpu")
    assert len(set(found.names)) == 4 and found.predicted == ["green"] * 4
    grey = antipode.predict(model, "digits", device="cpu")
    assert grey.names[:2] == ["train/0", "train/1"] and len(grey.names) == 1797


def test_the_model_of_the_caller_is_not_changed(model, tmp_path):
    model.train()
    try:
        before = {name: value.clone() for name, value in model.state_dict().items()}
        antipode.predict(model, flat(tmp_path / "flat"), device="cpu")
        assert model.training
        assert all(torch.equal(value, before[k]) for k, value in model.state_dict().items())
    finally:
        model.eval()


def test_paths_may_be_texts_or_paths(model, tmp_path):
    data = flat(tmp_path / "flat")
    a = antipode.predict(str(model.path), data, str(tmp_path / "a.csv"), device="cpu")
    b = antipode.predict(Path(model.path), data, tmp_path / "b.csv", device="cpu")
    assert (tmp_path / "a.csv").read_bytes() == (tmp_path / "b.csv").read_bytes()
    assert repr(a) == repr(b) == "Predictions(6 images, 3 classes)"
