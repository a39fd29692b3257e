"""Measure the time to 90 % kNN accuracy on CIFAR-10, from the start of the process to the score.

    python benchmarks/speedrun.py --recipe cifar10.byol --epochs 200 --seeds 0 1 2 3 4
    python benchmarks/speedrun.py --set optim.network.lr=0.1 --hold-out --seeds 0 1   # tuning
    python benchmarks/speedrun.py --list                                             # all results

Each seed trains in a new process with empty compilation caches, and is scored by the protocol
`knn10` (unweighted, k = 10, cosine) on the test images. No labels are used in training. One JSON
line per seed is appended to --out, so seeds may be measured on several days. With --hold-out every
tenth train image takes the place of the test images; choose values that way.

The `seconds` of a line add up to `all`:

| name | is |
|---|---|
| start | from the start of the process to the first line of Python |
| import | the import of torch and antipode |
| prepare | `pretrain` without its steps: recipe, images, network, last checkpoint |
| compile | the first steps, beyond what the following steps take |
| train | all steps, without `compile` |
| evaluate | `evaluate`, up to the score |

The environment variable ANTIPODE_DATA names the folder with CIFAR-10.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

OUT = Path(__file__).parent / "results" / "speedrun.jsonl"
PROTOCOL = "knn10"
GOAL = 90.0  # % top-1
LOG_EVERY = 100  # steps; the first rows hold the time of compilation
SETTING = ("recipe", "epochs", "batch", "set", "held_out", "warm", "device", "commit")


def measure(args: argparse.Namespace, seed: int, started: float, folder: Path) -> dict[str, Any]:
    """Train and score one seed in this process; return its line.

    `started` is the time at which the process was started, in seconds since the epoch.
    """
    begun = time.time()
    from antipode import evaluate, pretrain

    imported = time.time()
    if args.hold_out:
        from accuracy import hold_out

        hold_out()
    monitor = [f"monitor.log_every={LOG_EVERY}", "monitor.health_every=0"]
    checkpoints = [f"train.checkpoint_every={args.epochs}"] if args.epochs else []
    run = pretrain(
        args.recipe,
        epochs=args.epochs,
        batch=args.batch,
        seed=seed,
        out=folder,
        overrides=[*monitor, *checkpoints, *args.set],
        quiet=True,
    )
    trained = time.time()
    score = evaluate(run, [PROTOCOL])[PROTOCOL]
    scored = time.time()
    seconds = {"start": begun - started, "import": imported - begun}
    seconds |= training_seconds(run.metrics(), run.recipe.train.batch, trained - imported)
    seconds |= {"evaluate": scored - trained, "all": scored - started}
    return {"seed": seed, "score": score.json(), "seconds": seconds, "values": run.recipe.leaves()}


def training_seconds(rows: list[dict[str, Any]], batch: int, whole: float) -> dict[str, float]:
    """Divide the time `whole` of training into preparation, compilation and steps.

    The rows of metrics.jsonl tell how long the steps since the row before took. The first two rows
    hold compilation; the third tells how long their steps would have taken without it.
    """
    rows = [row for row in rows if "loss" in row]
    ends = [row["step"] + 1 for row in rows]
    counts = [end - start for start, end in zip([0, *ends], ends, strict=False)]
    times = [
        count * batch / row["images_per_second"] for count, row in zip(counts, rows, strict=True)
    ]
    compilation = 0.0
    if len(rows) > 2:
        usual = times[2] / counts[2]
        compilation = max(0.0, sum(times[:2]) - usual * sum(counts[:2]))
    steps = sum(times)
    return {"prepare": whole - steps, "compile": compilation, "train": steps - compilation}


def run_seed(args: argparse.Namespace, seed: int) -> dict[str, Any]:
    """Measure one seed in a new process; return its line, with hardware, versions and commit."""
    with tempfile.TemporaryDirectory(prefix="speedrun-") as name:
        folder = Path(name)
        environment = dict(os.environ)
        if not args.warm:
            environment |= {
                "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"),
                "TRITON_CACHE_DIR": str(folder / "triton"),
            }
        command = [sys.executable, __file__, *sys.argv[1:], "--child", str(seed), name]
        started = time.time()
        subprocess.run([*command, repr(started)], env=environment, check=True)
        measured = json.loads((folder / "line.json").read_text())
    return describe(args) | measured


def describe(args: argparse.Namespace) -> dict[str, Any]:
    """Return what was run and where."""
    from accuracy import facts
    from machine import surroundings

    asked = {key: getattr(args, key) for key in ("recipe", "epochs", "batch", "set", "warm")}
    machine = surroundings("torch", "torchvision", "triton", "antipode")
    command = " ".join(["python", *sys.argv])
    return asked | {"held_out": args.hold_out, "command": command} | machine | facts()


def table(lines: list[dict[str, Any]]) -> list[str]:
    """Return one row per setting: its seeds, accuracy and seconds."""
    groups: dict[str, list[dict[str, Any]]] = {}
    for line in lines:
        groups.setdefault(json.dumps([line[key] for key in SETTING]), []).append(line)
    return [summary(group) for group in groups.values()]


def summary(lines: list[dict[str, Any]]) -> str:
    """Return the mean accuracy and the mean times of the seeds of one setting, as one row."""
    first = lines[0]
    values = [line["score"]["value"] for line in lines]
    spread = f" ± {stdev(values):.2f}" if len(values) > 1 else ""
    split = "held-out" if first["held_out"] else "test"
    reached = "reached" if fmean(values) >= GOAL else "missed"
    times = {
        key: fmean(line["seconds"][key] for line in lines) for key in ("all", *first["seconds"])
    }
    parts = ", ".join(f"{key} {value:.1f}" for key, value in times.items())
    words = [first["recipe"], f"epochs={first['epochs']}", f"batch={first['batch']}", *first["set"]]
    seeds = f"seed{'s' if len(lines) > 1 else ''} {' '.join(str(line['seed']) for line in lines)}"
    return (
        f"{' '.join(words)} ({seeds}; {first['device']}): {fmean(values):.2f}{spread} % on "
        f"{split} images, {GOAL:.0f} % {reached}; seconds: {parts}"
    )


def read_lines(file: Path) -> list[dict[str, Any]]:
    """Return the lines of a file of results."""
    texts = file.read_text().splitlines() if file.exists() else []
    return [json.loads(text) for text in texts if text]


def read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--recipe", default="cifar10.byol", help="a listed recipe or a recipe file")
    add("--epochs", type=int, help="number of epochs; by default that of the recipe")
    add("--batch", type=int, help="batch size; by default that of the recipe")
    add("--set", nargs="+", action="extend", default=[], metavar="KEY=VALUE", help="recipe values")
    add("--seeds", type=int, nargs="+", default=[0], help="seeds, one process each")
    add("--hold-out", action="store_true", help="score held-out train images, not test images")
    add("--warm", action="store_true", help="keep the compilation caches of earlier processes")
    add("--out", type=Path, default=OUT, help="the file that lines are appended to")
    add("--list", action="store_true", help="only print the results in --out")
    add("--child", nargs=3, help=argparse.SUPPRESS)  # seed, folder and start of this process
    return parser.parse_args()


def main() -> None:
    args = read_arguments()
    if args.child:
        seed, folder, started = args.child
        line = measure(args, int(seed), float(started), Path(folder) / "run")
        (Path(folder) / "line.json").write_text(json.dumps(line))
        return
    for seed in () if args.list else args.seeds:
        line = run_seed(args, seed)
        with args.out.open("a") as file:
            file.write(json.dumps(line) + "\n")
        print(summary([line]), flush=True)
    for row in table(read_lines(args.out)):
        print(row)


if __name__ == "__main__":
    main()
