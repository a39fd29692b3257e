"""Accuracy on CIFAR-10: a list of runs, one JSON line for each that is done, so that results grow from visit to visit.

    python benchmarks/accuracy.py --list                            # what there is, what is done, what it would take
    python benchmarks/accuracy.py --minutes 9 --out new.jsonl       # what is missing, in order, as far as the time goes
    python benchmarks/accuracy.py --only 'dcl-*' --seed 1           # some of them, with another seed
    python benchmarks/accuracy.py --only mocov2 --validate --set method.tau=0.1   # to choose a value
    python benchmarks/accuracy.py --jobs 2                          # two at once: one compiles while another trains
    python benchmarks/tables.py                                     # RESULTS.md and its pictures from the lines

Finished runs are those of results/accuracy.jsonl and of --out whose values are still those of the recipe. Scores are of
the last epoch, on the test split. A run's line is written after each score, so that a visit that ends in the middle of
scoring loses none; its last line counts.
With --validate a tenth of the train images is held out before pretraining and scored on instead: values of recipes are
chosen that way. With --jobs the times of a run say nothing, and `beside` in its line says that it was not alone.
ANTIPODE_DATA names the folder with CIFAR-10.
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
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

import antipode
from antipode import api
from antipode.data.sources.source import subset
from antipode.data.sources.splits import Splits
from antipode.recipe.resolve import HARMLESS, resolve

HERE = Path(__file__).parent
DONE = HERE / "results" / "accuracy.jsonl"
QUICK = ("knn", "linear-fast")


@dataclass(frozen=True)
class Entry:
    """One run: a recipe, its epochs and batch, what differs from the recipe, and what it is scored by."""

    recipe: str
    epochs: int = 100
    batch: int = 256
    values: dict[str, Any] = field(default_factory=dict)
    protocols: tuple[str, ...] = QUICK
    seconds: float = (
        150.0  # about what it takes on an H200: a visit starts nothing that it cannot end
    )


def methods() -> dict[str, Entry]:
    """Every method at 100 epochs, batch 256; SiMo is `simo-255-rule` below."""
    eqco = {"method.base": "mocov2", "method.negatives": 256}
    return {
        "simclr": Entry("cifar10.simclr"),
        "dcl": Entry("cifar10.dcl"),
        "mocov2": Entry("cifar10.mocov2"),
        "byol": Entry("cifar10.byol", seconds=240),
        "adco": Entry("cifar10.adco"),
        "dclw": Entry("cifar10.dclw"),
        "eqco": Entry("cifar10.eqco", values=eqco),
        "simsiam": Entry("cifar10.simsiam", seconds=200),
        "adco-symmetric": Entry("cifar10.adco", values={"method.symmetric": True}, seconds=240),
        "jcl": Entry("cifar10.jcl", seconds=260),
        "msbreg-2": Entry("cifar10.msbreg", values={"method.views": 2}, seconds=240),
        "msbreg-4": Entry("cifar10.msbreg", seconds=400),
        "dclw-multicrop": Entry(
            "cifar10.dclw", values={"method.crops": 6}, seconds=300
        ),  # DCL's table 2
    }


def paper() -> dict[str, Entry]:
    """DCL against SimCLR in DCL's own settings (table 1)."""
    found = {}
    for batch, seconds in ((256, 150.0), (32, 400.0)):
        for name in ("simclr", "dcl"):
            found[f"{name}-paper-{batch}"] = Entry(
                f"cifar10.{name}-paper", batch=batch, seconds=seconds
            )
    return found


def rule() -> dict[str, Entry]:
    """SiMo with K negatives, with EqCo's rule and without (EqCo's figure 3)."""
    found = {}
    for k in (16, 255, 4):
        for way, rule in (("rule", True), ("plain", False)):
            values = {
                "method.negatives": k,
                "method.alpha": 256.0 if rule else float(k),
            }  # alpha = K is no margin
            found[f"simo-{k}-{way}"] = Entry("cifar10.simo", values=values)
    own = {
        "method.negatives": 16,
        "method.alpha": 256.0,
        "method.shared": False,
    }  # a draw for each query
    found["simo-16-rule-own"] = Entry("cifar10.simo", values=own)
    return found


ENTRIES = methods() | paper() | rule()


def lines(*files: Path) -> list[dict[str, Any]]:
    """The last line of each run, seed and set of values in some files."""
    found = [
        json.loads(line)
        for file in files
        if file.exists()
        for line in file.read_text().splitlines()
        if line
    ]
    found = [{"values": {}} | line for line in found]  # older lines have none
    return list(
        {(line["run"], line["seed"], json.dumps(line["values"])): line for line in found}.values()
    )


def values_of(entry: Entry) -> dict[str, Any]:
    """All that decides a weight of an entry's run but the seed, by key, as JSON gives it back."""
    flags = {"train.epochs": entry.epochs, "train.batch": entry.batch}
    leaves = resolve(entry.recipe, overrides=entry.values, flags=flags).leaves()
    kept = {key: value for key, value in leaves.items() if key not in (*HARMLESS, "train.seed")}
    return dict(json.loads(json.dumps(kept)))


def changed(then: dict[str, Any], now: dict[str, Any]) -> dict[str, Any]:
    """The values that a run had and its recipe no longer has; a key that only one of them knows says nothing."""
    return {key: value for key, value in then.items() if key in now and now[key] != value}


def finished(name: str, entry: Entry, done: list[dict[str, Any]]) -> bool:
    """Whether one of the lines is of this run with the values that it would have now, and knows those asked for."""
    now, asked = values_of(entry), entry.values.keys()
    of_run = [line["values"] for line in done if line["run"] == name]
    return any(asked <= values.keys() and not changed(values, now) for values in of_run)


def train(name: str, entry: Entry, seed: int) -> Iterator[dict[str, Any]]:
    """Train and score one entry; the line to keep, anew after each score."""
    torch.compiler.reset()  # the compiler counts what it compiled for other learners, too
    cuda = torch.cuda.is_available()
    if cuda:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    out = Path(tempfile.mkdtemp(prefix=f"{name}-"))
    start = time.perf_counter()
    values = {"monitor.log_every": 50, "train.checkpoint_every": entry.epochs, **entry.values}
    run = antipode.pretrain(
        entry.recipe,
        epochs=entry.epochs,
        batch=entry.batch,
        seed=seed,
        out=out,
        overrides=values,
        quiet=True,
    )
    trained, memory = time.perf_counter() - start, torch.cuda.max_memory_allocated() if cuda else 0
    rows = [row for row in run.metrics() if "loss" in row]
    speed = sorted(row["images_per_second"] for row in rows)[len(rows) // 2]
    kept = ("loss", "spread", "rank", "uniformity", "similarity", "negative", "bank_drift")
    line = {
        "run": name,
        "recipe": entry.recipe,
        "epochs": entry.epochs,
        "batch": entry.batch,
        "set": entry.values,
        "values": values_of(entry),
        "seed": seed,
        "scores": {},
        "last": {key: rows[-1][key] for key in kept if key in rows[-1]},
        "seconds": {"training": trained},
        "images_per_second": speed,
        "memory_gib": memory / 2**30,
        "command": " ".join(["python", *sys.argv]),
        **facts(),
    }
    for protocol in entry.protocols:
        scores = antipode.evaluate(run, protocols=[protocol])
        line["scores"] |= {key: score.json() for key, score in scores.items()}
        line["seconds"]["all"] = time.perf_counter() - start
        yield line
    shutil.rmtree(out, ignore_errors=True)


def hold_out() -> None:
    """From now on every tenth train image is the test split, and the real one is out of reach."""
    plain = api.load

    def load(*arguments: Any) -> Splits:
        splits = plain(*arguments)
        held = torch.arange(len(splits.train)) % 10 == 0
        train = subset(splits.train, (~held).nonzero().flatten())
        return replace(
            splits, pretrain=train, train=train, test=subset(splits.train, held.nonzero().flatten())
        )

    api.load = load


def facts() -> dict[str, Any]:
    """Where and with what."""
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
    commit = (
        os.environ.get("ANTIPODE_COMMIT")
        or subprocess.run(
            ["git", "rev-parse", "--short", "HEAD"], check=False, capture_output=True, text=True
        ).stdout.strip()
    )
    return {
        "device": device,
        "torch": torch.__version__,
        "commit": commit,
        "date": time.strftime("%Y-%m-%d"),
    }


def asked(name: str, args: argparse.Namespace) -> tuple[str, Entry]:
    """An entry as the command changes it, under a name that says how long it is and what it is scored on."""
    entry = ENTRIES[name]
    if args.epochs and args.epochs != entry.epochs:
        entry = replace(
            entry, epochs=args.epochs, seconds=entry.seconds * args.epochs / entry.epochs
        )
        name = f"{name}-{args.epochs}"
    if args.protocol:
        entry = replace(entry, protocols=tuple(args.protocol))
    values = dict(text.split("=", 1) for text in args.set)
    if values:
        entry = replace(
            entry, values=entry.values | {key: json.loads(value) for key, value in values.items()}
        )
    return (f"{name} validation" if args.validate else name), entry


def apart(name: str, args: argparse.Namespace, end: float) -> None:
    """One entry in a process of its own, if it can still start before `end`."""
    if time.perf_counter() > end:
        print(f"{name}: would be too long", flush=True)
        return
    same = {
        "--epochs": args.epochs,
        "--seed": args.seed,
        "--out": args.out,
        "--beside": args.jobs - 1,
    }
    words = [word for key, value in same.items() if value is not None for word in (key, str(value))]
    for key, values in (("--protocol", args.protocol), ("--set", args.set)):
        words += [key, *values] if values else []
    words += ["--validate"] if args.validate else []
    # each with its share of the cores: runs that scored at once took 85 to 205 s for what takes one alone 19 to 28
    cores = max(1, (os.cpu_count() or 1) // args.jobs)
    env = {"OMP_NUM_THREADS": str(cores), **os.environ}
    done = subprocess.run([sys.executable, __file__, "--only", name, *words], check=False, env=env)
    if done.returncode:
        print(f"{name}: failed with status {done.returncode}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--only", nargs="+", default=["*"], metavar="NAME", help="names or patterns, in this order"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--epochs", type=int, help="instead of each entry's own; the name then ends in -EPOCHS"
    )
    parser.add_argument("--protocol", nargs="+", help=f"instead of {' and '.join(QUICK)}")
    parser.add_argument(
        "--minutes", type=float, default=1e9, help="start nothing that would end later than this"
    )
    parser.add_argument(
        "--out", type=Path, default=DONE, help="the file that new lines are added to"
    )
    parser.add_argument(
        "--set", nargs="+", default=[], metavar="KEY=VALUE", help="values to try; the line has them"
    )
    parser.add_argument("--validate", action="store_true", help="score on held-out train images")
    parser.add_argument(
        "--jobs", type=int, default=1, help="runs at a time, each in a process of its own"
    )
    parser.add_argument(
        "--beside", type=int, default=0, help=argparse.SUPPRESS
    )  # how many others share the device
    parser.add_argument("--list", action="store_true", help="only say what there is")
    args = parser.parse_args()
    start = time.perf_counter()
    names = [name for pattern in args.only for name in ENTRIES if fnmatch.fnmatch(name, pattern)]
    if not names:
        sys.exit(f"there is no run {args.only[0]!r}: choose from {', '.join(ENTRIES)}")
    done = [line for line in lines(DONE, args.out) if line["seed"] == args.seed]
    if args.validate:
        hold_out()
    pool = ThreadPoolExecutor(args.jobs)
    for plain in dict.fromkeys(names):
        name, entry = asked(plain, args)
        is_done = finished(name, entry, done)
        if args.list or is_done:
            print(f"{name:22} {'done' if is_done else f'about {entry.seconds:.0f} s on an H200'}")
            continue
        end = start + 60 * args.minutes - entry.seconds
        if args.jobs > 1:
            pool.submit(apart, plain, args, end)
        elif time.perf_counter() > end:
            print(f"{name}: {entry.seconds:.0f} s would be too long", flush=True)
        else:
            note(name, entry, args)
    pool.shutdown()


def note(name: str, entry: Entry, args: argparse.Namespace) -> None:
    """Train, score and write down one entry."""
    for line in train(name, entry, args.seed):
        with args.out.open("a") as file:
            file.write(json.dumps(line | {"beside": args.beside}) + "\n")
        shown = ", ".join(f"{key} {score['value']:.2f}" for key, score in line["scores"].items())
        print(f"{name}: {shown}; {line['seconds']['training']:.0f} s of training", flush=True)


if __name__ == "__main__":
    main()
