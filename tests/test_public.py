"""The public names exist, whatever was imported before them."""

import importlib
import inspect
import pkgutil

import pytest

import antipode


def test_every_public_name_is_a_function_and_stays_one_after_every_part_is_imported():
    for part in pkgutil.walk_packages(antipode.__path__, "antipode."):
        if part.name != "antipode.__main__":
            importlib.import_module(part.name)
    for name in antipode.__all__:
        value = getattr(antipode, name)
        assert name == "functional" or callable(value), name
        assert name == "functional" or not inspect.ismodule(value), name


def test_the_records_need_no_import_of_their_own():
    assert antipode.__getattr__("types") is importlib.import_module("antipode.types")


def test_lists_are_lists_of_names():
    for name in ("methods", "recipes", "datasets", "protocols"):
        names = getattr(antipode, f"list_{name}")()
        assert isinstance(names, list) and len(names) > 2
        assert all(isinstance(entry, str) for entry in names)
    assert "dcl" in antipode.list_methods() and "cifar10.dcl" in antipode.list_recipes()
    assert "knn" in antipode.list_protocols() and "shapes" in antipode.list_datasets()


def test_a_name_that_is_not_there_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'pretrian'"):
        _ = antipode.pretrian
