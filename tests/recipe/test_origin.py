"""The relative paths of a run's recipe start at the folder in which the run was started."""

import json

import pytest

from antipode.recipe.layer import Source
from antipode.recipe.origin import directory, recorded, rooted

SOURCE = Source("recipe")


def layer(**values):
    return {key.replace("_", "."): (value, SOURCE) for key, value in values.items()}


def test_paths_are_absolute_in_another_folder_and_all_else_stays(tmp_path, monkeypatch):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "env.json").write_text(json.dumps({"directory": str(tmp_path)}))
    given = layer(
        data_name="folder:lab", data_root="sets", backbone_weights="w.pth", train_device="cpu"
    )
    monkeypatch.chdir(tmp_path)
    for place in (tmp_path / "run", tmp_path / "run" / "recipe.json"):
        assert rooted(given, place) == given
    monkeypatch.chdir(tmp_path / "run")
    assert rooted(given, tmp_path / "run") == layer(
        data_name=f"folder:{tmp_path}/lab",
        data_root=f"{tmp_path}/sets",
        backbone_weights=f"{tmp_path}/w.pth",
        train_device="cpu",
    )
    fixed = layer(
        data_name="digits", data_root=None, backbone_weights="torchvision", train_device="cpu"
    )
    assert rooted(fixed, tmp_path / "run") == fixed


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"directory": 3}', '{"directory": "x"}'])
def test_a_recipe_needs_no_record_of_its_folder(text, tmp_path):
    assert recorded(tmp_path) is None
    (tmp_path / "env.json").write_text(text)
    assert recorded(tmp_path) is None
    assert rooted(layer(data_name="folder:lab"), tmp_path) == layer(data_name="folder:lab")


def test_only_an_absolute_folder_is_believed(tmp_path):
    assert directory({"directory": str(tmp_path)}) == tmp_path
    for value in (None, 3, "", "x", ["/"]):
        assert directory({"directory": value}) is None
