"""The network of a run before training, to compare the trained one with."""

import warnings

import torch
from torch import nn

from antipode.nets.backbone import backbone as make_backbone
from antipode.runs.images import channels_of
from antipode.runs.run import Run
from antipode.training.build import DRAWING, initial_learner


def untrained_backbone(run: Run) -> nn.Module | None:
    """Return the backbone of a run with its weights before training, in eval mode on the CPU.

    It is built from the recipe, as training does. A run that started from pretrained weights has
    these weights. For torchvision's supervised network and for the network of a file, it is the
    same architecture with random weights from the seed. An untrained network is returned itself.
    Returns None for your own module, whose first weights are unknown. Warns and returns None if the
    pretrained weights cannot be read.
    """
    if run.network is not None and run.network.kind == "random":
        return run.frozen_backbone
    if run.backbone_name.startswith("python:"):
        return None
    channels = channels_of(run.frozen_backbone, run.normal) or 3
    with torch.random.fork_rng(devices=[]):  # keep the state of the caller's random numbers
        try:
            net = _built(run, channels)
        except (OSError, ValueError) as error:
            warnings.warn(
                f"the network before training is unknown, so its score is left out: {error}",
                stacklevel=3,
            )
            return None
    return net.eval().requires_grad_(False)


def _built(run: Run, channels: int) -> nn.Module:
    if run.network is None:
        return initial_learner(run.recipe, channels, run.size).online.backbone
    with DRAWING:
        torch.manual_seed(run.seed)
        return make_backbone(run.backbone_name, stem=run.stem, channels=channels, size=run.size)
