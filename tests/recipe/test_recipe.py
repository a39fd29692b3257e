"""Recipes are strict: the last value given is used, values have sources, files keep them, and wrong
values raise ValueError with one sentence."""

import copy
import json
import subprocess
import sys
from pathlib import Path

import pytest

from antipode.papers import methods
from antipode.recipe.layer import Default
from antipode.recipe.listed import list_recipes
from antipode.recipe.recipe import HARMLESS, Recipe, difference
from antipode.recipe.request import FLAGS
from antipode.recipe.resolve import resolve, views_needed


def sources(recipe):
    return {key: source for key, _, source in recipe.show()}


# a wrong setting, and a part of its error message: the nearest name, or the allowed values
SETTINGS = {
    "epochs=5": "did you mean 'train.epochs'?",
    "nonsense=5": "does not have the form section.key",
    "train.epoch=5": "did you mean 'epochs'?",
    "trains.epochs=5": "did you mean 'train'?",
    "train.epochs": "section.key=value",
    "=5": "section.key=value",
    "train.epochs=abc": "a whole number of at least 1",
    "train.epochs=-1": "a whole number of at least 1",
    "train.epochs=0": "a whole number of at least 1",
    "train.epochs=2.5": "a whole number of at least 1",
    "train.epochs=true": "a whole number of at least 1",
    "train.epochs=none": "a whole number of at least 1",
    "train.batch=-4": "a whole number of at least 1",
    "train.device=gpu": "auto, cpu, cuda, mps",
    "train.precision=fp16": "auto, fp32, bf16",
    "train.compile=of": "did you mean 'off'?",
    "train.seed=-1": "a whole number of at least 0",
    "train.channels_last=maybe": "true or false",
    "train.accumulate=3": "does not divide the batch size of 128",
    "optim.lr=1": "did you mean 'optim.network.lr'?",
    "optim.nettwork.lr=1": "did you mean 'network'?",
    "optim.network=1": "does not have the form optim.group.key",
    "optim.network.momentm=1": "did you mean 'momentum'?",
    "optim.network.lr=fast": "a number of at least 0",
    "optim.network.lr=nan": "a number of at least 0",
    "optim.network.lr=Infinity": "a number of at least 0",
    "optim.network.lr=-1": "a number of at least 0",
    "optim.network.momentum=1": "below 1",
    "optim.network.name=adam": "did you mean 'adamw'?",
    "optim.network.schedule=cosin": "did you mean 'cosine'?",
    "optim.network.schedule=steps": "needs at least one epoch in `at`",
    "optim.network.at=[3]": "only a steps schedule has epochs in `at`",
    "optim.network.warmup=50": "does not fit into a run of 50",
    "optim.network.clip=0": "above 0 or none",
    "optim.network.factor=2": "of at most 1",
    "optim.predictor.lr=1": "method dcl has no parameter group predictor, only network",
    "optim.bank.lr=1": "method dcl has no parameter group bank, only network",
    "method.tua=1": "did you mean 'tau'?",
    "method.tau=hot": "a number or none",
    "method.tau=-1": "must be positive",
    "method.base=byol": "one of simclr, mocov1, mocov2",
    "method.queue=10": "means nothing on base simclr",
    "method.name=dlc": "did you mean 'dcl'?",
    "views.policy=simclr-cifr": "did you mean 'simclr-cifar'?",
    "views.scal=[1,1]": "did you mean 'scale'?",
    "views.scale=[1]": "a list of 2 values, each a number",
    "views.scale=[0.9,0.1]": "in ascending order",
    "views.size=0": "a whole number of at least 1",
    "views.views=3": "takes 2 views of each image, but policy shapes makes 3",
    "views.policy=eval": "takes 2 views of each image, but policy eval makes 1",
    "backbone.name=resnet19": "did you mean 'resnet18'?",
    "backbone.name=timm:": "did you mean 'timm:NAME'?",
    "backbone.stem=smaller": "did you mean 'small'?",
    "backbone.weights=torchvision": "has no weights for resnet10-slim",
    "data.name=cifar": "did you mean cifar10?",
    "data.name=folder:": "folder:...",
    "data.workers=-1": "at least 0 or none",
    "monitor.wandb=perhaps": "true or false",
    "monitor.log_every=0": "a whole number of at least 1",
    "sources.x=1": "no section 'sources'",
}
CALLS = {
    "an unknown method of a recipe": (
        lambda: resolve("cifar10.dlc"),
        "did you mean 'cifar10.dcl'?",
    ),
    "an unknown data set of a recipe": (
        lambda: resolve("cifar11.dcl"),
        "did you mean 'cifar10.dcl'?",
    ),
    "a recipe that is none": (lambda: resolve("nonsense"), "dataset.method, a method or a file"),
    "an empty name": (lambda: resolve(""), "there is no recipe"),
    "a number for a recipe": (lambda: resolve(7), "not int"),
    "an unknown method": (lambda: resolve(method="dlc"), "did you mean 'dcl'?"),
    "an unknown data set": (lambda: resolve(data="cifar"), "did you mean cifar10?"),
    "a file that is not there": (lambda: resolve("no/such.json"), "there is no recipe file"),
    "a section that is a number": (lambda: resolve({"train": 5}), "must hold keys and values"),
    "a section that is none": (lambda: resolve({"trains": {}}), "did you mean 'train'?"),
    "a group that is a number": (
        lambda: resolve({"optim": {"network": 3}}),
        "must hold keys and values",
    ),
    "a rate outside its group": (
        lambda: resolve({"optim": {"lr": 3}}),
        "did you mean 'optim.network.lr'?",
    ),
    "a name that is a number": (lambda: resolve({"data": {"name": 5}}), "data.name must be a text"),
    "sources that are a number": (lambda: resolve({"sources": 3}), "texts by key"),
    "one text for all settings": (
        lambda: resolve(overrides="train.epochs=5"),
        "a list of section.key=value",
    ),
    "a setting given twice": (
        lambda: resolve(overrides=["train.seed=1", "train.seed=2"]),
        "set twice",
    ),
    "a flag and a setting": (
        lambda: resolve(flags={"train.epochs": 5}, overrides=["train.epochs=6"]),
        "5 by epochs and 6 by overrides",
    ),
    "a key that is a number": (
        lambda: resolve(overrides={3: 4}),
        "does not have the form section.key",
    ),
    "a list for a number": (
        lambda: resolve(overrides={"train.epochs": [1]}),
        "a whole number of at least 1",
    ),
    "another method for a paper's recipe": (
        lambda: resolve("cifar10.dcl-paper", method="byol"),
        "is for method dcl",
    ),
    "another method for your own recipe": (
        lambda: resolve({"method": {"name": "dcl", "tau": 0.2}}, method="byol"),
        "is for method dcl",
    ),
    "two rates of one bank": (
        lambda: resolve("shapes.adco", overrides=["method.bank_lr=1", "optim.bank.lr=2"]),
        "are two names of the same number",
    ),
    "crops that AdCo has no policy for": (
        lambda: resolve("imagenet.adco", overrides=["method.crops=3"]),
        "takes 4 views of each image, but policy adco-multicrop makes 6",
    ),
    "odd views": (lambda: resolve("shapes.msbreg", overrides=["method.views=3"]), "even"),
    "a stem for timm": (
        lambda: resolve(
            overrides=["backbone.name=timm:vit_tiny_patch16_224", "backbone.stem=small"]
        ),
        "has its own",
    ),
    "Nesterov without momentum": (
        lambda: resolve(overrides=["optim.network.nesterov=true", "optim.network.momentum=0"]),
        "a momentum above 0",
    ),
    "an unknown method's views": (lambda: views_needed("simclr", {"tau": -1.0}), "positive"),
}


def refused(call):
    """Return the sentence of the ValueError that a call raises."""
    with pytest.raises(ValueError) as error:
        call()
    sentence = str(error.value)
    assert 15 < len(sentence) < 300 and "\n" not in sentence
    return sentence


@pytest.mark.parametrize("setting", SETTINGS)
def test_a_wrong_setting_is_refused_in_one_sentence(setting):
    assert SETTINGS[setting] in refused(lambda: resolve("shapes.dcl", overrides=[setting]))


@pytest.mark.parametrize("name", CALLS)
def test_a_wrong_call_is_refused_in_one_sentence(name):
    call, part = CALLS[name]
    assert part in refused(call)


def test_a_file_that_is_no_recipe_is_refused(tmp_path):
    for text, part in (
        ("{", "is not JSON"),
        ("[1]", "not a list"),
        ('{"train": {"epoch": 1}}', "'epochs'"),
    ):
        (tmp_path / "r.json").write_text(text)
        assert part in refused(lambda: resolve(tmp_path / "r.json"))
    (tmp_path / "r.json").write_text('{"method": {"name": "dcl"}}')
    assert "views.policy is missing" in refused(lambda: Recipe.read(tmp_path / "r.json"))


def test_an_argument_that_came_later_has_its_default_in_an_older_recipe(tmp_path):
    recipe = resolve("digits.simo")
    recipe.write(tmp_path / "r.json")
    content = json.loads((tmp_path / "r.json").read_text())
    for place in (content["method"], content["optim"]["network"]):
        place.pop("shared", None)
        place.pop("clip", None)
    (tmp_path / "r.json").write_text(json.dumps(content))
    assert Recipe.read(tmp_path / "r.json") == recipe
    # a missing value that was not a default when the recipe was written raises an error
    chosen = [key for key, source in recipe.sources.items() if not isinstance(source, Default)]
    assert {"train.epochs", "optim.network.lr", "optim.network.weight_decay"} <= set(chosen)
    for key in chosen:
        *sections, last = key.split(".")
        damaged = copy.deepcopy(content)
        section = damaged
        for name in sections:
            section = section[name]
        section.pop(last)
        (tmp_path / "r.json").write_text(json.dumps(damaged))
        assert f"{key} is missing" in refused(lambda: Recipe.read(tmp_path / "r.json"))


def test_without_a_word_it_is_dcl_on_shapes():
    recipe = resolve()
    assert (recipe.method.name, recipe.data.name) == ("dcl", "shapes")
    assert recipe == resolve("shapes.dcl")


def test_names_methods_and_flags_lead_to_one_recipe():
    named = resolve("cifar10.byol")
    assert named == resolve(method="byol", data="cifar10")
    assert named == resolve("byol", data="cifar10")
    assert named == resolve("cifar10.dcl", method="byol")
    assert named == resolve({"method": {"name": "byol"}, "data": {"name": "cifar10"}})


def test_what_is_asked_for_wins_and_says_so():
    recipe = resolve(
        "cifar10.mocov2",
        overrides=[
            "method.queue=65536",
            "method.tau=0.07",
            "optim.network.clip=1",
            "data.root=2024",
        ],
        flags={"train.epochs": 7, "backbone.name": "resnet34", "train.seed": None},
    )
    assert recipe.method.arguments["queue"] == 65536 and recipe.optim["network"].clip == 1.0
    assert recipe.data.root == "2024"  # a key of type str keeps a text that looks like a number
    texts = sources(recipe)
    for key in ("method.queue", "method.tau", "optim.network.clip", "data.root"):
        assert texts[key] == "overrides"
    assert texts["train.epochs"] == "epochs" and texts["backbone.name"] == "backbone"
    assert texts["train.seed"] == "default"


@pytest.mark.parametrize(
    ("text", "value"),
    [("none", None), ("null", None), ("65536", 65536), ("1e4", 10000), (65536, 65536)],
)
def test_values_are_read_as_their_annotation_has_them(text, value):
    recipe = resolve("imagenet.dcl", overrides={"method.base": "mocov2", "method.queue": text})
    assert recipe.method.arguments["queue"] == value


def test_lists_and_truths_are_read_from_texts():
    recipe = resolve(
        "imagenet.mocov1",
        overrides=["optim.network.at=[30, 60]", "data.download=true", "views.scale=[0.1, 1]"],
    )
    assert recipe.optim["network"].at == (30, 60)
    assert recipe.data.download is True and recipe.views.arguments["scale"] == (0.1, 1.0)
    assert (
        resolve("shapes.msbreg", overrides=["method.norm=none"]).method.arguments["norm"] == "none"
    )


def test_a_written_recipe_is_read_as_it_was(tmp_path):
    recipe = resolve("cifar10.adco", overrides=["method.tau=0.2"])
    recipe.write(tmp_path / "recipe.json")
    again = Recipe.read(tmp_path / "recipe.json")
    assert again == recipe and again.sources == recipe.sources
    assert resolve(tmp_path) == recipe  # a run folder
    assert resolve(str(tmp_path / "recipe.json")) == recipe
    assert resolve(recipe) == recipe


def test_a_partial_file_is_completed_and_named_as_the_source(tmp_path):
    content = {
        "method": {"name": "mocov2", "tau": 0.1},
        "data": {"name": "cifar10"},
        "train": {"epochs": 3},
    }
    (tmp_path / "mine.json").write_text(json.dumps(content))
    recipe = resolve(tmp_path / "mine.json")
    assert recipe.train.epochs == 3 and recipe.backbone.name == "resnet18"
    texts = sources(recipe)
    assert texts["method.tau"] == texts["train.epochs"] == "mine.json"
    assert texts["method.queue"].startswith("ours")


def test_what_follows_from_a_value_follows_its_change_in_a_file_too(tmp_path):
    for name, method in (
        ("imagenet.mocov1", "mocov1"),
        ("imagenet.jcl", "jcl"),
        ("cifar10.dcl-paper", "dcl"),
    ):
        resolve(name).write(tmp_path / "recipe.json")
        shorter = resolve(tmp_path, flags={"train.epochs": 20})
        assert shorter == resolve(name, flags={"train.epochs": 20}), method
    assert shorter.optim["network"].warmup == 2
    resolve("shapes.msbreg").write(tmp_path / "recipe.json")
    assert resolve(tmp_path, overrides=["method.views=8"]).views.arguments["views"] == 8
    resolve("cifar10.dclw", overrides=["method.crops=4"]).write(tmp_path / "recipe.json")
    assert resolve(tmp_path, overrides=["method.crops=0"]) == resolve("cifar10.dclw")
    assert resolve(tmp_path, overrides=["views.policy=cld"]).views.arguments["views"] == 6


def test_difference_names_what_changed_and_leaves_out_what_decides_nothing():
    old = resolve("cifar10.simclr")
    assert difference(old, old) == []
    new = resolve(
        "cifar10.simclr",
        overrides=["train.epochs=5", "method.hidden=64", "data.root=x", "train.keep=9"],
    )
    assert difference(old, new) == ["method.hidden: null -> 64", "train.epochs: 200 -> 5"]
    assert len(difference(old, new, ignore=())) == 4
    assert "optim.predictor.lr: nothing -> 0.12" in difference(old, resolve("cifar10.byol"))
    assert set(HARMLESS) | set(FLAGS) <= set(old.leaves())


def test_show_goes_by_section():
    """The rows come in the order of the sections, and each section is contiguous."""
    rows = resolve("cifar10.adco").show()
    order = [key.split(".")[0] for key, _, _ in rows]
    assert list(dict.fromkeys(order)) == [
        "method",
        "backbone",
        "data",
        "views",
        "optim",
        "train",
        "monitor",
    ]
    assert order == sorted(order, key=list(dict.fromkeys(order)).index)
    groups = dict.fromkeys(key.split(".")[1] for key, _, _ in rows if key.startswith("optim."))
    assert list(groups) == ["network", "bank"]
    json.dumps(rows)


def test_equality_leaves_out_the_sources():
    plain = resolve("cifar10.dcl")
    asked = resolve("cifar10.dcl", flags={"train.epochs": 200})
    assert plain == asked and plain.sources != asked.sources
    assert plain != resolve("cifar10.dcl", flags={"train.epochs": 199})
    assert plain != 3


def test_a_recipe_is_frozen_and_strict():
    recipe = resolve()
    with pytest.raises(ValueError, match="frozen"):
        recipe.train.epochs = 3
    with pytest.raises(ValueError, match="Extra"):
        Recipe.model_validate(recipe.model_dump() | {"speed": 1})


@pytest.mark.parametrize(
    ("method", "arguments", "views"),
    [
        ("simclr", {}, 2),
        ("npid", {"images": 1281167}, 1),
        ("jcl", {"keys": 4}, 5),
        ("msbreg", {"views": 8}, 8),
        ("dcl", {"crops": 6}, 8),
        ("adco", {"crops": 5}, 6),
    ],
)
def test_the_views_are_as_many_as_the_method_takes(method, arguments, views):
    assert views_needed(method, arguments) == views
    asked = {f"method.{key}": value for key, value in arguments.items()}
    recipe = resolve(f"cifar10.{method}", overrides=asked)
    policies = {"dcl": ("dclw-multicrop", "crops"), "adco": ("adco-multicrop", None)}
    policy, argument = policies.get(method, (recipe.views.policy, "views"))
    assert recipe.views.policy == policy
    if argument:
        assert recipe.views.arguments[argument] == (views if argument == "views" else views - 2)
        assert sources(recipe)[f"views.{argument}"] == "the method's number of views"


def test_only_groups_that_a_method_trains_have_an_entry():
    assert list(resolve("imagenet.simclr").optim) == ["network"]
    simsiam = resolve("imagenet.simsiam").optim
    assert simsiam["predictor"].model_copy(update={"schedule": "cosine"}) == simsiam["network"]
    assert resolve("imagenet.byol").optim["predictor"] == resolve("imagenet.byol").optim["network"]
    bank = resolve("imagenet.adco").optim["bank"]
    assert (bank.lr, bank.momentum, bank.weight_decay) == (3.0, 0.9, 1e-4)
    assert (bank.name, bank.schedule, bank.rule) == ("sgd", "constant", "fixed")


@pytest.mark.parametrize("key", ["method.bank_lr", "optim.bank.lr"])
def test_the_banks_rate_is_one_number_with_two_names(key, tmp_path):
    resolve("shapes.adco").write(tmp_path / "recipe.json")
    for recipe in (
        resolve("shapes.adco", overrides=[f"{key}=2"]),
        resolve(tmp_path, overrides=[f"{key}=2"]),
    ):
        assert recipe.method.arguments["bank_lr"] == recipe.optim["bank"].lr == 2.0


def test_another_schedule_leaves_nothing_of_the_papers():
    rate = resolve("imagenet.mocov1", overrides=["optim.network.schedule=cosine"]).optim["network"]
    assert rate.at == ()
    rate = resolve("imagenet.adco", overrides=["optim.network.schedule=constant"]).optim["network"]
    assert rate.floor == 0


def test_networks_with_a_stem_of_their_own_get_none():
    for name in ("timm:vit_tiny_patch16_224", "python:Net"):
        assert resolve("cifar10.dcl", flags={"backbone.name": name}).backbone.stem is None


def test_a_pack_has_the_numbers_of_the_set_it_was_made_of(tmp_path):
    (tmp_path / "meta.json").write_text('{"name": "digits"}')
    packed = resolve("digits.dcl", data=f"packed:{tmp_path}")
    plain = resolve("digits.dcl")
    assert packed.data.name == f"packed:{tmp_path}"
    for section in ("views", "backbone", "method", "optim"):
        assert getattr(packed, section) == getattr(plain, section)
    (tmp_path / "meta.json").write_text('{"name": "photos"}')
    assert resolve("digits.dcl", data=f"packed:{tmp_path}").views.size == 224


@pytest.mark.parametrize(
    "data", ["folder:photos", "webdataset:x-{0..3}.tar", "hf:me/mine", "packed:x", "python:Mine"]
)
def test_any_data_set_goes_with_any_method(data):
    for method in methods():
        assert resolve(method=method, data=data).backbone.name == "resnet50"
    counted = resolve(method="npid", data=data, images=3000)
    assert counted.method.arguments["images"] == 3000
    assert resolve(method="mocov2", data=data, images=3000).method.arguments["queue"] == 256


@pytest.mark.parametrize("module", ["datasets", "layer", "parsing", "scales", "schema"])
def test_importing_does_not_wait_for_torch(module):
    """Only what looks into the papers imports torch, since their rooms build networks."""
    code = f"import sys, antipode.recipe.{module}; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_the_page_names_what_there_is():
    page = (Path(__file__).parents[2] / "docs" / "recipes.md").read_text()
    for key in resolve("cifar10.adco").leaves():
        if not key.startswith(("method.", "views.", "optim.bank")):
            assert f"`{key.split('.')[-1]}`" in page, key
    assert all(
        name in page
        for name in list_recipes()
        if name.endswith("-paper") and name.startswith("cifar10.")
    )
