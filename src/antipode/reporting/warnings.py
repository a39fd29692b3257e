"""Notes at the top of the page: what went wrong in a run, and which results are missing."""

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

from antipode.reporting.curves import number
from antipode.reporting.summary import epochs_done, steps_per_epoch
from antipode.runs.run import Run
from antipode.training.health import ENOUGH, HealthMonitor, Trouble, settling

FELL = 0.9  # a final kNN accuracy below this share of the best one is reported


class Note(NamedTuple):
    """A sentence about a run. Notes of the same kind differ only in their numbers."""

    grave: bool  # True if results may be wrong, False if they are missing
    kind: str
    text: str
    command: str = ""  # the command or option that adds what is missing


def concerns(run: Run) -> list[Note]:
    """Return all notes on a run: warnings first, then what is missing."""
    return [*(Note(True, kind, text) for kind, text in warnings(run).items()), *gaps(run)]


def warnings(run: Run) -> dict[str, str]:
    """Return warnings by kind.

    They are about NaN losses, collapse, falling kNN accuracy, unfinished training and uncommitted
    code.
    """
    texts = _non_finite(run) | _health(run) | _fall(run)
    if run.values and not run.finished:
        texts["unfinished"] = (
            f"the run has not ended: the log has {epochs_done(run)} of "
            f"{run.value('train.epochs')} epochs and there is no backbone yet, so nothing below is "
            "its final state"
        )
    if str(run.environment.get("commit") or "").endswith("+"):
        texts["code"] = "the run was trained with uncommitted changes to the code"
    return texts


def _non_finite(run: Run) -> dict[str, str]:
    """Return a warning on NaN or infinite losses, which the log stores as null."""
    steps = [row.get("step") for row in run.rows if "loss" in row and not number(row["loss"])]
    if not steps:
        return {}
    more = f" and in {len(steps) - 1} more lines of the log" if len(steps) > 1 else ""
    return {
        "not finite": f"the loss is not a finite number at step {steps[0]}{more}: the learning "
        "rate is probably too high"
    }


def _health(run: Run) -> dict[str, str]:
    """Return what the health check finds in the log, each kind of trouble at its first step."""
    batch = run.value("train.batch")
    width = run.value("method.dim")
    stored = [run.value(key) for key in ("method.queue", "method.bank")]
    limit = min((int(size) for size in (batch, width, ENOUGH) if number(size)), default=1)
    filling = max((int(size) for size in stored if number(size)), default=0)
    monitor = HealthMonitor(settling(filling, batch or 1, math.ceil(steps_per_epoch(run) or 0)))
    last: dict[str, Any] = {}
    troubles: dict[str, str] = {}
    trouble: Trouble | None = None
    for row in run.rows:
        # the log has null in place of non-finite values
        if not number(row.get("loss")) or not all(map(number, row.values())):
            continue
        monitor.note(row)
        if row["step"] >= monitor.settling:
            last |= {key: row[key] for key in ("spread", "rank", "bank_drift") if key in row}
        trouble = monitor.trouble(last | row, limit)
        if trouble:
            troubles.setdefault(trouble.kind, trouble.sentence)
    final = trouble.kind if trouble else ""
    return {
        kind: f"{text} ({'still' if kind == final else 'no longer'} so at the end)"
        for kind, text in troubles.items()
    }


def _fall(run: Run) -> dict[str, str]:
    """Return a warning if the final kNN accuracy is much lower than the best one."""
    scored = [(row["knn"], row.get("epoch", 0)) for row in run.rows if number(row.get("knn"))]
    best, epoch = max(scored, default=(0.0, 0))
    if not scored or scored[-1][0] >= FELL * best:
        return {}
    final = scored[-1][0]
    return {
        "fell": f"kNN accuracy fell from {best:.1f} % in epoch {epoch + 1} to {final:.1f} % at the "
        "end"
    }


def gaps(run: Run) -> Iterator[Note]:
    """Yield a note on each result that is missing, with the command that adds it."""
    if not run.values:
        yield _gap("recipe", "there is no recipe.json: settings, curves and pictures are unknown")
    if run.values and not run.rows:
        yield _gap("log", "there is no metrics.jsonl, so there are no curves")
    if run.values and not run.environment:
        yield _gap("environment", "there is no env.json: versions and machine are unknown")
    if run.rows and not any("knn" in row for row in run.rows):
        yield _knn_gap(run)
    if run.rows and not any("spread" in row for row in run.rows):
        yield _gap(
            "health",
            "the health of the embeddings was not checked during training",
            "--set monitor.health_every=100",
        )
    if not run.shown_scores:
        yield _gap("scores", "there are no scores yet", _evaluate_command(run))
    if run.values and not run.analysis:
        yield _gap("analyses", "there are no analyses yet", "antipode analyse RUN")


def _gap(kind: str, text: str, command: str = "") -> Note:
    return Note(False, kind, text, command)


def _knn_gap(run: Run) -> Note:
    if run.value("monitor.knn_every"):
        return _gap(
            "knn", "kNN accuracy could not be tracked: there are no labels, or no test images"
        )
    text = "kNN accuracy was not tracked during training"
    return _gap("knn", text, "--set monitor.knn_every=1")


def _evaluate_command(run: Run) -> str:
    name = str(run.value("data.name", ""))
    if name.startswith("python:"):
        return "in Python, with labelled images: antipode.evaluate(RUN, data=...)"
    if name.startswith("folder:"):  # the folder may have no labels
        return (
            "antipode evaluate RUN, or without labels: antipode evaluate RUN --data folder:LABELLED"
        )
    return "antipode evaluate RUN"
