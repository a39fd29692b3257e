"""Runs as the page shows them: opened once, with distinct names and a few numbers from the log."""

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from antipode.data.progress import track
from antipode.json_text import number
from antipode.names import brief
from antipode.runs.log import MOST
from antipode.runs.run import Run

MANY = 20  # runs from which a progress bar is shown, because reading fewer takes no time


def gather(runs: Sequence[Run]) -> list[Run]:
    """Open each run folder once and label it with the shortest name that is distinct.

    The folders are opened again, so that the page shows their present content and the given runs
    stay unchanged. Raises ValueError if a file is not JSON. An absent file is not an error, and an
    entry of an odd type is left out and named.
    """
    given = {run.path.resolve(): run for run in runs}
    opened = [Run(path, run.module, run.data, run.network) for path, run in given.items()]
    labels = names(list(given))
    for run, label in track(zip(opened, labels, strict=True), len(labels), "runs", least=MANY):
        run.label = label
        # Read every file now, so that a damaged one is reported before any picture is drawn.
        _ = (run.environment, run.analysis)
        run.left_out = [*_odd_values(run), *_odd_scores(run), *_odd_metrics(run)]
    return aligned_scores(opened)


# values of a recipe that the page computes with
NUMBERS = (
    *("train.epochs", "train.batch", "train.seed", "monitor.knn_every"),
    *("method.dim", "method.queue", "method.bank"),
)


def _odd_values(run: Run) -> list[str]:
    """Remove values that should be numbers and are not, and return a sentence on each."""
    odd = [key for key in NUMBERS if not (run.value(key) is None or number(run.value(key)))]
    return [
        f"the value of {key} in recipe.json is left out, because it is "
        f"{brief(run.values.pop(key))} and not a number"
        for key in odd
    ]


def _odd_scores(run: Run) -> list[str]:
    """Keep the scores that the page can show, and return a sentence on each of the others."""
    sentences = []
    shown = {}
    for name, score in run.scores.items():
        reason = _odd_score(score)
        if reason:
            sentences.append(
                f"the score {brief(name)} in scores.json is left out, because {reason}"
            )
        else:
            shown[name] = score
    run.shown_scores = shown
    return sentences


def _odd_score(score: Any) -> str:
    """Return why the page cannot show a score; an empty text if it can."""
    if not isinstance(score, dict):
        return f"it is {brief(score)} and not an object"
    value = score.get("value")
    count = score.get("n", 0)
    seed = score.get("seed")
    if not number(value):
        return f"its value is {brief(value)} and not a finite number"
    if not number(count):
        return f"its n is {brief(count)} and not a number"
    if seed is not None and not number(seed):
        return f"its seed is {brief(seed)} and not a number"
    return ""


def _odd_metrics(run: Run) -> list[str]:
    """Return a sentence on what the curves leave out of the log."""
    sentences = [
        f"some values of {brief(name)} in metrics.jsonl are left out, because they are not numbers"
        for name in run.log.texts
    ]
    if run.log.cut:
        sentences.append(f"all metrics after the first {MOST} in metrics.jsonl are left out")
    return sentences


def aligned_scores(runs: list[Run]) -> list[Run]:
    """Rename scores of networks that no run trained, so that they share columns with runs.

    A run stores a score on another data set as `protocol@data`. A network that no run trained has
    no data set of its own and stores it as `protocol`.
    """
    stored = {
        (name, str(score.get("data")))
        for run in runs
        if run.values
        for name, score in run.shown_scores.items()
    }

    def shown_name(name: str, data: str) -> str:
        elsewhere = (name, data) not in stored and (f"{name}@{data}", data) in stored
        return f"{name}@{data}" if elsewhere else name

    for run in runs:
        if not run.values:
            run.shown_scores = {
                shown_name(name, str(score.get("data"))): score
                for name, score in run.shown_scores.items()
            }
    return runs


def names(paths: Sequence[Path]) -> list[str]:
    """Return the last parts of each path, as many as are needed to make all names distinct."""
    deepest = max((len(path.parts) for path in paths), default=1)
    for depth in range(1, deepest + 1):
        tails = ["/".join(path.parts[-depth:]) for path in paths]
        if len(set(tails)) == len(paths):
            return tails
    return [str(path) for path in paths]


def command_path(run: Run) -> str:
    """Return the folder of a run as a user would write it in a command."""
    return shlex.quote(str(near_path(run)))


def near_path(run: Run) -> Path:
    """Return the folder of a run, relative to the current folder if it lies below it."""
    here = Path.cwd()
    path = run.path.resolve()
    return path.relative_to(here) if path.is_relative_to(here) else run.path


def epochs_done(run: Run) -> int:
    """Return the number of completed epochs in the log."""
    if run.finished:
        return int(run.value("train.epochs") or 0)
    return int(run.log.series["epoch"].values.max()) if "epoch" in run.log.series else 0


def steps_per_epoch(run: Run) -> float | None:
    """Return the number of steps per epoch, estimated from the log; exact for a finished run."""
    steps = run.log.column("step")
    epochs = run.log.column("epoch")
    known = ~np.isnan(steps) & ~np.isnan(epochs)
    if not known.any():
        return None
    step = float(steps[known][-1])
    epoch = float(epochs[known][-1])
    if run.finished:
        return (step + 1) / (epoch + 1) if epoch != -1 else None
    later = known & (epochs != 0)
    return float((steps[later] / epochs[later]).min()) if later.any() else step + 1


def training_seconds(run: Run) -> float | None:
    """Return the time spent on training steps, from the speeds in the log, without evaluations."""
    batch = run.value("train.batch")
    speeds = run.log.column("images_per_second")
    steps = run.log.column("step")
    known = (speeds > 0) & ~np.isnan(steps)
    if not number(batch) or not known.any():
        return None
    taken = np.diff(steps[known], prepend=-1.0).clip(min=0)
    return float((taken * batch / speeds[known]).sum()) or None
