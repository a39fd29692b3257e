"""What a reader should know before believing a page: what went wrong, and what is not there."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from antipode.reporting.curves import number
from antipode.reporting.gather import Record
from antipode.training.health import ENOUGH, HealthMonitor, Trouble, settling

FELL = 0.9  # kNN that ends below this share of its best is worth a word


class Note(NamedTuple):
    """A sentence; `grave` where results may be wrong, not merely absent. Notes of one kind differ only in numbers."""

    grave: bool
    kind: str
    text: str
    command: str = ""  # what would fill the gap


def concerns(one: Record) -> list[Note]:
    """Warnings first, then what is missing."""
    return [*(Note(True, kind, text) for kind, text in warnings(one).items()), *gaps(one)]


def warnings(one: Record) -> dict[str, str]:
    """Numbers that are none, collapse, a kNN that fell, code that nobody can check out: sentences by kind."""
    found = _numbers(one) | _health(one) | _fall(one)
    if one.recipe and not one.finished:
        found["unfinished"] = (
            f"the run has not ended: {one.epochs_done} of {one.value('train.epochs')} epochs are on record and there "
            "is no backbone yet, so nothing below is its final state"
        )
    if str(one.env.get("commit") or "").endswith("+"):
        found["code"] = "it was trained by code with changes that no commit holds"
    return found


def _numbers(one: Record) -> dict[str, str]:
    """Losses that are not numbers; the log writes null for them."""
    broken = [row.get("step") for row in one.rows if "loss" in row and not number(row["loss"])]
    if not broken:
        return {}
    more = f" and {len(broken) - 1} more lines of the log" if len(broken) > 1 else ""
    return {
        "not finite": f"the loss is not a number at step {broken[0]}{more}: the learning rate is likely too high"
    }


def _health(one: Record) -> dict[str, str]:
    """The health check of training, asked again of every line; each kind of trouble once, when it began."""
    batch, width, *kept = (
        one.value(key) for key in ("train.batch", "method.dim", "method.queue", "method.bank")
    )
    limit = min((int(size) for size in (batch, width, ENOUGH) if number(size)), default=1)
    filling = max((int(size) for size in kept if number(size)), default=0)
    watch = HealthMonitor(settling(filling, batch or 1, math.ceil(one.per_epoch or 0)))
    last, seen = dict[str, Any](), dict[str, str]()
    now: Trouble | None = None
    for row in one.rows:
        if not number(row.get("loss")) or not all(
            map(number, row.values())
        ):  # the log has null for what is no number
            continue
        watch.note(row)
        if row["step"] >= watch.settling:
            last |= {key: row[key] for key in ("spread", "rank", "bank_drift") if key in row}
        now = watch.trouble(last | row, limit)
        if now:
            seen.setdefault(now.kind, now.sentence)
    ended = now.kind if now else ""
    return {
        kind: f"{text} ({'still' if kind == ended else 'not'} so at the end)"
        for kind, text in seen.items()
    }


def _fall(one: Record) -> dict[str, str]:
    scored = [(row["knn"], row.get("epoch", 0)) for row in one.rows if number(row.get("knn"))]
    best, when = max(scored, default=(0.0, 0))
    if not scored or scored[-1][0] >= FELL * best:
        return {}
    return {
        "fell": f"kNN fell from {best:.1f} % in epoch {when + 1} to {scored[-1][0]:.1f} % at the end"
    }


def gaps(one: Record) -> Sequence[Note]:
    """What is missing, and the command that would add it."""
    found = []
    if not one.recipe:
        found.append(
            Note(
                False,
                "recipe",
                "there is no recipe.json: settings, curves and pictures are not known",
            )
        )
    if one.recipe and not one.rows:
        found.append(Note(False, "log", "there is no metrics.jsonl: no curves"))
    if one.recipe and not one.env:
        found.append(
            Note(False, "environment", "there is no env.json: versions and machine are not known")
        )
    if one.rows and not any("knn" in row for row in one.rows):
        if one.value("monitor.knn_every"):
            found.append(
                Note(False, "knn", "kNN could not be followed: no labels, or no test images")
            )
        else:
            found.append(
                Note(
                    False,
                    "knn",
                    "kNN was not followed during training",
                    "--set monitor.knn_every=1",
                )
            )
    if one.rows and not any("spread" in row for row in one.rows):
        found.append(
            Note(
                False,
                "health",
                "health was not checked during training",
                "--set monitor.health_every=100",
            )
        )
    if not one.scores:
        name = str(one.value("data.name", ""))
        command = "antipode evaluate RUN"
        if name.startswith("folder:"):  # which may have no labels
            command += ", or without labels: antipode evaluate RUN --data folder:LABELLED"
        elif name.startswith("python:"):
            command = "in Python, with labelled images: antipode.evaluate(RUN, data=...)"
        found.append(Note(False, "scores", "there are no scores yet", command))
    if one.recipe and not one.analysis:
        found.append(Note(False, "analyses", "there are no analyses yet", "antipode analyse RUN"))
    return found
