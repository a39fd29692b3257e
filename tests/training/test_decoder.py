"""Tests of the decision who decodes JPEG: the recipe's word, the run's own, or a measurement."""

from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch

from antipode.recipe.resolve import resolve
from antipode.runs.folder import RunFolder
from antipode.training import decoder as module
from antipode.training.decoder import fastest, where_to_decode


class Slow:
    """A setup whose batches take some time each, by who decodes them, and whose steps do."""

    device = torch.device("cpu")

    def __init__(self, workers, gpu, both, step):
        self.times = {"cpu": workers, "gpu": gpu, "both": both}
        self.step = step
        self.now = 0.0  # seconds on a clock that only batches and steps advance
        self.loader = SimpleNamespace(
            decoder=None, share=False, inputs=self.inputs, beside=nullcontext
        )

    @property
    def where(self):
        if self.loader.decoder is None:
            return "cpu"
        return "both" if self.loader.share else "gpu"

    def inputs(self):
        for number in range(1000):
            self.now += self.times[self.where]
            yield number, 0, (torch.zeros(1),)

    def prepare(self, step):
        pass

    def _whole_step(self):
        return self._take

    def _take(self, inputs):
        self.now += self.step


@pytest.mark.parametrize(
    ("workers", "gpu", "both", "step", "chosen"),
    [
        (0.000, 0.000, 0.000, 0.005, "cpu"),  # the workers suffice
        (0.010, 0.001, 0.005, 0.002, "gpu"),
        (0.010, 0.008, 0.003, 0.002, "both"),
        (0.010, 0.020, 0.015, 0.002, "cpu"),  # workers are the limit, but the GPU is slower still
    ],
)
def test_the_gpu_decodes_only_if_workers_are_the_limit_and_it_is_faster(
    monkeypatch, workers, gpu, both, step, chosen
):
    setup = Slow(workers, gpu, both, step)
    monkeypatch.setattr(module, "time", SimpleNamespace(perf_counter=lambda: setup.now))
    assert fastest(setup, lambda files, sides: files) == chosen


def test_the_recipe_and_the_run_come_before_any_measurement(tmp_path):
    run = RunFolder(tmp_path)
    for where in ("cpu", "gpu", "both"):
        recipe = resolve("imagenet.mocov2", overrides={"data.decoder": where})
        assert where_to_decode(recipe, None, None, None) == where
        assert where_to_decode(recipe, None, None, run) == where
    recipe = resolve("imagenet.mocov2", overrides={"train.device": "cpu"})
    assert where_to_decode(recipe, None, None, None) == "cpu"
    run.write_json("env.json", {})
    assert where_to_decode(recipe, None, None, run) == "cpu"  # a run of an earlier version
    run.write_json("env.json", {"decoder": "gpu"})
    assert where_to_decode(recipe, None, None, run) == "gpu"
