"""Tests of the decision who decodes JPEG: the recipe's word, the run's own, or a measurement."""

import time
from types import SimpleNamespace

import pytest
import torch

from antipode.recipe.resolve import resolve
from antipode.runs.folder import RunFolder
from antipode.training import decoder as module
from antipode.training.decoder import gains, where_to_decode


class Slow:
    """A setup whose batches take some time each: with the workers, with the decoder, in a step."""

    device = torch.device("cpu")

    def __init__(self, workers, decoder, step):
        self.times = {True: workers, False: decoder}
        self.step = step
        self.loader = SimpleNamespace(decoder=None, inputs=self.inputs)

    def inputs(self):
        for number in range(1000):
            time.sleep(self.times[self.loader.decoder is None])
            yield number, 0, (torch.zeros(1),)

    def prepare(self, step):
        pass

    def _whole_step(self):
        return lambda inputs: time.sleep(self.step)


@pytest.mark.parametrize(
    ("workers", "decoder", "step", "gpu"),
    [
        (0.000, 0.000, 0.005, False),  # the workers suffice
        (0.010, 0.001, 0.002, True),
        (0.010, 0.020, 0.002, False),  # the workers are the limit, but the GPU is slower still
    ],
)
def test_the_gpu_decodes_only_if_workers_are_the_limit_and_it_is_faster(
    monkeypatch, workers, decoder, step, gpu
):
    monkeypatch.setattr(module, "TIMED", 8)
    assert gains(Slow(workers, decoder, step), lambda files: files) is gpu


def test_the_recipe_and_the_run_come_before_any_measurement(tmp_path):
    run = RunFolder(tmp_path)
    for where in ("cpu", "gpu"):
        recipe = resolve("imagenet.mocov2", overrides={"data.decoder": where})
        assert where_to_decode(recipe, None, None, None) == where
        assert where_to_decode(recipe, None, None, run) == where
    recipe = resolve("imagenet.mocov2", overrides={"train.device": "cpu"})
    assert where_to_decode(recipe, None, None, None) == "cpu"
    run.write_json("env.json", {})
    assert where_to_decode(recipe, None, None, run) == "cpu"  # a run of an earlier version
    run.write_json("env.json", {"decoder": "gpu"})
    assert where_to_decode(recipe, None, None, run) == "gpu"
