"""Features as a .parquet file: its columns, other readers, and files of earlier versions."""

import io
from pathlib import Path

import numpy as np
import pytest
import torch

import antipode
from antipode.data.sources.source import Memory
from antipode.runs import feature_table
from antipode.runs.feature_table import read_table, write_table
from antipode.runs.features import paths_of, read
from antipode.types import Features
from tests.test_export import photos, run_of, slim  # noqa: F401

pyarrow = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")
COLUMNS = ["path", "label", "label_id", "split", "vector", "x", "y", "neighbours"]


def written(n=30, labels=None, classes=None):
    """Return features of n images, and the file with them."""
    x = torch.randn(n, 5, generator=torch.Generator().manual_seed(0))
    features = Features(x, torch.arange(n) % 3 if labels is None else labels)
    file = io.BytesIO()
    write_table(file, features, ["train"] * n, [f"{at}.png" for at in range(n)], classes)
    file.seek(0)
    return features, file


def test_pandas_reads_every_column(slim, tmp_path):  # noqa: F811
    pandas = pytest.importorskip("pandas")
    features = antipode.embed(slim, photos(tmp_path / "photos"), out=tmp_path / "f.parquet")
    table = pandas.read_parquet(tmp_path / "f.parquet")
    assert list(table.columns) == COLUMNS and len(table) == 12
    assert np.array_equal(np.stack(table["vector"]), features.x.numpy())
    assert all(Path(path).is_file() for path in table["path"])
    assert all(
        label == Path(path).parent.name
        for path, label in zip(table["path"], table["label"], strict=True)
    )
    assert table["label_id"].tolist() == features.y.tolist()
    assert set(table["split"]) == {"train", "test"}
    assert np.isfinite(table[["x", "y"]].to_numpy()).all()


def test_neighbours_are_rows_of_the_table_with_cosine_distances():
    features, file = written()
    table = parquet.read_table(file)
    unit = torch.nn.functional.normalize(features.x)
    for row, near in enumerate(table["neighbours"].to_pylist()):
        ids, distances = near["ids"], near["distances"]
        assert len(ids) == feature_table.NEAR and row not in ids
        expected = 1 - unit[ids] @ unit[row]
        assert np.allclose(distances, expected, atol=1e-5) and distances == sorted(distances)


def test_groups_of_rows_make_one_table(monkeypatch):
    _, whole = written()
    monkeypatch.setattr(feature_table, "GROUP", 7)
    _, parts = written()
    assert parquet.ParquetFile(parts).num_row_groups == 5
    assert parquet.read_table(parts).equals(parquet.read_table(whole))


@pytest.mark.parametrize(
    ("labels", "classes", "names"),
    [
        ([0, -1, 1], ["cat", "dog"], ["cat", None, "dog"]),
        ([0, 2, 1], None, ["0", "2", "1"]),
        ([[1, 0], [1, 1], [0, 0]], ["cat", "dog"], [["cat"], ["cat", "dog"], []]),
    ],
)
def test_labels_have_names_and_numbers(labels, classes, names):
    features, file = written(3, torch.tensor(labels), classes)
    assert parquet.read_table(file)["label"].to_pylist() == names
    file.seek(0)
    found = read_table(file)
    assert torch.equal(found.x, features.x) and torch.equal(found.y, features.y)


def test_a_file_of_an_earlier_version_is_still_read(tmp_path):
    x = np.arange(12, dtype=np.float32)
    columns = {
        "x": pyarrow.FixedSizeListArray.from_arrays(pyarrow.array(x), 4),
        "y": pyarrow.array([0, 1, 1]),
        "split": pyarrow.array(["train"] * 3),
    }
    parquet.write_table(pyarrow.table(columns), tmp_path / "f.parquet")
    found = read(tmp_path / "f.parquet")
    assert np.array_equal(found.x.numpy(), x.reshape(3, 4)) and found.y.tolist() == [0, 1, 1]


@pytest.mark.parametrize("name", ["f.npz", "f.parquet"])
def test_what_was_written_is_read_again(slim, tmp_path, name):  # noqa: F811
    features = antipode.embed(slim, photos(tmp_path / "photos"), out=tmp_path / name)
    found = read(tmp_path / name)
    assert torch.equal(found.x, features.x) and torch.equal(found.y, features.y)


def test_images_without_files_have_a_path_of_data_split_and_index():
    source = Memory(torch.zeros(2, 1, 4, 4, dtype=torch.uint8))
    assert paths_of("digits", "test", source) == ["digits/test/0", "digits/test/1"]
    assert paths_of(["any"], "test", source)[0] == "list/test/0"
