"""Notes at the top of the page: what went wrong in a run, and which results are missing."""

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from antipode.json_text import number
from antipode.reporting.provenance import resuming_command, stored_vectors
from antipode.reporting.summary import command_path, epochs_done, steps_per_epoch
from antipode.runs.log import Log
from antipode.runs.run import Run
from antipode.training.health import ENOUGH, HealthMonitor, Trouble, settling

BLOCK = 10_000  # lines of a log that the health check reads at once
FELL = 0.9  # a final kNN accuracy below this share of the best one is reported


class Note(NamedTuple):
    """A sentence about a run. Notes of the same kind differ only in their numbers."""

    grave: bool  # True if results may be wrong, False if they are missing
    kind: str
    text: str
    command: str = ""  # the command or option that adds what is missing


def concerns(run: Run) -> list[Note]:
    """Return all notes on a run: what the page leaves out, warnings, then what is missing."""
    left_out = [Note(True, "left out", sentence) for sentence in run.left_out]
    found = [Note(True, kind, text) for kind, text in warnings(run).items()]
    return [*left_out, *found, *gaps(run)]


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
    """Return a warning on NaN or infinite losses, which the log stores as null.

    Such steps are skipped and counted. Earlier versions did neither.
    """
    if "skipped" in run.log.series:
        count = _whole(float(run.log.series["skipped"].values.max()))
        return {
            "skipped": f"skipped steps: {count}; their loss or gradient was not finite, so they "
            "did not change the network; the learning rate may be too high or images damaged"
        }
    lines = run.log.odd_losses
    if not lines:
        return {}
    step = run.log.column("step")[lines[0]]
    place = "an unknown step" if math.isnan(step) else f"step {_whole(step)}"
    more = f" and in {len(lines) - 1} more lines of the log" if len(lines) > 1 else ""
    return {
        "not finite": f"the loss is not a finite number at {place}{more}: the learning rate is "
        "probably too high"
    }


def _health(run: Run) -> dict[str, str]:
    """Return what the health check finds in the log, each kind of trouble at its first step."""
    batch = run.value("train.batch")
    width = run.value("method.dim")
    start = stored_vectors(run)
    limit = min((int(size) for size in (batch, width, ENOUGH) if number(size)), default=1)
    # a memory of all images is not waited for, as in training
    filling = 0 if start is None or start.kind == "memory" else start.size
    per_epoch = math.ceil(steps_per_epoch(run) or 0)
    monitor = HealthMonitor(settling(filling, max(1, int(batch or 1)), per_epoch))
    last: dict[str, Any] = {}
    troubles: dict[str, str] = {}
    trouble: Trouble | None = None
    for row in _healthy_rows(run.log):
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


# the metrics that the health check reads
WATCHED = ("loss", "contrast", "positive", "rival", "spread", "rank", "bank_drift")


def _healthy_rows(log: Log) -> Iterator[dict[str, Any]]:
    """Yield the lines with a step and a loss on which every value is a finite number."""
    if "step" not in log.series or "loss" not in log.series:
        return
    usable = ~log.odd & ~np.isnan(log.column("step")) & ~np.isnan(log.column("loss"))
    lines = np.flatnonzero(usable)
    present = [name for name in ("step", *WATCHED) if name in log.series]
    columns = np.stack([log.column(name)[lines] for name in present], 1)
    for start in range(0, len(columns), BLOCK):  # as Python numbers, a long log would be large
        for values in columns[start : start + BLOCK].tolist():
            pairs = zip(present, values, strict=True)
            row = {name: value for name, value in pairs if not math.isnan(value)}
            yield row | {"step": _whole(row["step"])}


def _whole(step: float) -> float:
    """Return a step as a whole number, if it is one, for messages."""
    return int(step) if step.is_integer() else step


def _fall(run: Run) -> dict[str, str]:
    """Return a warning if the final kNN accuracy is much lower than the best one."""
    if "knn" not in run.log.series:
        return {}
    lines, scores = run.log.series["knn"]
    best = float(scores.max())
    final = float(scores[-1])
    if final >= FELL * best:
        return {}
    epochs = np.nan_to_num(run.log.column("epoch")[lines])
    epoch = int(epochs[scores == best].max())
    return {
        "fell": f"kNN accuracy fell from {best:.1f} % in epoch {epoch + 1} to {final:.1f} % at the "
        "end"
    }


def gaps(run: Run) -> Iterator[Note]:
    """Yield a note on each result that is missing, with the command that adds it."""
    if not run.values:
        yield _gap("recipe", "there is no recipe.json: settings, curves and pictures are unknown")
    if run.values and not run.log.lines:
        yield _gap("log", "there is no metrics.jsonl, so there are no curves")
    if run.values and not run.environment:
        yield _gap("environment", "there is no env.json: versions and machine are unknown")
    if run.log.lines and "knn" not in run.log.series:
        yield from _knn_gap(run)
    if run.log.lines and "spread" not in run.log.series:
        yield _gap(
            "health",
            "the health of the embeddings was not checked during training",
            "--set monitor.health_every=100",
        )
    if not run.shown_scores and run.values and not run.finished:
        text = "there are no scores yet, because training has not ended; this command resumes it"
        yield _gap("scores", text, resuming_command(run))
    elif not run.shown_scores:
        yield _gap("scores", "there are no scores yet", _evaluate_command(run))
    if run.values and not run.analysis:
        yield _gap("analyses", "there are no analyses yet", f"antipode analyse {command_path(run)}")


def _gap(kind: str, text: str, command: str = "") -> Note:
    return Note(False, kind, text, command)


def _knn_gap(run: Run) -> Iterator[Note]:
    """Yield a note on kNN accuracy, unless it was not asked for and there are no labels."""
    if run.value("monitor.knn_every"):
        yield _gap(
            "knn", "kNN accuracy could not be tracked: there are no labels, or no test images"
        )
    elif run.value("data.labels") != "none" or not str(run.value("data.name")).startswith("folder"):
        text = "kNN accuracy was not tracked during training"
        yield _gap("knn", text, "--set monitor.knn_every=1")


def _evaluate_command(run: Run) -> str:
    if str(run.value("data.name", "")).startswith("python:"):
        return f'in Python: antipode.evaluate("{run.path.name}", data=...)'
    return f"antipode evaluate {command_path(run)}"
