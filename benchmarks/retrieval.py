"""Measure how well scores without labels predict kNN accuracy, over the checkpoints of some runs.

    python benchmarks/retrieval.py shapes                  # slim network, minutes on a CPU
    python benchmarks/retrieval.py cifar10 --minutes 9     # ResNet-18, for a GPU
    python benchmarks/retrieval.py cifar10 --jobs 5 --only simclr dcl mocov2 byol vicreg \\
        --epochs 15 --bank 10000 --out quick.json          # five runs at a time, about 3 minutes
    python benchmarks/retrieval.py shapes --only simclr byol --epochs 4 --out trial.json

Every run is trained once, and several of its checkpoints are scored on the test split by `knn`,
`retrieval`, `alignment-uniformity` and the effective rank of the features. The ranks are those of
unit features of the test images, not centred: of the backbone and of the projection head. The
result has the rank correlations (Spearman, Kendall) of each of these with kNN accuracy:

- `methods`: over all checkpoints of the runs that differ by their method alone;
- `all`: the same with the runs that have unsuitable settings (`VARIANTS`);
- `last`: over the last checkpoint of each run;
- `epochs`: over the checkpoints of one run, as the mean and the minimum over runs.

`without one` is the range of the correlation if any one run is left out. The measures in `LOWER`
are better if they are lower, so their sign is changed. Every run also has a row of epoch 0, the
network before training, which does not count in the correlations.

The file is written after each run. The same command skips the runs that the file already has, and
with --minutes it starts no run after that time. With --jobs, each run is trained by a process of
its own. --bank limits the number of train images among which kNN finds its neighbours.
"""

import argparse
import json
import math
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from scipy.stats import kendalltau, spearmanr

import antipode
from antipode import rng
from antipode.core.scores import unit
from antipode.data.sources.source import subset
from antipode.devices import pick_device
from antipode.evaluation.evaluate import task_for
from antipode.evaluation.protocol import protocols
from antipode.evaluation.task import Task
from antipode.files import finite
from antipode.measures import effective_rank, singular_values
from antipode.training.build import initial_learner
from machine import surroundings

RESULTS = Path(__file__).parent / "results"
METHODS = ("simclr", "dcl", "mocov2", "byol", "simsiam", "barlowtwins", "vicreg")
EPOCHS = {"shapes": 12, "cifar10": 50}
CHECKPOINTS = 6
# settings with which a network learns less, or learns something else
VARIANTS: dict[str, dict[str, tuple[str, dict[str, Any]]]] = {
    "shapes": {
        "simclr-tau1": ("simclr", {"method.tau": 1.0}),
        "simclr-colours": ("simclr", {"views.mix": 0.0, "views.invert": 0.0}),
        "byol-slow": ("byol", {"optim.network.lr": 0.005, "optim.predictor.lr": 0.005}),
    },
    "cifar10": {
        "simclr-tau1": ("simclr", {"method.tau": 1.0}),
        "simclr-colours": ("simclr", {"views.strength": 0.0}),
        "byol-slow": ("byol", {"optim.network.lr": 0.005, "optim.predictor.lr": 0.005}),
    },
}
LOWER = ("alignment", "uniformity")
Row = dict[str, Any]


def entries(data: str) -> dict[str, tuple[str, dict[str, Any]]]:
    """Return method and overrides of every run."""
    return {method: (method, {}) for method in METHODS} | VARIANTS[data]


def train(data: str, method: str, values: dict[str, Any], epochs: int, seed: int) -> antipode.Run:
    """Train one run and keep its checkpoints."""
    every = max(1, epochs // CHECKPOINTS)
    kept = {"train.checkpoint_every": every, "train.keep": epochs, **values}
    out = Path(tempfile.mkdtemp(prefix=f"{method}-"))
    return antipode.pretrain(
        f"{data}.{method}", epochs=epochs, seed=seed, out=out, overrides=kept, quiet=True
    )


def score(task: Task) -> Row:
    """Return all measures of one network."""
    run = {name: protocol.run for name, protocol in protocols().items()}
    geometry = run["alignment-uniformity"](task)
    retrieval = run["retrieval"](task)
    return {
        "knn": run["knn"](task).value,
        "retrieval": retrieval.value,
        "retrieval low": retrieval.low,
        "retrieval high": retrieval.high,
        "chance": retrieval.chance,
        "rank": rank(task.features("test").x),
        "head rank": rank(task.features("test", "head").x),
        "alignment": geometry.value,
        "uniformity": geometry.more["uniformity"],
    }


def rank(x: torch.Tensor) -> float:
    """Return the effective rank of unit features (N,D)."""
    return effective_rank(singular_values(unit(x)))


def limited(task: Task, bank: int | None) -> Task:
    """Return the task with at most `bank` train images, drawn at random."""
    splits = task.splits
    if bank is None or bank >= len(splits.train):
        return task
    chosen = rng.permutation(rng.key("retrieval", "bank"), len(splits.train))[:bank]
    return replace(task, splits=replace(splits, train=subset(splits.train, chosen)))


def rows_of(run: antipode.Run, name: str, method: str, bank: int | None) -> list[Row]:
    """Return the scores before training (epoch 0) and of every checkpoint, the oldest first."""
    device = pick_device("auto")
    task = limited(task_for(run, None, device, run.seed), bank)
    files = {
        int(file.stem.removeprefix("step-")): file
        for file in sorted(run.folder.checkpoints.glob("step-*.pt"))
    }
    initial = initial_learner(run.recipe, task.splits.channels, run.size).eval()
    rows = []
    for step in (0, *files):
        net = (run.learner(files[step]) if step else initial).online.to(device)
        frozen = replace(
            task,
            backbone=net.backbone,
            head=net.head,
            cache=None,
            make_untrained=None,
            computed={},
        )
        epoch = run.recipe.train.epochs * step / max(files)
        rows.append({"run": name, "method": method, "epoch": epoch, **score(frozen)})
    return rows


def correlation(rows: Sequence[Row], measure: str) -> dict[str, float]:
    """Return the rank correlations of a measure with kNN accuracy."""
    sign = -1 if measure in LOWER else 1
    x = [sign * row[measure] for row in rows]
    y = [row["knn"] for row in rows]
    return {"spearman": float(spearmanr(x, y)[0]), "kendall": float(kendalltau(x, y)[0])}


def summary(rows: list[Row], measure: str) -> dict[str, Any]:
    """Return the correlations of one measure with kNN accuracy, as described above."""
    rows = [row for row in rows if row["epoch"]]
    names = list(dict.fromkeys(row["run"] for row in rows))
    groups = {name: [row for row in rows if row["run"] == name] for name in names}
    plain = [name for name in names if name in METHODS]
    of_methods = [row for name in plain for row in groups[name]]
    left_out = [
        correlation([row for row in of_methods if row["run"] != name], measure)["spearman"]
        for name in plain
        if len(plain) > 1
    ]
    within = [correlation(group, measure)["spearman"] for group in groups.values()]
    within = [value for value in within if math.isfinite(value)] or [math.nan]
    return {
        "methods": {"n": len(of_methods), **correlation(of_methods, measure)}
        | ({"without one": [min(left_out), max(left_out)]} if left_out else {}),
        "all": {"n": len(rows), **correlation(rows, measure)},
        "last": {
            "n": len(groups),
            **correlation([group[-1] for group in groups.values()], measure),
        },
        "epochs": {"n": len(within), "mean": sum(within) / len(within), "least": min(within)},
    }


def report(content: dict[str, Any]) -> str:
    """Return the correlations as a table."""
    lines = [
        f"{'':12}{'methods':>18}{'without one':>16}{'all':>16}{'last':>16}{'epochs (least)':>18}"
    ]
    for measure, one in content["correlations"].items():
        pair = {
            kind: f"{one[kind]['spearman']:.2f} / {one[kind]['kendall']:.2f}"
            for kind in ("methods", "all", "last")
        }
        spread = one["methods"].get("without one", [math.nan, math.nan])
        apart = f"{spread[0]:.2f} to {spread[1]:.2f}"
        within = f"{one['epochs']['mean']:.2f} ({one['epochs']['least']:.2f})"
        lines.append(
            f"{measure:12}{pair['methods']:>18}{apart:>16}{pair['all']:>16}{pair['last']:>16}"
            f"{within:>18}"
        )
    return "\n".join(lines)


def measures(rows: list[Row]) -> list[str]:
    """Return the names of the measures that are compared with kNN accuracy."""
    apart = ("run", "method", "epoch", "knn", "chance", "retrieval low", "retrieval high")
    return [name for name in rows[0] if name not in apart]


def parsed() -> argparse.Namespace:
    """Return the arguments of the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", choices=list(EPOCHS))
    parser.add_argument("--only", nargs="+", help="names of runs; by default all")
    parser.add_argument("--epochs", type=int)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--bank", type=int, help="most train images of kNN; by default all")
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time, in processes")
    parser.add_argument("--minutes", type=float, default=math.inf)
    parser.add_argument("--out", type=Path, help="by default results/retrieval-DATA.json")
    return parser.parse_args()


def measured(args: argparse.Namespace, name: str, epochs: int) -> dict[str, Any]:
    """Train one run in this process, and return its rows and seconds."""
    method, values = entries(args.data)[name]
    began = time.perf_counter()
    torch.compiler.reset()  # the compiler also counts what it compiled for other learners
    run = train(args.data, method, values, epochs, args.seed)
    rows = rows_of(run, name, method, args.bank)
    shutil.rmtree(run.path)
    return {"rows": rows, "seconds": {name: time.perf_counter() - began}}


def measured_apart(args: argparse.Namespace, name: str, epochs: int) -> dict[str, Any]:
    """Train one run in a process of its own, and return its rows and seconds."""
    bank = [] if args.bank is None else ["--bank", str(args.bank)]
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "one.json"
        options = ["--only", name, "--epochs", str(epochs), "--seed", str(args.seed), *bank]
        command = [sys.executable, __file__, args.data, *options, "--out", str(file)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        content = json.loads(file.read_text())
    return {"rows": content["rows"], "seconds": content["seconds"]}


def results(
    args: argparse.Namespace, names: Sequence[str], epochs: int
) -> Iterator[dict[str, Any]]:
    """Yield the rows and seconds of each run, as they end."""
    limit = time.perf_counter() + 60 * args.minutes
    if args.jobs == 1:
        for name in names:
            if time.perf_counter() < limit:
                yield measured(args, name, epochs)
        return

    def in_time(name: str) -> dict[str, Any]:
        if time.perf_counter() >= limit:
            return {"rows": [], "seconds": {}}
        return measured_apart(args, name, epochs)

    with ThreadPoolExecutor(args.jobs) as pool:
        for done in as_completed([pool.submit(in_time, name) for name in names]):
            yield done.result()


def main() -> None:
    args = parsed()
    out = args.out or RESULTS / f"retrieval-{args.data}.json"
    epochs = args.epochs or EPOCHS[args.data]
    asked = {"data": args.data, "epochs": epochs, "seed": args.seed, "bank": args.bank}
    content = json.loads(out.read_text()) if out.exists() else {}
    if any(content.get(key) != value for key, value in asked.items()):
        content = {**asked, "seconds": {}, "rows": []}
    names = [name for name in args.only or entries(args.data) if name not in content["seconds"]]
    for one in results(args, names, epochs):
        content["rows"] += one["rows"]
        content["seconds"] |= one["seconds"]
        content["machine"] = surroundings("torch", "antipode")
        if len(content["seconds"]) > 1:
            content["correlations"] = {
                measure: summary(content["rows"], measure) for measure in measures(content["rows"])
            }
        out.write_text(json.dumps(finite(content), indent=1, allow_nan=False) + "\n")
        for name, seconds in one["seconds"].items():
            last = one["rows"][-1]
            shown = ", ".join(f"{key} {last[key]:.3g}" for key in ("knn", "retrieval", "rank"))
            print(f"{name}: {shown} after {seconds:.0f} s", flush=True)
    if "correlations" in content:
        print(report(content))


if __name__ == "__main__":
    main()
