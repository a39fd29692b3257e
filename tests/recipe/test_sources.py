"""Sources are typed: files keep them, their class decides what is derived again, and recipes are
resolved only when a run starts."""

import json
import sys
import tarfile
from pathlib import Path

import pytest

import antipode.api  # so that `calls` sees every module that `api` imports
from antipode.papers import sketch
from antipode.recipe.layer import Default, Derived, Given, Source
from antipode.recipe.recipe import FORMAT, Recipe, kind_of, old_source, source_of
from antipode.recipe.resolve import resolve

FIXTURES = Path(__file__).parents[1] / "fixtures"


@pytest.fixture
def calls(monkeypatch):
    """Count the calls of `resolve` and `sketch`, by name, in every module that uses them."""
    counts = {"resolve": 0, "sketch": 0}

    def counted(name, function):
        def call(*arguments, **keywords):
            counts[name] += 1
            return function(*arguments, **keywords)

        return call

    counters = {resolve: counted("resolve", resolve), sketch: counted("sketch", sketch)}
    for module in [m for name, m in sys.modules.items() if name.startswith("antipode.")]:
        for name, value in list(vars(module).items()):
            if any(value is function for function in counters):
                monkeypatch.setattr(module, name, counters[value])
    return counts


def old_folder(name, folder):
    """Unpack a run folder that was written in format 1."""
    with tarfile.open(FIXTURES / f"{name}.tar.xz") as archive:
        archive.extractall(folder, filter="data")
    return folder / name


def reworded(path):
    """Replace every source text of a recipe file by another one, and keep its kind."""
    content = json.loads(path.read_text())
    content["sources"] = {key: f"other words {at}" for at, key in enumerate(content["sources"])}
    path.write_text(json.dumps(content))


def test_a_run_resolves_its_recipe_once_and_nothing_else_does(calls, tmp_path):
    tiny = {"epochs": 1, "batch": 500, "device": "cpu", "quiet": True}
    run = antipode.pretrain("digits.dcl", out=tmp_path / "run", **tiny)
    assert calls["resolve"] == 1
    before = dict(calls)
    Recipe.read(tmp_path / "run" / "recipe.json")
    assert antipode.evaluate(tmp_path / "run", ["knn20"])["knn20"].value > 0
    assert antipode.evaluate(run, ["knn20"])["knn20"].value > 0
    assert calls == before
    antipode.report(tmp_path / "run", out=tmp_path / "page.html")
    assert calls["resolve"] == 1
    # a run that has ended is resolved again, to compare it with what was asked for
    antipode.pretrain("digits.dcl", out=tmp_path / "run", **tiny)
    assert calls["resolve"] == 2


@pytest.mark.parametrize("name", ["cifar10.dcl-paper", "imagenet.adco", "digits.simclr"])
def test_a_file_keeps_values_kinds_and_name(name, tmp_path):
    asked = {"train.epochs": 7, "method.tau": 0.3}
    recipe = resolve(name, overrides=asked)
    recipe.write(tmp_path / "recipe.json")
    again = Recipe.read(tmp_path / "recipe.json")
    assert again == recipe and again.name == name
    assert again.sources == recipe.sources and again.replaced == recipe.replaced
    assert {type(source) for source in again.sources.values()} == {Source, Default, Given, Derived}
    assert {key for key, source in again.sources.items() if type(source) is Given} == set(asked)
    again.write(tmp_path / "again.json")
    assert (tmp_path / "again.json").read_text() == (tmp_path / "recipe.json").read_text()


def test_a_kind_is_read_as_it_was_written():
    for source in (Source("a"), Default("b"), Given("c"), Derived("d", "train.epochs")):
        assert source_of(source.text, kind_of(source)) == source


OLD = {
    "default": Default,
    "preset dcl": Default,
    "policy simclr": Default,
    "--epochs": Given,
    "--set": Given,
    "train.epochs: 10 epochs, or a tenth of a short run": Derived,
    "the method's number of views": Derived,
    "as optim.network": Derived,
    "method.bank_lr": Derived,
    "optim.bank.lr": Derived,
    "backbone.name: it has a stem of its own": Derived,
    "the images of the data set": Derived,
    "ours: chosen on held-out images": Source,
    "SimCLR B.6": Source,
}


@pytest.mark.parametrize("text", OLD)
def test_a_source_text_of_format_1_has_its_kind(text):
    source = old_source(text)
    assert type(source) is OLD[text] and source.text == text


@pytest.mark.parametrize("method", ["dcl", "adco", "jcl"])
def test_an_old_recipe_has_typed_sources(method, tmp_path):
    file = old_folder(method, tmp_path) / "recipe.json"
    content = json.loads(file.read_text())
    assert "format" not in content and "kinds" not in content
    recipe = Recipe.read(file)
    assert recipe.name == f"digits.{method}"
    for key, text in content["sources"].items():
        assert recipe.sources[key] == old_source(text), key
    kinds = {type(source) for source in recipe.sources.values()}
    assert kinds == {Source, Default, Given, Derived}
    assert type(recipe.sources["train.epochs"]) is Given
    assert type(recipe.sources["optim.network.nesterov"]) is Default
    assert recipe.sources["optim.network.warmup"].from_ == "train.epochs"
    # written again it is of the present format, with the same values and sources
    recipe.write(tmp_path / "new.json")
    assert json.loads((tmp_path / "new.json").read_text())["format"] == FORMAT
    again = Recipe.read(tmp_path / "new.json")
    assert again == recipe and again.sources == recipe.sources and again.name == recipe.name


@pytest.mark.parametrize("method", ["dcl", "adco", "jcl"])
def test_an_old_recipe_derives_what_a_new_one_derives(method, tmp_path):
    folder = old_folder(method, tmp_path)
    flags = {"train.epochs": 40}
    values = Recipe.read(folder / "recipe.json").leaves()
    given = {key: values[key] for key in ("train.batch", "train.seed", "train.device")}
    given |= {key: values[key] for key in ("train.checkpoint_every", "train.keep")}
    given["monitor.log_every"] = values["monitor.log_every"]
    expected = resolve(f"digits.{method}", overrides=given, flags=flags)
    assert resolve(folder, flags=flags) == expected


@pytest.mark.parametrize(
    "name", ["cifar10.byol", "cifar10.dcl-paper", "imagenet.mocov1", "shapes.adco", "shapes.msbreg"]
)
def test_other_words_for_a_source_change_nothing(name, tmp_path):
    recipe = resolve(name)
    recipe.write(tmp_path / "recipe.json")
    reworded(tmp_path / "recipe.json")
    again = Recipe.read(tmp_path / "recipe.json")
    assert again == recipe and again.sources != recipe.sources and again.name == name
    flags = {"train.epochs": 20}
    shorter = resolve(tmp_path, flags=flags)
    assert shorter == resolve(name, flags=flags) and shorter != recipe
    derived = {key for key, source in recipe.sources.items() if isinstance(source, Derived)}
    for key, source in shorter.sources.items():
        if key not in derived and key != "train.epochs":
            assert source == again.sources[key], key  # it was kept, not resolved again


@pytest.mark.parametrize("version", [99, "two", None])
def test_an_unknown_format_raises_one_sentence(version, tmp_path):
    file = tmp_path / "recipe.json"
    resolve("digits.dcl").write(file)
    file.write_text(json.dumps(json.loads(file.read_text()) | {"format": version}))
    for read in (Recipe.read, resolve):
        with pytest.raises(ValueError) as error:
            read(file)
        sentence = str(error.value)
        assert f"has format {version!r}" in sentence and f"formats up to {FORMAT}" in sentence
        assert "\n" not in sentence and "update antipode" in sentence
