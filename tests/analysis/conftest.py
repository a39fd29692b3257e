from pathlib import Path

import pytest
import torch

import antipode
from antipode.data.sources.catalog import load
from antipode.nets.backbone import backbone
from antipode.papers import build
from antipode.recipe.resolve import resolve
from antipode.runs.folder import RunFolder
from antipode.training import checkpoint
from tests.toys import SMALL

QUICK = {"train.epochs": 2, "train.batch": 400, "train.device": "cpu", "train.checkpoint_every": 1}
LOGGED = {"monitor.log_every": 1, "monitor.health_every": 1}


def overrides(method, **more):
    small = {f"method.{name}": value for name, value in SMALL[method].items() if name != "images"}
    return small | QUICK | LOGGED | more


def begun(method, home, **more):
    """Write a run folder as it is before the first step, for tests that need no training."""
    torch.manual_seed(0)
    images = len(load("digits").pretrain)
    recipe = resolve(
        method=method, data="digits", overrides=overrides(method, **more), images=images
    )
    run = RunFolder(home)
    recipe.write(home / "recipe.json")
    net = backbone(recipe.backbone.name, stem=recipe.backbone.stem, channels=1)
    learner = build(method, net, channels=1, **recipe.method.arguments)
    checkpoint.save(run, {"step": 0, "learner": learner.state_dict()}, keep=1)
    return Path(home)


@pytest.fixture(scope="session")
def trained(tmp_path_factory):
    """Return a folder with two runs of two epochs on digits, with a checkpoint per epoch."""
    home = tmp_path_factory.mktemp("analysed")
    for method, more in {"mocov2": {"method.queue": 300}, "adco": {"method.bank": 300}}.items():
        choices = overrides(method, **more) | {"method.dim": 16}
        antipode.pretrain(
            method=method, data="digits", out=home / method, overrides=choices, quiet=True
        )
    return home
