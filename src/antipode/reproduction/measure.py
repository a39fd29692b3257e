"""Evaluate and analyse the runs of an item."""

from collections.abc import Sequence
from typing import Any

import torch

from antipode.analysis.run import analyse
from antipode.devices import pick_device
from antipode.evaluation.evaluate import evaluate
from antipode.reproduction import scenes
from antipode.reproduction.collect import score_key
from antipode.reproduction.item import Measure
from antipode.reproduction.plan import Plan, PlannedRun
from antipode.runs.run import Run


@torch.inference_mode(False)  # the caller may have disabled gradients, which classifiers need
@torch.enable_grad()
def measure_run(
    plan: Plan, planned: PlannedRun, run: Run, measures: Sequence[Measure], device: str
) -> None:
    """Evaluate and analyse a finished run. Results that its files already hold are kept."""
    _evaluate(planned, run, measures, device)
    _analyse(run, measures, device)
    stored = _stored_scores(planned, run)
    detectors = dict.fromkeys(measure.name for measure in measures if measure.kind == "scenes")
    for name in detectors:
        if name not in stored:
            scenes.score_detector(run, name, scenes=plan.out / "data", device=device)


def _evaluate(planned: PlannedRun, run: Run, measures: Sequence[Measure], device: str) -> None:
    """Compute the scores that are not stored yet, with one call for each data set."""
    stored = _stored_scores(planned, run)
    missing = [
        measure
        for measure in measures
        if measure.kind == "score" and score_key(planned, measure) not in stored
    ]
    for data in dict.fromkeys(measure.data for measure in missing):
        names = list(dict.fromkeys(measure.name for measure in missing if measure.data == data))
        if planned.recipe is None:
            place = data or planned.data
            evaluate(run, names, data=place, seed=planned.seed, device=device, compare=False)
        else:
            evaluate(run, names, data=data, device=device, compare=False)


def _stored_scores(planned: PlannedRun, run: Run) -> dict[str, Any]:
    """Return the scores of a run that an item can use.

    A trained run is scored with its own seed, so scores with other seeds are left out.
    """
    scores = run.scores
    if planned.recipe is None:
        return scores
    return {
        name: score
        for name, score in scores.items()
        if not isinstance(score, dict) or score.get("seed") == planned.seed
    }


def _analyse(run: Run, measures: Sequence[Measure], device: str) -> None:
    """Compute the analyses that are not stored yet."""
    device_type = "cuda" if pick_device(device).type == "cuda" else "cpu"
    stored = {
        name
        for name, result in run.folder.read_object("analysis.json").items()
        if has_default_settings(result, device_type)
    }
    names = [measure.name for measure in measures if measure.kind == "analysis"]
    missing = [name for name in dict.fromkeys(names) if name not in stored]
    if missing:
        analyse([run], missing, device=device)


def has_default_settings(result: Any, device: str) -> bool:
    """Return True if an analysis was made with seed 0 on all images that it uses on this device."""
    settings = result.get("settings") if isinstance(result, dict) else None
    if not isinstance(settings, dict):
        return False
    whole_set = settings.get("device", device) == device and "at most" not in settings
    return whole_set and settings.get("seed", 0) == 0
