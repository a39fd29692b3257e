"""Wrong names are found before torch is imported, and only wrong names."""

import os
import subprocess
import sys

import pytest

import antipode
from antipode import early
from antipode.evaluation.protocol import protocols
from antipode.papers import methods
from antipode.recipe.datasets import DATASETS
from antipode.recipe.listed import list_recipes


def test_the_names_in_the_sources_are_those_of_the_package():
    assert early.methods() == tuple(methods())
    assert early.protocols() == tuple(protocols())
    assert early.data_sets() == tuple(DATASETS)


def test_what_is_right_is_not_refused(tmp_path):
    for recipe in [*list_recipes(), *methods(), "a/b", "mine.json", str(tmp_path), None]:
        early.check_recipe(recipe, None)
    for data in DATASETS:
        for method in methods():
            early.check_recipe(f"{data}.{method}", method)
    early.check_run("random:resnet18")
    early.check_data(f"folder:{tmp_path}")
    early.check_data("cifar10")
    (tmp_path / "backbone.safetensors").touch()
    early.check_run(str(tmp_path))
    early.check_runs([str(tmp_path), "random:resnet18"])
    early.check_protocols([*protocols()])


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("pretrain nosuch.recipe", "there is no recipe 'nosuch.recipe'"),
        ("pretrain cifar10.dlc", "did you mean 'cifar10.dcl'?"),
        ("pretrain --method dlc", "there is no method 'dlc', did you mean 'dcl'?"),
        ("pretrain --data folder:nosuch", "there is no folder nosuch"),
        ("pretrain --data folder:/vra", "there is no folder /vra, did you mean /var?"),
        ("evaluate nosuch", "nosuch holds no finished run"),
        ("evaluate random:resnet18 --protocol knnn", "there is no protocol 'knnn', did you mean"),
        ("evaluate torchvsion:resnet18", "did you mean torchvision:resnet18? (networks"),
        ("evaluate filee:a/b.pth@resnet18", "did you mean file:a/b.pth@resnet18?"),
        ("report nosuch", "there is no run in nosuch"),
        ("show dlc", "there is no recipe 'dlc'"),
    ],
)
def test_a_typing_error_is_answered_without_torch(words, sentence, monkeypatch, capsys):
    from antipode import cli

    monkeypatch.setattr(cli.antipode, "__getattr__", None)  # a command would import the package
    with pytest.raises(SystemExit) as end:
        cli.main(words.split())
    assert end.value.code == 2 and sentence in capsys.readouterr().err


@pytest.mark.parametrize("below", ["a", "runs/a"])
def test_a_folder_of_runs_is_told_from_one_without(below, tmp_path):
    for command in (antipode.evaluate, antipode.analyse, antipode.report):
        with pytest.raises(FileNotFoundError) as error:
            command(tmp_path)
        assert "below" not in str(error.value)
    (tmp_path / below).mkdir(parents=True)
    (tmp_path / below / "recipe.json").touch()
    sentence = f"but one run lies below it: give the folder of a run, such as {tmp_path / below}$"
    for command in (antipode.evaluate, antipode.analyse, antipode.report):
        with pytest.raises(FileNotFoundError, match=sentence):
            command(tmp_path)


def test_a_typing_error_imports_no_torch():
    code = """import sys
from antipode.cli import main
try:
    main(["pretrain", "nosuch.recipe"])
except SystemExit:
    sys.exit("torch" in sys.modules)
"""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    assert (
        subprocess.run([sys.executable, "-c", code], check=False, env=environment).returncode == 0
    )
