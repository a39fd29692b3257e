"""The public names exist, whatever was imported before them."""

import importlib
import inspect
import pkgutil

import pytest

import antipode

RANDOM = "random:resnet10-slim"


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


# correct calls, which nothing but a wrong argument stops
CALLS = {
    "analyse": {"runs": ["no-run"], "what": ["npc"], "images": 8, "seed": 0, "device": "cpu"},
    "build": {"method": "simclr", "backbone": "resnet10-slim", "stem": "small", "channels": 3},
    "embed": {"run": RANDOM, "data": "digits", "out": "x.npz", "backbone": None, "on": "local"},
    "evaluate": {"run": RANDOM, "protocols": ["knn"], "data": "digits", "out": None, "seed": 0},
    "export": {"run": RANDOM, "format": "onnx", "out": "x.onnx", "overwrite": False},
    "finetune": {"run": RANDOM, "data": "digits", "out": "x", "epochs": 1, "lr": 0.1, "batch": 64},
    "load_backbone": {"run": RANDOM, "into": None},
    "load_classifier": {"folder": "x", "into": None},
    "plan": {"recipe": "digits.byol", "out": "x", "overrides": {}, "overwrite": False},
    "predict": {"model": "x", "data": "digits", "out": "x.csv", "device": "cpu"},
    "pretrain": {"recipe": "digits.byol", "method": "byol", "data": "digits", "epochs": 1},
    "report": {"runs": ["no-run"], "out": "x.html", "images": False},
    "reproduce": {"item": "dcl.table1", "scale": "smoke", "out": "x", "seeds": 1, "on": "local"},
    "sweep": {"recipe": "digits.byol", "vary": {"train.epochs": [1, 2]}, "out": "x", "seeds": 1},
    "views": {"name": "simclr", "size": 32, "mean": 0.5, "std": 0.5},
    "Run": {"path": "x"},
}
CALLS["build"] |= {"seed": 0}
CALLS["embed"] |= {"resources": None}
CALLS["evaluate"] |= {"device": "cpu", "backbone": None}
CALLS["finetune"] |= dict.fromkeys(["freeze", "balanced", "flip", "overwrite", "quiet"], False)
CALLS["finetune"] |= {"seed": 0, "device": "cpu", "backbone": None}
CALLS["pretrain"] |= {"out": "x", "batch": 64, "seed": 0, "device": "cpu", "precision": "fp32"}
CALLS["pretrain"] |= {"labels": "none", "resume": True, "overwrite": False, "overrides": {}}
CALLS["pretrain"] |= {"quiet": True, "on": "local", "resources": None, "backbone": "resnet18"}
CALLS["reproduce"] |= {"root": "x", "device": "cpu", "at_once": 1, "quiet": True, "resources": None}
CALLS["sweep"] |= {"protocols": ["knn"], "overrides": {}, "at_once": 1, "device": "cpu"}
CALLS["sweep"] |= {"quiet": True, "on": "local", "resources": None}


class Unfit:
    """A value that fits no argument."""


@pytest.mark.parametrize("several", [False, True], ids=["one", "several"])
@pytest.mark.parametrize(
    ("name", "key"),
    [
        (name, key)
        for name in CALLS
        for key in CALLS[name]
        if (name, key) != ("predict", "data")  # the classifier is opened first
    ],
)
def test_a_value_of_the_wrong_type_is_an_error_of_one_sentence(
    name, key, several, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    wrong = [Unfit(), 5] if several else Unfit()
    with pytest.raises(ValueError) as error:
        getattr(antipode, name)(**CALLS[name] | {key: wrong})
    assert "\n" not in str(error.value)
    assert not list(tmp_path.iterdir())


WRONG = {
    "path must be a string or a pathlib.Path, not 5": lambda: antipode.predict(5, "digits"),
    "a run must be its folder, .*, not None": lambda: antipode.evaluate(None),
    "seeds must be a whole number or None, not 'x'": lambda: antipode.reproduce(
        "dcl.table1", seeds="x"
    ),
    "seeds must be a whole number, not 1.5": lambda: antipode.sweep(
        "digits.dcl", {"method.tau": [0.1]}, "x", seeds=1.5
    ),
    "overrides must be a mapping or a list of section.key=value, not 5": lambda: antipode.pretrain(
        overrides=5
    ),
    "overwrite must be true or false, not 'no'": lambda: antipode.pretrain(overwrite="no"),
    "a sweep needs vary, the values of at least one key": lambda: antipode.sweep(
        "digits.dcl", {}, "x"
    ),
    "protocols must be a name or a list of names, not 5": lambda: antipode.evaluate(
        RANDOM, protocols=5
    ),
}


@pytest.mark.parametrize("sentence", WRONG)
def test_the_sentence_names_the_argument_and_what_it_must_be(sentence):
    with pytest.raises(ValueError, match=sentence):
        WRONG[sentence]()


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
