"""An open run: the values of its recipe, its networks, and its identity."""

import json
import tarfile
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

from antipode.recipe.opening import open_data, open_recipe
from antipode.recipe.request import requested
from antipode.runs.run import Run, listed, opened

FIXTURES = Path(__file__).parents[1] / "fixtures"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return a run folder whose recipe.json has format 1. It must not be modified."""
    path = tmp_path_factory.mktemp("old")
    with tarfile.open(FIXTURES / "jcl.tar.xz") as archive:
        archive.extractall(path, filter="data")
    return path / "jcl"


# Recipe


def test_values_of_a_recipe_of_format_1_have_dotted_keys(folder):
    run = Run(folder)
    expected = {
        "method.name": "jcl",
        "method.keys": 4,
        "method.tau": 0.2,
        "method.hidden": None,
        "backbone.name": "resnet10-slim",
        "data.name": "digits",
        "views.scale": [0.5, 1.0],
        "optim.network.lr": 0.2,
        "train.seed": 3,
        "monitor.wandb": False,
    }
    assert {key: run.values[key] for key in expected} == expected
    sections = {key.partition(".")[0] for key in run.values}
    assert sections == {"method", "backbone", "data", "views", "optim", "train", "monitor"}
    assert run.method == "jcl" and run.value("train.epochs") == 2
    assert run.value("method.hidden", 7) is None  # a stored null is a value
    assert run.value("method.nothing", 7) == 7


def test_values_are_those_of_the_validated_recipe(folder):
    run = Run(folder)
    leaves = json.loads(json.dumps(run.recipe.leaves()))
    assert {key: leaves[key] for key in run.values} == run.values


def test_sources_of_a_recipe_of_format_1_are_its_texts(folder):
    run = Run(folder)
    assert set(run.sources) == set(run.values)
    assert run.sources["method.keys"] == "JCL (JCL: main_moco.py)"
    assert run.sources["train.epochs"] == "--epochs"
    assert run.sources["train.on_collapse"] == "default"
    assert run.replaced == {}  # format 1 does not store them


def test_a_folder_without_a_recipe_has_no_values(tmp_path):
    run = Run(tmp_path)
    assert (run.values, run.sources, run.replaced) == ({}, {}, {})
    assert run.method == "no recipe" and not run.finished


def test_settings_of_a_run_come_from_its_recipe(folder):
    run = Run(folder)
    assert (run.data_name, run.root, run.seed) == ("digits", None, 3)
    assert (run.size, run.policy) == (8, "simclr-cifar")
    assert run.finished and run.name == run.label == "jcl"


# Networks


def test_the_frozen_backbone_is_shared_and_every_other_one_is_new(folder):
    run = Run(folder)
    frozen = run.frozen_backbone
    first = run.backbone()
    second = run.backbone()
    assert run.frozen_backbone is frozen
    assert len({id(frozen), id(first), id(second)}) == 3
    weights = load_file(folder / "backbone.safetensors")
    with torch.no_grad():
        for parameter in first.parameters():
            parameter.zero_()
    for net in (frozen, second, run.backbone()):
        assert not net.training
        state = net.state_dict()
        assert all(torch.equal(state[name], tensor) for name, tensor in weights.items())


def test_the_head_and_the_queue_come_from_the_checkpoint(folder):
    run = Run(folder)
    learner = run.learner()
    assert not learner.training and int(learner.step) == 5
    content = torch.load(folder / "checkpoints" / "last.pt", weights_only=True)["learner"]
    head = run.head()
    assert head.state_dict().keys() == learner.online.head.state_dict().keys()
    for name, tensor in head.state_dict().items():
        assert torch.equal(tensor, content[f"online.head.{name}"])
    assert torch.equal(
        learner.objective.negatives[0].vectors, content["objective.negatives.0.vectors"]
    )


def test_a_folder_without_weights_is_not_finished(tmp_path):
    with pytest.raises(FileNotFoundError, match="holds no finished run"):
        Run(tmp_path).backbone()


# Identity


def test_runs_are_equal_if_their_paths_are(folder, tmp_path):
    run = Run(folder)
    again = Run(str(folder), module=torch.nn.Identity())
    other = Run(tmp_path)
    assert run == again and hash(run) == hash(again)
    assert run not in (other, folder, str(folder))
    assert {run, again, other} == {run, other}
    assert {run: "value"}[again] == "value"


def test_an_open_run_stays_the_same_object_unless_it_gets_a_module(folder):
    run = Run(folder)
    assert opened(run) is run and listed(run) == [run] and listed([run, folder]) == [run, run]
    module = torch.nn.Identity()
    with_module = opened(run, module=module)
    assert with_module == run and with_module.module is module and run.module is None


# Networks that no run trained


@pytest.mark.parametrize(
    ("data", "size", "policy"),
    [
        ("digits", 8, "simclr-cifar"),
        ("shapes", 32, "shapes"),
        ("cifar10", 32, "simclr-cifar"),
        ("stl10", 96, "eval"),
        ("imagenet", 224, "eval"),
    ],
)
def test_a_foreign_network_has_the_size_and_the_policy_of_its_data_set(
    tmp_path, data, size, policy
):
    run = opened("random:resnet10-slim", data=data, out=tmp_path / "scores", seed=5)
    assert (run.size, run.policy, run.data_name) == (size, policy, data)
    assert (run.seed, run.root, run.name) == (5, None, "random:resnet10-slim")
    assert run.path == tmp_path / "scores" and run.normal is None and run.head() is None


def test_on_your_own_images_an_untrained_network_is_that_of_a_run(tmp_path):
    (tmp_path / "photos").mkdir()
    for at in range(3):
        pixels = np.random.default_rng(at).integers(0, 256, (48, 48, 3), np.uint8)
        Image.fromarray(pixels).save(tmp_path / "photos" / f"{at}.png")
    data = f"folder:{tmp_path / 'photos'}"
    run = opened("random:resnet18", data=data, out=tmp_path / "scores")
    request = requested(method="dcl", data=data, overrides={"backbone.name": "resnet18"})
    recipe = open_recipe(request, open_data(request)[0])
    assert (run.size, run.network.build()[1]) == (recipe.views.size, recipe.backbone.stem)
    assert run.size == 48
    assert opened("torchvision:resnet18", data=data, out=tmp_path / "other").size == 224


def test_a_foreign_network_keeps_the_data_set_that_it_was_scored_on_first(tmp_path):
    (tmp_path / "network.json").write_text(json.dumps({"data": "digits"}))
    run = opened("random:resnet10-slim", out=tmp_path)
    assert (run.data_name, run.size) == ("digits", 8)


def test_a_foreign_network_is_built_once_with_the_weights_of_its_seed(tmp_path):
    run, same, other = (
        opened("random:resnet10-slim", data="digits", out=tmp_path, seed=seed) for seed in (5, 5, 6)
    )
    net = run.backbone()
    assert net is run.frozen_backbone and not net.training
    first = next(net.parameters())
    assert first.shape[1] == 1  # digits are grey
    assert torch.equal(first, next(same.backbone().parameters()))
    assert not torch.equal(first, next(other.backbone().parameters()))
