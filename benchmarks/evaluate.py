"""Evaluation on frozen features: our kNN and logistic regression against lightly's and scikit-learn's, in one run.

    python benchmarks/evaluate.py --out benchmarks/results/evaluate.json
    python benchmarks/evaluate.py --train 2000 --test 500 --rounds 1          # a try
    python benchmarks/evaluate.py --device cuda --side ours lightly

The work: seeded features of 50,000 train and 10,000 test images, 512 wide, 10 classes, correlated and non-negative as
those of a ResNet are. kNN: the classes of all test images by k = 200 neighbours, weight exp(cosine/.07); lightly's
knn_predict gets unit features and 512 queries at a time, scikit-learn's is brute force with a weight of the same form.
Logistic regression: one fit at one penalty, ours with its turn of the features counted, scikit-learn's on standardised
features with its default tolerance, which is looser; and our whole protocol, 15 penalties in 3 folds. The sides take
turns within a round and all cores are theirs; the best of the rounds counts.
"""

import argparse
import json
import os
import platform
import time
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from antipode.evaluation.logistic import GRID, classify, fit, logits, standard, turned
from antipode.functional import knn
from antipode.types import Features

CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
K, TAU, PENALTY = 200, 0.07, 1e-3
Side = Callable[[], Tensor]  # one measurement: the predicted classes (N,)


class Work(NamedTuple):
    train: Features
    test: Features
    classes: int
    device: str


def features(n: int, width: int, classes: int, seed: int) -> Features:
    """Features (N,D) of overlapping classes, spread unevenly over mixed directions, cut off at zero."""
    fixed, own = torch.Generator().manual_seed(0), torch.Generator().manual_seed(seed)
    centres = torch.randn(classes, width, generator=fixed)
    mix = torch.randn(width, width, generator=fixed) / width**0.5
    y = torch.randint(classes, (n,), generator=own)
    z = (0.25 * centres[y] + torch.randn(n, width, generator=own)) * torch.arange(
        1, width + 1
    ) ** -0.5
    return Features((z @ mix).relu_(), y)


# kNN


def our_knn(work: Work) -> dict[str, Side]:
    queries = work.test.x.to(work.device)
    return {
        "ours": lambda: (
            knn(work.train.x.to(work.device), work.train.y, queries, k=K, tau=TAU).argmax(1).cpu()
        )
    }


def lightly_knn(work: Work) -> dict[str, Side]:
    from lightly.utils.benchmarking import knn_predict

    queries = torch.nn.functional.normalize(work.test.x.to(work.device), dim=1)
    labels = work.train.y.to(work.device)

    def predict() -> Tensor:
        bank = torch.nn.functional.normalize(work.train.x.to(work.device), dim=1).T.contiguous()
        few = torch.split(queries, 512)
        return torch.cat(
            [knn_predict(q, bank, labels, work.classes, K, TAU)[:, 0] for q in few]
        ).cpu()

    return {"lightly": predict}


def sklearn_knn(work: Work) -> dict[str, Side]:
    from sklearn.neighbors import KNeighborsClassifier

    x, y, probe = work.train.x.numpy(), work.train.y.numpy(), work.test.x.numpy()

    def weight(distance: Any) -> Any:
        return np.exp((1 - distance) / TAU)

    def predict() -> Tensor:
        model = KNeighborsClassifier(
            K, algorithm="brute", metric="cosine", weights=weight, n_jobs=-1
        )
        return torch.from_numpy(model.fit(x, y).predict(probe))

    return {"scikit-learn": predict}


# Logistic regression


def our_logistic(work: Work) -> dict[str, Side]:
    train, test = work.train, work.test

    def one() -> Tensor:
        frame = standard(train.x, work.device)
        start = torch.zeros(train.x.shape[1] + 1, work.classes, dtype=torch.float64)
        x, y = turned(train.x, frame), train.y.to(work.device)
        theta = fit(x, y, [slice(0, len(x))], frame.spread, PENALTY, start)
        return logits(turned(test.x, frame), theta).argmax(1).cpu()

    def whole() -> Tensor:
        return torch.where(classify(train, test, device=work.device).ranks == 0, test.y, -1)

    return {"ours": one, f"ours, the whole protocol ({3 * len(GRID) + 1} fits)": whole}


def sklearn_logistic(work: Work) -> dict[str, Side]:
    from sklearn.linear_model import LogisticRegression
    from sklearn.preprocessing import StandardScaler

    x, y, probe = work.train.x.numpy(), work.train.y.numpy(), work.test.x.numpy()

    def predict() -> Tensor:
        scaler = StandardScaler().fit(x)
        model = LogisticRegression(C=1 / (len(x) * PENALTY), max_iter=2000).fit(
            scaler.transform(x), y
        )
        return torch.from_numpy(model.predict(scaler.transform(probe)))

    return {"scikit-learn": predict}


TASKS: dict[str, dict[str, Callable[[Work], dict[str, Side]]]] = {
    "knn": {"ours": our_knn, "lightly": lightly_knn, "scikit-learn": sklearn_knn},
    "logistic": {"ours": our_logistic, "scikit-learn": sklearn_logistic},
}


def timed(side: Side, device: str) -> tuple[float, Tensor]:
    start = time.perf_counter()
    found = side()
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start, found


def compare(name: str, work: Work, chosen: list[str], rounds: int) -> dict[str, Any]:
    """The best of some rounds for every side, the sides taking turns within a round."""
    sides: dict[str, Side] = {}
    missing = []
    for side, make in TASKS[name].items():
        if side in chosen:
            try:
                sides |= make(work)
            except ImportError as error:
                missing.append(f"{side}: {error}")
    seconds = dict.fromkeys(sides, float("inf"))
    found: dict[str, Tensor] = {}
    for _ in range(rounds):
        for each, run in sides.items():
            took, found[each] = timed(run, work.device)
            seconds[each] = min(seconds[each], took)
    print(
        f"\n{name}: {len(work.train.x)} x {work.train.x.shape[1]}, {len(work.test.x)} queries, on {work.device}"
    )
    right = {
        each: 100 * (guess == work.test.y).double().mean().item() for each, guess in found.items()
    }
    ours = seconds.get("ours", float("nan"))
    for each, took in seconds.items():
        print(
            f"  {each:40} {took:9.3f} s   it/ours {took / ours:7.2f}   {right[each]:6.2f} % right"
        )
    for sentence in missing:
        print(f"  not there: {sentence}")
    ratios = {each: took / ours for each, took in seconds.items() if not each.startswith("ours")}
    return {
        "task": name,
        "seconds": seconds,
        "over_ours": ratios,
        "percent_right": right,
        "missing": missing,
    }


def surroundings() -> dict[str, Any]:
    found = {}
    for package in ("torch", "lightly", "scikit-learn", "numpy"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "not installed"
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    cpu = platform.processor() or platform.machine()
    return {"cores": CORES, "cpu": cpu, "gpu": gpu, "load": os.getloadavg(), **found}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--train", type=int, default=50_000)
    parser.add_argument("--test", type=int, default=10_000)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--classes", type=int, default=10)
    parser.add_argument("--task", nargs="+", default=list(TASKS), choices=list(TASKS))
    parser.add_argument("--side", nargs="+", default=list(TASKS["knn"]), choices=list(TASKS["knn"]))
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--rounds", type=int, default=3, help="the best of which counts")
    parser.add_argument("--out", type=Path, help="where to write the figures as JSON")
    chosen = parser.parse_args()
    torch.set_num_threads(CORES)
    parts = [
        features(n, chosen.width, chosen.classes, seed)
        for seed, n in ((1, chosen.train), (2, chosen.test))
    ]
    work = Work(*parts, chosen.classes, chosen.device)
    size = {
        "train": chosen.train,
        "test": chosen.test,
        "width": chosen.width,
        "classes": chosen.classes,
    }
    report: dict[str, Any] = {
        "surroundings": surroundings(),
        **size,
        "device": chosen.device,
        "results": [],
    }
    print(report["surroundings"])
    for name in chosen.task:
        report["results"].append(compare(name, work, chosen.side, chosen.rounds))
    if chosen.out:
        chosen.out.write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
