"""The results of a sweep: one row per setting, and the setting that is best without test labels."""

import statistics
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from antipode.runs.run import Run
from antipode.sweeps.plan import Setting, SweepPlan, SweepRun

# Protocols that use no label of a test image, from the first choice to the last.
CHOOSING = ("knn-held-out", "retrieval")


def results(plan: SweepPlan, protocols: Sequence[str], failed: dict[Any, str]) -> dict[str, Any]:
    """Return the content of sweep.json."""
    rows = [row(plan, setting, failed) for setting in plan.settings]
    scored = [r["mean"] for r in rows if r["mean"]]
    # a score that some rows lack would choose among the others only
    common = [name for name in CHOOSING if scored and all(name in mean for mean in scored)]
    chosen_by = next(iter(common), None)
    best = best_row(rows, chosen_by)
    return {
        "vary": plan.vary,
        "protocols": list(protocols),
        "rows": rows,
        "best": None if best is None else {"row": best, "values": rows[best]["values"]},
        "chosen_by": chosen_by,
        "failed": {str(folder.relative_to(plan.out)): text for folder, text in failed.items()},
    }


def row(plan: SweepPlan, setting: Setting, failed: Collection[Path] = ()) -> dict[str, Any]:
    """Return the row of a setting: values, seeds, and mean and standard deviation of each score.

    The standard deviation is that of a sample, None for one seed. A seed whose run has no score is
    left out of it.
    """
    stored = [_scores(run, run.folder in failed) for run in setting.runs]
    names = dict.fromkeys(name for scores in stored for name in scores)
    scores = {name: [_value(found.get(name)) for found in stored] for name in names}
    known = {name: [x for x in values if x is not None] for name, values in scores.items()}
    return {
        "values": setting.values,
        "seeds": [run.recipe.train.seed for run in setting.runs],
        "mean": {name: statistics.fmean(x) for name, x in known.items() if x},
        "std": {
            name: statistics.stdev(x) if len(x) > 1 else None for name, x in known.items() if x
        },
        "scores": scores,
        "runs": [str(run.folder.relative_to(plan.out)) for run in setting.runs],
    }


def _scores(run: SweepRun, failed: bool) -> dict[str, Any]:
    """Return the scores of a run; none if it is not trained, or if it failed and has no others."""
    if not run.done:
        return {}
    try:
        return Run(run.folder).scores
    except ValueError:  # a damaged file, which the sentence on the failed run names
        if not failed:
            raise
        return {}


def _value(score: Any) -> float | None:
    value = score.get("value") if isinstance(score, dict) else None
    return float(value) if isinstance(value, int | float) else None


def best_row(rows: Sequence[dict[str, Any]], name: str | None) -> int | None:
    """Return the index of the row with the highest mean of a score, None if no row has it."""
    means = [(r["mean"].get(name), at) for at, r in enumerate(rows)]
    known = [(mean, -at) for mean, at in means if mean is not None]
    return -max(known)[1] if known else None


def sweep_summary(content: dict[str, Any]) -> list[str]:
    """Return the table as lines of text, and a line on the best setting."""
    rows = content["rows"]
    names = list(dict.fromkeys(name for r in rows for name in r["mean"]))
    keys = list(content["vary"])
    table = [[*keys, *names]]
    for r in rows:
        values = [str(r["values"][key]) for key in keys]
        table.append([*values, *(_shown(r, name) for name in names)])
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    lines = [
        "  ".join(text.ljust(width) for text, width in zip(texts, widths, strict=True)).rstrip()
        for texts in table
    ]
    if content["best"] is not None:
        best = ", ".join(f"{key}={value}" for key, value in content["best"]["values"].items())
        lines.append(f"best by {content['chosen_by']}, which uses no test label: {best}")
    return [*lines, *(f"failed: {text}" for text in content["failed"].values())]


def _shown(r: dict[str, Any], name: str) -> str:
    if name not in r["mean"]:
        return "-"
    spread = r["std"][name]
    return f"{r['mean'][name]:.2f}" + ("" if spread is None else f" ± {spread:.2f}")
