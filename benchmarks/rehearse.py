"""Try all runs and judgements of claims.py in small: before GPU time is spent on them.

    python benchmarks/rehearse.py                  # one seed of every item, an hour or more
    python benchmarks/rehearse.py --only 'msbreg.*' --seeds 3

Every run keeps its method, its views and its measures, but trains a slim network for a few steps on
a few drawn images. A run that cannot be trained or measured, a number that an item does not find,
and a claim that is not judged are listed. The numbers themselves mean nothing. It needs neither a
GPU nor a data set.
"""

import argparse
import fnmatch
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

import claims
import claims_page
from antipode.data.sources import catalog as sources
from antipode.data.sources import shapes
from antipode.data.sources.source import Memory
from antipode.data.sources.splits import Splits
from antipode.recipe.resolve import resolve
from antipode.reproduction import scenes
from antipode.reproduction.catalog import items
from antipode.reproduction.plan import PlannedRun
from claims_pictures import draw_all
from claims_text import page, summary

IMAGES = (512, 256)  # train and test
EPOCHS = 10  # of the plan for one epoch of the rehearsal
LONGEST = 8  # epochs
BATCH = 256  # at most
BANK = 1024  # negatives of a bank, at most: steps are timed after it is full
SLIM = "resnet10-slim"


def drawn(root: Path | None, download: bool, seed: int) -> Splits:
    """A few drawn images in place of CIFAR-10."""
    train, test = (
        Memory(*shapes.draw(count, seed=0, split=split), classes=list(shapes.KINDS))
        for split, count in zip(("train", "test"), IMAGES, strict=True)
    )
    return Splits("cifar10", train, train, test, 32, (0.5, 0.5, 0.5), (0.3, 0.3, 0.3))


def shortened(planned: PlannedRun) -> PlannedRun:
    """Return a run with a small recipe; its folder keeps the name."""
    if planned.recipe is None:
        return planned
    train = planned.recipe.train
    changes: dict[str, Any] = {
        "backbone.name": SLIM,
        "train.epochs": max(1, min(LONGEST, train.epochs // EPOCHS)),
        "train.batch": min(train.batch, BATCH),
    }
    if train.checkpoint_every:
        changes["train.checkpoint_every"] = 1
    # a short run still records what items read
    changes |= {key: 1 for key in planned.overrides if key.startswith("monitor.")}
    bank = planned.recipe.leaves().get("method.bank")
    if isinstance(bank, int):
        changes["method.bank"] = min(BANK, bank)
    overrides = {**planned.overrides, **changes}
    recipe = resolve(planned.trial.recipe, overrides=overrides, flags={"train.seed": planned.seed})
    return replace(planned, recipe=recipe, overrides=overrides)


def small_scenes() -> dict[str, Any]:
    """Return the detectors of the smallest scale under the names of scale small."""
    some = {name: row for name, row in scenes.SLIM.items() if name.endswith("-smoke")}
    return some | {name.replace("-smoke", "-small"): row for name, row in some.items()}


def attempt(wanted: claims.Wanted, out: Path) -> str:
    """Train and measure a run; return a sentence if that fails."""
    begin = time.perf_counter()
    try:
        claims.finish(wanted, 1, out, True)
    except Exception as error:  # any error of a run is what is looked for
        complaint = f"{wanted.planned.label}: {type(error).__name__}: {error}"
        print(f"  FAILED {complaint}", flush=True)
        return complaint
    print(f"  {time.perf_counter() - begin:.0f} s", flush=True)
    return ""


def judged(folder: Path, chosen: set[str], seeds: int, complaints: list[str]) -> None:
    """Judge the claims of some items, write the page and the pictures, and add complaints."""
    lines = claims.read_lines(folder / "claims.jsonl")
    with patch.object(claims_page, "SEEDS", seeds):
        found = claims_page.gather(lines)
        results = [one for one in claims_page.judge(found) if one.name in chosen]
    complaints += [
        f"{claim.name}: not judged: {claim.law.text} ({claim.verdict.text})"
        for claim in results
        if claim.seeds == 0
    ]
    (folder / "claims.md").write_text(page(results))
    draw_all(results, found, folder / "pictures")
    print(summary(results), f"; see {folder}", sep="")


def rehearse(patterns: list[str], seeds: int, folder: Path) -> list[str]:
    """Return what went wrong."""
    runs = claims.wanted_runs(patterns, seeds, folder / "runs")
    complaints: list[str] = []
    with patch.dict(sources.SETS, cifar10=drawn), patch.object(scenes, "SLIM", small_scenes()):
        for number, wanted in enumerate(runs):
            print(f"{number + 1} of {len(runs)}: {wanted.planned.label}", flush=True)
            wanted.planned = shortened(wanted.planned)
            complaints += [text] if (text := attempt(wanted, folder / "claims.jsonl")) else []
    judged(folder, matching(patterns), seeds, complaints)
    return complaints


def matching(patterns: list[str]) -> set[str]:
    """Return the names of the items that match a pattern."""
    return {name for name in items() if any(fnmatch.fnmatch(name, p) for p in patterns)}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", default=["*"], metavar="ITEM")
    parser.add_argument("--seeds", type=int, default=1, help="seeds of the headline claims")
    parser.add_argument("--folder", type=Path, help="where results are kept; by default temporary")
    args = parser.parse_args()
    torch.set_num_threads(1)
    folder = (args.folder or Path(tempfile.mkdtemp(prefix="rehearsal-"))).absolute()
    folder.mkdir(parents=True, exist_ok=True)
    complaints = rehearse(args.only, args.seeds, folder)
    print("\n".join(complaints) or "nothing went wrong")
    sys.exit(bool(complaints))


if __name__ == "__main__":
    main()
