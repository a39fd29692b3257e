"""The rooms of the papers: what `collect` gathers from them."""

import inspect
import sys

import pytest

from antipode import papers
from antipode.papers import Method, collect, default_method, methods, moco, simclr
from antipode.recipe.listed import by_name, list_recipes, variants
from antipode.recipe.resolve import resolve


def collected(kind):
    """Return what `collect` finds now, without its cache."""
    return collect.__wrapped__(kind)


@pytest.fixture
def room(tmp_path, monkeypatch):
    """Return a folder whose modules are rooms of papers."""
    before = set(sys.modules)
    monkeypatch.setattr(papers, "__path__", [*papers.__path__, str(tmp_path)])
    yield tmp_path
    for name in set(sys.modules) - before:
        if name.startswith("antipode.papers.own"):
            del sys.modules[name]
            delattr(papers, name.rpartition(".")[2])


def test_a_name_that_two_papers_define_raises(monkeypatch):
    assert collected("METHODS") == methods()
    monkeypatch.setitem(moco.METHODS, "simclr", simclr.METHODS["simclr"])
    with pytest.raises(ValueError, match="two papers define 'simclr' in their METHODS"):
        collected("METHODS")
    monkeypatch.setitem(moco.POLICIES, "simclr-cifar", simclr.simclr_views)
    with pytest.raises(ValueError, match="two papers define 'simclr-cifar' in their POLICIES"):
        collected("POLICIES")
    assert collected("PROTOCOLS") == collect("PROTOCOLS")  # the other kinds are not affected


def test_a_new_file_adds_its_content_and_changes_nothing_else(room):
    (room / "own_paper.py").write_text("METHODS = {'own': 1}\nPROTOCOLS = {'own-score': 2}\n")
    assert collected("METHODS") == {**methods(), "own": 1}
    assert collected("PROTOCOLS") == {**collect("PROTOCOLS"), "own-score": 2}
    assert collected("RECIPES") == collect("RECIPES")


def test_exactly_one_method_is_the_default():
    defaults = [name for name, method in methods().items() if method.default]
    assert defaults == [default_method()]
    assert resolve().method.name == default_method()


@pytest.mark.parametrize("name", methods())
def test_a_method_has_a_docstring_and_keyword_arguments_with_annotations_and_defaults(name):
    method = methods()[name]
    assert isinstance(method, Method)
    assert inspect.getdoc(method.build)
    first, *arguments = inspect.signature(method.build).parameters.values()
    assert first.name == "backbone" and first.default is first.empty
    for argument in arguments:
        assert argument.kind is argument.KEYWORD_ONLY, argument
        assert argument.annotation is not argument.empty, argument
        assert argument.default is not argument.empty, argument


def test_every_listed_recipe_has_the_method_and_the_data_set_of_its_name():
    for name in list_recipes():
        data, _, method = name.partition(".")
        assert by_name(name) == {
            "method.name": method.removesuffix("-paper"),
            "data.name": data,
        }
    assert all(name.endswith("-paper") for name in variants())


def test_a_name_without_a_recipe_has_neither():
    assert by_name("cifar10.nothing") is None
    assert by_name("nothing.simclr") is None
    assert by_name("simclr.") is None
    assert by_name("simclr") == {"method.name": "simclr"}  # a method without a data set


@pytest.mark.parametrize("name", methods())
def test_the_first_line_about_a_method_is_a_whole_sentence(name):
    """`antipode list methods` prints it alone."""
    first = methods()[name].build.__doc__.split("\n")[0]
    assert first.endswith("."), first
