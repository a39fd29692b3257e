"""A run's learner again, for looking at it: networks, heads, twin, queue and bank of the last checkpoint."""

from pathlib import Path
from typing import Any

import torch

from antipode.core.learner import Learner
from antipode.engine import checkpoint
from antipode.engine.recipe import Recipe
from antipode.engine.rundir import RunDir
from antipode.methods import build as build_learner
from antipode.nets.backbone import backbone as make_backbone


def restored(path: Path) -> Learner:
    """The learner of a run as its last whole checkpoint has it, in eval mode on the CPU."""
    recipe = Recipe.read(path / "recipe.json")
    if recipe.backbone.name.startswith("python:"):
        raise ValueError(f"{path} trained a module of one's own ({recipe.backbone.name}), which cannot be built again")
    content = checkpoint.load(RunDir(path), torch.device("cpu"))
    if content is None:
        raise FileNotFoundError(f"{path} holds no checkpoint, so its head and bank are not known")
    return put(recipe, content)


def put(recipe: Recipe, content: dict[str, Any]) -> Learner:
    """The learner of a recipe with the state of a checkpoint."""
    state = content["learner"]
    channels = state["online.backbone.conv1.weight"].shape[1] if "online.backbone.conv1.weight" in state else 3
    net = make_backbone(recipe.backbone.name, stem=recipe.backbone.stem, channels=channels)
    learner = build_learner(
        recipe.method.name, net, channels=channels, seed=recipe.train.seed, **recipe.method.arguments
    )
    learner.load_state_dict(state)
    return learner.eval()
