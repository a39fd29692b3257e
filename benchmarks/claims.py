"""Train the runs of all items at scale small on CIFAR-10; keep one JSON line per finished run.

    python benchmarks/claims.py --list                              # runs in order, finished or not
    python benchmarks/claims.py --jobs 4 --minutes 9 --folder /tmp/claims --out new.jsonl
    python benchmarks/claims.py --only 'dcl.*' --headlines          # only the headlines of an item
    python benchmarks/claims_page.py                                # judge the claims

Items share runs. The runs of the papers' headline claims come first, then those of the other items
from the cheapest to the most expensive item, then the other seeds of the headlines. A run is
finished if results/claims.jsonl or --out has a line with its name and with all of its measures. The
name has a digest of the recipe, so a run whose recipe has changed since is trained again.

--jobs trains several runs at a time, each in its own process, as `antipode sweep --at-once` does.
Unlike there, each process may use the whole GPU: for a part of it, libraries choose other
algorithms, and some of those have been wrong. The times of such runs cannot be compared, so runs
whose training steps are timed are left to a call with --jobs 1. After --minutes, the runs under way
write a checkpoint and stop; the same command with the same --folder resumes them, and repeats runs
that have failed after all others. The environment variable ANTIPODE_DATA names the folder with
CIFAR-10.
"""

import argparse
import fnmatch
import json
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch

from accuracy import facts
from antipode.data.sources.catalog import load
from antipode.devices import pick_device
from antipode.exits import terminable
from antipode.launch.local import perform
from antipode.launch.mps import PERCENTAGE
from antipode.launch.task import Task
from antipode.reproduction.catalog import items
from antipode.reproduction.collect import over_epochs, score_key
from antipode.reproduction.item import Cells, Item, Law, Measure, Place, Trial, score
from antipode.reproduction.make import train
from antipode.reproduction.measure import measure_run
from antipode.reproduction.plan import H200, Plan, PlannedRun, make_plan
from antipode.runs.run import Run
from antipode.threads import cores

BEGAN = time.monotonic()
DONE = Path(__file__).parent / "results" / "claims.jsonl"
SCALE = "small"
SEEDS = 3  # of the headline claims
# metrics of the last step that a line keeps
KEPT = ("loss", "spread", "rank", "uniformity", "similarity", "negative", "bank_drift")
# How much longer a run takes with small batches, measured on one H200 (RESULTS.md).
SLOWER = {32: 2.4, 64: 1.6, 128: 1.2}
# The first part of the rank of a run.
HEADLINES, OTHERS, MORE_SEEDS = 0.0, 1.0, 2.0
START = 40.0  # seconds to compile and evaluate a run
FAILED = "failed.txt"  # in the folder of a run that has failed
# Further scores of every trained run that has scores. They take a few seconds, and a claim that
# needs one of them later then needs no training.
FURTHER = tuple(map(score, ("knn", "knn-head", "linear-fast")))


@dataclass
class Wanted:
    """A run that items need.

    Args:
        planned: the run.
        plan: the plan of the first item that needs it.
        measures: what the items measure on it.
        items: the names of the items.
        rank: the runs are trained in the order of their ranks.
    """

    planned: PlannedRun
    plan: Plan
    measures: list[Measure] = field(default_factory=list)
    items: list[str] = field(default_factory=list)
    rank: tuple[float, ...] = (MORE_SEEDS + 1,)

    @property
    def name(self) -> str:
        """The name of the run, with the digest of its recipe."""
        return self.planned.folder.name

    @property
    def timed(self) -> bool:
        """True if the run is timed, and so must have the GPU for itself."""
        return any(measure.name == "cost" for measure in self.measures)

    @property
    def seconds(self) -> float:
        """An estimate of the time on one H200."""
        recipe = self.planned.recipe
        if recipe is None:
            return START
        return START + self.planned.work / H200 * SLOWER.get(recipe.train.batch, 1.0)


def wanted_runs(patterns: Iterable[str], seeds: int, out: Path) -> list[Wanted]:
    """Return the runs of the items whose names match a pattern, in the order of training.

    A run has the measures of all items that share it. Detectors are trained, and steps are timed,
    for one seed only. The device is that of this process, so that a run without its GPU fails and
    does not use the CPU.
    """
    runs: dict[Path, Wanted] = {}
    device = pick_device("auto").type
    plans = {name: make_plan(name, SCALE, out, seeds=seeds, device=device) for name in items()}
    for name, plan in plans.items():
        main = headline_trials(plan.item)
        cost = sum(planned.work for planned in plan.runs if planned.seed == 0)
        for index, (trial, of_trial) in enumerate(plan.trials):
            once = index not in main or any(measure.name == "cost" for measure in trial.measures)
            for planned in of_trial[:1] if once else of_trial:
                wanted = runs.setdefault(planned.folder, Wanted(planned, plan))
                wanted.items += [name] if name not in wanted.items else []
                wanted.rank = min(wanted.rank, rank_of(planned, index in main, cost))
    for trial, of_trial in (pair for plan in plans.values() for pair in plan.trials):
        for planned in of_trial:
            if planned.folder in runs:
                measures = runs[planned.folder].measures
                shared = [m for m in trial.measures if not planned.seed or m.kind != "scenes"]
                measures += [measure for measure in shared if measure not in measures]
    names = {name for name in items() if any(fnmatch.fnmatch(name, p) for p in patterns)}
    chosen = [wanted for wanted in runs.values() if names & {*wanted.items}]
    return sorted(chosen, key=lambda wanted: wanted.rank)


def rank_of(planned: PlannedRun, headline: bool, cost: float) -> tuple[float, ...]:
    """Return the rank of a run.

    The first seed of the headlines comes first, then the other items by their cost, then the other
    seeds of the headlines.
    """
    if planned.seed:
        return MORE_SEEDS, float(planned.seed), planned.work
    return HEADLINES if headline else OTHERS, cost, planned.work


def headline_trials(item: Item) -> set[int]:
    """Return the indices of the trials whose numbers the headline laws of an item use."""
    trials = item.grids[SCALE].trials
    cells = {place: [80.0 + index / 100] for index, place in enumerate(places(trials))}
    used = {
        place
        for law in item.laws_at(SCALE)
        if law.headline
        for place in cells
        if depends(law, cells, place)
    }
    return {index for index, trial in enumerate(trials) if used & {*places([trial])}}


def places(trials: Iterable[Trial]) -> list[Place]:
    """Return all places of some trials. A curve has one point, at 1."""
    found: dict[Place, None] = {}
    for trial in trials:
        for measure in trial.measures:
            panel, row, column = trial.place(measure)
            curve = measure.kind == "metric" or measure.pick.startswith(("curves", "histograms"))
            found[panel, row, 1.0 if curve else column] = None
    return [*found]


def depends(law: Law, cells: Cells, place: Place) -> bool:
    """Return True if the verdict on a law changes with the number at a place."""
    before = law.check(cells)
    return any(law.check({**cells, place: [value]}) != before for value in (1.0, 160.0))


# The lines of finished runs


def read_lines(*files: Path) -> dict[str, dict[str, Any]]:
    """Return the lines of some files by the name of their run. The last line of a run counts."""
    texts = [text for file in files if file.exists() for text in file.read_text().splitlines()]
    lines = [line for text in texts if (line := _parsed(text))]
    return {line["run"]: line for line in lines}


def _parsed(text: str) -> dict[str, Any]:
    """Return a line, empty if it was cut off while it was written."""
    try:
        return dict(json.loads(text)) if text else {}
    except json.JSONDecodeError:
        print(f"left out a damaged line: {text[:60]}...", file=sys.stderr)
        return {}


def is_finished(wanted: Wanted, lines: Mapping[str, Mapping[str, Any]]) -> bool:
    """Return True if there is a line of a run with all of its measures."""
    line = lines.get(wanted.name)
    return line is not None and not missing(wanted, line)


def missing(wanted: Wanted, line: Mapping[str, Any]) -> list[str]:
    """Return the names of the measures of a run that its line does not have."""
    return [measure.name for measure in wanted.measures if not has(wanted.planned, measure, line)]


def has(planned: PlannedRun, measure: Measure, line: Mapping[str, Any]) -> bool:
    """Return True if the line of a run has a measure."""
    if measure.kind == "parameters":
        return True  # counted without a run
    part = {"analysis": "analysis", "metric": "metrics"}.get(measure.kind, "scores")
    content = line[part].get(key_of(planned, measure))
    for name in measure.pick.split(".", 1) if content is not None and measure.pick else ():
        content = content.get(name)
    return content is not None


def key_of(planned: PlannedRun, measure: Measure) -> str:
    """Return the name under which a run stores a measure."""
    return score_key(planned, measure) if measure.kind == "score" else measure.name


def restore(lines: Mapping[str, Mapping[str, Any]], out: Path) -> None:
    """Write the results of finished runs in run folders, for `collect`."""
    for name, line in lines.items():
        folder = out / "runs" / name
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "scores.json").write_text(json.dumps(line["scores"]))
        (folder / "analysis.json").write_text(json.dumps(line["analysis"]))
        rows = [
            {"step": int(x), "epoch": x - 1, name: y}
            for name, curve in line["metrics"].items()
            for x, y in zip(curve["x"], curve["y"], strict=True)
        ]
        (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


# Training


def data_problem() -> str:
    """Return why CIFAR-10 cannot be read, empty if it can: each run would fail on its own."""
    try:
        load("cifar10")
    except (OSError, ValueError, RuntimeError) as error:
        return str(error)
    return ""


def finish(wanted: Wanted, jobs: int, out: Path, quiet: bool) -> None:
    """Train and measure a run, append its line to `out`, and remove its folder.

    Detectors on scenes take longer than all other measures, so a line without them comes first.
    """
    torch.set_num_threads(max(1, cores() // jobs))
    torch.compiler.reset()  # the compiler also counts what it compiled for other runs
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    planned = wanted.planned
    start = time.perf_counter()
    run = train(planned, quiet)
    trained = time.perf_counter() - start
    fast = [measure for measure in wanted.measures if measure.kind != "scenes"]
    if planned.recipe is not None and any(measure.kind == "score" for measure in fast):
        fast += FURTHER
    scenes = [measure for measure in wanted.measures if measure.kind == "scenes"]
    for measures in (part for part in (fast, scenes) if part):
        measure_run(wanted.plan, planned, run, measures, wanted.plan.device)
        seconds = {"training": trained, "all": time.perf_counter() - start}
        line = line_of(wanted, run, seconds, jobs)
        with out.open("a") as file:
            file.write(json.dumps(line) + "\n")
    scores = ", ".join(f"{key} {score['value']:.2f}" for key, score in line["scores"].items())
    print(f"{planned.label}: {scores}; {seconds['all']:.0f} s", flush=True)
    shutil.rmtree(planned.folder, ignore_errors=True)


def attempt(wanted: Wanted, jobs: int, out: Path, quiet: bool) -> None:
    """Finish a run; if it fails, leave a note in its folder."""
    try:
        finish(wanted, jobs, out, quiet)
    except Exception as error:
        wanted.planned.folder.mkdir(parents=True, exist_ok=True)
        (wanted.planned.folder / FAILED).write_text(f"{type(error).__name__}: {error}\n")
        raise


def has_failed(wanted: Wanted) -> bool:
    """Return True if an earlier call with the same folder could not finish a run."""
    return (wanted.planned.folder / FAILED).exists()


def line_of(wanted: Wanted, run: Run, seconds: dict[str, float], jobs: int) -> dict[str, Any]:
    """Return the line of a run with all that was measured on it so far."""
    planned = wanted.planned
    rows = run.metrics() if planned.recipe is not None else []
    steps = [row for row in rows if "loss" in row]
    return {
        "run": wanted.name,
        "recipe": planned.trial.recipe,
        "set": dict(planned.trial.overrides),
        "seed": planned.seed,
        "items": wanted.items,
        "scores": run.scores,
        "analysis": run.folder.read_json("analysis.json"),
        "metrics": {
            measure.name: over_epochs(rows, measure.name)
            for measure in wanted.measures
            if measure.kind == "metric"
        },
        "last": {key: steps[-1][key] for key in KEPT if key in steps[-1]} if steps else {},
        "seconds": seconds,
        "jobs": jobs,
        **facts(),
    }


def train_all(runs: list[Wanted], jobs: int, minutes: float, out: Path) -> None:
    """Train runs, `jobs` at a time, for some minutes; runs that are under way then stop."""
    tasks = [
        Task(
            wanted.planned.label,
            wanted.planned.folder,
            partial(attempt, wanted, jobs, out),
            wanted.planned.work,
        )
        for wanted in sorted(runs, key=has_failed)
    ]
    left = max(0.0, 60 * minutes - (time.monotonic() - BEGAN))
    # not SIGINT, which a command in the background of a shell script ignores
    clock = threading.Timer(left, os.kill, (os.getpid(), signal.SIGTERM))
    clock.daemon = True
    try:
        with terminable():
            clock.start()
            try:
                for sentence in perform(tasks, at_once=jobs).values():
                    print(f"FAILED {sentence}", flush=True)
            finally:
                clock.cancel()
    except KeyboardInterrupt:
        print("stopped; the same command with the same --folder resumes the runs", flush=True)


def read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--only", nargs="+", default=["*"], metavar="ITEM", help="names or patterns of items")
    add("--seeds", type=int, default=SEEDS, help="seeds of the headline claims")
    add("--jobs", type=int, default=1, help="runs at a time, each in its own process")
    add("--minutes", type=float, default=1e6, help="stop after this time")
    add("--folder", type=Path, help="the folder of runs; given again, it resumes stopped runs")
    add("--out", type=Path, default=DONE, help="the file that lines are appended to")
    add("--headlines", action="store_true", help="only the runs of headline claims")
    add("--match", default="", metavar="TEXT", help="only the runs with this text in --list")
    add("--list", action="store_true", help="only list the runs")
    return parser.parse_args()


def main() -> None:
    args = read_arguments()
    if not args.list and (problem := data_problem()):
        sys.exit(problem)
    temporary = None if args.folder else tempfile.mkdtemp(prefix="claims-")
    runs = wanted_runs(args.only, args.seeds, Path(temporary or args.folder).absolute())
    if not runs:
        sys.exit(f"no item is called {args.only[0]!r}; the names are {', '.join(items())}")
    if args.headlines:
        runs = [run for run in runs if run.rank[0] != OTHERS]
    runs = [run for run in runs if args.match in run.planned.label]
    lines = read_lines(DONE, args.out)
    todo = [run for run in runs if not is_finished(run, lines)]
    if args.list:
        for run in runs:
            state = f"about {run.seconds:.0f} s" if run in todo else "finished"
            print(f"{state:12} {run.planned.label}  ({', '.join(run.items)})")
    hours = sum(run.seconds for run in todo) / 3600
    print(f"{len(todo)} of {len(runs)} runs to train, about {hours:.1f} h on one H200", flush=True)
    if not args.list:
        together = [run for run in todo if not (run.timed and args.jobs > 1)]
        if len(together) < len(todo):
            print(f"{len(todo) - len(together)} runs are timed and need --jobs 1", flush=True)
        # each run starts so many processes that compile; by default one per core
        os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", str(max(1, cores() // args.jobs)))
        os.environ.setdefault(PERCENTAGE, "100")
        train_all(together, args.jobs, args.minutes, args.out)
    if temporary:
        shutil.rmtree(temporary, ignore_errors=True)


if __name__ == "__main__":
    main()
