"""Runs as the page shows them: opened once, with distinct names and a few numbers from the log."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from antipode.data.progress import track
from antipode.reporting.curves import number
from antipode.runs.run import Run

MANY = 20  # runs from which a progress bar is shown, because reading fewer takes no time


def gather(runs: Sequence[Run]) -> list[Run]:
    """Open each run folder once and label it with the shortest name that is distinct.

    The folders are opened again, so that the page shows their present content and the given runs
    stay unchanged. Raises ValueError if a file is damaged. An absent file is not an error.
    """
    given = {run.path.resolve(): run for run in runs}
    opened = [Run(path, run.module, run.data, run.network) for path, run in given.items()]
    labels = names(list(given))
    for run, label in track(zip(opened, labels, strict=True), len(labels), "runs", least=MANY):
        run.label = label
        # Read every file now, so that a damaged one is reported before any picture is drawn.
        _ = (run.values, run.environment, run.analysis, run.shown_scores, run.rows)
    return aligned_scores(opened)


def aligned_scores(runs: list[Run]) -> list[Run]:
    """Rename scores of networks that no run trained, so that they share columns with runs.

    A run stores a score on another data set as `protocol@data`. A network that no run trained has
    no data set of its own and stores it as `protocol`.
    """
    stored = {
        (name, score.get("data"))
        for run in runs
        if run.values
        for name, score in run.shown_scores.items()
    }

    def shown_name(name: str, data: Any) -> str:
        elsewhere = (name, data) not in stored and (f"{name}@{data}", data) in stored
        return f"{name}@{data}" if elsewhere else name

    for run in runs:
        if not run.values:
            run.shown_scores = {
                shown_name(name, score.get("data")): score
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


def epochs_done(run: Run) -> int:
    """Return the number of completed epochs in the log."""
    if run.finished:
        return int(run.value("train.epochs", 0))
    return max((int(row["epoch"]) for row in run.rows if number(row.get("epoch"))), default=0)


def steps_per_epoch(run: Run) -> float | None:
    """Return the number of steps per epoch, estimated from the log; exact for a finished run."""
    steps = [
        (row["step"], row["epoch"])
        for row in run.rows
        if number(row.get("step")) and number(row.get("epoch"))
    ]
    if not steps:
        return None
    step, epoch = steps[-1]
    if run.finished:
        return float((step + 1) / (epoch + 1))
    return float(min((s / e for s, e in steps if e), default=step + 1))


def training_seconds(run: Run) -> float | None:
    """Return the time spent on training steps, from the speeds in the log, without evaluations."""
    batch = run.value("train.batch")
    before = -1
    seconds = 0.0
    for row in run.rows:
        speed = row.get("images_per_second", 0)
        step = row.get("step", 0)
        if speed and all(map(number, (speed, step, batch))):
            seconds += max(0, step - before) * batch / speed
            before = step
    return seconds or None
