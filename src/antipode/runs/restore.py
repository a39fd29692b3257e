"""A run's learner again, for looking at it: networks, heads, twin, queue and bank of the last checkpoint."""

from pathlib import Path
from typing import Any

import torch
from torch import nn

from antipode.core.learner import Learner
from antipode.training import checkpoint
from antipode.recipe.resolve import Recipe
from antipode.runs.folder import RunFolder
from antipode.nets.weights import reopened
from antipode.papers import build as build_learner


def restored(path: Path, module: nn.Module | None = None) -> Learner:
    """The learner of a run as its last whole checkpoint has it, in eval mode on the CPU.

    `module` is what a run on a module of one's own was given; a copy of it takes the weights.
    """
    recipe = Recipe.read(path / "recipe.json")
    if recipe.backbone.name.startswith("python:") and module is None:
        own = f"{path} trained a module of one's own ({recipe.backbone.name}), which cannot be built again"
        raise ValueError(f"{own}: give the Run that pretrain returned")
    content = checkpoint.load(RunFolder(path), torch.device("cpu"))
    if content is None:
        raise FileNotFoundError(f"{path} holds no checkpoint, so its head and bank are not known")
    return put(recipe, content, module)


def put(recipe: Recipe, content: dict[str, Any], module: nn.Module | None = None) -> Learner:
    """The learner of a recipe with the state of a checkpoint."""
    state = content["learner"]
    own = {key.removeprefix("online.backbone."): value for key, value in state.items()}
    net, channels = reopened(own, recipe.backbone.name, recipe.backbone.stem, module, recipe.views.size)
    learner = build_learner(
        recipe.method.name, net, channels=channels, seed=recipe.train.seed, **recipe.method.arguments
    )
    learner.load_state_dict(state)
    return learner.eval()
