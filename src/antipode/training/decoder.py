"""Decide by a measurement who decodes the JPEG files of a run: the workers, the GPU, or both."""

import copy
import time
from collections.abc import Callable
from contextlib import closing
from itertools import islice
from typing import Any

import torch
from torch import nn

from antipode import dist
from antipode.data.decoders import ON_DEVICE, device_decoder, has_engine
from antipode.data.device_decode import Decode
from antipode.data.encoded import suits
from antipode.data.sources.source import Decoded
from antipode.data.sources.splits import Splits
from antipode.devices import pick_device
from antipode.recipe.recipe import Recipe
from antipode.runs.folder import RunFolder
from antipode.training.build import Setup, build
from antipode.training.pace import warm_steps
from antipode.training.progress import say

NAMES = {"cpu": "the CPU", "gpu": "the GPU", "both": "CPU and GPU"}
LONG = 10_000  # steps of a run for which the measurement pays
TIMED = 30  # steps that are timed
# the workers suffice if a step takes at most this many times as long as with images that are ready
ENOUGH = 1.1
GAIN = 0.95  # the GPU helps if the loop then takes at most this share of the workers' time


def where_to_decode(
    recipe: Recipe, splits: Splits | None, module: nn.Module | None, resumed: RunFolder | None
) -> str:
    """Return "cpu", "gpu" or "both": who decodes the JPEG files of a run.

    The recipe may state it. A resumed run keeps what it was started with. Otherwise a long run on a
    GPU with an engine for JPEG measures all three, and all other runs stay with the workers.
    """
    if recipe.data.decoder != "auto":
        return recipe.data.decoder
    if resumed is not None:
        return str(resumed.read_object("env.json").get("decoder", "cpu"))
    device = pick_device(recipe.train.device)
    if splits is None or not has_engine(device) or not isinstance(splits.pretrain, Decoded):
        return "cpu"
    if len(splits.pretrain) // recipe.train.batch * recipe.train.epochs < LONG:
        return "cpu"
    with torch.random.fork_rng(devices=[]):
        setup = build(recipe, splits, copy.deepcopy(module), decoder="cpu")
        views = setup.loader.views
        decoder = device_decoder(device) if suits(splits.pretrain, views) else None
        if dist.any_rank(decoder is None, device) or decoder is None:
            return "cpu"
        ours = fastest(setup, decoder)
        # all ranks do the same; the one that most needs the GPU decides
        chosen = next((one for one in ON_DEVICE if dist.any_rank(ours == one, device)), "cpu")
    del setup
    torch.cuda.empty_cache()
    if dist.first():
        say(f"JPEG files are decoded by {NAMES[chosen]}, which is fastest for this run.")
    return chosen


def fastest(setup: Setup, decoder: Decode) -> str:
    """Return who should decode: the workers, unless training is faster if the device helps.

    The steps change the learner of this setup, which must not be used afterwards.
    """
    take = setup._whole_step()
    workers, step = _seconds(setup, take)
    # all ranks measure further, or none: their steps wait for each other
    if not dist.any_rank(workers > ENOUGH * step, setup.device):
        return "cpu"
    setup.loader.decoder = decoder
    times = {}
    for where in ON_DEVICE:
        setup.loader.share = where == "both"
        times[where] = _seconds(setup, take)[0]
    best = min(times, key=times.__getitem__)
    return best if times[best] < GAIN * workers else "cpu"


def _seconds(setup: Setup, take: Callable[..., Any]) -> tuple[float, float]:
    """Return the seconds of a step of the loop, and of a step whose images are ready."""
    steps = setup.loader.inputs()
    with closing(steps), setup.loader.beside():
        for step, _, inputs in islice(steps, warm_steps(setup.device.type)):
            setup.prepare(step)
            take(*inputs)
        _wait(setup.device)
        begin = time.perf_counter()
        count = 0
        for step, _, inputs in islice(steps, TIMED):
            setup.prepare(step)
            take(*inputs)
            count += 1
        _wait(setup.device)
        loop = (time.perf_counter() - begin) / max(count, 1)
        kept = [value.clone() for value in inputs]
    begin = time.perf_counter()
    for _ in range(TIMED // 2):
        take(*kept)
    _wait(setup.device)
    return loop, (time.perf_counter() - begin) / (TIMED // 2)


def _wait(device: torch.device) -> None:
    """Wait until the device has done everything."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
