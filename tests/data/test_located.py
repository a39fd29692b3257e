"""Names of data sets that contain a path, and where that path starts."""

from pathlib import Path

import pytest

from antipode.data.sources.located import below, is_relative, located, path_of, same_place


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("folder:a/b", "a/b"),
        ("packed:a", "a"),
        ("webdataset:a-{0..9}.tar", "a-{0..9}.tar"),
        ("webdataset:https://host/a.tar", ""),
        ("hf:cifar10", ""),
        ("python:Own", ""),
        ("cifar10", ""),
    ],
)
def test_only_names_of_files_have_a_path(name, path):
    assert path_of(name) == path


def test_only_a_relative_path_is_put_below_a_folder():
    assert below("folder:a/b", Path("/x")) == "folder:/x/a/b"
    for name in ("folder:/a", "folder:~/a", "cifar10", "webdataset:https://host/a.tar"):
        assert below(name, Path("/x")) == name
    assert not is_relative("")


@pytest.mark.parametrize("name", ["folder:lab", "packed:lab", "webdataset:lab/train-{000..9}.tar"])
def test_images_are_looked_up_where_the_run_was_started_and_then_here(name, tmp_path, monkeypatch):
    there, here = tmp_path / "there", tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    assert located(name, None) == name
    assert located(name, there) == below(name, there), "the first place is named if none exists"
    (here / "lab").mkdir()
    assert located(name, there) == name
    (there / "lab").mkdir(parents=True)
    assert located(name, there) == below(name, there)
    monkeypatch.chdir(there)
    assert located(name, there) == name, "the name stays as the user has written it"


def test_two_spellings_of_a_path_are_one_place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for other in ("folder:lab", "folder:lab/", "folder:./lab", f"folder:{tmp_path}/lab"):
        assert same_place("folder:lab", other)
    for other in ("folder:Lab", "packed:lab", "lab", "cifar10"):
        assert not same_place("folder:lab", other)
