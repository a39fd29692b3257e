"""Measure accuracy on CIFAR-10. Train the runs of entries.py; write one JSON line per finished run.

    python benchmarks/accuracy.py --list                         # all runs, finished or not
    python benchmarks/accuracy.py --minutes 9 --out new.jsonl    # missing runs that fit 9 minutes
    python benchmarks/accuracy.py --only 'dcl-*' --seed 1        # some runs with another seed
    python benchmarks/accuracy.py --only mocov2 --validate --set method.tau=0.1  # try a value
    python benchmarks/accuracy.py --jobs 2                       # two runs at a time
    python benchmarks/tables.py                                  # make RESULTS.md and its pictures

A run is finished if results/accuracy.jsonl or --out has a line with the same values as the current
recipe. Scores are those of the last epoch, on the test split. The line of a run is written again
after each score, so that an interrupted evaluation loses no score; the last line counts.

With --validate a tenth of the train images is held out before pretraining, and the scores are
measured on it; values of recipes are chosen that way. The line of a run with a trained bank has its
drift and the cosines of queries with it in `bank`. With --jobs one run compiles while another
trains. The times of these runs cannot be compared, and `beside` in their lines is the number of
other runs. The environment variable ANTIPODE_DATA names the folder with CIFAR-10.
"""

import argparse
import fnmatch
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

import antipode
from antipode.analysis import run as analyses
from antipode.data.sources import catalog
from antipode.data.sources.source import subset
from antipode.data.sources.splits import Splits
from antipode.names import unknown
from antipode.recipe import opening
from antipode.recipe.recipe import HARMLESS
from antipode.recipe.resolve import resolve
from antipode.runs import run as runs
from antipode.training import pretrain as training
from entries import ENTRIES, QUICK, Entry
from machine import commit

DONE = Path(__file__).parent / "results" / "accuracy.jsonl"
# metrics of the last step that a line keeps
KEPT = ("loss", "spread", "rank", "uniformity", "similarity", "negative", "bank_drift")
CHECKS = 100  # steps between two checks of a run


def read_lines(*files: Path) -> list[dict[str, Any]]:
    """Return the last line of each combination of run, seed and values in some files."""
    last = {}
    for file in files:
        for text in file.read_text().splitlines() if file.exists() else []:
            if text:
                line = {"values": {}} | json.loads(text)  # older lines have no values
                last[line["run"], line["seed"], json.dumps(line["values"])] = line
    return list(last.values())


def values_of(entry: Entry) -> dict[str, Any]:
    """Return the values of an entry that affect its weights, except the seed, in JSON types."""
    flags = {"train.epochs": entry.epochs, "train.batch": entry.batch}
    leaves = resolve(entry.recipe, overrides=entry.values, flags=flags).leaves()
    kept = {key: value for key, value in leaves.items() if key not in (*HARMLESS, "train.seed")}
    return dict(json.loads(json.dumps(kept)))


def changed(then: dict[str, Any], now: dict[str, Any]) -> dict[str, Any]:
    """Return the values of a run that its recipe no longer has.

    A key that only one of the two has is ignored.
    """
    return {key: value for key, value in then.items() if key in now and now[key] != value}


def finished(name: str, entry: Entry, lines: list[dict[str, Any]]) -> bool:
    """Return True if a line of this run has its current values.

    The line must name the values that the entry sets itself.
    """
    now = values_of(entry)
    asked = entry.values.keys()
    of_run = [line["values"] for line in lines if line["run"] == name]
    return any(asked <= values.keys() and not changed(values, now) for values in of_run)


def train(name: str, entry: Entry, seed: int) -> Iterator[dict[str, Any]]:
    """Train and score one entry; yield its line after each score."""
    torch.compiler.reset()  # the compiler also counts what it compiled for other learners
    cuda = torch.cuda.is_available()
    if cuda:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    out = Path(tempfile.mkdtemp(prefix=f"{name}-"))
    start = time.perf_counter()
    values = {
        "monitor.log_every": 50,
        "monitor.health_every": CHECKS,
        "train.checkpoint_every": entry.epochs,
        **entry.values,
    }
    run = antipode.pretrain(
        entry.recipe,
        epochs=entry.epochs,
        batch=entry.batch,
        seed=seed,
        out=out,
        overrides=values,
        quiet=True,
    )
    seconds = time.perf_counter() - start
    memory = torch.cuda.max_memory_allocated() if cuda else 0
    rows = [row for row in run.metrics() if "loss" in row]
    speed = sorted(row["images_per_second"] for row in rows)[len(rows) // 2]
    line = {
        "run": name,
        "recipe": entry.recipe,
        "epochs": entry.epochs,
        "batch": entry.batch,
        "set": entry.values,
        "values": values_of(entry),
        "seed": seed,
        "scores": {},
        "last": {key: rows[-1][key] for key in KEPT if key in rows[-1]},
        "seconds": {"training": seconds},
        "images_per_second": speed,
        "memory_gib": memory / 2**30,
        "command": " ".join(["python", *sys.argv]),
        **facts(),
    }
    if any("bank_drift" in row for row in rows):
        line["bank"] = bank_numbers(run, rows)
    for protocol in entry.protocols:
        scores = antipode.evaluate(run, protocols=[protocol])
        line["scores"] |= {key: score.json() for key, score in scores.items()}
        line["seconds"]["all"] = time.perf_counter() - start
        yield line
    shutil.rmtree(out, ignore_errors=True)


def bank_numbers(run: antipode.Run, rows: list[dict[str, Any]]) -> dict[str, float]:
    """Return how a trained bank moved, and how near it is to the queries at the end.

    Drift is the mean of 1 - cosine between each vector and itself 100 steps before. The cosines
    and the repulsion (docs/analysis.md) are also given for as many fresh keys.
    """
    drift = [row["bank_drift"] for row in rows if "bank_drift" in row]
    (results,) = antipode.analyse(run, ["bank"]).values()
    names = ("mean cosine", "hardest cosine", "repulsion")
    values = results["bank"]["values"]
    return {
        f"drift per {CHECKS} steps, end": drift[-2:][0],  # the last check may come early
        f"drift per {CHECKS} steps, second half": fmean(drift[len(drift) // 2 :]),
        **{
            f"{name}, {kind}": values[f"{name}, {kind}"]
            for name in names
            for kind in ("bank", "fresh keys")
        },
    }


def hold_out() -> None:
    """From now on use every tenth train image as the test split, and hide the real test split."""

    def load(*arguments: Any, **options: Any) -> Splits:
        splits = catalog.load(*arguments, **options)
        held_out = torch.arange(len(splits.train)) % 10 == 0
        train = subset(splits.train, (~held_out).nonzero().flatten())
        test = subset(splits.train, held_out.nonzero().flatten())
        return replace(splits, pretrain=train, train=train, test=test)

    opening.load = load  # data for pretraining
    training.load = load  # data for pretraining by a complete recipe
    runs.load = load  # data for evaluation
    analyses.load = load  # data for analyses


def facts() -> dict[str, Any]:
    """Return device, version, commit and date."""
    return {
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
        "torch": torch.__version__,
        "commit": commit(),
        "date": time.strftime("%Y-%m-%d"),
    }


def entry_for(name: str, entry: Entry, args: argparse.Namespace) -> tuple[str, Entry]:
    """Return an entry as the command line changes it, with the name of the run.

    The name says if the number of epochs differs and if the run is scored on held-out train images.
    """
    if args.epochs and args.epochs != entry.epochs:
        seconds = entry.seconds * args.epochs / entry.epochs
        entry = replace(entry, epochs=args.epochs, seconds=seconds)
        name = f"{name}-{args.epochs}"
    if args.protocol:
        entry = replace(entry, protocols=tuple(args.protocol))
    if args.set:
        pairs = (text.split("=", 1) for text in args.set)
        values = {key: json.loads(value) for key, value in pairs}
        entry = replace(entry, values=entry.values | values)
    return (f"{name} validation" if args.validate else name), entry


def run_in_process(name: str, args: argparse.Namespace, latest: float) -> None:
    """Run one entry in its own process, unless it is later than the time `latest`."""
    if time.perf_counter() > latest:
        print(f"{name}: would take too long", flush=True)
        return
    options = {
        "--epochs": args.epochs,
        "--seed": args.seed,
        "--out": args.out,
        "--beside": args.jobs - 1,
    }
    given = {key: value for key, value in options.items() if value is not None}
    words = [word for key, value in given.items() for word in (key, str(value))]
    for key, values in (("--protocol", args.protocol), ("--set", args.set)):
        words += [key, *values] if values else []
    words += ["--validate"] if args.validate else []
    # Each process gets its share of the cores. Without this, runs that evaluated at the same time
    # took 85 to 205 s where one alone takes 19 to 28 s.
    cores = max(1, (os.cpu_count() or 1) // args.jobs)
    env = {"OMP_NUM_THREADS": str(cores), **os.environ}
    command = [sys.executable, sys.argv[0], "--only", name, *words]
    done = subprocess.run(command, check=False, env=env)
    if done.returncode:
        print(f"{name}: failed with status {done.returncode}", flush=True)


def run_and_record(name: str, entry: Entry, args: argparse.Namespace) -> None:
    """Train and score one entry, and append its line to --out after each score."""
    for line in train(name, entry, args.seed):
        with args.out.open("a") as file:
            file.write(json.dumps(line | {"beside": args.beside}) + "\n")
        scores = ", ".join(f"{key} {score['value']:.2f}" for key, score in line["scores"].items())
        print(f"{name}: {scores}; {line['seconds']['training']:.0f} s of training", flush=True)


def read_arguments(description: str | None, defaults: Mapping[str, Any]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--only", nargs="+", default=["*"], metavar="NAME", help="names or patterns, in order")
    add("--seed", type=int, default=0)
    add("--epochs", type=int, help="epochs of every run; its name then ends in -EPOCHS")
    add("--protocol", nargs="+", help=f"protocols in place of {' and '.join(QUICK)}")
    add("--minutes", type=float, default=1e9, help="start no run that would end later than this")
    add("--out", type=Path, default=DONE, help="the file that lines are appended to")
    add("--set", nargs="+", default=[], metavar="KEY=VALUE", help="values to try")
    add("--validate", action="store_true", help="score on held-out train images")
    add("--jobs", type=int, default=1, help="runs at a time, each in its own process")
    # the number of other runs that share the device, set by --jobs
    add("--beside", type=int, default=0, help=argparse.SUPPRESS)
    add("--list", action="store_true", help="only list the runs")
    parser.set_defaults(**defaults)
    return parser.parse_args()


def main(
    entries: Mapping[str, Entry] = ENTRIES, description: str | None = __doc__, **defaults: Any
) -> argparse.Namespace:
    """Train the missing runs that the command line names; return the arguments.

    `defaults` replace those of the command line.
    """
    args = read_arguments(description, defaults)
    start = time.perf_counter()
    names = [name for pattern in args.only for name in fnmatch.filter(entries, pattern)]
    if not names:
        sys.exit(str(unknown("run", args.only[0], entries)))
    lines = [line for line in read_lines(DONE, args.out) if line["seed"] == args.seed]
    if args.validate:
        hold_out()
    pool = ThreadPoolExecutor(args.jobs)
    for plain in dict.fromkeys(names):
        name, entry = entry_for(plain, entries[plain], args)
        is_finished = finished(name, entry, lines)
        if args.list or is_finished:
            state = "done" if is_finished else f"about {entry.seconds:.0f} s on an H200"
            print(f"{name:22} {state}")
            continue
        latest = start + 60 * args.minutes - entry.seconds
        if args.jobs > 1:
            pool.submit(run_in_process, plain, args, latest)
        elif time.perf_counter() > latest:
            print(f"{name}: {entry.seconds:.0f} s would take too long", flush=True)
        else:
            run_and_record(name, entry, args)
    pool.shutdown()
    return args


if __name__ == "__main__":
    main()
