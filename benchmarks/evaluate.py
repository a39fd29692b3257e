"""Compare our kNN and logistic regression on frozen features with lightly's and scikit-learn's.

    python benchmarks/evaluate.py --out benchmarks/results/evaluate.json
    python benchmarks/evaluate.py --train 2000 --test 500 --rounds 1        # a quick trial
    python benchmarks/evaluate.py --device cuda --side ours lightly

The features are seeded: 50,000 train and 10,000 test images, 512 wide, 10 classes, correlated and
non-negative like those of a ResNet.

- kNN: the classes of all test images by k = 200 neighbours with weight exp(cosine/.07). lightly's
  knn_predict gets unit features and 512 queries at a time. scikit-learn's classifier uses brute
  force with a weight of the same form.
- Logistic regression: one fit with one penalty. Ours includes the rotation of the features.
  scikit-learn fits standardised features with its default tolerance, which is looser. A second row
  of ours is the whole protocol: 15 penalties in 3 folds.

The sides take turns within a round and use all cores. The best round of each side counts.
"""

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from antipode.evaluation.frame import standard, turned
from antipode.evaluation.logistic import GRID, Rows, classify, fit, logits
from antipode.functional import knn
from antipode.types import Features
from machine import CORES, surroundings

K = 200
TAU = 0.07
PENALTY = 1e-3
Side = Callable[[], Tensor]  # one measurement: returns the predicted classes (N,)


class Work(NamedTuple):
    """What every side has to do."""

    train: Features
    test: Features
    classes: int
    device: str


def features(n: int, width: int, classes: int, seed: int) -> Features:
    """Return features (N,D) of overlapping classes with unequal variances, clipped at zero."""
    common = torch.Generator().manual_seed(0)  # the same classes for train and test
    generator = torch.Generator().manual_seed(seed)
    centres = torch.randn(classes, width, generator=common)
    mix = torch.randn(width, width, generator=common) / width**0.5
    y = torch.randint(classes, (n,), generator=generator)
    noise = torch.randn(n, width, generator=generator)
    z = (0.25 * centres[y] + noise) * torch.arange(1, width + 1) ** -0.5
    return Features((z @ mix).relu_(), y)


# kNN


def our_knn(work: Work) -> dict[str, Side]:
    queries = work.test.x.to(work.device)

    def predict() -> Tensor:
        bank = work.train.x.to(work.device)
        return knn(bank, work.train.y, queries, k=K, tau=TAU).argmax(1).cpu()

    return {"ours": predict}


def lightly_knn(work: Work) -> dict[str, Side]:
    from lightly.utils.benchmarking import knn_predict

    queries = torch.nn.functional.normalize(work.test.x.to(work.device), dim=1)
    labels = work.train.y.to(work.device)

    def predict() -> Tensor:
        bank = torch.nn.functional.normalize(work.train.x.to(work.device), dim=1).T.contiguous()
        rows = [
            knn_predict(part, bank, labels, work.classes, K, TAU)[:, 0]
            for part in torch.split(queries, 512)
        ]
        return torch.cat(rows).cpu()

    return {"lightly": predict}


def sklearn_knn(work: Work) -> dict[str, Side]:
    from sklearn.neighbors import KNeighborsClassifier

    x = work.train.x.numpy()
    y = work.train.y.numpy()
    queries = work.test.x.numpy()

    def weight(distance: Any) -> Any:
        return np.exp((1 - distance) / TAU)

    def predict() -> Tensor:
        model = KNeighborsClassifier(
            K, algorithm="brute", metric="cosine", weights=weight, n_jobs=-1
        )
        return torch.from_numpy(model.fit(x, y).predict(queries))

    return {"scikit-learn": predict}


# Logistic regression


def our_logistic(work: Work) -> dict[str, Side]:
    train, test = work.train, work.test

    def one_fit() -> Tensor:
        frame = standard(train.x, work.device)
        start = torch.zeros(train.x.shape[1] + 1, work.classes, dtype=torch.float64)
        x = turned(train.x, frame)
        rows = Rows(x, train.y.to(work.device), torch.device(work.device))
        theta = fit(rows, [slice(0, len(x))], frame.spread, PENALTY, start)
        return logits(turned(test.x, frame), theta).argmax(1).cpu()

    def protocol() -> Tensor:
        # correct images get their class, the others -1
        return torch.where(classify(train, test, device=work.device).ranks == 0, test.y, -1)

    return {"ours": one_fit, f"ours, the whole protocol ({3 * len(GRID) + 1} fits)": protocol}


def sklearn_logistic(work: Work) -> dict[str, Side]:
    from sklearn.linear_model import LogisticRegression
    from sklearn.preprocessing import StandardScaler

    x = work.train.x.numpy()
    y = work.train.y.numpy()
    queries = work.test.x.numpy()

    def predict() -> Tensor:
        scaler = StandardScaler().fit(x)
        model = LogisticRegression(C=1 / (len(x) * PENALTY), max_iter=2000)
        model.fit(scaler.transform(x), y)
        return torch.from_numpy(model.predict(scaler.transform(queries)))

    return {"scikit-learn": predict}


TASKS: dict[str, dict[str, Callable[[Work], dict[str, Side]]]] = {
    "knn": {"ours": our_knn, "lightly": lightly_knn, "scikit-learn": sklearn_knn},
    "logistic": {"ours": our_logistic, "scikit-learn": sklearn_logistic},
}


def timed(side: Side, device: str) -> tuple[float, Tensor]:
    """Return the seconds of one measurement, and its predictions."""
    start = time.perf_counter()
    predictions = side()
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start, predictions


def compare(name: str, work: Work, chosen: list[str], rounds: int) -> dict[str, Any]:
    """Return the best of some rounds for every side; the sides take turns within a round."""
    sides: dict[str, Side] = {}
    missing = []
    for package, make in TASKS[name].items():
        if package in chosen:
            try:
                sides |= make(work)
            except ImportError as error:
                missing.append(f"{package}: {error}")
    best = dict.fromkeys(sides, float("inf"))
    predictions: dict[str, Tensor] = {}
    for _ in range(rounds):
        for side, run in sides.items():
            seconds, predictions[side] = timed(run, work.device)
            best[side] = min(best[side], seconds)
    correct = {
        side: 100 * (classes == work.test.y).double().mean().item()
        for side, classes in predictions.items()
    }
    ours = best.get("ours", float("nan"))
    count, width = work.train.x.shape
    print(f"\n{name}: {count} x {width}, {len(work.test.x)} queries, on {work.device}")
    for side, seconds in best.items():
        ratio = f"it/ours {seconds / ours:7.2f}"
        print(f"  {side:40} {seconds:9.3f} s   {ratio}   {correct[side]:6.2f} % correct")
    for sentence in missing:
        print(f"  not installed: {sentence}")
    return {
        "task": name,
        "seconds": best,
        "over_ours": {side: s / ours for side, s in best.items() if not side.startswith("ours")},
        "percent_right": correct,
        "missing": missing,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--train", type=int, default=50_000, help="number of train images")
    parser.add_argument("--test", type=int, default=10_000, help="number of test images")
    parser.add_argument("--width", type=int, default=512, help="number of features")
    parser.add_argument("--classes", type=int, default=10)
    parser.add_argument("--task", nargs="+", default=list(TASKS), choices=list(TASKS))
    parser.add_argument("--side", nargs="+", default=list(TASKS["knn"]), choices=list(TASKS["knn"]))
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--rounds", type=int, default=3, help="rounds, of which the best counts")
    parser.add_argument("--out", type=Path, help="the JSON file to write")
    args = parser.parse_args()
    torch.set_num_threads(CORES)
    train = features(args.train, args.width, args.classes, seed=1)
    test = features(args.test, args.width, args.classes, seed=2)
    work = Work(train, test, args.classes, args.device)
    report: dict[str, Any] = {
        "surroundings": surroundings("torch", "lightly", "scikit-learn", "numpy"),
        "train": args.train,
        "test": args.test,
        "width": args.width,
        "classes": args.classes,
        "device": args.device,
        "results": [],
    }
    print(report["surroundings"])
    for name in args.task:
        report["results"].append(compare(name, work, args.side, args.rounds))
    if args.out:
        args.out.write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
