"""Measure fine-tuning on CIFAR-10 with a share of the labels, from a run and from scratch.

    python benchmarks/finetune.py --run runs/simclr --out benchmarks/results/finetune.jsonl
    python benchmarks/finetune.py --run runs/simclr --share 0.01 --seeds 5  # 1 % of labels alone
    python benchmarks/finetune.py --run runs/simclr --starts frozen         # classifier alone
    python benchmarks/finetune.py --run runs/simclr --validate --lr 0.01    # try a value
    python benchmarks/finetune.py --starts scratch --out lines.jsonl &      # two processes may
    python benchmarks/finetune.py --starts run --out lines.jsonl            # share the work

If --run does not exist, cifar10.simclr is trained there first, for 100 epochs. The images of a
share are drawn from the seed, with the same number for each class, and are the same for all starts.
All starts have the same number of epochs, and each has its own default learning rate. Scores are
those of the last epoch on the 10,000 test images.

One JSON line per training is written to --out, and trainings that it has already are left out.
With --validate, the scores are measured on a tenth of the train images, which is held out first:
values of settings are chosen that way. The environment variable ANTIPODE_DATA names the folder with
CIFAR-10.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import torch

import antipode
from antipode import rng
from antipode.data.sources.catalog import load
from antipode.data.sources.source import subset
from antipode.data.sources.splits import Splits
from antipode.evaluation.semi import balanced
from antipode.recipe.resolve import resolve
from machine import surroundings

SHARES = (0.01, 0.1, 1.0)
STARTS = ("run", "scratch", "frozen")
KEY = ("start", "share", "seed", "epochs", "lr", "validate")


def parsed() -> argparse.Namespace:
    description, _, _ = (__doc__ or "").partition("\n\n")
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--run", type=Path, default=Path("runs/finetune-simclr"))
    parser.add_argument("--method", default="simclr", help="method of a run that does not exist")
    parser.add_argument("--pretrain-epochs", type=int, default=100)
    parser.add_argument("--data", default="cifar10")
    parser.add_argument("--share", type=float, nargs="+", default=SHARES)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--epochs", type=int, help="by default by the number of images")
    parser.add_argument("--lr", type=float, help="learning rate of the run's backbone")
    parser.add_argument("--starts", nargs="+", choices=STARTS, default=["run", "scratch"])
    parser.add_argument("--validate", action="store_true", help="score on held-out train images")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path, help="file for the lines")
    return parser.parse_args()


def held_out(splits: Splits) -> Splits:
    """Return the splits with a tenth of the train images in place of the test images."""
    order = rng.permutation(rng.key("finetune", "validation"), len(splits.train))
    count = len(order) // 10
    parts = (order[count:].sort().values, order[:count].sort().values)
    train, test = (subset(splits.train, part) for part in parts)
    return replace(splits, pretrain=train, train=train, test=test)


def few(splits: Splits, share: float, seed: int) -> Splits:
    """Return the splits with a share of the train images, the same number of each class."""
    assert splits.train.labels is not None
    ids = balanced(splits.train.labels, len(splits.classes or ()), share, seed)
    return replace(splits, train=subset(splits.train, ids))


def trainings(arguments: argparse.Namespace, network: str) -> Iterator[dict[str, Any]]:
    """Yield the start, share and seed of each training."""
    for seed in range(arguments.seeds):
        for share in arguments.share:
            for start in arguments.starts:
                lr = arguments.lr if start == "run" else None
                values = (start, share, seed, arguments.epochs, lr, arguments.validate)
                yield dict(zip(KEY, values, strict=True)) | {"network": network}


def measured(line: dict[str, Any], splits: Splits, run: Path, device: str) -> dict[str, Any]:
    """Train one classifier and return its line."""
    start = f"random:{line['network']}" if line["start"] == "scratch" else run
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        model = antipode.finetune(
            start,
            few(splits, line["share"], line["seed"]),
            Path(folder) / "model",
            epochs=line["epochs"],
            lr=line["lr"],
            freeze=line["start"] == "frozen",
            seed=line["seed"],
            device=device,
            quiet=True,
        )
        score = model.scores["finetune"]
    seconds = time.perf_counter() - began
    return line | {"seconds": round(seconds, 1), "score": score}


def finished(out: Path | None) -> list[dict[str, Any]]:
    """Return the lines of a file."""
    texts = out.read_text().splitlines() if out is not None and out.exists() else []
    return [json.loads(text) for text in texts if text]


def table(lines: list[dict[str, Any]]) -> str:
    """Return the accuracies by share, start and settings, with their deviation over seeds."""
    rows = [
        "| labels | start | epochs | learning rate | top-1 (%) | balanced (%) | seeds | seconds |",
        "|---|---|---|---|---|---|---|---|",
    ]
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for line in lines:
        settings = line["score"]["settings"]
        rate = settings["classifier_lr"] if settings["lr"] is None else settings["lr"]
        key = (line["validate"], line["share"], line["start"], settings["epochs"], rate)
        groups.setdefault(key, []).append(line)
    for (validated, share, start, epochs, rate), group in sorted(groups.items()):
        values = [line["score"]["value"] for line in group]
        spread = f" ± {stdev(values):.2f}" if len(values) > 1 else ""
        even = fmean(line["score"]["more"]["balanced"] for line in group)
        seconds = fmean(line["seconds"] for line in group)
        where = " (validation)" if validated else ""
        rows.append(
            f"| {100 * share:g} %{where} | {start} | {epochs} | {rate:g} | "
            f"{fmean(values):.2f}{spread} | {even:.2f} | {len(values)} | {seconds:.0f} |"
        )
    return "\n".join(rows)


def pretrained(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return network and settings of the run. Train it if it is needed and does not exist.

    Training from scratch needs the name of the network alone.
    """
    recipe = f"{arguments.data}.{arguments.method}"
    exists = (arguments.run / "backbone.safetensors").exists()
    if arguments.starts == ["scratch"] and not exists:
        about = {"method": arguments.method, "run_epochs": arguments.pretrain_epochs}
        return {"network": resolve(recipe).backbone.name, **about}
    if not exists:
        began = time.perf_counter()
        antipode.pretrain(
            recipe,
            epochs=arguments.pretrain_epochs,
            out=arguments.run,
            device=arguments.device,
        )
        print(f"pretraining took {time.perf_counter() - began:.0f} s", flush=True)
    run = antipode.Run(arguments.run)
    about = {"method": run.method, "run_epochs": run.value("train.epochs")}
    return {"network": run.backbone_name, **about}


def main() -> None:
    arguments = parsed()
    splits = load(arguments.data)
    about = surroundings("torch") | pretrained(arguments)
    splits = held_out(splits) if arguments.validate else splits
    lines = finished(arguments.out)
    done = {tuple(line[key] for key in KEY) for line in lines}
    for line in trainings(arguments, about["network"]):
        if tuple(line[key] for key in KEY) in done:
            continue
        result = measured(line, splits, arguments.run, arguments.device) | {"machine": about}
        lines.append(result)
        if arguments.out is not None:
            with arguments.out.open("a") as file:
                file.write(json.dumps(result) + "\n")
        shown = {key: line[key] for key in ("start", "share", "seed")}
        print(shown, f"{result['score']['value']:.2f} %", f"{result['seconds']} s", flush=True)
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
    # another process may have written to the same file
    print(table(finished(arguments.out) if arguments.out else lines))


if __name__ == "__main__":
    main()
